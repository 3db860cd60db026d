"""What the scenarios are made of: attention with lengths from the host, and collectives of simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slipstream.device.soft.binding.runtime import active

SIZE, PAGES, PAGE = 8, 4, 8


class Attention:
    """One layer's attention over values 0, 1, 2, ...: its output is their mean, so it tells its length."""

    def __init__(self) -> None:
        self.query = torch.zeros(1, 1, SIZE, device="npu")
        self.key = torch.zeros(PAGES, PAGE, SIZE, device="npu")
        rows = torch.arange(PAGES * PAGE, dtype=torch.float32, device="npu").view(PAGES, PAGE, 1)
        self.value = rows.expand(PAGES, PAGE, SIZE).contiguous()
        self.table = torch.arange(PAGES, dtype=torch.int32, device="npu").view(1, PAGES)
        self.out = torch.zeros(1, 1, SIZE, device="npu")
        self.lse = torch.zeros(0, device="npu")
        self.workspace = torch.zeros(1024, dtype=torch.uint8, device="npu")

    def __call__(self, length: int, table: torch.Tensor | None = None) -> None:
        """Issue the op, with another block table if one is given."""
        import torch_npu

        torch_npu.npu_fused_infer_attention_score.out(
            self.query,
            self.key,
            self.value,
            actual_seq_lengths_kv=[length],
            block_table=self.table if table is None else table,
            block_size=PAGE,
            workspace=self.workspace,
            out=[self.out, self.lse],
        )

    def paged(self, length: int) -> None:
        """Issue the same with the other op, that of paged attention."""
        import torch_npu

        torch_npu._npu_paged_attention(
            query=self.query.view(1, 1, SIZE),
            key_cache=self.key.view(PAGES, PAGE, 1, SIZE),
            value_cache=self.value.view(PAGES, PAGE, 1, SIZE),
            num_kv_heads=1,
            num_heads=1,
            scale_value=1.0,
            block_table=self.table,
            context_lens=torch.tensor([length], dtype=torch.int32),
            out=self.out.view(1, 1, SIZE),
        )


class Decoder:
    """A graph of attention layers, captured as vLLM-Ascend does: a gate and a task for each layer."""

    def __init__(self, layers: int = 2, name: str = "decoder") -> None:
        self.name = name
        self.layers = [Attention() for _ in range(layers)]
        self.gates: list[Any] = []
        self.handles: list[Any] = []
        self.graph = torch.npu.NPUGraph()
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            for attend in self.layers:
                gate = torch.npu.ExternalEvent()
                gate.wait(stream)
                gate.reset(stream)
                torch.npu.graph_task_group_begin(stream)
                attend(1)
                self.handles.append(torch.npu.graph_task_group_end(stream))
                self.gates.append(gate)

    def update(self, stream: Any, length: int) -> None:
        """Update every task and open its gate."""
        for handle, gate, attend in zip(self.handles, self.gates, self.layers, strict=True):
            update_task(stream, handle, attend, length)
            gate.record(stream)

    def lengths(self) -> list[float]:
        """Return the length that each layer's output was computed with; waits for the device."""
        torch.npu.synchronize()
        return [round(2 * attend.out[0, 0, 0].item() + 1, 3) for attend in self.layers]


def update_task(stream: Any, handle: Any, attend: Callable[..., None], *arguments: Any) -> None:
    """Give a task the op with a new length, and with a block table if one is given too."""
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, handle)
        attend(*arguments)
        torch.npu.graph_task_update_end(stream)


def run_ranks(*programs: Callable[[], object]) -> None:
    """Run one program a rank, all in this process."""
    active().machine.run_ranks(programs)


def all_reduce(tensor: torch.Tensor, name: str = "all_reduce") -> None:
    """Sum a tensor over both ranks, on the current stream."""
    runtime = active()

    def work(parts: list[torch.Tensor]) -> None:
        if len({part.shape for part in parts}) > 1:
            return  # found as a finding; what a device makes of it, nobody knows
        total = sum(parts[1:], parts[0])
        for part in parts:
            part.copy_(total)

    name = f"{name}{list(tensor.shape)}"
    regions = tensor.regions()  # type: ignore[attr-defined]
    raw = tensor.raw  # type: ignore[attr-defined]
    runtime.machine.collective(runtime.current_stream(), (0, 1), name, regions, regions, work, raw)


def from_rank_0(number: int, value: int) -> int:
    """Return rank 0's value on every rank; `number` is the caller's rank."""
    box = torch.tensor([value if number == 0 else 0], device="npu")
    all_reduce(box, "broadcast")
    return int(box.item())


def everyone(bit: bool) -> bool:
    """Return whether both ranks say so."""
    votes = torch.tensor([int(bit)], device="npu")
    all_reduce(votes, "vote")
    return votes.item() == 2

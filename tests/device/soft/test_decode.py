"""A decode loop as vllm-ascend writes it: static buffers, one full graph, updates on a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from slipstream.device import soft
from slipstream.device.soft.machine import Machine, Seeded

BATCH, LAYERS, HEADS, SIZE, PAGE, PAGES, VOCABULARY = 2, 2, 2, 4, 4, 8, 11
WIDTH = HEADS * SIZE


@dataclass
class GraphParams:
    """What the update needs, in the order of the layers."""

    events: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)


class Decoder:
    """A small transformer that decodes a token a request over a paged cache."""

    def __init__(self) -> None:
        import torch_npu

        self.ops = torch_npu
        random = torch.Generator().manual_seed(0)

        def weight(*size: int) -> torch.Tensor:
            return (torch.randn(*size, generator=random) / size[-1] ** 0.5).npu()

        self.embedding = weight(VOCABULARY, WIDTH)
        self.qkv = [weight(3 * WIDTH, WIDTH) for _ in range(LAYERS)]
        self.output = [weight(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.keys = [torch.zeros(PAGES, PAGE, HEADS, SIZE, device="npu") for _ in range(LAYERS)]
        self.values = [torch.zeros(PAGES, PAGE, HEADS, SIZE, device="npu") for _ in range(LAYERS)]
        self.pages = torch.arange(PAGES, dtype=torch.int32, device="npu").view(BATCH, -1)

    def attend(self, call: dict[str, Any], lengths: list[int]) -> None:
        self.ops.npu_fused_infer_attention_score.out(
            actual_seq_lengths_kv=lengths,
            block_table=self.pages,
            num_heads=HEADS,
            input_layout="BSH",
            scale=SIZE**-0.5,
            block_size=PAGE,
            **call,
        )

    def forward(
        self, tokens: torch.Tensor, slots: torch.Tensor, lengths: list[int], params: GraphParams | None = None
    ) -> torch.Tensor:
        hidden = self.embedding[tokens]
        for layer in range(LAYERS):
            query, key, value = torch.nn.functional.linear(hidden, self.qkv[layer]).split(WIDTH, -1)
            self.ops._npu_reshape_and_cache(
                key.reshape(BATCH, HEADS, SIZE),
                value.reshape(BATCH, HEADS, SIZE),
                self.keys[layer],
                self.values[layer],
                slots,
            )
            out, lse = torch.empty(BATCH, 1, WIDTH, device="npu"), torch.empty(0, device="npu")
            call = {
                "query": query.reshape(BATCH, 1, WIDTH),
                "key": self.keys[layer].flatten(2),
                "value": self.values[layer].flatten(2),
                "out": [out, lse],
            }
            if params is None:
                self.attend(call, lengths)
            else:
                stream = torch.npu.current_stream()
                event = torch.npu.ExternalEvent()
                event.wait(stream)
                event.reset(stream)
                torch.npu.graph_task_group_begin(stream)
                self.attend(call, lengths)
                params.handles.append(torch.npu.graph_task_group_end(stream))
                params.events.append(event)
                params.calls.append(call)
            hidden = hidden + torch.nn.functional.linear(out.view(BATCH, WIDTH), self.output[layer])
        return (hidden @ self.embedding.t()).argmax(-1)


def slots_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([row * PAGES // BATCH * PAGE + n - 1 for row, n in enumerate(lengths)])


def eager(steps: int) -> list[list[int]]:
    decoder, tokens, found = Decoder(), torch.tensor([1, 2]), []
    for step in range(1, steps + 1):
        lengths = [step, step]
        tokens = decoder.forward(tokens.npu(), slots_of(lengths).npu(), lengths).cpu()
        found.append(tokens.tolist())
    return found


def replayed(steps: int, *, update: bool = True, wait: bool = True) -> list[list[int]]:
    """Decode with a graph; without `update` the lengths stay the capture's, without `wait` the host runs ahead."""
    decoder, params, update_stream = Decoder(), GraphParams(), torch.npu.Stream()
    tokens, slots = (torch.zeros(BATCH, dtype=torch.int64, device="npu") for _ in range(2))
    host = torch.zeros(2, BATCH, dtype=torch.int64, pin_memory=True)
    host[0] = torch.tensor([1, 2])
    tokens.copy_(host[0], non_blocking=True)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        picked = decoder.forward(tokens, slots, [1, 1], params)
    copied, found = torch.npu.Event(), []
    for step in range(1, steps + 1):
        lengths = [step, step]
        if wait:
            copied.synchronize()
        host[1] = slots_of(lengths)
        slots.copy_(host[1], non_blocking=True)
        copied.record()
        graph.replay()
        tokens.copy_(picked)
        with torch.npu.stream(update_stream):
            for handle, event, call in zip(params.handles, params.events, params.calls, strict=True):
                if update:
                    torch.npu.graph_task_update_begin(update_stream, handle)
                    decoder.attend(call, lengths)
                    torch.npu.graph_task_update_end(update_stream)
                event.record(update_stream)
        found.append(tokens.tolist() if wait else [])
    return found


def test_a_replayed_decode_gives_the_eager_tokens_in_every_order(any_order: Machine) -> None:
    assert replayed(5) == eager(5)
    assert any_order.finish().findings == ()


def test_without_updates_the_tokens_are_others_and_it_is_named(machine: Machine) -> None:
    assert replayed(5, update=False) != eager(5)
    assert {finding.kind for finding in machine.finish().findings} == {"task-count"}


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_runs_ahead_is_found(seed: int) -> None:
    with soft.installed(Seeded(seed)) as machine:
        replayed(3, wait=False)
        kinds = {finding.kind for finding in machine.finish().findings}
    assert {"host-buffer", "lost-opening"} <= kinds

"""A decoder of attention alone, captured as vLLM-Ascend captures it: an external event and a task group a layer.

Keys are zero, so attention is the mean of the values; values are 0, 1, 2, ..., so that mean is (length - 1) / 2:
an output tells which length its op ran with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

SIZE, CONTEXT = 8, 32


def attend(static: Static, layer: int, length: int) -> None:
    """Issue the attention of a layer with a length from the host."""
    import torch_npu

    torch_npu.npu_fused_infer_attention_score.out(
        static.query,
        static.key,
        static.value,
        actual_seq_lengths_kv=[length],
        workspace=static.workspace,
        out=[static.outs[layer], static.lse],
    )


def mean(length: int) -> float:
    """Return what attention over `length` positions gives."""
    return (length - 1) / 2


class Static:
    """The static tensors of a decoder."""

    def __init__(self, layers: int) -> None:
        self.query = torch.zeros(1, 1, SIZE, device="npu")
        self.key = torch.zeros(1, CONTEXT, SIZE, device="npu")
        rows = torch.arange(CONTEXT, dtype=torch.float32, device="npu").view(1, CONTEXT, 1)
        self.value = rows.expand(1, CONTEXT, SIZE).contiguous()
        self.outs = [torch.zeros(1, 1, SIZE, device="npu") for _ in range(layers)]
        self.lse = torch.zeros(0, device="npu")
        self.workspace = torch.zeros(1024, dtype=torch.uint8, device="npu")


class Decoder:
    """A FULL graph with a task a layer, and the stream that updates it."""

    def __init__(self, layers: int = 2, lists: tuple[list[Any], list[Any]] | None = None) -> None:
        self.layers = layers
        self.static = Static(layers)
        self.events, self.handles = ([], []) if lists is None else lists
        self.graph = torch.npu.NPUGraph()
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            for layer in range(layers):
                event = torch.npu.ExternalEvent()
                event.wait(stream)
                event.reset(stream)
                torch.npu.graph_task_group_begin(stream)
                attend(self.static, layer, 1)
                self.handles.append(torch.npu.graph_task_group_end(stream))
                self.events.append(event)

    def update(self, stream: Any, length: int, opens: Sequence[bool] | None = None) -> None:
        """Update every task and open its event; `opens` says for which layers, and the list may be shorter."""
        layers = range(self.layers)
        with torch.npu.stream(stream):
            for layer, handle, event, opened in zip(
                layers,
                self.handles,
                self.events,
                [True] * self.layers if opens is None else opens,
                strict=False,
            ):
                torch.npu.graph_task_update_begin(stream, handle)
                attend(self.static, layer, length)
                torch.npu.graph_task_update_end(stream)
                if opened:
                    event.record(stream)

    def results(self) -> list[float]:
        """Return the first number of each layer's output; waits for the device."""
        torch.npu.synchronize()
        return [out[0, 0, 0].item() for out in self.static.outs]


def steps(decoder: Decoder, count: int, step: Callable[[Decoder, Any, Any, int], None]) -> list[float]:
    """Run steps of lengths 3, 4, ... on a main and an update stream, and return the last results."""
    main, update = torch.npu.Stream(), torch.npu.Stream()
    torch.npu.synchronize()
    with torch.npu.stream(main):
        for number in range(count):
            step(decoder, main, update, 3 + number)
    return decoder.results()

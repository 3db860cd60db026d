"""A phase of nothing but attention with lengths of the host, on the software NPU.

Keys are zero, so attention is the mean of the values; the value at position p is p, so an output tells the length
that its op ran with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from slipstream.device.api import Device, Graph, PagedQuery
from slipstream.device.registry import open_device
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatch, Dispatcher
from slipstream.graph.host_lists import COMMITTED, HostLists, Source, TaskOrder
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.reasons import Reason
from slipstream.graph.runner import GraphRunner
from slipstream.graph.tasks import GraphTasks, TaskBook

REQUESTS, PAGES, PAGE, SIZE = 4, 4, 8, 8
LONGEST = PAGES * PAGE


class Layers:
    """A runner of one phase, "verify", whose layers see 1, 2, 3, ... positions behind the committed ones.

    Args:
        layers: how many.
        order: what a replay issues first.
        buckets: captured request slots.
        device: of the graphs; a new one if None.
        layers_a_step: how many layers see the same positions.
    """

    def __init__(
        self,
        layers: int = 2,
        order: TaskOrder = TaskOrder.REPLAY_FIRST,
        buckets: tuple[int, ...] = (2,),
        device: Device | None = None,
        layers_a_step: int = 1,
    ) -> None:
        self.device = device or open_device("npu")
        self.layers, self.layers_a_step = layers, layers_a_step
        self.lists = HostLists({COMMITTED: REQUESTS})
        self.book = TaskBook(self.device, self.lists, order)
        self.main = self.device.stream("main")
        place = self.device.torch_device
        with self.main:
            self.query = torch.zeros(REQUESTS, 1, 1, SIZE, device=place)
            self.keys = torch.zeros(REQUESTS * PAGES, PAGE, SIZE, device=place)
            positions = torch.arange(LONGEST, dtype=torch.float32, device=place).view(1, PAGES, PAGE, 1)
            self.values = positions.expand(REQUESTS, -1, -1, SIZE).reshape(-1, PAGE, SIZE).contiguous()
            self.table = torch.arange(REQUESTS * PAGES, dtype=torch.int32, device=place).view(-1, PAGES)
            # Views that a capture reads are made before it, as `StepBuffers` does.
            self.tables = {bucket: self.table[:bucket] for bucket in buckets}
            self.queries = {bucket: self.query[:bucket] for bucket in buckets}
        self.runner = GraphRunner(
            self.device, Dispatcher(GraphMode.FULL, buckets), {"verify": self.phase}, tasks=self.book
        )
        self.buckets = buckets

    def attention(self, bucket: int) -> PagedQuery:
        return PagedQuery(self.queries[bucket], self.keys, self.values, self.tables[bucket], 1, 1, LONGEST)

    def phase(self, key: BatchDescriptor) -> list[torch.Tensor]:
        return [
            self.book.call(
                f"layer {layer}",
                Source(COMMITTED, key.slots, layer // self.layers_a_step + 1, LONGEST),
                self.device.paged_attention(self.attention(key.slots)),
            )
            for layer in range(self.layers)
        ]

    def capture(self, width: int = 1) -> None:
        self.runner.capture({"verify": (width,)}, self.main)

    def tasks(self, bucket: int = 2, width: int = 1) -> GraphTasks:
        return self.runner.tasks[BatchDescriptor("verify", bucket, width)]

    def graph(self, bucket: int = 2, width: int = 1) -> Graph:
        return self.tasks(bucket, width).graph

    def run(
        self, committed: Sequence[int], bucket: int = 2, width: int = 1, route: Route = Route.REPLAY
    ) -> list[torch.Tensor]:
        """Replay with these lengths; the results lie in the graph."""
        self.lists.write(COMMITTED, committed)
        return self.again(bucket, width, route)

    def again(self, bucket: int = 2, width: int = 1, route: Route = Route.REPLAY) -> list[torch.Tensor]:
        """Replay without a word of the lengths."""
        key = BatchDescriptor("verify", bucket, width)
        mode = GraphMode.FULL if route is Route.REPLAY else GraphMode.NONE
        dispatch = Dispatch(mode, route, key, key, "", Reason.CAPTURED, bucket, key.rows)
        outs: list[torch.Tensor] = self.runner.run(dispatch, bucket, self.main)
        return outs

    def read(self, outs: Sequence[torch.Tensor]) -> list[list[float]]:
        """What each layer gave each request; waits for the device."""
        with self.main:
            return [[round(value, 3) for value in out[:, 0, 0, 0].tolist()] for out in outs]


def means(committed: Sequence[int], layers: int = 2) -> list[list[float]]:
    """What `Layers.read` gives for these lengths."""
    return [[(length + layer) / 2 for length in committed] for layer in range(layers)]


def steps(make: Callable[[], Layers], count: int = 3) -> Any:
    """Capture, and replay with lengths that grow; return the last results."""
    layers = make()
    layers.capture()
    outs: list[torch.Tensor] = []
    for step in range(count):
        outs = layers.run([3 + step, 7 + 2 * step])
    return layers.read(outs)

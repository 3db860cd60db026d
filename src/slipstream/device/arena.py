"""Memory for the intermediate results of captured graphs, planned by their first and last use.

A graph of 30 layers then holds the memory of the widest place and not of all places.

    nodes      0    1    2    3    4    5
    normed     w----r                              arena [0, 2 K)
    qkv             w----r                               [2 K, 6 K)
    queries              w----r                    arena [0, 2 K), used again
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from slipstream.errors import DeviceError
from slipstream.native.node import Node

ALIGNMENT = 64


@dataclass(slots=True)
class Buffer:
    """One storage that a capture allocated, its first and its last use, and its place in an arena."""

    address: int
    nbytes: int
    first: int = -1
    last: int = -1
    offset: int = 0


class ArenaPool:
    """Memory for the intermediate results of all graphs of a device: one graph runs at a time."""

    def __init__(self) -> None:
        self._arenas: list[torch.Tensor] = []

    def take(self, nbytes: int) -> torch.Tensor:
        """Return an arena of at least `nbytes`, shared with other graphs.

        Raises:
            DeviceError: the system has no more memory.
        """
        for arena in self._arenas:
            if arena.nbytes >= nbytes + ALIGNMENT:
                return arena
        try:
            arena = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
        except (MemoryError, RuntimeError) as error:  # torch raises the second
            raise DeviceError(
                f"the intermediate results of a graph are {nbytes / 1e6:.0f} MB, which this machine cannot "
                "reserve. Lower --buckets or --num-steps, or run without graphs: --graph none."
            ) from error
        self._arenas.append(arena)
        return arena

    def clear(self) -> None:
        """Forget the arenas; a graph that is still there keeps its own."""
        self._arenas.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas."""
        return sum(arena.nbytes for arena in self._arenas)


def move_to_arena(
    nodes: Sequence[Node], made: Iterable[torch.Tensor], fixed: Iterable[torch.Tensor], pool: ArenaPool
) -> torch.Tensor:
    """Give intermediate results places in an arena, change the nodes' addresses, and return the arena.

    Args:
        nodes: in program order, branches marked.
        made: results that the nodes fill.
        fixed: those that stay where they are.
        pool: where the arena comes from.

    Raises:
        DeviceError: no memory for the arena.
    """
    staying = _storages(fixed)
    buffers = [b for address, b in sorted(_storages(made).items()) if address not in staying]
    _plan(nodes, buffers)
    arena = pool.take(max((b.offset + b.nbytes for b in buffers), default=0))
    base = -(-arena.data_ptr() // ALIGNMENT) * ALIGNMENT
    redirect(nodes, buffers, base)
    return arena


def redirect(nodes: Iterable[Node], buffers: list[Buffer], base: int) -> None:
    """Change the nodes' addresses to the buffers' places behind `base`. `buffers` ascend by address."""
    for node in nodes:
        _move(node, buffers, base)


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, Buffer]:
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = Buffer(storage.data_ptr(), storage.nbytes())
    return found


def _plan(nodes: Sequence[Node], buffers: list[Buffer]) -> None:
    """Find each buffer's first and last use, and give it its place in the arena."""
    for moment, node in zip(_moments(nodes), nodes, strict=True):
        for pointer in node.p:
            buffer = _find(buffers, pointer)
            if buffer is not None:
                buffer.first = moment if buffer.first < 0 else buffer.first
                buffer.last = moment
    assign_offsets(buffers)


def assign_offsets(buffers: Iterable[Buffer]) -> None:
    """Give each buffer the lowest place that is free from its first to its last use."""
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: b.first):
        taken = sorted(
            (other.offset, other.offset + other.nbytes)
            for other in placed
            if other.last >= buffer.first and buffer.last >= other.first
        )
        offset = 0
        for begin, end in taken:
            if offset + buffer.nbytes <= begin:
                break
            offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
        buffer.offset = offset
        placed.append(buffer)


def _moments(nodes: Sequence[Node]) -> list[int]:
    """Return when each node runs; those of one section may run at the same time, so theirs is one moment."""
    moments: list[int] = []
    for index, node in enumerate(nodes):
        together = index > 0 and node.branches > 1 and node.section == nodes[index - 1].section
        moments.append(moments[-1] if together and nodes[index - 1].branches > 1 else index)
    return moments


def _find(buffers: list[Buffer], pointer: int | None) -> Buffer | None:
    if not pointer:
        return None
    index = bisect_right(buffers, pointer, key=lambda b: b.address) - 1
    if index >= 0 and pointer < buffers[index].address + buffers[index].nbytes:
        return buffers[index]
    return None


def _move(node: Node, buffers: list[Buffer], base: int) -> None:
    for position, pointer in enumerate(node.p):
        buffer = _find(buffers, pointer)
        if buffer is not None and pointer is not None:
            node.p[position] = base + buffer.offset + pointer - buffer.address

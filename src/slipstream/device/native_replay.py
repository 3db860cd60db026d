"""A captured graph as one native program: fixed addresses, one call a replay.

The capture ran every op once and allocated its results; these addresses are in the nodes. Here the intermediate
results move into one arena, planned by their first and last use, so that a graph of 30 layers holds the memory of
the widest place and not of all places. What the graph returns stays where it is.

    nodes      0    1    2    3    4    5
    normed     w----r                              arena [0, 2 K)
    qkv             w----r                               [2 K, 6 K)
    queries              w----r                    arena [0, 2 K), used again
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from slipstream.device.tape import Tape
from slipstream.errors import DeviceError
from slipstream.native.node import Node
from slipstream.native.program import Program

_ALIGNMENT = 64


@dataclass(slots=True)
class _Buffer:
    """One storage that the capture allocated."""

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
            DeviceError: the machine does not have so much.
        """
        for arena in self._arenas:
            if arena.nbytes >= nbytes + _ALIGNMENT:
                return arena
        try:
            arena = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8)
        except (MemoryError, RuntimeError) as error:  # torch raises the second
            raise DeviceError(
                f"the intermediate results of a graph are {nbytes / 1e6:.0f} MB, which this machine cannot "
                "reserve. Lower --buckets or --num-steps, or run without graphs: --graph none."
            ) from error
        self._arenas.append(arena)
        return arena

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas."""
        return sum(arena.nbytes for arena in self._arenas)


@dataclass(frozen=True, slots=True)
class NativeReplay:
    """Runs a graph's program and gives out its results.

    Attributes:
        program: the nodes.
        result: what the captured function returned.
        keeps: owners of the memory that the nodes point to.
    """

    program: Program
    result: Any
    keeps: Any

    def __call__(self) -> Any:
        self.program.run()
        return self.result


def native_replay(tape: Tape, result: Any, pool: ArenaPool) -> NativeReplay | None:
    """Return what replays the tape natively, or None where a node has no native form.

    Args:
        tape: a finished capture.
        result: what the captured function returned: these tensors are given out at every replay.
        pool: where intermediate results go.
    """
    if not all(node.lowered is not None or node.view for node in tape.nodes):
        return None
    nodes = [native for node in tape.nodes if node.lowered is not None for native in node.lowered.nodes]
    made = _storages(
        leaf for node in tape.nodes if node.lowered is not None for leaf in tree_leaves(node.lowered.result)
    )
    returned = _storages(tree_leaves(result))
    given = {tensor.untyped_storage().data_ptr() for _, tensor in tape.static_inputs()}
    buffers = [b for address, b in sorted(made.items()) if address not in returned and address not in given]
    _plan(nodes, buffers)
    needed = max((b.offset + b.nbytes for b in buffers), default=0)
    arena = pool.take(needed)
    base = -(-arena.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    for node in nodes:
        _move(node, buffers, base)
    program = Program(nodes)
    for recorded in tape.nodes:
        recorded.lowered = None  # frees the intermediate results: their place is in the arena now

    # What the addresses point to has to live as long as the program.
    return NativeReplay(program, result, (arena, list(tape.static_inputs())))


def _storages(tensors: Iterable[Any]) -> dict[int, _Buffer]:
    found = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = _Buffer(storage.data_ptr(), storage.nbytes())
    return found


def _plan(nodes: list[Node], buffers: list[_Buffer]) -> None:
    """Give each buffer its place in the arena: the lowest that is free from its first to its last use."""
    for index, node in enumerate(nodes):
        for pointer in node.p:
            buffer = _find(buffers, pointer)
            if buffer is not None:
                buffer.first = index if buffer.first < 0 else buffer.first
                buffer.last = index
    placed: list[_Buffer] = []
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
            offset = max(offset, -(-end // _ALIGNMENT) * _ALIGNMENT)
        buffer.offset = offset
        placed.append(buffer)


def _find(buffers: list[_Buffer], pointer: int | None) -> _Buffer | None:
    if not pointer:
        return None
    index = bisect_right(buffers, pointer, key=lambda b: b.address) - 1
    if index >= 0 and pointer < buffers[index].address + buffers[index].nbytes:
        return buffers[index]
    return None


def _move(node: Node, buffers: list[_Buffer], base: int) -> None:
    for position, pointer in enumerate(node.p):
        buffer = _find(buffers, pointer)
        if buffer is not None and pointer is not None:
            node.p[position] = base + buffer.offset + pointer - buffer.address

"""Which parts of a captured graph are independent, and whether it pays to run them side by side.

A capture on several streams is a partial order: nodes of one stream follow each other, and a wait puts what the
other stream did before what comes next. A section is a run of nodes in program order whose streams know nothing of
each other inside it:

    main    [norm] . [query product .....] . [attention]
    side           . [key and value product] .
             fork                         join
                   '----- section ---------'

Program order with the whole team on each node is always right, so a section is an offer, not a duty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.native.node import Kernel, Node

#: What a core does alone, for `pays`; measured on an EPYC of 2021 (docs/log.md), and only their ratios matter.
_BYTES_A_NS = 13.0
_PRODUCTS_A_NS = {
    Kernel.LINEAR_Q4: 60.0,
    Kernel.LINEAR_Q8: 40.0,
    Kernel.LINEAR_F32: 12.0,
    Kernel.LINEAR_BF16: 10.0,
}
_WEIGHT_BYTES = {
    Kernel.LINEAR_Q4: 20 / 32,
    Kernel.LINEAR_Q8: 34 / 32,
    Kernel.LINEAR_F32: 4.0,
    Kernel.LINEAR_BF16: 2.0,
}

#: A meeting of two or more threads.
_BARRIER_NS = 400.0

#: Cores that a branch must have before it is taken off the whole team by default.
_CORES_A_BRANCH = 2


@dataclass(frozen=True, slots=True)
class Wait:
    """`stream` waits for what `other` had been given when it had recorded `point` nodes of the whole tape.

    Attributes:
        position: nodes that were recorded when the wait was.
    """

    position: int
    stream: str
    other: str
    point: int


@dataclass(frozen=True, slots=True)
class Section:
    """A run of nodes, and the positions of each branch's."""

    nodes: range
    branches: tuple[list[int], ...]


def find_sections(streams: Sequence[str], waits: Sequence[Wait], origin: str) -> list[Section]:
    """Return the runs of nodes that hold two streams or more which do not depend on each other there.

    A stream that works without having waited for anything counts as the capturing one: a device would refuse it,
    here it is only not parallel.

    Args:
        streams: each node's stream, in program order.
        waits: in the order of their positions.
        origin: the capturing stream.
    """
    owners: list[str] = []  # each node's stream, the unforked ones' as the capturing one's
    # By stream, then by another: nodes of the tape below this are done.
    known: dict[str, dict[str, int]] = {origin: {}}
    history: dict[str, list[tuple[int, dict[str, int]]]] = {}  # what a stream knew, at its waits
    pending = list(waits)
    sections: list[Section] = []
    start = 0

    def close(end: int) -> None:
        branches: dict[str, list[int]] = {}
        for position in range(start, end):
            branches.setdefault(owners[position], []).append(position)
        if len(branches) > 1:
            sections.append(Section(range(start, end), tuple(branches.values())))

    for index, stream in enumerate(streams):
        while pending and pending[0].position <= index:
            _take_in(pending.pop(0), known, history)
        owner = stream if stream in known else origin
        follows = max((known[owner].get(other, 0) for other in set(owners[start:]) - {owner}), default=start)
        if follows > start:
            close(follows)
            start = follows
        owners.append(owner)
    close(len(streams))
    return sections


def _take_in(
    wait: Wait, known: dict[str, dict[str, int]], history: dict[str, list[tuple[int, dict[str, int]]]]
) -> None:
    mine = known.setdefault(wait.stream, {})
    mine[wait.other] = max(mine.get(wait.other, 0), wait.point)
    for point, then in history.get(wait.other, ()):
        if point <= wait.point:
            for stream, done in then.items():
                mine[stream] = max(mine.get(stream, 0), done)
    history.setdefault(wait.stream, []).append((wait.position, dict(mine)))


def pays(branches: Sequence[Sequence[Node]], threads: int) -> bool:
    """Return whether branches side by side should take less time than the whole team on each node in turn."""
    if threads < _CORES_A_BRANCH * len(branches):
        return False
    together = sum(_node_ns(node, threads) + _BARRIER_NS for branch in branches for node in branch)
    members = threads // len(branches)
    meeting = _BARRIER_NS if members > 1 else 0.0
    apart = max(sum(_node_ns(node, members) + meeting for node in branch) for branch in branches)
    return apart + _BARRIER_NS < together


def _node_ns(node: Node, threads: int) -> float:
    """Return a node's expected time without its barrier: a product's, or nothing for what is small beside one."""
    kernel = Kernel(node.op)
    if kernel not in _WEIGHT_BYTES:
        return 0.0
    rows, weights = node.n[0], node.n[1] * node.n[2]
    reading = weights * _WEIGHT_BYTES[kernel] / _BYTES_A_NS
    computing = rows * weights / _PRODUCTS_A_NS[kernel]
    return float(max(reading, computing)) / threads

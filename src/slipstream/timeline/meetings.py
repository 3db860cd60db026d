"""One collective on several ranks: who came last, and how long the others stood in it.

rank 0   [ stands ........ | moves ]
rank 1        [ stands ... | moves ]
rank 2                     [ moves ]     the last to arrive; its start is the others' release
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.timeline.collectives import group_numbers
from slipstream.timeline.edge_types import Confidence, EdgeKind, EdgeList, edge_list
from slipstream.timeline.order import Rows
from slipstream.timeline.table import Int32, Int64, Kind, Note


@dataclass(frozen=True)
class Matched:
    """Collectives found on two ranks or more. M of their rows stood, C collectives.

    Attributes:
        edges: from the last rank's row to each other's.
        rows: int32 [M], the rows that stood for a later rank.
        release_ns: int64 [M], when the last rank had come.
        members: the rows of each collective, the last to arrive first.
        notes: what could not be matched, and why.
    """

    edges: EdgeList
    rows: Int32
    release_ns: Int64
    members: tuple[Int32, ...]
    notes: tuple[Note, ...]


def match(rows: Rows, *, infer: bool = True) -> Matched:
    """Match collectives across ranks by group and number, else by their order.

    Args:
        rows: the timeline.
        infer: whether to match those without a number: the n-th of a group, if each rank has as many.
    """
    timeline = rows.timeline
    found = np.flatnonzero((timeline.kind == Kind.COMM) & rows.queued)
    notes: list[Note] = []
    if not len(found) or len(timeline.ranks) < 2:
        return Matched(_edges([], [], []), _int32([]), np.empty(0, np.int64), (), ())
    numbered = found[timeline.sequence[found] >= 0]
    # A reader that numbers them by their order says so.
    by_order = any("matched across ranks by their order" in note.why for note in timeline.notes)
    sure = Confidence.INFERRED if by_order else Confidence.GIVEN
    members = [(ranks, sure) for ranks in _by_number(rows, numbered)]
    if infer:
        in_turn, uneven = _in_turn(rows, found[timeline.sequence[found] < 0])
        members += [(ranks, Confidence.INFERRED) for ranks in in_turn]
        if uneven:
            notes.append(
                Note(
                    "unmatched", uneven, "collectives without a number, of which ranks have different counts"
                )
            )
    src: list[int] = []
    dst: list[int] = []
    confidence: list[int] = []
    release: list[int] = []
    kept: list[Int32] = []
    apart = 0
    for ranks, sure in members:
        start, end = timeline.start_ns[ranks], timeline.end_ns[ranks]
        last = int(np.argmax(start))
        if start[last] >= end.min() and len(ranks) > 1 and start[last] > start.min():
            apart += 1  # on one clock nobody leaves before everybody has come
            continue
        late = ranks[last]
        others = ranks[(ranks != late) & (start < start[last])]
        src += [int(late)] * len(others)
        dst += others.tolist()
        confidence += [sure] * len(others)
        release += [int(start[last])] * len(others)
        kept.append(np.concatenate(([late], ranks[ranks != late])).astype(np.int32))
    if apart:
        notes.append(
            Note(
                "clocks",
                apart,
                "collectives that one rank left before another came: their clocks differ, or others are missing",
            )
        )
    return Matched(
        _edges(src, dst, confidence), _int32(dst), np.array(release, np.int64), tuple(kept), tuple(notes)
    )


def _int32(values: list[int]) -> Int32:
    return np.array(values, np.int32)


def _edges(src: list[int], dst: list[int], confidence: list[int]) -> EdgeList:
    edges = edge_list(src, dst, EdgeKind.COLLECTIVE, from_start=True)
    return EdgeList(edges.src, edges.dst, edges.kind, np.array(confidence, np.uint8), edges.from_start)


def _by_number(rows: Rows, found: Int64) -> list[Int32]:
    """Return the rows of each collective that two ranks or more have, one row a rank."""
    timeline = rows.timeline
    if not len(found):
        return []
    group, number = group_numbers(timeline)[timeline.group[found]], timeline.sequence[found]
    order = np.lexsort((timeline.rank[found], number, group))
    found, group, number = found[order], group[order], number[order]
    change = np.flatnonzero((group[1:] != group[:-1]) | (number[1:] != number[:-1])) + 1
    return [
        part.astype(np.int32)
        for part in np.split(found, change)
        if len(part) > 1 and len(np.unique(timeline.rank[part])) == len(part)
    ]


def _in_turn(rows: Rows, found: Int64) -> tuple[list[Int32], int]:
    """Match the n-th of a group and name on each rank; return those, and how many could not be."""
    timeline = rows.timeline
    matched: list[Int32] = []
    uneven = 0
    group = group_numbers(timeline)[timeline.group[found]]
    keys = np.stack((group, timeline.name[found].astype(np.int64)))
    _, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.ravel()
    for key in range(int(which.max(initial=-1)) + 1):
        mine = found[which == key]
        ranks = np.unique(timeline.rank[mine]).tolist()
        by_rank = [mine[timeline.rank[mine] == rank] for rank in ranks]
        if len(ranks) < 2:
            continue
        if len({len(part) for part in by_rank}) > 1:
            uneven += len(mine)
            continue
        matched += [np.array(turn, np.int32) for turn in zip(*by_rank, strict=True)]
    return matched, uneven

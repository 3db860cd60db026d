"""The critical path of a stretch of time: what had to happen, one thing after the other, for it to end.

    from the end backwards:

    stream 7   ███ A ███          ▒▒▒███ C ███|        C waited for B, which the host launched late
    stream 20        ·   ███ B ███·
    thread       ▔▔▔launch▔▔▔

    path       = launch, delay of the launch, B, delay of the event, C        sums to the stretch, exactly

Each piece is either the work of a row or a delay in front of one that no row explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.table import Int32, Int64, Kind, UInt8

Int16 = npt.NDArray[np.int16]


class Piece(IntEnum):
    """What a piece of the path is."""

    WORK = 0  # a device's row does its work
    HOST = 1  # a thread's row, or what a thread did between two calls
    DELAY = 2  # from what a row waited for to its begin: launch latency, the stream's, the event's
    UNKNOWN = 3  # nothing that is known held the row up


#: A stream goes on within this after what it waited for; a longer hole has a reason that is not in the trace.
_EXPLAINED_NS = 50_000
#: Edges behind which a row begins at once, once nothing else holds it.
_AT_ONCE = (int(EdgeKind.STREAM), int(EdgeKind.GRAPH), int(EdgeKind.EVENT), int(EdgeKind.EVENT_INFERRED))

#: The `edge` of a piece that no edge led to: the last one, and what is unknown.
NO_EDGE = -1


@dataclass(frozen=True)
class Path:
    """K pieces, ascending, each beginning where the one before ends.

    Attributes:
        start_ns, end_ns: of the stretch.
        starts_ns, ends_ns: int64 [K].
        row: int32 [K], the row that worked; of a delay, the row that was held up; -1 none.
        piece: uint8 [K], a Piece.
        edge: int16 [K], the EdgeKind by which the piece is on the path: of work, that of the edge from it to the
            row that came next; of a delay, that of the edge in which it lies. NO_EDGE without one.
        confidence: uint8 [K], of that edge.
        waited: int32 [K], of a delay the row waited for, -1 none.
    """

    start_ns: int
    end_ns: int
    starts_ns: Int64
    ends_ns: Int64
    row: Int32
    piece: UInt8
    edge: Int16
    confidence: UInt8
    waited: Int32

    def __len__(self) -> int:
        return len(self.row)

    @property
    def length_ns(self) -> int:
        """The sum of the pieces, which is the stretch's length."""
        return int((self.ends_ns - self.starts_ns).sum())

    @property
    def work_ns(self) -> int:
        """How much of it is rows' own work, devices' and threads'."""
        return int((self.ends_ns - self.starts_ns)[self.piece <= Piece.HOST].sum())

    def by_piece(self) -> dict[Piece, int]:
        """Return the time of each sort of piece; they sum to the length."""
        sums = np.bincount(self.piece, self.ends_ns - self.starts_ns, len(Piece))
        return {piece: int(sums[piece]) for piece in Piece}

    def rests_on(self) -> dict[tuple[int, Confidence], int]:
        """Return the time by (edge kind or NO_EDGE, confidence) that puts it on the path; sums to the length."""
        found: dict[tuple[int, Confidence], int] = {}
        took = self.ends_ns - self.starts_ns
        for edge in np.unique(self.edge).tolist():
            for sure in Confidence:
                which = (self.edge == edge) & (self.confidence == sure)
                if which.any():
                    found[edge, sure] = int(took[which].sum())
        return found


def critical_path(
    deps: Dependencies, start_ns: int, end_ns: int, *, last: int | None = None, before: int | None = None
) -> Path:
    """Return the path of [start_ns, end_ns).

    Args:
        deps: rows and edges.
        start_ns, end_ns: the stretch.
        last: the row that the stretch ends with; by default the device's row that ends last in it.
        before: instead of `last`, a row that begins at `end_ns`: the path is what led to its begin.
    """
    walk = _Walk(deps, start_ns, end_ns)
    if before is not None:
        walk.back_from(before)
    else:
        row = last if last is not None else last_row(deps, start_ns, end_ns)
        if row >= 0:
            walk.work(row, NO_EDGE, Confidence.GIVEN)
            walk.back_from(row)
    return walk.finish()


def last_row(deps: Dependencies, start_ns: int, end_ns: int) -> int:
    """Return the device's row that ends last in a stretch, or reaches over its end, or -1."""
    table = deps.timeline
    low, high = np.searchsorted(table.start_ns, [start_ns, end_ns])
    ends = np.minimum(table.end_ns, end_ns)
    inside = np.flatnonzero(table.is_work[:high] & (ends[:high] > start_ns))
    if not len(inside):
        inside = np.arange(low, high)[table.on_device[low:high]]
        if not len(inside):
            return -1
    # Of those that end together the one that began last: it is nearest to what follows.
    best = ends[inside]
    return int(inside[np.flatnonzero(best == best.max())[-1]])


class _Walk:
    """The walk from the end of a stretch to its start; `now` only falls."""

    def __init__(self, deps: Dependencies, start_ns: int, end_ns: int) -> None:
        self._deps, self._table = deps, deps.timeline
        self._start, self._end, self._now = start_ns, end_ns, end_ns
        self._pieces: list[tuple[int, int, int, int, int, int, int]] = []
        self._seen: set[int] = set()

    def _add(self, start: int, row: int, piece: Piece, edge: int, sure: int, waited: int = -1) -> None:
        start = max(start, self._start)
        if start < self._now:
            self._pieces.append((start, self._now, row, piece, edge, sure, waited))
            self._now = start

    def work(self, row: int, edge: int, sure: int) -> None:
        """Add what of a row's own work lies before now."""
        end = int(self._table.end_ns[row])
        if end < self._now:
            self._add(end, row, Piece.UNKNOWN, NO_EDGE, Confidence.GIVEN)
        host = not self._table.on_device[row]
        self._add(int(self._deps.release_ns[row]), row, Piece.HOST if host else Piece.WORK, edge, sure)

    def back_from(self, row: int) -> None:
        """Follow what held a row up, and what held that up, until the stretch begins."""
        deps, edges = self._deps, self._deps.edges
        while self._now > self._start:
            self._seen.add(row)
            edge = self._next(row)
            if edge < 0:
                self._thread_before(row)
                return
            src, kind, sure = int(edges.src[edge]), int(edges.kind[edge]), int(edges.confidence[edge])
            # A thread's time between two of its calls is its own work; all other delays are nobody's.
            own = bool(deps.own_time[edge]) or (kind == EdgeKind.HOST and self._table.kind[row] != Kind.SYNC)
            until = deps.finish_ns[edge] if deps.own_time[edge] else deps.ready_ns[edge]
            piece = Piece.HOST if own else Piece.DELAY
            if kind in _AT_ONCE and self._now - until > _EXPLAINED_NS:
                piece = Piece.UNKNOWN
            self._add(int(until), row, piece, kind, sure, src)
            if edges.from_start[edge]:
                self._add(int(self._table.start_ns[src]), src, Piece.WORK, kind, sure)
            else:
                self._add(int(deps.release_ns[src]), src, self._sort_of(src), kind, sure)
            row = src

    def _thread_before(self, row: int) -> None:
        """What a thread did before its first call that the device has to do with is its own work too."""
        table = self._table
        if not table.on_device[row]:
            first = int(table.start_ns[np.argmax(table.stream == table.stream[row])])
            self._add(first, row, Piece.HOST, EdgeKind.HOST, Confidence.GIVEN)

    def _sort_of(self, row: int) -> Piece:
        return Piece.WORK if self._table.on_device[row] else Piece.HOST

    def _next(self, row: int) -> int:
        """Return the edge that held a row up; never back to a row that the path has seen."""
        edge = int(self._deps.binding[row])
        if edge < 0 or int(self._deps.edges.src[edge]) not in self._seen:
            return edge
        others = [e for e in self._deps.edges_into(row) if int(self._deps.edges.src[e]) not in self._seen]
        return max(others, key=lambda e: int(self._deps.ready_ns[e]), default=-1)

    def finish(self) -> Path:
        """Return the pieces as a path; what is left at the start is unknown."""
        self._add(self._start, -1, Piece.UNKNOWN, NO_EDGE, Confidence.GIVEN)
        columns = list(zip(*reversed(self._pieces), strict=True)) or [()] * 7
        return Path(
            self._start,
            self._end,
            np.array(columns[0], np.int64),
            np.array(columns[1], np.int64),
            np.array(columns[2], np.int32),
            np.array(columns[3], np.uint8),
            np.array(columns[4], np.int16),
            np.array(columns[5], np.uint8),
            np.array(columns[6], np.int32),
        )


@dataclass(frozen=True, slots=True)
class Bubble:
    """A stretch in which a stream stood idle between two operations, and who was waited for.

    Attributes:
        stream: which.
        start_ns, end_ns: the stretch.
        row: what ran after it.
        waited: the work or call that held that up, -1 unknown.
        edge: the EdgeKind of it, NO_EDGE if unknown.
        confidence: of it.
    """

    stream: int
    start_ns: int
    end_ns: int
    row: int
    waited: int
    edge: int
    confidence: int

    @property
    def idle_ns(self) -> int:
        """How long."""
        return self.end_ns - self.start_ns


def bubbles(
    deps: Dependencies, start_ns: int, end_ns: int, *, rank: int, least_ns: int = 1, most: int = 1000
) -> list[Bubble]:
    """Return where the streams of a rank stood idle between two pieces of work, longest first.

    Args:
        deps: rows and edges.
        start_ns, end_ns: where to look.
        rank: whose streams.
        least_ns: shorter ones are left out.
        most: so many are returned at most.
    """
    table = deps.timeline
    low, high = np.searchsorted(table.start_ns, [start_ns, end_ns])
    work = np.arange(low, high)[table.is_work[low:high] & (table.rank[low:high] == rank)]
    work = work[np.argsort(deps.place[work], kind="stable")]
    place = deps.place[work]
    begins: list[Int64] = []
    rows: list[Int64] = []
    for of_stream in np.split(work, np.flatnonzero(place[1:] != place[:-1]) + 1):
        begins.append(np.maximum.accumulate(table.end_ns[of_stream])[:-1])
        rows.append(of_stream[1:])
    begin, row = np.concatenate(begins), np.concatenate(rows)
    idle = table.start_ns[row] - begin
    longest = np.argsort(-idle, kind="stable")[:most]
    found: list[Bubble] = []
    for index in longest[idle[longest] >= least_ns].tolist():
        at = int(row[index])
        waited, edge, sure = waited_for(deps, at)
        end = int(table.start_ns[at])
        found.append(Bubble(int(deps.place[at]), int(begin[index]), end, at, waited, edge, sure))
    return found


def waited_for(deps: Dependencies, row: int) -> tuple[int, int, int]:
    """Return (row, edge kind, confidence) of the work or call that held a row up, seen through waits and records.

    (-1, NO_EDGE, GIVEN) where nothing is known.
    """
    kind, sure = NO_EDGE, int(Confidence.GIVEN)
    seen = {row}
    while True:
        edge = int(deps.binding[row])
        if edge < 0:
            return -1, NO_EDGE, int(Confidence.GIVEN)
        row = int(deps.edges.src[edge])
        this = int(deps.edges.kind[edge])
        if kind in (NO_EDGE, EdgeKind.STREAM) or this in (EdgeKind.EVENT, EdgeKind.EVENT_INFERRED):
            kind = this  # the wait's own place on its stream says nothing; its event does
        sure = max(sure, int(deps.edges.confidence[edge]))
        if deps.timeline.kind[row] not in (Kind.WAIT, Kind.RECORD) or row in seen:
            return row, kind, sure
        seen.add(row)

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

#: Records and waits that stand in a row on a stream are seen through, up to so many.
_PASSES = 8
_EVENTS = (int(EdgeKind.EVENT), int(EdgeKind.EVENT_INFERRED))

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
        through: int32 [R], every row that the path runs through, the last first: also those that took no time.
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
    through: Int32

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
        return walk.path(before, with_work=False)
    row = last if last is not None else last_row(deps, start_ns, end_ns)
    if row >= 0:
        return walk.path(row, with_work=True)
    nothing = _Columns(start_ns, end_ns)
    nothing.one(start_ns, -1, Piece.UNKNOWN, NO_EDGE)
    return nothing.path(np.empty(0, np.int32))


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
    """The walk from the end of a stretch to its start, along binding edges."""

    def __init__(self, deps: Dependencies, start_ns: int, end_ns: int) -> None:
        self._deps, self._start, self._end = deps, start_ns, end_ns

    def chain(self, row: int) -> tuple[Int64, Int64]:
        """Return the rows on the path from a row on, the last first, and the edge from each to the next."""
        deps = self._deps
        binding, before, ready = deps.chain
        rows, edges = [row], []
        seen = {row}
        while True:
            edge = binding[row]
            if edge < 0:
                break
            at = before[row]
            if at in seen:
                edge = self._other(row, seen)
                if edge < 0:
                    break
                at = int(deps.edges.src[edge])
            seen.add(at)
            edges.append(edge)
            rows.append(at)
            # Times only fall, so what comes before lies before the stretch.
            if ready[row] <= self._start:
                break
            row = at
        return np.array(rows, np.int64), np.array(edges, np.int64)

    def _other(self, row: int, seen: set[int]) -> int:
        """Return the edge that held a row up next to the binding one, not back to what the path has seen."""
        others = [e for e in self._deps.edges_into(row) if int(self._deps.edges.src[e]) not in seen]
        return max(others, key=lambda e: int(self._deps.ready_ns[e]), default=-1)

    def path(self, row: int, *, with_work: bool) -> Path:
        """Return the path that a row ends, or, without its work, the path to its begin."""
        deps, table = self._deps, self._deps.timeline
        rows, edges = self.chain(row)
        src, dst = rows[1:], rows[:-1]
        kind, sure = self._by_events(dst, edges)
        own = deps.own_time[edges]
        # Back to where an edge let go, then back to where the work waited for began.
        until = np.where(own, deps.finish_ns[edges], deps.ready_ns[edges])
        begun = np.where(deps.edges.from_start[edges], table.start_ns[src], deps.release_ns[src])
        host_src = ~table.on_device[src]
        # A thread's time between two of its calls is its own work; all other delays are nobody's.
        host_gap = own | ((kind == EdgeKind.HOST) & (table.kind[dst] != Kind.SYNC))
        gap = np.where(host_gap, Piece.HOST, Piece.DELAY)
        work = np.where(host_src, Piece.HOST, Piece.WORK)
        columns = _Columns(self._start, self._end)
        if with_work:
            end = int(table.end_ns[row])
            first = Piece.WORK if table.on_device[row] else Piece.HOST
            columns.one(end, row, Piece.UNKNOWN, NO_EDGE)
            columns.one(int(deps.release_ns[row]), row, first, NO_EDGE)
        columns.pairs(until, begun, dst, src, gap, work, kind, sure)
        last = int(rows[-1])
        if len(edges) + 1 == len(rows) and deps.binding[last] < 0 and not table.on_device[last]:
            # What a thread did before its first call that the device has to do with is its own work too.
            thread = int(table.start_ns[np.argmax(table.stream == table.stream[last])])
            columns.one(thread, last, Piece.HOST, int(EdgeKind.HOST))
        columns.one(self._start, last, Piece.UNKNOWN, NO_EDGE)
        return columns.path(rows.astype(np.int32))

    def _by_events(self, dst: Int64, edges: Int64) -> tuple[Int16, UInt8]:
        """Return the kind and confidence of each edge, seen through records and waits.

        Work behind a record is on the path by the event, not by its place in front of the record.
        """
        kind = self._deps.edges.kind[edges].astype(np.int16)
        sure = self._deps.edges.confidence[edges].copy()
        passing = np.isin(self._deps.timeline.kind[dst], [Kind.RECORD, Kind.WAIT])
        for _ in range(_PASSES):
            by_event = np.isin(kind[:-1], _EVENTS) & passing[1:] & (kind[1:] == EdgeKind.STREAM)
            if not by_event.any():
                break
            at = np.flatnonzero(by_event) + 1
            kind[at], sure[at] = kind[at - 1], np.maximum(sure[at], sure[at - 1])
        return kind, sure


class _Columns:
    """Pieces from the last to the first, each down to a moment; made into a path at the end."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self._start, self._end = start_ns, end_ns
        self._parts: list[tuple[Int64, ...]] = []

    def one(self, until_ns: int, row: int, piece: Piece, edge: int) -> None:
        """Add one piece."""
        values = (until_ns, row, int(piece), edge, int(Confidence.GIVEN), -1)
        self._parts.append(tuple(np.array([value], np.int64) for value in values))

    def pairs(
        self,
        until: Int64,
        begun: Int64,
        dst: Int64,
        src: Int64,
        gap: Int64,
        work: Int64,
        kind: Int16,
        sure: UInt8,
    ) -> None:
        """Add a gap and a work for each edge."""

        def mixed(first: npt.ArrayLike, second: npt.ArrayLike) -> Int64:
            return np.stack((np.asarray(first), np.asarray(second)), axis=1).ravel().astype(np.int64)

        nobody = np.full(len(src), -1)
        self._parts.append(
            (mixed(until, begun), mixed(dst, src), mixed(gap, work), mixed(kind, kind), mixed(sure, sure),
             mixed(src, nobody))
        )  # fmt: skip

    def path(self, through: Int32) -> Path:
        """Return the path: moments only fall, and pieces of no length are no pieces."""
        until, row, piece, edge, sure, waited = (
            np.concatenate(part) for part in zip(*self._parts, strict=True)
        )
        low = np.maximum(np.minimum.accumulate(np.minimum(until, self._end)), self._start)
        high = np.concatenate(([self._end], low[:-1]))
        kept = np.flatnonzero(high > low)[::-1]
        low, high, piece, edge = low[kept], high[kept], piece[kept], edge[kept]
        hole = (piece == Piece.DELAY) & np.isin(edge, _AT_ONCE) & (high - low > _EXPLAINED_NS)
        piece = np.where(hole, Piece.UNKNOWN, piece)
        return Path(
            self._start,
            self._end,
            low,
            high,
            row[kept].astype(np.int32),
            piece.astype(np.uint8),
            edge.astype(np.int16),
            sure[kept].astype(np.uint8),
            waited[kept].astype(np.int32),
            through,
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

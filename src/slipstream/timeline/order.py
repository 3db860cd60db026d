"""The order that programs write: launches, a stream's order, a thread's order.

Two operations of one stream may overlap legally (programmatic dependent launch, tails of collectives), so an
operation waits for the one behind which it stands and for whichever of its stream ends last, and may begin
before either is done.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from slipstream.timeline.dispatch import asked_ns, dispatch_edges
from slipstream.timeline.edge_types import Confidence, EdgeKind, EdgeList, concatenate, edge_list, no_edges
from slipstream.timeline.table import Bool, Int32, Int64, Kind, Timeline

#: A call that stood in its own copy returns no later than this after it.
_RETURN_NS = 50_000
#: Of such a call the time until it has issued the copy; the rest it stands.
_ISSUE_NS = 10_000


@dataclass(frozen=True)
class Rows:
    """A timeline and what every rule asks of it.

    Attributes:
        timeline: N rows.
        place: int32 [N], the stream in whose order a row runs.
        queued: bool [N], whether it stands in a device's stream, in the device's own time.
        echo: bool [N], a wait or a synchronisation written at the host's time on a device's stream (CUDA).
        issue_ns: int64 [N], when the host issued it, or put it into the queue of the thread that did; its start
            where that is unknown.
        turn: int32 [N], the place of a row in the order in which a thread made its calls: by start, and of those
            that start together the shortest first, as what takes no time came before what took some.
        issue_turn: int32 [N], the turn of that call, so the order of issue; a row's own where that is unknown.
        release_ns: int64 [N], when its own work began: its start, of waits its end.
        done_ns: int64 [N], when its own work was over: its end; of a call that stood in its own copy, when it had
            issued it.
        stood: int32 [C, 2], (copy, call) of those.
        in_order: int32 [Q], queued rows by (place, start, end).
        issued: int32 [Q], the turns of the calls that issued those, ascending on each stream.
        heads: int32 [P + 1], where each place's rows begin in `in_order`; P streams.
    """

    timeline: Timeline
    place: Int32
    queued: Bool
    echo: Bool
    issue_ns: Int64
    turn: Int32
    issue_turn: Int32
    release_ns: Int64
    done_ns: Int64
    stood: Int32
    in_order: Int32
    issued: Int32
    heads: Int32

    @staticmethod
    def of(timeline: Timeline) -> Rows:
        """Prepare a timeline."""
        kind, device = timeline.kind, timeline.on_device
        place = _places(timeline)
        waits = device & (kind == Kind.WAIT)
        # A device that shows its records shows its waits in its own time too (Ascend); else they are echoes.
        ranks_with_records = np.unique(timeline.rank[device & (kind == Kind.RECORD)])
        echo = (waits & ~np.isin(timeline.rank, ranks_with_records)) | (device & (kind == Kind.SYNC))
        queued = device & (kind <= Kind.WAIT) & ~echo
        launched = timeline.launch >= 0
        issue = np.where(launched, timeline.start_ns[np.maximum(timeline.launch, 0)], timeline.start_ns)
        issue = asked_ns(timeline, np.minimum(issue, timeline.start_ns))
        stood = _stood_in_copy(timeline, queued)
        standing = (waits & ~echo) | (~device & (kind == Kind.SYNC))
        standing[stood[:, 1]] = False  # its own work comes first: it issues the copy
        release = np.where(standing, timeline.end_ns, timeline.start_ns)
        rows = np.flatnonzero(queued).astype(np.int32)
        # Of rows that start together the shortest stands first: a record or a wait without length.
        in_order = rows[np.lexsort((timeline.end_ns[rows], timeline.start_ns[rows], place[rows]))]
        heads = np.searchsorted(place[in_order], np.arange(len(timeline.streams) + 1)).astype(np.int32)
        done = timeline.end_ns.copy()
        left = timeline.start_ns[stood[:, 1]] + _ISSUE_NS
        done[stood[:, 1]] = np.minimum(timeline.start_ns[stood[:, 0]], left)
        turn = np.empty(len(timeline), np.int32)
        turn[np.lexsort((timeline.end_ns, timeline.start_ns))] = np.arange(len(timeline), dtype=np.int32)
        issue_turn = np.where(launched, turn[timeline.launch], turn)
        issued = issue_turn[in_order]
        for low, high in zip(heads[:-1].tolist(), heads[1:].tolist(), strict=True):
            # Issue order is stream order; an unknown call looks later than it was, hence the minimum from behind.
            issued[low:high] = np.minimum.accumulate(issued[low:high][::-1])[::-1]
        return Rows(
            timeline,
            place,
            queued,
            echo,
            issue,
            turn,
            issue_turn,
            release,
            done,
            stood,
            in_order,
            issued,
            heads,
        )

    def of_stream(self, stream: int) -> Int32:
        """Return the queued rows of a stream in its order."""
        return self.in_order[self.heads[stream] : self.heads[stream + 1]]

    def issued_before(self, stream: int, row: int) -> int:
        """Return the last operation that the host issued to a stream before a row of the host, or -1."""
        low, high = int(self.heads[stream]), int(self.heads[stream + 1])
        index = low + int(np.searchsorted(self.issued[low:high], self.turn[row]))
        return int(self.in_order[index - 1]) if index > low else -1

    def issued_after(self, stream: int, row: int) -> int:
        """Return the first operation that the host issued to a stream after a row of the host, or -1."""
        low, high = int(self.heads[stream]), int(self.heads[stream + 1])
        index = low + int(np.searchsorted(self.issued[low:high], self.turn[row], side="right"))
        return int(self.in_order[index]) if index < high else -1


def _stood_in_copy(timeline: Timeline, queued: Bool) -> Int32:
    """Find calls that returned just after the copy they issued: they stood in it."""
    copies = np.flatnonzero((timeline.kind == Kind.COPY) & queued & (timeline.launch >= 0))
    calls = timeline.launch[copies]
    returned = timeline.end_ns[calls] - timeline.end_ns[copies]
    stood = (
        (returned >= 0) & (returned <= _RETURN_NS) & (timeline.start_ns[calls] <= timeline.start_ns[copies])
    )
    stood &= timeline.graph[copies] < 0
    return np.stack((copies[stood], calls[stood]), axis=1).astype(np.int32)


def _places(timeline: Timeline) -> Int32:
    """Put a collective that is shown on a lane of its own where its parts run."""
    place = timeline.stream.copy()
    parts = np.flatnonzero((timeline.kind == Kind.SUBTASK) & (timeline.parent >= 0) & timeline.on_device)
    parts = parts[timeline.kind[timeline.parent[parts]] == Kind.COMM]
    # From the last to the first: the first part says.
    place[timeline.parent[parts[::-1]]] = timeline.stream[parts[::-1]]
    return place


def launch_edges(rows: Rows) -> EdgeList:
    """Return an edge from the host's call to what it issued: of a replay, to the first row on each stream."""
    timeline = rows.timeline
    issued = np.flatnonzero(rows.queued & (timeline.launch >= 0))
    if not len(issued):
        return no_edges()
    by_call = issued[np.lexsort((issued, rows.place[issued], timeline.launch[issued]))]
    call, place = timeline.launch[by_call], rows.place[by_call]
    first = np.concatenate(([True], (call[1:] != call[:-1]) | (place[1:] != place[:-1])))
    return edge_list(call[first], by_call[first], EdgeKind.LAUNCH)


def stream_edges(rows: Rows, outside: Bool) -> EdgeList:
    """Return an edge from the row before each row of a stream, and from the one that ends last so far.

    Args:
        rows: the timeline.
        outside: bool [N], rows whose order is known otherwise: nodes of graphs with known edges, whose streams
            are no order.
    """
    in_order, found = rows.in_order[~outside[rows.in_order]], []
    if len(in_order) < 2:
        return no_edges()
    place = rows.place[in_order]
    end = rows.timeline.end_ns[in_order]
    behind = np.flatnonzero(place[1:] == place[:-1]) + 1
    found.append(edge_list(in_order[behind - 1], in_order[behind], EdgeKind.STREAM))
    heads = np.concatenate(([0], np.flatnonzero(place[1:] != place[:-1]) + 1, [len(place)])).tolist()
    for low, high in itertools.pairwise(heads):
        ends = end[low:high]
        reach = np.maximum.accumulate(ends)
        overtaken = np.flatnonzero(reach[:-1] > ends[:-1]) + 1  # the row before did not end last
        if len(overtaken):
            peaks = np.where(ends == reach, np.arange(len(ends)), 0)
            last = np.maximum.accumulate(peaks)[overtaken - 1]
            found.append(edge_list(in_order[low + last], in_order[low + overtaken], EdgeKind.STREAM))
    return concatenate(found)


def host_rows(rows: Rows) -> Int32:
    """Return the rows of threads that the device has to do with, by (thread, turn): launches and waits.

    And what hands launches from one thread to another.
    """
    timeline = rows.timeline
    wanted = np.zeros(len(timeline), np.bool_)
    wanted[timeline.takings] = wanted[timeline.launch[timeline.takings]] = True
    wanted[timeline.launch[rows.queued & (timeline.launch >= 0)]] = True
    wanted[(timeline.kind == Kind.LAUNCH) | (timeline.kind == Kind.SYNC)] = True
    wanted &= ~timeline.on_device
    found = np.flatnonzero(wanted)
    return found[np.lexsort((rows.turn[found], timeline.stream[found]))].astype(np.int32)


def host_edges(rows: Rows, *, infer: bool) -> EdgeList:
    """Return the program order of each thread, between the calls that the device has to do with.

    What lies between two of them is the host's own work, whatever it was. Unless another thread of the rank made
    calls meanwhile: then the threads handed over to each other (as Python's and autograd's do), which is inferred.
    Threads that take their work from a queue are no part of that: they run beside the others (`dispatch`).
    """
    timeline = rows.timeline
    found = host_rows(rows)
    takes = np.isin(timeline.stream[found], timeline.stream[timeline.takings])
    dispatched, found = dispatch_edges(timeline, found[takes]), found[~takes]
    if len(found) < 2:
        return dispatched
    if infer:
        found = found[np.lexsort((rows.turn[found], timeline.rank[found]))]
    behind = np.flatnonzero(timeline.rank[found[1:]] == timeline.rank[found[:-1]]) + 1
    src, dst = found[behind - 1], found[behind]
    same = timeline.stream[src] == timeline.stream[dst]
    handed = edge_list(src[~same], dst[~same], EdgeKind.HOST, Confidence.INFERRED)
    alone = edge_list(src[same], dst[same], EdgeKind.HOST)
    return concatenate([alone, handed if infer else no_edges(), dispatched])

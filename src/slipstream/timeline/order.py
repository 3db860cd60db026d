"""The order that programs write: launches, a stream's order, a thread's order.

Two operations of one stream may overlap legally (programmatic dependent launch, tails of collectives), so an
operation waits for the one behind which it stands and for whichever of its stream ends last, and may begin
before either is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.timeline.edge_types import EdgeKind, EdgeList, concatenate, edge_list, no_edges
from slipstream.timeline.table import Bool, Int32, Int64, Kind, Timeline


@dataclass(frozen=True)
class Rows:
    """A timeline and what every rule asks of it.

    Attributes:
        timeline: N rows.
        place: int32 [N], the stream in whose order a row runs.
        queued: bool [N], whether it stands in a device's stream, in the device's own time.
        echo: bool [N], a wait or a synchronisation written at the host's time on a device's stream (CUDA).
        issue_ns: int64 [N], when the host issued it; its start where that is unknown.
        release_ns: int64 [N], when its own work began: its start, of waits its end.
        in_order: int32 [Q], queued rows by (place, start).
        heads: int32 [P + 1], where each place's rows begin in `in_order`; P streams.
    """

    timeline: Timeline
    place: Int32
    queued: Bool
    echo: Bool
    issue_ns: Int64
    release_ns: Int64
    in_order: Int32
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
        issue = np.minimum(issue, timeline.start_ns)
        standing = (waits & ~echo) | (~device & (kind == Kind.SYNC))
        release = np.where(standing, timeline.end_ns, timeline.start_ns)
        rows = np.flatnonzero(queued).astype(np.int32)
        in_order = rows[np.argsort(place[rows], kind="stable")]  # rows ascend by start already
        heads = np.searchsorted(place[in_order], np.arange(len(timeline.streams) + 1)).astype(np.int32)
        return Rows(timeline, place, queued, echo, issue, release, in_order, heads)

    def of_stream(self, stream: int) -> Int32:
        """Return the queued rows of a stream in its order."""
        return self.in_order[self.heads[stream] : self.heads[stream + 1]]

    def issued_before(self, stream: int, at_ns: int) -> int:
        """Return the last operation that the host issued to a stream before a moment, or -1."""
        rows = self.of_stream(stream)
        # Issue order is stream order; a later start may hide an unknown launch, hence the running maximum.
        issued = np.maximum.accumulate(self.issue_ns[rows]) if len(rows) else rows
        index = int(np.searchsorted(issued, at_ns, side="left"))
        return int(rows[index - 1]) if index else -1

    def issued_after(self, stream: int, at_ns: int) -> int:
        """Return the first operation that the host issued to a stream from a moment on, or -1."""
        rows = self.of_stream(stream)
        issued = np.maximum.accumulate(self.issue_ns[rows]) if len(rows) else rows
        index = int(np.searchsorted(issued, at_ns, side="left"))
        return int(rows[index]) if index < len(rows) else -1


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


def stream_edges(rows: Rows) -> EdgeList:
    """Return an edge from the row before each row of a stream, and from the one that ends last so far."""
    in_order, found = rows.in_order, []
    end = rows.timeline.end_ns[in_order]
    if len(in_order) < 2:
        return no_edges()
    place = rows.place[in_order]
    behind = np.flatnonzero(place[1:] == place[:-1]) + 1
    found.append(edge_list(in_order[behind - 1], in_order[behind], EdgeKind.STREAM))
    for stream in np.flatnonzero(np.diff(rows.heads) > 2).tolist():
        low, high = int(rows.heads[stream]), int(rows.heads[stream + 1])
        ends = end[low:high]
        reach = np.maximum.accumulate(ends)
        overtaken = np.flatnonzero(reach[:-1] > ends[:-1]) + 1  # the row before did not end last
        if len(overtaken):
            peaks = np.where(ends == reach, np.arange(len(ends)), 0)
            last = np.maximum.accumulate(peaks)[overtaken - 1]
            found.append(edge_list(in_order[low + last], in_order[low + overtaken], EdgeKind.STREAM))
    return concatenate(found)


def host_rows(rows: Rows) -> Int32:
    """Return the rows of threads that the device has to do with, by (thread, start): launches and waits."""
    timeline = rows.timeline
    wanted = np.zeros(len(timeline), np.bool_)
    wanted[timeline.launch[rows.queued & (timeline.launch >= 0)]] = True
    wanted[(timeline.kind == Kind.LAUNCH) | (timeline.kind == Kind.SYNC)] = True
    wanted &= ~timeline.on_device
    found = np.flatnonzero(wanted)
    return found[np.argsort(timeline.stream[found], kind="stable")].astype(np.int32)


def host_edges(rows: Rows) -> EdgeList:
    """Return the program order of each thread, between the calls that the device has to do with.

    What lies between two of them is the host's own work, whatever it was.
    """
    found = host_rows(rows)
    if len(found) < 2:
        return no_edges()
    thread = rows.timeline.stream[found]
    behind = np.flatnonzero(thread[1:] == thread[:-1]) + 1
    return edge_list(found[behind - 1], found[behind], EdgeKind.HOST)

"""Dependencies across streams that the trace or a dump tells of: events, the host's waits, graphs' own edges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream.timeline.edge_types import Confidence, EdgeKind, EdgeList, concatenate, edge_list, no_edges
from slipstream.timeline.order import Rows, host_rows
from slipstream.timeline.table import Int32, Kind

#: A host's wait ends a little after what it waited for; clocks of host and device differ by up to this much.
_HOST_SLACK_NS = 20_000
#: A copy that the host stood in: it returned no later than this after the copy.
_BLOCKING_COPY_NS = 50_000


def recorded_edges(rows: Rows) -> tuple[EdgeList, Int32]:
    """Return the edges of waits whose record the trace names, and the waits of streams that it names none for.

    A wait in the device's own time depends on the record's row. An echo of the host's call depends on nothing:
    there, the first operation issued to the stream after the call depends on the last one that was issued to
    the recorded stream before the record.
    """
    timeline = rows.timeline
    waits = np.flatnonzero((timeline.kind == Kind.WAIT) & timeline.on_device)
    named = timeline.record[waits] >= 0
    src: list[int] = []
    dst: list[int] = []
    unresolved = [waits[~named]]
    for wait in waits[named].tolist():
        record = int(timeline.record[wait])
        waited, waiter = record, wait
        if not timeline.on_device[record]:
            waited = _covered_by(rows, record, int(timeline.waited[wait]))
        if rows.echo[wait]:
            waiter = rows.issued_after(int(timeline.stream[wait]), _called_at(rows, wait))
        if waited >= 0 and waiter >= 0:
            src.append(waited)
            dst.append(waiter)
        elif waited < 0 and waiter >= 0:
            unresolved.append(np.array([wait]))
    edges = edge_list(src, dst, EdgeKind.EVENT)
    return edges, np.sort(np.concatenate(unresolved)).astype(np.int32)


def _called_at(rows: Rows, echo: int) -> int:
    """Return when the host made the call that a row echoes."""
    call = int(rows.timeline.launch[echo])
    return int(rows.timeline.start_ns[call if call >= 0 else echo])


def _covered_by(rows: Rows, record: int, stream: int) -> int:
    """Return the last operation that a host's call to record covers, or -1."""
    if stream < 0:
        return -1
    return rows.issued_before(stream, int(rows.timeline.start_ns[record]))


def graph_edges(rows: Rows) -> EdgeList:
    """Return the edges of graphs whose topology was dumped, for every replay of them."""
    timeline = rows.timeline
    found: list[EdgeList] = []
    for number, graph in enumerate(timeline.graphs):
        if graph.edges is None or not len(graph.edges):
            continue
        inside = np.flatnonzero((timeline.graph == number) & rows.queued & (timeline.node >= 0))
        if not len(inside):
            continue
        nodes = int(max(timeline.node[inside].max(), graph.edges.max())) + 1
        replays = int(timeline.replay[inside].max()) + 1
        row_of = np.full((replays, nodes), -1, np.int32)
        row_of[timeline.replay[inside], timeline.node[inside]] = inside
        src, dst = row_of[:, graph.edges[:, 0]].ravel(), row_of[:, graph.edges[:, 1]].ravel()
        there = (src >= 0) & (dst >= 0)
        found.append(edge_list(src[there], dst[there], EdgeKind.GRAPH))
    return concatenate(found)


def replay_edges(rows: Rows, known: EdgeList) -> EdgeList:
    """Return what holds of every replay on more than one stream: it begins and ends as a whole.

    What a replay begins with waits for its launch and for what stood before it on its home stream, that of its
    first row; what stands behind it there waits for all that it ends with. Where edges of the graph are known,
    it begins with nodes that depend on none and ends with nodes that none depends on; else with the first and
    the last row on each stream.

    Args:
        rows: the timeline.
        known: the graphs' own edges.
    """
    timeline = rows.timeline
    inside = np.flatnonzero(rows.queued & (timeline.graph >= 0) & (timeline.replay >= 0))
    if not len(inside):
        return no_edges()
    dumped = np.array([graph.edges is not None for graph in timeline.graphs], np.bool_)
    has_before, has_behind = np.zeros(len(timeline), np.bool_), np.zeros(len(timeline), np.bool_)
    has_before[known.dst], has_behind[known.src] = True, True
    by_replay = inside[np.lexsort((inside, timeline.replay[inside], timeline.graph[inside]))]
    graph, replay = timeline.graph[by_replay], timeline.replay[by_replay]
    change = (graph[1:] != graph[:-1]) | (replay[1:] != replay[:-1])
    bounds = np.concatenate(([0], np.flatnonzero(change) + 1, [len(by_replay)]))
    at = np.full(len(timeline), -1, np.int64)
    at[rows.in_order] = np.arange(len(rows.in_order))
    found: list[EdgeList] = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        members = by_replay[low:high]
        places = rows.place[members]
        if dumped[graph[low]]:
            begins, ends = members[~has_before[members]], members[~has_behind[members]]
        elif (places == places[0]).all():
            continue
        else:
            begins = members[np.unique(places, return_index=True)[1]]
            ends = members[::-1][np.unique(places[::-1], return_index=True)[1]]
        stream = int(places[0])
        home = members[places == stream]
        before, behind = int(at[home[0]]) - 1, int(at[home[-1]]) + 1
        if before >= rows.heads[stream]:
            found.append(_whole([rows.in_order[before]] * len(begins), begins))
        if behind < rows.heads[stream + 1]:
            found.append(_whole(ends, [rows.in_order[behind]] * len(ends)))
        launched = begins[timeline.launch[begins] >= 0]
        found.append(edge_list(timeline.launch[launched], launched, EdgeKind.LAUNCH))
    return concatenate(found)


def _whole(src: npt.ArrayLike, dst: npt.ArrayLike) -> EdgeList:
    return edge_list(src, dst, EdgeKind.GRAPH, Confidence.INFERRED)


def sync_edges(rows: Rows, *, infer: bool) -> EdgeList:
    """Return the edges from the device to the host: each wait of a thread, and copies that a thread stood in."""
    timeline = rows.timeline
    standing = np.flatnonzero((timeline.kind == Kind.SYNC) & ~timeline.on_device)
    echoes = np.flatnonzero((timeline.kind == Kind.SYNC) & timeline.on_device & (timeline.launch >= 0))
    echo_of = {int(timeline.launch[row]): row for row in echoes.tolist()}
    found: list[EdgeList] = []
    given: tuple[list[int], list[int]] = ([], [])
    inferred: tuple[list[int], list[int]] = ([], [])
    last = _Ends(rows) if infer else None
    for call in standing.tolist():
        waited = _waited_by(rows, call, echo_of.get(call))
        if waited >= 0 and timeline.end_ns[waited] <= timeline.end_ns[call] + _HOST_SLACK_NS:
            given[0].append(waited)
            given[1].append(call)
        elif last is not None:
            waited = last.just_before(int(timeline.rank[call]), call)
            if waited >= 0:
                inferred[0].append(waited)
                inferred[1].append(call)
    found.append(edge_list(*given, EdgeKind.HOST))
    found.append(edge_list(*inferred, EdgeKind.HOST, Confidence.INFERRED))
    if infer:
        found.append(_blocking_copies(rows))
    return concatenate(found)


def _waited_by(rows: Rows, call: int, echo: int | None) -> int:
    """Return the operation that a host's wait waits for, as far as the trace says, or -1."""
    timeline = rows.timeline
    at_ns = int(timeline.start_ns[call])
    for row in (call, echo):
        if row is None:
            continue
        record, stream = int(timeline.record[row]), int(timeline.waited[row])
        if record >= 0:
            return record if timeline.on_device[record] else _covered_by(rows, record, stream)
        if stream >= 0:
            return rows.issued_before(stream, at_ns)
    return -1


class _Ends:
    """The queued rows of each rank by their ends."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._by_rank: dict[int, Int32] = {}
        timeline = rows.timeline
        for rank in timeline.ranks:
            mine = np.flatnonzero(rows.queued & (timeline.rank == rank))
            self._by_rank[rank] = mine[np.argsort(timeline.end_ns[mine], kind="stable")].astype(np.int32)

    def just_before(self, rank: int, call: int) -> int:
        """Return the row, issued before a call, that ended last within it, or -1."""
        rows, timeline = self._by_rank[rank], self._rows.timeline
        ends = timeline.end_ns[rows]
        begin, end = int(timeline.start_ns[call]), int(timeline.end_ns[call])
        low = int(np.searchsorted(ends, begin, side="right"))
        high = int(np.searchsorted(ends, end, side="right"))
        inside = rows[low:high]
        inside = inside[self._rows.issue_ns[inside] < begin]
        return int(inside[-1]) if len(inside) else -1


def _blocking_copies(rows: Rows) -> EdgeList:
    """Return edges from copies that their call outlasted to the thread's next call: it stood in the copy."""
    timeline = rows.timeline
    copies = np.flatnonzero((timeline.kind == Kind.COPY) & rows.queued & (timeline.launch >= 0))
    calls = timeline.launch[copies]
    returned = timeline.end_ns[calls] - timeline.end_ns[copies]
    stood = (returned >= 0) & (returned <= _BLOCKING_COPY_NS) & (timeline.start_ns[calls] <= timeline.start_ns[copies])
    copies, calls = copies[stood], calls[stood]
    if not len(copies):
        return no_edges()
    hosts = host_rows(rows)
    at = np.full(len(timeline), -1, np.int64)
    at[hosts] = np.arange(len(hosts))
    index = at[calls] + 1
    there = index < len(hosts)
    copies, calls, index = copies[there], calls[there], index[there]
    following = hosts[index]
    same = (timeline.stream[following] == timeline.stream[calls]) & (
        timeline.start_ns[following] >= timeline.end_ns[copies]
    )
    return edge_list(copies[same], following[same], EdgeKind.HOST, Confidence.INFERRED)

"""Dependencies across streams that the trace or a dump tells of: events, the host's waits, graphs' own edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.timeline.edge_types import Confidence, EdgeKind, EdgeList, concatenate, edge_list, no_edges
from slipstream.timeline.order import Rows, host_rows
from slipstream.timeline.table import Bool, Int32, Kind, Timeline

#: A host's wait ends a little after what it waited for; clocks of host and device differ by up to this much.
_HOST_SLACK_NS = 20_000


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
            waiter = rows.issued_after(int(timeline.stream[wait]), called_by(rows, wait))
        if waited >= 0 and waiter >= 0:
            src.append(waited)
            dst.append(waiter)
        elif waited < 0 and waiter >= 0:
            unresolved.append(np.array([wait]))
    edges = edge_list(src, dst, EdgeKind.EVENT)
    return edges, np.sort(np.concatenate(unresolved)).astype(np.int32)


def called_by(rows: Rows, echo: int) -> int:
    """Return the host's call that a row echoes; the row itself, which has the call's time, if it is unknown."""
    call = int(rows.timeline.launch[echo])
    return call if call >= 0 else echo


def _covered_by(rows: Rows, record: int, stream: int) -> int:
    """Return the last operation that a host's call to record covers, or -1."""
    if stream < 0:
        return -1
    return rows.issued_before(stream, record)


def graph_edges(rows: Rows) -> EdgeList:
    """Return the edges of graphs whose topology was dumped, for every replay of them."""
    timeline = rows.timeline
    found: list[EdgeList] = []
    for number, graph in enumerate(timeline.graphs):
        if graph.edges is None or not len(graph.edges):
            continue
        inside = np.flatnonzero((timeline.graph == number) & rows.queued)
        inside = inside[(timeline.node[inside] >= 0) & (timeline.replay[inside] >= 0)]
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


@dataclass(frozen=True)
class _Replay:
    """A replay that is more than a stretch of one stream. Rows that it begins and ends with; its home stream."""

    begins: Int32
    ends: Int32
    home: Int32


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
    replays = _wide_replays(rows, known)
    if not replays:
        return no_edges()
    at = np.full(len(timeline), -1, np.int64)
    at[rows.in_order] = np.arange(len(rows.in_order))
    replay_of = np.full(len(timeline), -1, np.int32)
    for number, replay in enumerate(replays):
        replay_of[replay.home] = number
    found: list[EdgeList] = []
    for replay in replays:
        stream = int(rows.place[replay.home[0]])
        before, behind = int(at[replay.home[0]]) - 1, int(at[replay.home[-1]]) + 1
        if before >= rows.heads[stream] and replay_of[rows.in_order[before]] < 0:
            found.append(_whole(rows.in_order[before : before + 1], replay.begins))
        if behind < rows.heads[stream + 1]:
            number = int(replay_of[rows.in_order[behind]])
            following = replays[number].begins if number >= 0 else rows.in_order[behind : behind + 1]
            found.append(_whole(replay.ends, following))
        launched = replay.begins[timeline.launch[replay.begins] >= 0]
        found.append(edge_list(timeline.launch[launched], launched, EdgeKind.LAUNCH))
    return concatenate(found)


def _whole(src: Int32, dst: Int32) -> EdgeList:
    return edge_list(np.repeat(src, len(dst)), np.tile(dst, len(src)), EdgeKind.GRAPH, Confidence.INFERRED)


def _wide_replays(rows: Rows, known: EdgeList) -> list[_Replay]:
    """Return the replays on more than one stream, and all of graphs whose edges are known."""
    timeline = rows.timeline
    inside = np.flatnonzero(rows.queued & (timeline.graph >= 0) & (timeline.replay >= 0))
    if not len(inside):
        return []
    dumped = known_graphs(timeline)
    has_before, has_behind = np.zeros(len(timeline), np.bool_), np.zeros(len(timeline), np.bool_)
    has_before[known.dst], has_behind[known.src] = True, True
    by_replay = inside[np.lexsort((inside, timeline.replay[inside], timeline.graph[inside]))].astype(np.int32)
    graph, replay = timeline.graph[by_replay], timeline.replay[by_replay]
    change = np.flatnonzero((graph[1:] != graph[:-1]) | (replay[1:] != replay[:-1])) + 1
    found: list[_Replay] = []
    for members in np.split(by_replay, change):
        places = rows.place[members]
        home = members[places == places[0]]
        if dumped[timeline.graph[members[0]]]:
            found.append(_Replay(members[~has_before[members]], members[~has_behind[members]], home))
        elif len(home) < len(members):
            first = np.unique(places, return_index=True)[1]
            last = np.unique(places[::-1], return_index=True)[1]
            found.append(_Replay(members[first], members[::-1][last], home))
    return found


def known_graphs(timeline: Timeline) -> Bool:
    """Return which graphs' edges were dumped, bool [graphs + 1]; the last stands for no graph."""
    return np.array([graph.edges is not None for graph in timeline.graphs] + [False], np.bool_)


def sync_edges(rows: Rows, *, infer: bool) -> EdgeList:
    """Return the edges from the device to the host: each wait of a thread, and copies that a thread stood in."""
    timeline = rows.timeline
    standing = np.flatnonzero((timeline.kind == Kind.SYNC) & ~timeline.on_device)
    standing = np.setdiff1d(standing, rows.stood[:, 1])
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
    for row in (call, echo):
        if row is None:
            continue
        record, stream = int(timeline.record[row]), int(timeline.waited[row])
        if record >= 0:
            return record if timeline.on_device[record] else _covered_by(rows, record, stream)
        if stream >= 0 and rows.heads[stream] < rows.heads[stream + 1]:
            return rows.issued_before(stream, call)
    if "DeviceSynchronize" in timeline.name_of(call) or "SynchronizeDevice" in timeline.name_of(call):
        return _last_of_all(rows, call)
    return -1


def _last_of_all(rows: Rows, call: int) -> int:
    """Return, of what was issued to a rank's streams before a call, the row that ends last, or -1."""
    timeline = rows.timeline
    rank = int(timeline.rank[call])
    streams = [
        n for n, stream in enumerate(timeline.streams) if stream.rank == rank and stream.device is not None
    ]
    last = [row for stream in streams if (row := rows.issued_before(stream, call)) >= 0]
    return max(last, key=lambda row: int(timeline.end_ns[row]), default=-1)


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
        inside = inside[self._rows.issue_turn[inside] < self._rows.turn[call]]
        return int(inside[-1]) if len(inside) else -1


def _blocking_copies(rows: Rows) -> EdgeList:
    """Return edges from copies that their call stood in to the thread's next call."""
    timeline = rows.timeline
    copies, calls = rows.stood[:, 0], rows.stood[:, 1]
    if not len(copies):
        return no_edges()
    hosts = host_rows(rows)
    at = np.full(len(timeline), -1, np.int64)
    at[hosts] = np.arange(len(hosts))
    there = at[calls] + 1 < len(hosts)
    copies, calls = copies[there], calls[there]
    following = hosts[at[calls] + 1]
    same = (timeline.stream[following] == timeline.stream[calls]) & (
        timeline.start_ns[following] >= timeline.end_ns[copies]
    )
    return edge_list(copies[same], following[same], EdgeKind.HOST, Confidence.INFERRED)

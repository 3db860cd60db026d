"""Dependencies that no trace states and that its times tell: marked, with how sure they are.

Ascend shows records and waits as tasks of a stream, without the event's id. A wait that blocks ends a few
hundred nanoseconds after its record (measured: 380-520 ns, 30 of 30), and the host issued that record before
the wait. CUDA shows no wait inside a replay, and from 12.9 on none that says for what.
"""

from __future__ import annotations

import numpy as np

from slipstream.timeline.edge_types import Confidence, EdgeKind, EdgeList, concatenate, edge_list, no_edges
from slipstream.timeline.order import Rows
from slipstream.timeline.table import Bool, Int32, Int64, Kind, Note, Timeline

#: A wait longer than this stood; a shorter one found its event done.
BLOCKING_NS = 1_000
#: From a record's end to the end of the wait that it frees.
RELEASE_NS = 2_000
#: A row that began this soon after another stream's row ended may have waited for it (older traces: whole us).
JOIN_NS = 8_000
#: What is known of it must leave more than this unexplained, and twice as much as that row does.
UNEXPLAINED_NS = 2_000
#: No launch takes this long to arrive.
STOOD_NS = 100_000
#: Calls that let a stream wait, where the profiler does not echo them.
WAIT_CALLS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")


def inferred_waits(rows: Rows, waits: Int32) -> tuple[EdgeList, list[Note]]:
    """Return edges from records to waits of which the trace does not say which record they wait for.

    A wait that blocked: the record on another stream, issued earlier, that ended last before the wait's end
    and at most 2 us before it. One that did not: the latest record issued earlier that had ended; guessed.

    Args:
        rows: the timeline.
        waits: WAIT rows without a record.
    """
    timeline = rows.timeline
    notes: list[Note] = []
    echoes = int(rows.echo[waits].sum())
    if echoes:
        notes.append(
            Note(
                "unresolved",
                echoes,
                "waits of a stream whose record the trace does not name (CUDA 12.9 and later write -1 there)",
            )
        )
    waits = waits[~rows.echo[waits]]
    found: list[EdgeList] = []
    unpaired = 0
    for rank in np.unique(timeline.rank[waits]).tolist():
        records = np.flatnonzero((timeline.kind == Kind.RECORD) & rows.queued & (timeline.rank == rank))
        records = records[np.argsort(timeline.end_ns[records], kind="stable")]
        mine = waits[timeline.rank[waits] == rank]
        edges, missed = _pair(rows, mine, records.astype(np.int32))
        found.append(edges)
        unpaired += missed
    if unpaired:
        notes.append(
            Note("unresolved", unpaired, "waits that blocked and end after no record of another stream")
        )
    return concatenate(found), notes


def _pair(rows: Rows, waits: Int32, records: Int32) -> tuple[EdgeList, int]:
    """Pair the waits of one rank with its records, which ascend by end; return how many that block have none."""
    timeline = rows.timeline
    ends = timeline.end_ns[records]
    sure: tuple[list[int], list[int]] = ([], [])
    guessed: tuple[list[int], list[int]] = ([], [])
    unpaired = 0
    for wait in waits.tolist():
        blocked = timeline.end_ns[wait] - timeline.start_ns[wait] > BLOCKING_NS
        high = int(np.searchsorted(ends, timeline.end_ns[wait], side="right"))
        low = int(np.searchsorted(ends, timeline.end_ns[wait] - RELEASE_NS)) if blocked else max(0, high - 64)
        record = _latest(rows, wait, records[low:high])
        if record < 0:
            unpaired += int(blocked)
            continue
        into = sure if blocked else guessed
        into[0].append(record)
        into[1].append(wait)
    edges = [
        edge_list(*sure, EdgeKind.EVENT_INFERRED, Confidence.INFERRED),
        edge_list(*guessed, EdgeKind.EVENT_INFERRED, Confidence.GUESSED),
    ]
    return concatenate(edges), unpaired


def _latest(rows: Rows, wait: int, records: Int32) -> int:
    """Return the last of some records that stands on another stream and was issued before a wait, or -1."""
    fit = (rows.place[records] != rows.place[wait]) & issued_before(rows, records, wait)
    which = np.flatnonzero(fit)
    return int(records[which[-1]]) if len(which) else -1


def issued_before(rows: Rows, others: Int32, row: int) -> Bool:
    """Return whether the host issued each of some rows before a row; by launch ids where calls are unknown."""
    timeline = rows.timeline
    if timeline.launch[row] >= 0:
        known = timeline.launch[others] >= 0
        by_call = rows.issue_turn[others] < rows.issue_turn[row]
        by_id = timeline.correlation[others] < timeline.correlation[row]
        found: Bool = np.where(known, by_call, by_id)
        return found
    if timeline.correlation[row] >= 0:
        earlier: Bool = timeline.correlation[others] < timeline.correlation[row]
        return earlier
    return np.ones(len(others), np.bool_)


def guessed_joins(rows: Rows, first: Int32, lag_ns: Int64) -> EdgeList:
    """Return edges that times alone suggest: joins inside replays, and behind waits that name no record.

    A row in a replay, issued after a call that let a stream wait, or issued 100 us ago, began long after all that
    is known to hold it, and soon (8 us) after a row on another stream of its device ended: it probably waited for
    that one. Where the same two nodes of a graph meet so in most of its replays, it is inferred; else guessed.

    Where a rank's trace has no host, times are all there is: work that began 100 us late is taken to have waited
    for what ended last on the device before it, however long before. The rest stays unexplained.

    Args:
        rows: the timeline.
        first: int32 [N + 1], where each row's known edges begin.
        lag_ns: int64 [E], of the known edges.
    """
    timeline = rows.timeline
    alone = _without_host(timeline)
    candidates, lag = _unexplained(rows, first, lag_ns, alone)
    if not len(candidates):
        return no_edges()
    pairs: tuple[list[int], list[int]] = ([], [])
    for device in np.unique(timeline.device[candidates]).tolist():
        mine = rows.queued & (timeline.device == device) & timeline.is_work
        work = np.flatnonzero(mine)
        work = work[np.argsort(timeline.end_ns[work], kind="stable")]
        ends = timeline.end_ns[work]
        here = candidates[timeline.device[candidates] == device]
        high = np.searchsorted(ends, timeline.start_ns[here], side="right")
        within = np.where(alone[here], lag[here], np.minimum(JOIN_NS, lag[here] // 2))
        for row, index, ago in zip(here.tolist(), high.tolist(), within.tolist(), strict=True):
            other = _ended_just_before(rows, work, index, row, ago)
            if other >= 0:
                pairs[0].append(other)
                pairs[1].append(row)
    edges = edge_list(*pairs, EdgeKind.EVENT_INFERRED, Confidence.GUESSED)
    return _steady_are_inferred(rows, edges)


def _unexplained(rows: Rows, first: Int32, lag_ns: Int64, alone: Bool) -> tuple[Int32, Int64]:
    """Return the work that no known edge explains and that may have waited, and int64 [N] how long."""
    timeline = rows.timeline
    least = np.full(len(timeline), np.iinfo(np.int64).max, np.int64)
    heads = np.flatnonzero(first[1:] > first[:-1])
    if len(heads):
        least[heads] = np.minimum.reduceat(lag_ns, first[heads])
    late = timeline.is_work & rows.queued & (least > UNEXPLAINED_NS)
    # Issued long ago, its stream free, and not begun: it waited, whether a call to wait is in the trace or not.
    stood = ((timeline.launch >= 0) | alone) & (least > STOOD_NS)
    found = late & ((timeline.graph >= 0) | stood | _behind_wait_calls(rows))
    return np.flatnonzero(found).astype(np.int32), least


def _without_host(timeline: Timeline) -> Bool:
    """bool [N], rows of ranks of which the trace shows no host at all."""
    return ~np.isin(timeline.rank, np.unique(timeline.rank[~timeline.on_device]))


def _behind_wait_calls(rows: Rows) -> Bool:
    """Return the rows before which the host let a stream wait and the trace does not say for what.

    That is: such a call stands between the calls that issued a row and the row before it on its stream.
    """
    timeline = rows.timeline
    calls = np.isin(timeline.name, [i for i, name in enumerate(timeline.names) if name in WAIT_CALLS])
    known = (timeline.kind == Kind.WAIT) & rows.echo & (timeline.record >= 0) & (timeline.launch >= 0)
    calls[timeline.launch[known]] = False
    calls |= (timeline.kind == Kind.WAIT) & rows.echo & (timeline.record < 0) & (timeline.launch < 0)
    found = np.zeros(len(timeline), np.bool_)
    for rank in np.unique(timeline.rank[calls]).tolist():
        turns = np.sort(rows.turn[calls & (timeline.rank == rank)])
        for stream in range(len(timeline.streams)):
            low, high = int(rows.heads[stream]), int(rows.heads[stream + 1])
            if low == high or timeline.streams[stream].rank != rank:
                continue
            issued = rows.issued[low:high]
            before = np.searchsorted(turns, issued)
            found[rows.in_order[low:high]] = np.diff(before, prepend=0) > 0
    return found


def _ended_just_before(rows: Rows, work: Int64, index: int, row: int, ago_ns: int) -> int:
    """Return the row of another stream that ended last before a row began, at most so long ago, or -1."""
    timeline = rows.timeline
    begin = int(timeline.start_ns[row])
    while index > 0:
        index -= 1
        other = int(work[index])
        if timeline.end_ns[other] < begin - ago_ns:
            return -1
        same_replay = timeline.graph[row] < 0 or (
            timeline.graph[other] == timeline.graph[row] and timeline.replay[other] == timeline.replay[row]
        )
        if same_replay and rows.place[other] != rows.place[row]:
            return other
    return -1


def _steady_are_inferred(rows: Rows, edges: EdgeList) -> EdgeList:
    """Raise what was guessed to inferred where the same nodes of a graph meet in most of its replays."""
    timeline = rows.timeline
    graph = timeline.graph[edges.dst]
    inside = np.flatnonzero(graph >= 0)
    if not len(inside):
        return edges
    keys = np.stack((graph[inside], timeline.node[edges.src[inside]], timeline.node[edges.dst[inside]]))
    _, which, counts = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    replays = np.zeros(len(timeline.graphs), np.int64)
    np.maximum.at(replays, timeline.graph[timeline.graph >= 0], timeline.replay[timeline.graph >= 0] + 1)
    often = counts[which.ravel()]
    steady = (often >= 3) & (often * 10 >= replays[graph[inside]] * 8)
    confidence = edges.confidence.copy()
    confidence[inside[steady]] = Confidence.INFERRED
    return EdgeList(edges.src, edges.dst, edges.kind, confidence, edges.from_start)

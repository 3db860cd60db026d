"""The same operations under the same dependencies with other durations: when would each have run?

    begins(row) = max over its edges of  done(what it waits for) + delay(edge)

The delay of the edge that bound in the recording is what was recorded. That of an edge that did not bind is
not in the trace: at least nothing, at most what was recorded there. So every answer is computed twice, with no
delay (the hopeful one) and with the median delay of bound edges of that kind (the careful one).

With nothing changed both give the recording back, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.table import Bool, Int64

_FAR = -(1 << 62)


@dataclass(frozen=True)
class Schedule:
    """When each row would have begun its own work and been done: int64 [N] each."""

    release_ns: Int64
    done_ns: Int64


@dataclass(frozen=True)
class Model:
    """Nodes and edges of a schedule. N rows come first, then one arrival for each member of a collective.

    And one for each row whose begin others wait for, not its end.

    Attributes:
        src, dst: int64 [E].
        bound_ns: int64 [E], the recorded delay.
        floor_ns: int64 [E], the delay that an edge has at least (a thread's own work between two calls).
        binding: bool [E], whether it held its row up in the recording.
        kind: uint8 [E].
        edge: int64 [E], which edge of the Dependencies it stands for, -1 for one from an arrival to its row.
        work_ns: int64 [M], of each node.
        begin_ns: int64 [M], recorded.
        order: int64 [M], one in which nothing comes before what it waits for.
        broken: edges left out because they would close a circle.
    """

    src: Int64
    dst: Int64
    bound_ns: Int64
    floor_ns: Int64
    binding: Bool
    kind: Int64
    edge: Int64
    work_ns: Int64
    begin_ns: Int64
    order: Int64
    broken: int


def make_model(deps: Dependencies) -> Model:
    """Return what `reschedule` needs of a timeline; one serves any number of changes."""
    table, edges = deps.timeline, deps.edges
    count = len(table)
    kept = np.flatnonzero(edges.kind != EdgeKind.COLLECTIVE)
    members = [np.sort(rows).astype(np.int64) for rows in deps.collectives]
    from_start = edges.from_start[kept]
    begun = np.unique(edges.src[kept][from_start]).astype(np.int64)
    rows = np.concatenate([*members, begun])
    arrival = np.arange(count, dtype=np.int64)
    arrival[rows] = count + np.arange(len(rows))
    dst = arrival[edges.dst[kept]]
    begin = np.concatenate((deps.release_ns, table.start_ns[rows]))
    finish = deps.finish_ns[kept]
    bound = begin[dst] - finish
    ready = np.minimum(deps.ready_ns[kept], begin[dst])
    best = np.full(len(begin), _FAR, np.int64)
    np.maximum.at(best, dst, ready)
    host = deps.own_time[kept]
    floor = np.where(host, np.minimum(table.start_ns[edges.dst[kept]] - finish, bound), np.minimum(bound, 0))
    meets_src = [np.repeat(arrival[group], len(group)) for group in members]
    meets_dst = [np.tile(group, len(group)) for group in members]
    meet_src = np.concatenate([*meets_src, arrival[begun]])
    meet_dst = np.concatenate([*meets_dst, begun])
    zeros = np.zeros(len(meet_src), np.int64)
    work = np.concatenate((np.maximum(deps.done_ns - deps.release_ns, 0), np.zeros(len(rows), np.int64)))
    waited_for = edges.src[kept].astype(np.int64)
    src = np.concatenate((np.where(from_start, arrival[waited_for], waited_for), meet_src))
    all_dst = np.concatenate((dst, meet_dst))
    order, kept_edges = _topological(begin, src, all_dst)
    by_dst = kept_edges[np.argsort(all_dst[kept_edges], kind="stable")]
    return Model(
        src[by_dst],
        all_dst[by_dst],
        np.concatenate((bound, zeros))[by_dst],
        np.concatenate((floor, zeros))[by_dst],
        np.concatenate((ready >= best[dst], np.ones(len(zeros), np.bool_)))[by_dst],
        np.concatenate((edges.kind[kept].astype(np.int64), zeros + EdgeKind.COLLECTIVE))[by_dst],
        np.concatenate((kept, zeros - 1))[by_dst],
        work,
        begin,
        order,
        len(src) - len(by_dst),
    )


def _topological(begin_ns: Int64, src: Int64, dst: Int64) -> tuple[Int64, Int64]:
    """Return an order of the nodes that respects the edges, and the edges that it respects: all but circles'."""
    count = len(begin_ns)
    order = np.argsort(begin_ns, kind="stable").astype(np.int64)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    if not np.any(place[src] >= place[dst]):
        return order, np.arange(len(src))
    # Nodes that begin at one moment stand in any order in time; sort by dependency among everybody.
    order = _kahn(count, src, dst, place)
    place[order] = np.arange(count)
    return order, np.flatnonzero(place[src] < place[dst])


def _kahn(count: int, src: Int64, dst: Int64, place: Int64) -> Int64:
    by_src = np.argsort(src, kind="stable")
    first = np.searchsorted(src[by_src], np.arange(count + 1)).tolist()
    following = dst[by_src].tolist()
    missing = np.bincount(dst, minlength=count).tolist()
    by_place = np.argsort(place).tolist()
    order: list[int] = []
    done = bytearray(count)
    # In the order of time; what waits for nobody any more goes at once. A circle is broken at its earliest node.
    for force in (False, True):
        for start in by_place:
            if done[start] or (missing[start] and not force):
                continue
            stack = [start]
            done[start] = 1
            while stack:
                node = stack.pop()
                order.append(node)
                for edge in range(first[node], first[node + 1]):
                    other = following[edge]
                    missing[other] -= 1
                    if not missing[other] and not done[other]:
                        done[other] = 1
                        stack.append(other)
    return np.array(order, np.int64)


def reschedule(
    model: Model,
    rows: int,
    *,
    work_ns: Int64 | None = None,
    delay_ns: Int64 | None = None,
    without: Bool | None = None,
    careful: bool = True,
    since_ns: int | None = None,
) -> Schedule:
    """Return when rows would have run.

    Args:
        model: of the timeline.
        rows: N.
        work_ns: int64 [N], other durations of rows' own work.
        delay_ns: int64 [E of the model], other delays, the recorded ones otherwise; see `delays`.
        without: bool [E of the model], edges to leave out.
        careful: which delays edges have that did not bind, if `delay_ns` is None.
        since_ns: what began before this moment stays as it was, and nothing moves to before it.
    """
    delay = delays(model, careful=careful) if delay_ns is None else delay_ns
    changed = model.work_ns if work_ns is None else np.concatenate((work_ns, model.work_ns[rows:]))
    kept = np.ones(len(model.src), np.bool_) if without is None else ~without
    earliest = int(model.begin_ns.min(initial=0))
    # What waited only for edges that were left out begins when the recording does.
    held = np.zeros(len(model.begin_ns), np.bool_)
    held[model.dst] = True
    if since_ns is not None:
        earliest = since_ns
        past = model.begin_ns <= since_ns
        changed = np.where(model.begin_ns < since_ns, model.work_ns, changed)
        kept &= ~past[model.dst]
        held &= ~past
    src, dst, delay = model.src[kept], model.dst[kept], delay[kept]
    work = changed.tolist()
    first = np.searchsorted(dst, np.arange(len(model.begin_ns) + 1)).tolist()
    begin = model.begin_ns.tolist()
    sources, delayed = src.tolist(), delay.tolist()
    done = [0] * len(begin)
    for node in model.order.tolist():
        low, high = first[node], first[node + 1]
        if low < high:
            at = done[sources[low]] + delayed[low]
            for edge in range(low + 1, high):
                other = done[sources[edge]] + delayed[edge]
                if other > at:
                    at = other
            begin[node] = at if at > earliest else earliest
        elif held[node]:
            begin[node] = earliest
        done[node] = begin[node] + work[node]
    return Schedule(np.array(begin[:rows], np.int64), np.array(done[:rows], np.int64))


def delays(model: Model, *, careful: bool) -> Int64:
    """Return the delay of each edge, int64 [E]: what was recorded where it bound, else an estimate.

    Args:
        model: of the timeline.
        careful: the median delay of bound edges of its kind, at most what was recorded; else the least possible.
    """
    estimate = model.floor_ns.copy()
    if careful:
        for kind in EdgeKind:
            mine = model.kind == kind
            bound = mine & model.binding
            if bound.any():
                typical = max(0, int(np.median(model.bound_ns[bound])))
                estimate[mine] = np.maximum(estimate[mine], np.minimum(typical, model.bound_ns[mine]))
    return np.where(model.binding, model.bound_ns, estimate)

"""What-if for the host: its own time made shorter or longer, all of it or what some operations take.

thread       [ build_tree                      ]      [aten::linear  [launch] ]
calls    [launch]                     [launch]   (the device has to do with these)
edges            |------ own time ----|       |--------- own time ---|

A model knows the calls that the device has to do with, and the thread's own time between them. An operation may be
such a call, hold some, or lie between two: what changes is the time that it covers, of calls and between them.
Where the host waits for the device nothing changes: that follows from what it waits for.
"""

from __future__ import annotations

import re

import numpy as np

from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.overlap import Intervals, covered_ns, union
from slipstream.timeline.reschedule import Model
from slipstream.timeline.table import Bool, Int64, Kind


def own_edges(deps: Dependencies, model: Model) -> Bool:
    """Return the edges of the model that are a thread's own time between two calls, or back from a copy."""
    known = model.edge >= 0
    own = np.zeros(len(model.edge), np.bool_)
    own[known] = deps.own_time[model.edge[known]]
    back = (model.kind == EdgeKind.HOST) & ~own & (model.dst < len(deps.timeline))
    kind = deps.timeline.kind[np.minimum(model.dst, len(deps.timeline) - 1)]
    own |= back & (kind != Kind.SYNC)
    return own


def working(deps: Dependencies) -> Bool:
    """bool [N], operations of the host that do not wait for the device."""
    found: Bool = ~deps.timeline.on_device & (deps.timeline.kind != Kind.SYNC)
    return found


def host_names(deps: Dependencies) -> set[str]:
    """Return what can be told of the host by name: its operations, and the marks on its threads."""
    table = deps.timeline
    used = np.union1d(table.name[working(deps)], table.marks.name[_on_threads(deps)])
    return {table.names[name] for name in used.tolist()}


def _on_threads(deps: Dependencies) -> Bool:
    table = deps.timeline
    threads = np.array([stream.device is None for stream in table.streams], np.bool_)
    found: Bool = threads[table.marks.stream]
    return found


def time_of(deps: Dependencies, pattern: str) -> dict[int, Intervals]:
    """Return, by thread, the time of the host's operations and marks whose name a regular expression finds."""
    table, marks = deps.timeline, deps.timeline.marks
    found = re.compile(pattern)
    named = np.array([found.search(name) is not None for name in table.names], np.bool_)
    rows = np.flatnonzero(working(deps) & named[table.name])
    also = np.flatnonzero(_on_threads(deps) & named[marks.name])
    thread = np.concatenate((table.stream[rows], marks.stream[also]))
    start = np.concatenate((table.start_ns[rows], marks.start_ns[also]))
    end = np.concatenate((table.end_ns[rows], marks.end_ns[also]))
    return {one: union(start[thread == one], end[thread == one]) for one in np.unique(thread).tolist()}


def scale_time(
    deps: Dependencies,
    model: Model,
    when: dict[int, Intervals],
    factor: float,
    work_ns: dict[bool, Int64],
    delay_ns: dict[bool, Int64],
) -> None:
    """Multiply the host's own time in some stretches by a factor, in place.

    Args:
        deps, model: of the timeline.
        when: by thread.
        factor: of it.
        work_ns: int64 [N] each, of rows.
        delay_ns: int64 [E of the model] each.
    """
    table = deps.timeline
    calls = np.flatnonzero(working(deps))
    edges = np.flatnonzero(own_edges(deps, model))
    of_edge = model.edge[edges]
    began, ended = deps.finish_ns[of_edge], table.start_ns[deps.edges.dst[of_edge]]
    thread = table.stream[deps.edges.dst[of_edge]]
    for one, stretches in when.items():
        mine = calls[table.stream[calls] == one]
        less = covered_ns(deps.release_ns[mine], deps.done_ns[mine], stretches) * (1 - factor)
        for work in work_ns.values():
            work[mine] = np.maximum(work[mine] - np.rint(less).astype(np.int64), 0)
        between = np.flatnonzero(thread == one)
        low, high = began[between], np.maximum(ended[between], began[between])
        less = covered_ns(low, high, stretches) * (1 - factor)
        for delay in delay_ns.values():
            delay[edges[between]] -= np.rint(less).astype(np.int64)

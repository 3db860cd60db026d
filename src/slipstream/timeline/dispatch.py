"""Threads that take their work from a queue: torch_npu's, which launches what Python has put there.

Python     [put a]  aten::add  [put b]
dispatch            [take a    [launch a]]      [take b   [launch b]]
device                                  [ a ]                   [ b ]

The two run beside each other; what was put first is taken first. A taking waits for its putting, and for the
taking before it; the calls within it follow each other. So an idle dispatcher leads the path to what Python did.
"""

from __future__ import annotations

import numpy as np

from slipstream.timeline.edge_types import EdgeKind, EdgeList, concatenate, edge_list, no_edges
from slipstream.timeline.table import Int32, Int64, Timeline


def around(timeline: Timeline, calls: Int32) -> Int32:
    """Return the taking that each call of the host lies within, -1 where there is none.

    Args:
        timeline: the rows.
        calls: int32 [C], rows of the host.
    """
    taken = timeline.takings
    found = np.full(len(calls), -1, np.int32)
    for thread in np.unique(timeline.stream[taken]).tolist():
        own = taken[timeline.stream[taken] == thread]
        mine = np.flatnonzero(timeline.stream[calls] == thread)
        at = np.searchsorted(timeline.start_ns[own], timeline.start_ns[calls[mine]], side="right") - 1
        outer = own[np.maximum(at, 0)]
        within = (at >= 0) & (timeline.end_ns[calls[mine]] <= timeline.end_ns[outer]) & (outer != calls[mine])
        found[mine[within]] = outer[within]
    return found


def asked_ns(timeline: Timeline, issue_ns: Int64) -> Int64:
    """Return when the program asked for each row: when it was put into a queue, else when it was issued.

    Args:
        timeline: the rows.
        issue_ns: int64 [N], when a call issued each.
    """
    issued = np.flatnonzero((timeline.launch >= 0) & timeline.on_device)
    if not len(timeline.takings) or not len(issued):
        return issue_ns
    outer = around(timeline, timeline.launch[issued])
    rows, outer = issued[outer >= 0], outer[outer >= 0]
    asked = issue_ns.copy()
    asked[rows] = np.minimum(asked[rows], timeline.start_ns[timeline.launch[outer]])
    return asked


def first_issued(timeline: Timeline) -> Int32:
    """Return the first row of a device that each call issued, or handed to a queue, int32 [N]; -1 without one."""
    launch = timeline.launch
    issued = np.flatnonzero((launch >= 0) & timeline.on_device)[::-1].astype(np.int32)
    first = np.full(len(launch), -1, np.int32)
    first[launch[issued]] = issued
    outer = around(timeline, launch[issued])
    issued, outer = issued[outer >= 0], outer[outer >= 0]
    first[outer] = first[launch[outer]] = issued
    return first


def dispatch_edges(timeline: Timeline, calls: Int32) -> EdgeList:
    """Return what the takings and the calls of their threads wait for.

    Args:
        timeline: the rows.
        calls: int32 [C], what the device has to do with on their threads, takings too, by (thread, turn).
    """
    taken = timeline.takings
    if not len(taken):
        return no_edges()
    outer = around(timeline, calls)
    found = [edge_list(timeline.launch[taken], taken, EdgeKind.LAUNCH)]
    # The takings themselves, and calls outside of them, one after another.
    top = calls[outer < 0]
    same = timeline.stream[top[1:]] == timeline.stream[top[:-1]]
    found.append(edge_list(top[:-1][same], top[1:][same], EdgeKind.HOST))
    inner, within = calls[outer >= 0], outer[outer >= 0]
    follows = np.append(False, within[1:] == within[:-1])[: len(inner)]
    behind = np.flatnonzero(follows)
    found.append(edge_list(inner[behind - 1], inner[behind], EdgeKind.HOST))
    found.append(edge_list(within[~follows], inner[~follows], EdgeKind.HOST, from_start=True))
    return concatenate(found)

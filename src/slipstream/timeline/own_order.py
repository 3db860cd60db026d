"""The order of Slipstream's own traces: one thread issued everything, measured it, and went on when it was done.

main  [verify]          [accept]                      [verify]
plan                                        [plan]
host                             [schedule]                       so schedule held plan up, and plan verify
"""

from __future__ import annotations

import numpy as np

from slipstream.timeline.edge_types import EdgeKind, EdgeList, edge_list, no_edges
from slipstream.timeline.table import Kind, Timeline


def program_edges(timeline: Timeline) -> EdgeList:
    """Return an edge from each row to the next, where the trace is ours and no two rows ran side by side.

    They take the place of the streams' own order, which follows from them.
    A recorder belongs to one thread of one rank (`slipstream.trace.recorder`), so the order of its rows is the
    program's. A trace of ours in which rows overlap, or that tells launches from what they issued, was made
    otherwise; of that nothing is concluded.
    """
    if {source.format for source in timeline.sources} != {"slipstream"} or (timeline.launch >= 0).any():
        return no_edges()
    rows = np.flatnonzero(timeline.kind != Kind.SUBTASK).astype(np.int32)
    # Rows without length stand in the order of the file: a record, then the wait for it.
    rows = rows[np.lexsort((rows, timeline.end_ns[rows], timeline.start_ns[rows], timeline.rank[rows]))]
    same = timeline.rank[rows[:-1]] == timeline.rank[rows[1:]]
    src, dst = rows[:-1][same], rows[1:][same]
    if np.any(timeline.end_ns[src] > timeline.start_ns[dst]):
        return no_edges()
    return edge_list(src, dst, EdgeKind.HOST)

"""Long delays that nothing in a trace explains, in a what-if.

stream 7    ██████████████████████████████ A ███
stream 14       launched · · · · · · · · · · · · ███ B        held up 40 ms, by no event and no wait

B may have stood for room on the device, or for an event that the profiler does not show. So a change of what ran
meanwhile may change the delay: by nothing, or by as much as that work changes. The careful and the hopeful answer
take one end each.
"""

from __future__ import annotations

import numpy as np

from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.inference import STOOD_NS
from slipstream.timeline.reschedule import Model
from slipstream.timeline.table import Bool, Int64


def unexplained(model: Model) -> Bool:
    """Return the edges of a model that held a row up for more than 100 us after what they wait for, bool [E]."""
    found: Bool = model.binding & (model.bound_ns > STOOD_NS) & (model.kind != EdgeKind.HOST)
    return found


def relax(deps: Dependencies, model: Model, work_ns: dict[bool, Int64], delay_ns: dict[bool, Int64]) -> bool:
    """Let unexplained delays change with the work that ran meanwhile on their device; return whether any can.

    Args:
        deps: rows and edges.
        model: of them.
        work_ns: int64 [N], durations as changed, by careful or not.
        delay_ns: int64 [E of the model], delays; the hopeful ones shrink, the careful ones grow. In place.
    """
    table, count = deps.timeline, len(deps.timeline)
    found = np.flatnonzero(unexplained(model) & (model.dst < count))
    if not len(found):
        return False
    until = model.begin_ns[model.dst[found]]
    since = until - model.bound_ns[found]
    own = table.device[model.dst[found]]
    any_can = False
    for careful, sign in ((False, -1), (True, 1)):
        change = np.maximum(sign * (work_ns[careful] - model.work_ns[:count]), 0)
        rows = np.flatnonzero((change > 0) & table.is_work)
        for key in np.unique(own).tolist():
            mine, here = own == key, rows[table.device[rows] == key]
            if not len(here):
                continue
            # What stood for other ranks before it moved changes by what it moves.
            during = _spread(
                deps.release_ns[here], table.end_ns[here], change[here], since[mine], until[mine]
            )
            which = found[mine]
            bound = model.bound_ns[which]
            least = np.maximum(model.floor_ns[which], bound - during)
            changed = least if sign < 0 else bound + during
            pick = np.minimum if sign < 0 else np.maximum
            delay_ns[careful][which] = pick(delay_ns[careful][which], changed)
            any_can |= bool(during.any())
    return any_can


def _spread(start: Int64, end: Int64, amount: Int64, since: Int64, until: Int64) -> Int64:
    """Return how much of amounts, each spread evenly over its stretch, falls into each window; at most the window.

    Args:
        start, end, amount: int64 [R], stretches.
        since, until: int64 [W], windows.
    """
    rate = amount / np.maximum(end - start, 1)
    moments = np.concatenate((start, np.maximum(end, start + 1)))
    order = np.argsort(moments, kind="stable")
    at = moments[order]
    slope = np.cumsum(np.concatenate((rate, -rate))[order])
    sums = np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(at))))
    inside = np.interp(until, at, sums) - np.interp(since, at, sums)
    return np.clip(np.rint(inside), 0, until - since).astype(np.int64)

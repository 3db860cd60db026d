"""Which phase's mark the host is in: thread by thread, of marks within each other the innermost.

thread      [ verify               ]
plans            [ extend plan ]          on `plans` it is the plan's, on `thread` verify's throughout
autograd                                  writes no marks: there any thread's count
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slipstream.timeline.host import cut_by_innermost
from slipstream.timeline.rounds import HostMark
from slipstream.timeline.table import Int32, Int64


@dataclass(frozen=True)
class _Cut:
    """Disjoint stretches, ascending: start_ns, end_ns int64 [S]; number, phase int32 [S]; edges_ns of all."""

    start_ns: Int64
    end_ns: Int64
    number: Int32
    phase: Int32
    edges_ns: Int64


class HostMarks:
    """The marks of phases on one rank's host.

    Args:
        marks: of each mark where it is, the number of its round, and the index of its phase there.
    """

    def __init__(self, marks: Iterable[tuple[HostMark, int, int]]) -> None:
        found = [(*mark, number, phase) for mark, number, phase in marks if mark.start_ns < mark.end_ns]
        columns = np.array(found, np.int64).reshape(-1, 5)
        threads = columns[:, 2]
        self._of_thread = {one: _cut(columns[threads == one]) for one in np.unique(threads).tolist()}
        self._of_any = _cut(columns)

    def __len__(self) -> int:
        return len(self._of_any.start_ns)

    def at(self, moment: Int64, thread: Int32) -> tuple[Int32, Int32]:
        """Return the number and the phase of the mark over each moment of a thread, int32 [K]; -1 without one."""
        number, phase = np.full(len(moment), -1, np.int32), np.full(len(moment), -1, np.int32)
        for one in np.unique(thread).tolist() if len(self) else ():
            cut = self._of_thread.get(one, self._of_any)
            mine = np.flatnonzero(thread == one)
            index = np.searchsorted(cut.start_ns, moment[mine], side="right") - 1
            inside = (index >= 0) & (moment[mine] < cut.end_ns[index])
            number[mine[inside]] = cut.number[index[inside]]
            phase[mine[inside]] = cut.phase[index[inside]]
        return number, phase

    def within(self, start: Int64, end: Int64, thread: int) -> Int64:
        """Return the moments at which marks begin or end for a thread within stretches, which ascend."""
        edges = self._of_thread.get(thread, self._of_any).edges_ns
        if not len(start):
            return edges[:0]
        edges = edges[slice(*np.searchsorted(edges, [start[0], end[-1]]))]
        at = np.searchsorted(start, edges, side="right") - 1
        return edges[(at >= 0) & (edges > start[at]) & (edges < end[at])]


def _cut(columns: Int64) -> _Cut:
    start, end, _, number, phase = columns.T
    order = np.lexsort((-end, start))
    cut = cut_by_innermost(start[order], end[order], np.arange(len(order), dtype=np.int32))
    mark = order[cut.name]
    edges = np.unique(np.concatenate((cut.start_ns, cut.end_ns)))
    return _Cut(cut.start_ns, cut.end_ns, number[mark].astype(np.int32), phase[mark].astype(np.int32), edges)

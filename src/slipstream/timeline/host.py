"""What a thread did, by the innermost of its operations: which function the time of a seam went to.

prepare (a mark)      ███████
aten::linear  ██████████████         ██████
cudaLaunch       ██    ██
innermost     lllccllllccllp........llllll       l linear, c cudaLaunch, p code in prepare, . nothing in the trace
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from slipstream.timeline.edges import Dependencies
from slipstream.timeline.markers import read_marker
from slipstream.timeline.overlap import Intervals, covered_ns, subtract, union
from slipstream.timeline.table import Int32, Int64, Timeline

#: How the host's time is called in which its thread shows no operation.
BETWEEN = "(no operation of the host in the trace)"
#: Marks over whole steps, as PyTorch's profiler numbers them.
_STEP = re.compile(r"ProfilerStep|\W*$")


@dataclass(frozen=True)
class Innermost:
    """A thread's time, cut so that each stretch belongs to the innermost operation: S stretches, ascending.

    Attributes:
        start_ns, end_ns: int64 [S].
        name: int32 [S], into the table's names.
    """

    start_ns: Int64
    end_ns: Int64
    name: Int32

    def within(self, when: Intervals) -> Innermost:
        """Return the stretches that reach into a set of time, which is not empty."""
        low = int(np.searchsorted(self.end_ns, when.start_ns[0], side="right"))
        high = int(np.searchsorted(self.start_ns, when.end_ns[-1]))
        return Innermost(self.start_ns[low:high], self.end_ns[low:high], self.name[low:high])

    def sums(self, when: Intervals) -> list[tuple[int, int]]:
        """Return (name, time in a set) of each name that has any."""
        used, which = np.unique(self.name, return_inverse=True)
        took = np.bincount(which, covered_ns(self.start_ns, self.end_ns, when), len(used)).astype(np.int64)
        return [(name, ns) for name, ns in zip(used.tolist(), took.tolist(), strict=True) if ns]


def innermost(timeline: Timeline, thread: int) -> Innermost:
    """Cut the time of a thread; of operations that overlap without nesting the one that began last has it."""
    rows = np.flatnonzero((timeline.stream == thread) & (timeline.dur_ns > 0))
    return cut_by_innermost(timeline.start_ns[rows], timeline.end_ns[rows], timeline.name[rows])


def innermost_marks(timeline: Timeline, thread: int) -> Innermost:
    """Cut the time of a thread by its marks the same way; those over whole steps say nothing and are left out."""
    marks = timeline.marks
    mine = np.flatnonzero((marks.stream == thread) & (marks.end_ns > marks.start_ns))
    used = np.unique(marks.name[mine])
    telling = used[[_tells(timeline.names[number]) for number in used.tolist()]]
    mine = mine[np.isin(marks.name[mine], telling)]
    return cut_by_innermost(marks.start_ns[mine], marks.end_ns[mine], marks.name[mine])


def _tells(mark: str) -> bool:
    """Whether a mark says what the host does, and not only which step it is in."""
    known = read_marker(mark)
    return bool(known.phase) if known is not None else not _STEP.match(mark)


def cut_by_innermost(start: Int64, end: Int64, name: Int32) -> Innermost:
    """Give each stretch of time to the innermost of some operations.

    Args:
        start, end: int64 [N], ascending by (start, end descending), none empty.
        name: int32 [N], what stands in the result for each.
    """
    outer = _enclosing(start, end)
    if outer is None:
        return _one_by_one(start.tolist(), end.tolist(), name.tolist())
    # The moments at which the innermost changes, and to what. Of those at one moment the last counts: ends of
    # the outer after ends of the inner, then beginnings.
    moment = np.concatenate((end[::-1], start))
    becomes = np.concatenate((outer[::-1], np.arange(len(start))))
    order = np.argsort(moment, kind="stable")
    moment, becomes = moment[order], becomes[order]
    taken = np.flatnonzero((moment[1:] > moment[:-1]) & (becomes[:-1] >= 0))
    return Innermost(moment[taken], moment[taken + 1], name[becomes[taken]])


def _enclosing(start: Int64, end: Int64) -> Int64 | None:
    """Return for each of some operations, which ascend by start, the one around it, -1 none; None: not nested."""
    count = len(start)
    depth = np.arange(count) - np.searchsorted(np.sort(end), start, side="right")
    outer = np.full(count, -1, np.int64)
    by_depth = np.argsort(depth, kind="stable")
    heads = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=-1)) + 2))
    for level in range(1, len(heads) - 1):
        above = by_depth[heads[level - 1] : heads[level]]
        mine = by_depth[heads[level] : heads[level + 1]]
        outer[mine] = above[np.searchsorted(above, mine) - 1]
    inside = np.flatnonzero(outer >= 0)
    around = outer[inside]
    return outer if ((around < inside) & (end[inside] <= end[around])).all() else None


def _one_by_one(starts: list[int], ends: list[int], names: list[int]) -> Innermost:
    """Cut the same where some overlap without nesting."""
    cut_starts: list[int] = []
    cut_ends: list[int] = []
    cut_names: list[int] = []
    stack: list[tuple[int, int]] = []  # (end, name)
    now = starts[0] if starts else 0
    # A last one that begins when all have ended closes what is open.
    last = max(ends, default=0)
    for begin, end, name in zip([*starts, last], [*ends, last], [*names, -1], strict=True):
        while stack:
            outer_end, outer = stack[-1]
            until = min(outer_end, begin)
            if until > now:
                cut_starts.append(now)
                cut_ends.append(until)
                cut_names.append(outer)
                now = until
            if outer_end > begin:
                break
            stack.pop()
        now = max(now, begin)
        stack.append((end, name))
    return Innermost(
        np.array(cut_starts, np.int64), np.array(cut_ends, np.int64), np.array(cut_names, np.int32)
    )


def main_thread(deps: Dependencies, rank: int) -> int:
    """Return the thread of a rank that launches most, else the one that does most; -1 without any.

    Not one that only launches what others put into its queue: of these, the one that puts most.
    """
    if rank not in deps.main_threads:
        table = deps.timeline
        threads = np.array(
            [stream.rank == rank and stream.device is None for stream in table.streams], np.bool_
        )
        threads[table.stream[table.takings]] = False
        calls = table.stream[table.launch[table.launch >= 0]]
        calls = calls[threads[calls]]
        rows = calls if len(calls) else table.stream[threads[table.stream]]
        deps.main_threads[rank] = int(np.bincount(rows).argmax()) if len(rows) else -1
    return deps.main_threads[rank]


def host_work(deps: Dependencies, thread: int, when: Intervals) -> Counter[str]:
    """Return what a thread did in a set of time: time by the name of the innermost operation.

    Args:
        deps: rows and edges.
        thread: the stream of the thread.
        when: the set; the times sum to it.
    """
    table = deps.timeline
    if thread not in deps.threads:
        deps.threads[thread] = innermost(table, thread), innermost_marks(table, thread)
    by_operation, by_mark = deps.threads[thread]
    found: Counter[str] = Counter()
    if not len(when):
        return found
    cut = by_operation.within(when)
    for number, ns in cut.sums(when):
        found[table.names[number]] += ns
    rest = when.total_ns - found.total()
    if rest and len(by_mark.name):
        outside = subtract(when, union(cut.start_ns, cut.end_ns))
        for number, ns in by_mark.within(outside).sums(outside):
            found[code_in(table.names[number])] += ns
            rest -= ns
    if rest:
        found[BETWEEN] += rest
    return found


def code_in(mark: str) -> str:
    """Name the host's time that no operation but a mark is over."""
    known = read_marker(mark)
    return f"code in {known.phase if known is not None else mark}"

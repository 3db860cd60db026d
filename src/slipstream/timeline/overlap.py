"""Sets of time as arrays: busy, idle, and how much of an operation other work covers. Exact, in int64 ns.

ops          ███ ████      ██            stretches that may overlap, touch or be empty
           ████     ██
union of   █████████        ██           an `Intervals`: disjoint, ascending, no empty one
busy + idle = span, always
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Intervals:
    """A set of time: disjoint stretches [start, end), ascending, none empty, none touching the next.

    Attributes:
        start_ns, end_ns: int64 [K].
    """

    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """How much time the set holds."""
        return int((self.end_ns - self.start_ns).sum())

    @property
    def span_ns(self) -> int:
        """From its first moment to its last, holes included."""
        return int(self.end_ns[-1] - self.start_ns[0]) if len(self) else 0

    def measure_before(self, at_ns: Int64) -> Int64:
        """Return how much of the set lies before each moment, int64 like `at_ns`."""
        if not len(self):
            return np.zeros_like(at_ns)
        filled = np.concatenate(([0], np.cumsum(self.end_ns - self.start_ns)))
        index = np.searchsorted(self.start_ns, at_ns, side="right")
        # Of the stretch that a moment falls into, what is behind the moment is taken away again.
        last_end = self.end_ns[np.maximum(index - 1, 0)]
        beyond = np.where(index > 0, np.maximum(last_end - at_ns, 0), 0)
        return filled[index] - beyond

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """Return what lies in [start_ns, end_ns)."""
        start, end = np.maximum(self.start_ns, start_ns), np.minimum(self.end_ns, end_ns)
        kept = end > start
        return Intervals(start[kept], end[kept])

    def holes(self, start_ns: int, end_ns: int) -> Intervals:
        """Return what of [start_ns, end_ns) is not in the set."""
        inside = self.clip(start_ns, end_ns)
        start = np.concatenate(([start_ns], inside.end_ns)).astype(np.int64)
        end = np.concatenate((inside.start_ns, [end_ns])).astype(np.int64)
        kept = end > start
        return Intervals(start[kept], end[kept])


def union(start_ns: Int64, end_ns: Int64) -> Intervals:
    """Return the union of stretches, in any order; empty ones add nothing.

    Args:
        start_ns, end_ns: int64 [N].
    """
    kept = end_ns > start_ns
    start, end = start_ns[kept], end_ns[kept]
    if not len(start):
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    # A stretch begins a new one where nothing before it reaches its start.
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    heads = np.flatnonzero(first)
    tails = np.concatenate((heads[1:], [len(start)])) - 1
    return Intervals(start[heads], reach[tails])


def merge(*sets: Intervals) -> Intervals:
    """Return the union of sets."""
    if not sets:
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return union(np.concatenate([s.start_ns for s in sets]), np.concatenate([s.end_ns for s in sets]))


def covered_ns(start_ns: Int64, end_ns: Int64, cover: Intervals) -> Int64:
    """Return how much of each stretch lies in a set, int64 [N]."""
    return cover.measure_before(end_ns) - cover.measure_before(start_ns)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return what lies in both sets."""
    if not len(a) or not len(b):
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    low, high = int(min(a.start_ns[0], b.start_ns[0])), int(max(a.end_ns[-1], b.end_ns[-1]))
    # Not (not A or not B).
    return merge(a.holes(low, high), b.holes(low, high)).holes(low, high)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return what lies in `a` and not in `b`."""
    if not len(a):
        return a
    return intersect(a, b.holes(int(a.start_ns[0]), int(a.end_ns[-1])))


@dataclass(frozen=True, slots=True)
class Share:
    """How long something took, and how much of that other work covered: covered + exposed = total.

    Attributes:
        what: the name of it.
        count: operations.
        total_ns: time in which at least one of them ran.
        covered_ns: of that, time in which covering work ran too.
        exposed_ns: the rest.
        sum_ns: the durations added up, so more than `total_ns` where they overlap each other.
    """

    what: str
    count: int
    total_ns: int
    covered_ns: int
    exposed_ns: int
    sum_ns: int


def share(what: str, start_ns: Int64, end_ns: Int64, cover: Intervals) -> Share:
    """Return how much of the union of some operations a set covers.

    Args:
        what: the name of it.
        start_ns, end_ns: int64 [N], the operations.
        cover: what may hide them, as the union of all computation.
    """
    own = union(start_ns, end_ns)
    hidden = int(covered_ns(own.start_ns, own.end_ns, cover).sum())
    total = own.total_ns
    return Share(what, len(start_ns), total, hidden, total - hidden, int((end_ns - start_ns).sum()))


def shares(
    start_ns: Int64, end_ns: Int64, label: npt.NDArray[np.int32], names: Sequence[str], cover: Intervals
) -> list[Share]:
    """Return a `share` for each label that occurs, the most exposed first.

    Args:
        start_ns, end_ns: int64 [N], the operations.
        label: int32 [N], into `names`.
        names: what the labels are called.
        cover: what may hide them.
    """
    found = [
        share(names[which], start_ns[label == which], end_ns[label == which], cover)
        for which in np.unique(label).tolist()
    ]
    return sorted(found, key=lambda item: (-item.exposed_ns, -item.total_ns, item.what))

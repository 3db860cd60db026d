"""Where the ends of a flow must stand so that a viewer draws its arrow from slice to slice.

A viewer binds each end to the slice that encloses it, and draws nothing where there is none. An event is
recorded where a slice ends and waited for before one begins, so both times tend to fall just outside:

    plan   |--extend plan A--|x                      x = recorded, tail moves 1 ns into what was done
    main                        o  |---extend---|    o = wait over, head moves to what waited
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from slipstream.trace.events import Flow, Slice


class Arrows:
    """Binds flows to slices.

    Args:
        slices: what is drawn, without overlap and sorted by time within each track.
    """

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._spans: dict[str, tuple[list[int], list[int]]] = {}
        for item in slices:
            if item.dur_ns:
                starts, ends = self._spans.setdefault(item.track, ([], []))
                starts.append(item.start_ns)
                ends.append(item.end_ns)

    def ends(self, flow: Flow) -> tuple[int, int]:
        """Return the times, in ns, at which the arrow's tail and head are drawn."""
        return self._tail(flow.from_track, flow.from_ns), self._head(flow.to_track, flow.to_ns)

    def _tail(self, track: str, time_ns: int) -> int:
        """Inside the slice that had begun before `time_ns`, as late as it allows."""
        starts, ends = self._spans.get(track, ([], []))
        before = bisect_left(starts, time_ns) - 1
        return time_ns if before < 0 else min(time_ns, ends[before] - 1)

    def _head(self, track: str, time_ns: int) -> int:
        """Inside the slice that runs at `time_ns`, or where the next begins."""
        starts, ends = self._spans.get(track, ([], []))
        after = bisect_right(ends, time_ns)
        return time_ns if after == len(starts) else max(time_ns, starts[after])

"""Slices that nest, cut so that no two of one track overlap: what Perfetto asks of a track.

    round     |-----------------|            |--|      |----|
      draft      |----|              ->         |----|
                                             round draft round

A parent's pieces together last as long as the parent less its children, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from slipstream.trace.events import PART, PARTS, Event, Slice


def flatten(events: Iterable[Event]) -> list[Slice]:
    """Cut enclosing slices around those they enclose; return slices sorted by track and time.

    The pieces of a slice that was cut carry `args["part"]`, from 1, and `args["parts"]`. A slice that its
    children cover to the nanosecond has no time of its own, so no piece of it is left. Events of other kinds
    are passed over.

    Args:
        events: events in the order they ended; of two slices with the same times, the later is the parent.

    Raises:
        ValueError: two slices of one track overlap and neither encloses the other.
    """
    by_track: dict[str, list[Slice]] = {}
    for event in events:
        if isinstance(event, Slice):
            by_track.setdefault(event.track, []).append(event)
    pieces = [piece for slices in by_track.values() for piece in _flatten_track(slices)]
    return sorted(pieces, key=_by_time)


def check_no_overlap(events: Iterable[Event]) -> None:
    """Check that no two slices of one track overlap.

    Raises:
        ValueError: two do; the message shows both.
    """
    slices = sorted((event for event in events if isinstance(event, Slice)), key=_by_time)
    for one, other in pairwise(slices):
        if one.track == other.track and one.end_ns > other.start_ns:
            raise ValueError(f"slices overlap on track {one.track!r}: {_show(one)} and {_show(other)}")


@dataclass(slots=True)
class _Open:
    """A slice whose end the walk has not reached: its own time from `since_ns` on is not cut yet."""

    whole: Slice
    since_ns: int
    pieces: list[tuple[int, int]] = field(default_factory=list)

    def cut(self, until_ns: int) -> None:
        if until_ns > self.since_ns:
            self.pieces.append((self.since_ns, until_ns))


def _flatten_track(slices: list[Slice]) -> Iterator[Slice]:
    stack: list[_Open] = []
    for _, whole in sorted(enumerate(slices), key=_outer_first):
        while stack and stack[-1].whole.end_ns <= whole.start_ns:
            yield from _close(stack)
        if stack:
            parent = stack[-1]
            if whole.end_ns > parent.whole.end_ns:
                raise ValueError(
                    f"slices of track {whole.track!r} neither nest nor follow each other: "
                    f"{_show(parent.whole)} and {_show(whole)}"
                )
            parent.cut(whole.start_ns)
        stack.append(_Open(whole, whole.start_ns))
    while stack:
        yield from _close(stack)


def _close(stack: list[_Open]) -> list[Slice]:
    """Take the innermost open slice off the stack; its parent goes on where it ends."""
    closed = stack.pop()
    whole = closed.whole
    closed.cut(whole.end_ns)
    if stack:
        stack[-1].since_ns = whole.end_ns
    if whole.dur_ns == 0 or closed.pieces == [(whole.start_ns, whole.end_ns)]:
        return [whole]
    parts = len(closed.pieces)
    return [
        replace(
            whole,
            start_ns=start_ns,
            dur_ns=end_ns - start_ns,
            args=whole.args if parts == 1 else whole.args | {PART: part, PARTS: parts},
        )
        for part, (start_ns, end_ns) in enumerate(closed.pieces, start=1)
    ]


def _outer_first(numbered: tuple[int, Slice]) -> tuple[int, int, int]:
    number, item = numbered
    # Empty slices enclose nothing: they keep the order in which they were recorded.
    return item.start_ns, -item.dur_ns, -number if item.dur_ns else number


def _by_time(item: Slice) -> tuple[str, int, int]:
    return item.track, item.start_ns, item.end_ns


def _show(item: Slice) -> str:
    return f"{item.name!r} [{item.start_ns}, {item.end_ns}) ns"

"""Records events while the engine runs, at about a microsecond each, in bounded memory.

    recorder = Recorder()
    with recorder.slice(names.MAIN, names.DRAFT, rows=8, route="replay"):
        ...
    write_chrome("round.json.gz", recorder.events())

A recorder belongs to one thread.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from time import perf_counter_ns
from types import TracebackType
from typing import Final

from slipstream.trace.events import ERROR, PARENT, Args, Event, Flow, Mark, PartTimes, Slice

#: About 250 bytes an event, so some 16 MB when full.
DEFAULT_CAPACITY: Final = 65_536

#: Replays whose parts are kept: some 60 parts, 1 KB each.
_REPLAYS_WITH_PARTS: Final = 1024

# A measured slice waits as a plain tuple (track, name, start_ns, end_ns, args): building the dataclass would
# cost as much again as all the rest, and most events are never read.
_RawSlice = tuple[str, str, int, int, Args]


class Recorder:
    """Keeps the newest `capacity` events and counts the others.

    Slices of one track nest properly or not at all. A slice that begins inside another carries the name of
    the enclosing one as `args["parent"]`; one that an exception leaves carries its type as `args["error"]`.

    Args:
        capacity: events to keep, at least 1.
    """

    #: False where recording does nothing, so that a caller can skip work that only feeds it.
    enabled = True

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: a recorder keeps at least 1 event")
        self._ring: deque[_RawSlice | Event] = deque(maxlen=capacity)
        self._parts: deque[tuple[str, str, list[PartTimes]]] = deque(maxlen=_REPLAYS_WITH_PARTS)
        self._seen = 0
        self._open: dict[str, list[str]] = {}

    @property
    def capacity(self) -> int:
        """Events kept at most."""
        return self._ring.maxlen or 0

    @property
    def dropped(self) -> int:
        """Events that were recorded and are no longer kept, because newer ones took their place."""
        return self._seen - len(self._ring)

    def slice(self, track: str, name: str, /, **args: int | float | str) -> AbstractContextManager[None]:
        """Measure the body of a `with` statement as one slice."""
        return _OpenSlice(self, track, name, args)

    def add(self, event: Event) -> None:
        """Record an event whose times were measured elsewhere, on the same clock."""
        self._put(event)

    def parts(self, track: str, phase: str, times: list[PartTimes]) -> None:
        """Record the parts of one replay of a phase in one go.

        Those of the newest 1,024 replays are kept; they do not count as events until they are read.
        """
        self._parts.append((track, phase, times))

    def flow(self, name: str, from_track: str, from_ns: int, to_track: str, to_ns: int) -> None:
        """Record that `to_track` waited until `to_ns` for what `from_track` had done at `from_ns`."""
        self._put(Flow(name, from_track, from_ns, to_track, to_ns))

    def mark(self, track: str, name: str, /, **args: int | float | str) -> None:
        """Record something that happens now."""
        self._put(Mark(track, name, perf_counter_ns(), args))

    def events(self) -> list[Event]:
        """Return what is kept, in the order it ended, then the parts of replays, in theirs.

        Slices that are still open are not in it.
        """
        events = [_event(item) for item in self._ring.copy()]
        for track, phase, times in self._parts.copy():
            events += (
                Slice(track, name, began, ended - began, {"phase": phase})
                for name, began, ended in chain.from_iterable(times)
            )
        return events

    def clear(self) -> None:
        """Forget every event and the count of dropped ones; slices that are open stay open."""
        self._ring.clear()
        self._parts.clear()
        self._seen = 0

    def _put(self, item: _RawSlice | Event) -> None:
        self._ring.append(item)
        self._seen += 1


class NullRecorder(Recorder):
    """A recorder that records nothing, for a run without a trace."""

    enabled = False

    def __init__(self) -> None:
        super().__init__(capacity=1)
        self._nothing: AbstractContextManager[None] = nullcontext()

    def slice(self, track: str, name: str, /, **args: int | float | str) -> AbstractContextManager[None]:
        """Measure nothing."""
        return self._nothing

    def add(self, event: Event) -> None:
        """Do nothing."""

    def parts(self, track: str, phase: str, times: list[PartTimes]) -> None:
        """Do nothing."""

    def flow(self, name: str, from_track: str, from_ns: int, to_track: str, to_ns: int) -> None:
        """Do nothing."""

    def mark(self, track: str, name: str, /, **args: int | float | str) -> None:
        """Do nothing."""


class _OpenSlice:
    """One `with recorder.slice(...)`. Reads the clock as the last act of entering, the first of leaving."""

    __slots__ = ("_args", "_name", "_recorder", "_stack", "_start_ns", "_track")

    def __init__(self, recorder: Recorder, track: str, name: str, args: Args) -> None:
        self._recorder = recorder
        self._track = track
        self._name = name
        self._args = args

    def __enter__(self) -> None:
        stack = self._stack = self._recorder._open.setdefault(self._track, [])
        if stack:
            self._args[PARENT] = stack[-1]
        stack.append(self._name)
        self._start_ns = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = perf_counter_ns()
        if kind is not None:
            self._args[ERROR] = kind.__name__
        self._recorder._put((self._track, self._name, self._start_ns, end_ns, self._args))
        innermost = self._stack.pop()
        if innermost != self._name:
            raise RuntimeError(
                f"slice {self._name!r} ended while {innermost!r}, begun later on track {self._track!r}, "
                "was open: slices of one track must nest"
            )


def _event(item: _RawSlice | Event) -> Event:
    if not isinstance(item, tuple):
        return item
    track, name, start_ns, end_ns, args = item
    return Slice(track, name, start_ns, end_ns - start_ns, args)

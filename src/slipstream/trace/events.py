"""The three kinds of event that a trace holds, and nothing else.

All times are integer nanoseconds on one monotonic clock (`time.perf_counter_ns`); only differences mean
anything, until the Chrome file makes them relative to its first event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Args = dict[str, int | float | str]

#: Keys of `args` that the trace itself writes: who encloses a slice, what ended it, and which piece it is.
PARENT, ERROR, PART, PARTS = "parent", "error", "part", "parts"

#: What a slice's `args` may say that an operation is, where its device timed it: one of these words.
KIND = "kind"
KERNEL, COPY, SET, COMMUNICATION = "kernel", "copy", "set", "communication"


@dataclass(frozen=True, slots=True)
class Slice:
    """Work on one track, from `start_ns` to just before `end_ns`.

    Attributes:
        track: the stream or thread that did it.
        name: what it was; phases of a round are in `names`.
        start_ns: when it began.
        dur_ns: how long it took, 0 or more.
        args: what else is known, as rows or the route. With a `kind` it is an operation that a device timed; below
            a phase ("main graph") it names its `phase`. One of communication may say its `group`, its number
            there (`sequence`, equal on all ranks) and its `bytes`.
    """

    track: str
    name: str
    start_ns: int
    dur_ns: int
    args: Args = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dur_ns < 0:
            raise ValueError(f"slice {self.name!r} on track {self.track!r} has dur_ns={self.dur_ns} < 0")

    @property
    def end_ns(self) -> int:
        """The first nanosecond after it."""
        return self.start_ns + self.dur_ns


@dataclass(frozen=True, slots=True)
class PartTimes:
    """When the parts of a replay began and ended, as the device wrote it: numbers are made when read.

    Iterates over (name, began, ended), times in nanoseconds.

    Attributes:
        names: of the parts, in order.
        began, ended: int64 of this machine, one a part.
    """

    names: tuple[str, ...]
    began: bytes
    ended: bytes

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        began, ended = (memoryview(times).cast("q") for times in (self.began, self.ended))
        return zip(self.names, began, ended, strict=True)


@dataclass(frozen=True, slots=True)
class Flow:
    """One track waited for another: an arrow from the work waited for to the work that waited.

    From the host it is a launch: the call ended at `from_ns`, and what it issued began at `to_ns`. To the host:
    the call that ended at `to_ns` stood for a stream.

    Attributes:
        name: what was waited for.
        from_track: where the work waited for ran.
        from_ns: when that work was done.
        to_track: where the wait stood.
        to_ns: when the wait ended.
    """

    name: str
    from_track: str
    from_ns: int
    to_track: str
    to_ns: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment, as a fall back to eager.

    Attributes:
        track: where it happened.
        name: what it was.
        at_ns: when.
        args: what else is known, as the reason.
    """

    track: str
    name: str
    at_ns: int
    args: Args = field(default_factory=dict)


Event = Slice | Flow | Mark

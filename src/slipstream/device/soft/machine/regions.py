"""Memory as the machine sees it: buffers, byte ranges in them, and when two ranges share a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from slipstream.device.soft.machine.history import History


class Buffer:
    """A piece of memory, or a segment of an allocator that holds many tensors over time.

    Attributes:
        name: how findings call it.
        num_bytes: its size.
        where: "device" or "host" (pinned memory).
    """

    __slots__ = ("history", "name", "num_bytes", "task", "where")

    def __init__(self, name: str, num_bytes: int, where: str, history: History, task: bool = False) -> None:
        self.name, self.num_bytes, self.where = name, num_bytes, where
        self.history = history
        self.task = task  # the parameters of a captured task, not memory

    def __repr__(self) -> str:
        return f"<{self.where} buffer {self.name!r}, {self.num_bytes} bytes>"


class Region(NamedTuple):
    """Bytes `start` to `stop` of a buffer; or, with a step, `width` bytes every `step` bytes between them.

    Attributes:
        buffer: the memory.
        start, stop: byte offsets, `stop` is not part of it.
        step, width: rows of `width` bytes whose starts are `step` bytes apart; 0 when every byte counts.
        owner: which allocation the bytes belong to at this access; 0 when nobody keeps account.
        label: how findings call the tensor; the buffer's name when empty.
    """

    buffer: Buffer
    start: int
    stop: int
    step: int = 0
    width: int = 0
    owner: int = 0
    label: str = ""


def name_of(region: Region) -> str:
    """Return how a finding calls the region."""
    return region.label or region.buffer.name


def rows_meet(rows: Region, start: int, stop: int) -> bool:
    """Return whether a stepped region has a byte in [start, stop)."""
    low, high = max(start, rows.start), min(stop, rows.stop)
    if low >= high:
        return False
    into_row = (low - rows.start) % rows.step
    # Either `low` lies in a row, or the next row begins before `high`.
    return into_row < rows.width or low + rows.step - into_row < high


def overlap(a: Region, b: Region) -> bool:
    """Return whether two regions of one buffer share a byte; true where only long arithmetic could tell."""
    if a.start >= b.stop or b.start >= a.stop:
        return False
    if not a.step:
        return rows_meet(b, a.start, a.stop) if b.step else True
    if not b.step:
        return rows_meet(a, b.start, b.stop)
    if a.step == b.step and a.width <= a.step and b.width <= b.step:
        return _same_step_overlap(a, b)
    few, other = (a, b) if (a.stop - a.start) // a.step <= (b.stop - b.start) // b.step else (b, a)
    if (few.stop - few.start) // few.step > 256:
        return True
    starts = range(few.start, few.stop, few.step)
    return any(rows_meet(other, start, min(start + few.width, few.stop)) for start in starts)


def _same_step_overlap(a: Region, b: Region) -> bool:
    phase = (b.start - a.start) % a.step
    if phase >= a.width and phase + b.width <= a.step:
        return False
    # The phases meet, so a row of each does, unless the ends cut them off: two rows at the edges settle it.
    low, high = max(a.start, b.start), min(a.stop, b.stop)
    if high - low > 2 * a.step:
        return True
    first = a.start + (low - a.start) // a.step * a.step
    for start in range(first, high, a.step):
        begin, end = max(start, low), min(start + a.width, high)
        if begin < end and rows_meet(b, begin, end):
            return True
    return False

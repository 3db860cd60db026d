"""Device memory as PyTorch's caching allocator hands it out: blocks cut from segments, kept for the next tensor.

A block that is given back is handed out again at once, to the same stream: what the old tensor's work does comes
before what the new one's does, in stream order. Blocks of different streams, and of different private pools, don't
mix. The sizes are those of the real allocator, so that which tensor gets whose memory is decided as there.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

KIB, MIB = 1 << 10, 1 << 20

#: Sizes are rounded up to this.
ROUND_BYTES = 512
#: Up to here an allocation comes from a small segment.
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
#: From SMALL_BYTES to here an allocation shares a segment of LARGE_SEGMENT_BYTES.
MIN_LARGE_BYTES = 10 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
#: Larger segments are multiples of this.
ROUND_LARGE_BYTES = 2 * MIB


@dataclass(eq=False)
class Segment:
    """Memory taken from the device in one piece.

    Attributes:
        num_bytes: its size.
        address: where it begins.
        memory: what stands behind it.
        home: the pool that it belongs to.
    """

    num_bytes: int
    address: int
    memory: Any
    home: Pool


@dataclass(eq=False)
class Block:
    """A piece of a segment; `before` and `after` are its neighbours there."""

    segment: Segment
    offset: int
    num_bytes: int
    free: bool = False
    before: Block | None = None
    after: Block | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Best fit first, then the lowest address."""
        return (self.num_bytes, self.segment.address + self.offset)


@dataclass(eq=False)
class Pool:
    """The blocks of one stream in one private pool (or in none), small and large apart.

    Attributes:
        segments: those that have not gone back to the device.
    """

    small: bool
    segments: list[Segment] = field(default_factory=list)
    _free: list[Block] = field(default_factory=list)

    def take(self, num_bytes: int, make_segment: Callable[[int, Pool], Segment]) -> Block:
        """Return a block of at least `num_bytes`, rounded already: the best fit, or the start of a new segment."""
        index = bisect.bisect_left(self._free, (num_bytes, -1), key=lambda block: block.order)
        if index < len(self._free) and self._fits(self._free[index], num_bytes):
            block = self._free.pop(index)
        else:
            segment = make_segment(segment_bytes(num_bytes), self)
            self.segments.append(segment)
            block = Block(segment, 0, segment.num_bytes)
        block.free = False
        rest = block.num_bytes - num_bytes
        if rest >= ROUND_BYTES if self.small else rest > SMALL_BYTES:
            self._cut(block, num_bytes)
        return block

    def give(self, block: Block) -> None:
        """Take a block back; free neighbours become one block."""
        block.free = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._remove(other)
                block = _joined(block, other)
        bisect.insort(self._free, block, key=lambda one: one.order)

    def empty(self) -> list[Segment]:
        """Let go of the segments that hold no tensor; return them."""
        gone = [block for block in self._free if block.num_bytes == block.segment.num_bytes]
        for block in gone:
            self._remove(block)
            self.segments.remove(block.segment)
        return [block.segment for block in gone]

    def _fits(self, block: Block, num_bytes: int) -> bool:
        # A much larger block is kept for a larger tensor, as the real allocator does from 200 MiB on.
        return self.small or block.num_bytes < num_bytes + 200 * MIB or block.num_bytes < 2 * num_bytes

    def _cut(self, block: Block, num_bytes: int) -> None:
        rest = Block(
            block.segment, block.offset + num_bytes, block.num_bytes - num_bytes, True, block, block.after
        )
        if block.after is not None:
            block.after.before = rest
        block.after, block.num_bytes = rest, num_bytes
        bisect.insort(self._free, rest, key=lambda one: one.order)

    def _remove(self, block: Block) -> None:
        index = bisect.bisect_left(self._free, block.order, key=lambda one: one.order)
        del self._free[index]


def rounded(num_bytes: int) -> int:
    """Return the size that an allocation of `num_bytes` really takes."""
    return max(ROUND_BYTES, -(-num_bytes // ROUND_BYTES) * ROUND_BYTES)


def segment_bytes(num_bytes: int) -> int:
    """Return the size of the segment that is made for a block of `num_bytes`."""
    if num_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if num_bytes < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-num_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _joined(block: Block, other: Block) -> Block:
    """Return two neighbours as one block."""
    first, second = sorted((block, other), key=lambda one: one.offset)
    first.num_bytes += second.num_bytes
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    first.free = True
    return first

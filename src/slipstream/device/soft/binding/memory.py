"""The software NPU's memory: tensors' allocations, private pools of graphs, and the figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from slipstream.device.soft.binding.blocks import MIB, SMALL_BYTES, Block, Pool, Segment, rounded
from slipstream.device.soft.binding.locked import LockedMachine
from slipstream.device.soft.binding.regions import spans
from slipstream.device.soft.machine import Buffer, Event, Region

#: The number of a private pool: as torch's mempool ids.
PoolId = tuple[int, int]

#: Where a tensor goes that no capture claims.
NO_POOL: PoolId = (0, 0)

#: What unwritten memory holds, in every byte: as an integer no index, as a float no size, and always the same.
UNWRITTEN = 0xA5


@dataclass(eq=False)
class DeviceMemory:
    """What stands behind a segment: bytes, and the machine's name for them."""

    bytes: torch.Tensor
    buffer: Buffer


class Allocation:
    """A tensor's memory, from its making until its last view is gone.

    Attributes:
        block: where it lies.
        owner: a number of its own, so that a later tensor in the same block is told apart.
        label: how findings call it.
        streams: other streams that use it, said by `record_stream`; the block waits for them before it is reused.
    """

    __slots__ = ("_memory", "block", "label", "num_bytes", "owner", "pool", "stream", "streams")

    def __init__(
        self, memory: Memory, block: Block, num_bytes: int, owner: int, label: str, pool: PoolId, stream: int
    ) -> None:
        self._memory, self.block, self.num_bytes, self.owner = memory, block, num_bytes, owner
        self.label, self.pool, self.stream = label, pool, stream
        self.streams: set[int] = set()

    def __del__(self) -> None:
        # Runs anywhere, also inside the machine; so the block is only put down here, and taken at the next call.
        self._memory.dropped.append((self.block, self.streams))

    @property
    def storage(self) -> Any:
        """The segment's bytes, an UntypedStorage."""
        return self.block.segment.memory.bytes.untyped_storage()

    def regions(self, data: torch.Tensor) -> list[Region]:
        """Return the bytes that a tensor in this allocation covers."""
        buffer = self.block.segment.memory.buffer
        offset = int(data.storage_offset()) * data.itemsize
        if data.is_contiguous():
            if not data.nbytes:
                return []
            return [Region(buffer, offset, offset + data.nbytes, 0, 0, self.owner, self.label)]
        found = spans(offset, data.shape, data.stride(), data.itemsize)
        return [Region(buffer, *span, self.owner, self.label) for span in found]


@dataclass
class Figures:
    """Bytes and counts, now and at most."""

    allocated: int = 0
    reserved: int = 0
    max_allocated: int = 0
    max_reserved: int = 0
    allocations: int = 0
    segments: int = 0
    retries: int = 0
    ooms: int = 0

    def add(self, allocated: int = 0, reserved: int = 0) -> None:
        """Count bytes, negative ones too."""
        self.allocated += allocated
        self.reserved += reserved
        self.max_allocated = max(self.max_allocated, self.allocated)
        self.max_reserved = max(self.max_reserved, self.reserved)


@dataclass(eq=False)
class Memory:
    """One device's memory.

    Attributes:
        machine: whose buffers the segments are.
        total_bytes: what the device has.
        dropped: blocks whose tensors are gone, not yet taken back.
        captures: how many captures are in progress.
    """

    machine: LockedMachine
    total_bytes: int
    figures: Figures = field(default_factory=Figures)
    dropped: deque[tuple[Block, set[int]]] = field(default_factory=deque)
    captures: int = 0
    _pools: dict[tuple[PoolId, int, bool], Pool] = field(default_factory=dict)
    _users: dict[PoolId, int] = field(default_factory=dict)
    _waiting: list[tuple[Block, list[Event]]] = field(default_factory=list)
    _after_capture: list[tuple[Block, set[int]]] = field(default_factory=list)
    _owners: int = 0
    _nothing: Block | None = None

    def allocate(self, num_bytes: int, stream: int, pool: PoolId, label: str) -> Allocation:
        """Return memory for a tensor.

        Raises:
            torch.OutOfMemoryError: the device has not that much left.
        """
        with self.machine.lock:
            return self._allocate(num_bytes, stream, pool, label)

    def _allocate(self, num_bytes: int, stream: int, pool: PoolId, label: str) -> Allocation:
        self.collect()
        self._owners += 1
        if not num_bytes:
            return Allocation(self, self._no_bytes(), 0, self._owners, label, pool, stream)
        size = rounded(num_bytes)
        key = (pool, stream, size <= SMALL_BYTES)
        home = self._pools.get(key)
        if home is None:
            home = self._pools[key] = Pool(size <= SMALL_BYTES)
        block = home.take(size, self._segment)
        self.figures.allocations += 1
        self.figures.add(allocated=block.num_bytes)
        return Allocation(self, block, num_bytes, self._owners, label, pool, stream)

    def collect(self) -> None:
        """Take back the blocks whose tensors are gone."""
        if self.dropped or self._waiting or self._after_capture:
            with self.machine.lock:
                self._collect()

    def _collect(self) -> None:
        while self.dropped:
            block, streams = self.dropped.popleft()
            self.figures.add(allocated=-block.num_bytes)
            if not block.num_bytes:
                continue
            if not streams:
                block.segment.home.give(block)
            elif self.captures:
                self._after_capture.append((block, streams))  # an event recorded now would be captured
            else:
                self._wait_for(block, streams)
        if not self.captures:
            for block, streams in self._after_capture:
                self._wait_for(block, streams)
            self._after_capture.clear()
            self._settle()

    def empty_cache(self) -> None:
        """Give unused segments back to the device; those of a private pool only when no graph uses it."""
        self.collect()
        for (pool, _, _), home in self._pools.items():
            if not self._users.get(pool):
                for segment in home.empty():
                    self.figures.add(reserved=-segment.num_bytes)
                    self.figures.segments -= 1

    def use_pool(self, pool: PoolId) -> None:
        """Count a graph that lives in a private pool."""
        self._users[pool] = self._users.get(pool, 0) + 1

    def leave_pool(self, pool: PoolId) -> None:
        """Count out a graph that was reset."""
        self._users[pool] -= 1

    def reset_peaks(self) -> None:
        """Let the highest figures begin again from now."""
        self.figures.max_allocated, self.figures.max_reserved = self.figures.allocated, self.figures.reserved

    def segments(self) -> list[tuple[PoolId, int, Segment]]:
        """Return every segment, with its pool and stream."""
        return [(pool, stream, s) for (pool, stream, _), home in self._pools.items() for s in home.segments]

    def _no_bytes(self) -> Block:
        """Return what a tensor without elements lies in."""
        nothing = self._nothing
        if nothing is None:
            with torch.inference_mode(False):
                data = torch.empty(0, dtype=torch.uint8, device="cpu")
            memory = DeviceMemory(data, self.machine.buffer("nothing", 0, where="device"))
            nothing = self._nothing = Block(Segment(0, 0, memory, Pool(True)), 0, 0)
        return nothing

    def _wait_for(self, block: Block, streams: set[int]) -> None:
        events = []
        for stream in sorted(streams):
            event = self.machine.event(f"last use of freed memory on stream {stream}")
            self.machine.record(stream, event)
            events.append(event)
        self._waiting.append((block, events))

    def _settle(self) -> None:
        if self._waiting:
            still = []
            for block, events in self._waiting:
                left = [event for event in events if not self._reached(event)]
                if left:
                    still.append((block, left))
                else:
                    block.segment.home.give(block)
            self._waiting = still

    def _reached(self, event: Event) -> bool:
        # A look, not a wait: only what is done already is asked for, and is then known to the host.
        done = event.record is None or event.record.done
        return done and self.machine.query(event)

    def _segment(self, num_bytes: int, home: Pool) -> Segment:
        if self.figures.reserved + num_bytes > self.total_bytes:
            self.figures.retries += 1
            self.empty_cache()
        if self.figures.reserved + num_bytes > self.total_bytes:
            self.figures.ooms += 1
            raise torch.OutOfMemoryError(
                f"NPU out of memory. Tried to allocate {num_bytes / MIB:.2f} MiB (NPU 0; "
                f"{self.total_bytes / MIB:.2f} MiB total capacity; {self.figures.allocated / MIB:.2f} MiB already "
                f"allocated; {self.figures.reserved / MIB:.2f} MiB reserved in total). The software NPU has as "
                "much memory as install(memory_bytes=...) says."
            )
        with torch.inference_mode(False):
            data = torch.full((num_bytes,), UNWRITTEN, dtype=torch.uint8, device="cpu")
        self.figures.segments += 1
        self.figures.add(reserved=num_bytes)
        buffer = self.machine.buffer(f"segment {self.figures.segments}", num_bytes, where="device")
        return Segment(num_bytes, data.data_ptr(), DeviceMemory(data, buffer), home)


def place(
    allocation: Allocation, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return the plain tensor at the start of an allocation."""
    data = torch.empty(0, dtype=dtype, device="cpu")
    return data.set_(allocation.storage, allocation.block.offset // dtype.itemsize, size, stride)

"""What the torch side shares: the machine, each device's memory, the current device and streams, the captures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.device.soft.binding.locked import LockedMachine
from slipstream.device.soft.binding.memory import NO_POOL, Memory, PoolId
from slipstream.device.soft.binding.random import Draw, RandomState
from slipstream.device.soft.machine import Graph
from slipstream.errors import DeviceError

Value = TypeVar("Value")

#: Streams that one device hands out; the next `Stream()` is the first one again, as in torch_npu.
STREAMS_PER_DEVICE = 32


@dataclass(eq=False)
class Capture:
    """What a graph's capture gathers on the torch side.

    Attributes:
        graph: what is captured into.
        pool: the private pool that the capture allocates from.
        draws: the random ops in capture order; each replay gives them new states.
    """

    graph: Graph
    pool: PoolId
    draws: list[Draw] = field(default_factory=list)


@dataclass
class _Selected:
    """The current device and streams of one thread, or of one simulated rank."""

    device: int
    streams: dict[int, int] = field(default_factory=dict)


class _PerThread(threading.local):
    """What a thread has selected, by the rank that it works for."""

    def __init__(self) -> None:
        self.by_rank: dict[int, _Selected] = {}


class Runtime:
    """The software NPU as torch sees it.

    Args:
        machine: where the commands go.
        num_devices: how many NPUs there are.
        memory_bytes: memory of each.
    """

    def __init__(self, machine: LockedMachine, num_devices: int, memory_bytes: int) -> None:
        self.machine = machine
        self.num_devices = num_devices
        self.memories = [Memory(machine, memory_bytes) for _ in range(num_devices)]
        self.random = [RandomState() for _ in range(num_devices)]
        self.captures: dict[Graph, Capture] = {}
        self._pools = 0
        self._kept: dict[tuple[int, str], Any] = {}
        self._defaults: dict[tuple[int, int], int] = {}
        self._streams: dict[tuple[int, int], list[int]] = {}
        self._handed_out: dict[tuple[int, int], int] = {}
        self._local = _PerThread()
        self._last: dict[int, _Selected] = {}

    @property
    def device(self) -> int:
        """The current device."""
        return self._now().device

    @device.setter
    def device(self, index: int) -> None:
        if not 0 <= index < self.num_devices:
            raise RuntimeError(
                f"Invalid device ID {index}: the software NPU has {self.num_devices} device(s)."
            )
        self._now().device = index

    def default_stream(self, device: int) -> int:
        """Return the default stream that the current rank has on a device."""
        rank = self.machine.current_host
        if device == rank % self.num_devices:
            return self.machine.default_stream
        found = self._defaults.get((rank, device))
        if found is None:
            found = self._defaults[rank, device] = self.machine.stream(f"default of npu:{device}")
        return found

    def current_stream(self, device: int | None = None) -> int:
        """Return the stream that a device's work goes to now."""
        now = self._now()
        device = now.device if device is None else device
        stream = now.streams.get(device)
        return self.default_stream(device) if stream is None else stream

    def set_stream(self, stream: int, device: int) -> None:
        """Let a device's work go to `stream`, and make it the current device."""
        now = self._now()
        now.device, now.streams[device] = device, stream

    def new_stream(self, device: int, name: str) -> int:
        """Return the next stream of the current rank's ring of streams on a device.

        Raises:
            OutOfStreams: none is left (207008).
        """
        key = (self.machine.current_host, device)
        ring = self._streams.setdefault(key, [])
        turn = self._handed_out.get(key, 0) % STREAMS_PER_DEVICE
        if turn == len(ring):
            ring.append(self.machine.stream(name))
        self._handed_out[key] = turn + 1
        return ring[turn]

    def once_a_rank(self, what: str, make: Callable[[], Value]) -> Value:
        """Return what `make` gave the first time that the current rank asked for `what`."""
        key = (self.machine.current_host, what)
        if key not in self._kept:
            self._kept[key] = make()
        kept: Value = self._kept[key]
        return kept

    def new_pool(self) -> PoolId:
        """Return the number of a new private pool."""
        self._pools += 1
        return (0, self._pools)

    def begin_capture(self, stream: int, graph: Graph, mode: str, pool: PoolId) -> Capture:
        """Begin a capture; what its streams allocate from now on comes from `pool`.

        Raises:
            SoftError: the device refuses.
        """
        self.machine.begin_capture(stream, graph, mode)
        capture = self.captures[graph] = Capture(graph, pool)
        for memory in self.memories:
            memory.captures += 1
        return capture

    def end_capture(self, stream: int, graph: Graph) -> None:
        """End a capture.

        Raises:
            SoftError: the device refuses; if the capture itself is at fault, it is over all the same.
        """
        try:
            self.machine.end_capture(stream)
        finally:
            if graph.state != "capturing" and self.captures.pop(graph, None) is not None:
                for memory in self.memories:
                    memory.captures -= 1

    def capture_on(self, stream: int) -> Capture | None:
        """Return the capture that a stream takes part in, or None."""
        graph = self.machine.is_capturing(stream)
        return None if graph is None else self.captures.get(graph)

    def pool_for(self, stream: int) -> PoolId:
        """Return the pool that an allocation for `stream` comes from now."""
        capture = self.capture_on(stream) if self.captures else None
        return NO_POOL if capture is None else capture.pool

    def _now(self) -> _Selected:
        rank = self.machine.current_host
        local = self._local.by_rank
        found = local.get(rank)
        if found is None:
            # A thread of the autograd engine works for the thread that called it.
            helps = isinstance(threading.current_thread(), threading._DummyThread)
            found = self._last.get(rank) if helps else None
            if found is None:
                found = _Selected(rank % self.num_devices)
            if helps:
                return found
            local[rank] = found
        self._last[rank] = found
        return found


_active: Runtime | None = None


def activate(runtime: Runtime | None) -> None:
    """Make `runtime` the one that tensors on "npu" belong to; None ends that."""
    global _active
    _active = runtime


def active() -> Runtime:
    """Return the runtime in use.

    Raises:
        DeviceError: the software NPU is not installed.
    """
    if _active is None:
        raise DeviceError(
            "device 'npu' was asked for, and no software NPU is there: call slipstream.device.soft.install() first"
        )
    return _active


def is_active() -> bool:
    """Return whether a software NPU is installed."""
    return _active is not None

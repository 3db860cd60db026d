"""What the torch side shares: the machine, each device's memory, the current device and streams, the captures."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch

from slipstream.device.soft.binding.memory import NO_POOL, Memory, PoolId
from slipstream.device.soft.binding.random import Draw, RandomState
from slipstream.device.soft.machine import Machine
from slipstream.errors import DeviceError

#: Streams that one device hands out; the next `Stream()` is the first one again, as in torch_npu.
STREAMS_PER_DEVICE = 32


@dataclass(eq=False)
class Capture:
    """What a graph's capture gathers on the torch side.

    Attributes:
        graph: its number in the machine.
        pool: the private pool that the capture allocates from.
        draws: the random ops in capture order; each replay gives them new states.
    """

    graph: int
    pool: PoolId
    draws: list[Draw] = field(default_factory=list)


@dataclass
class _Selected:
    """The current device and streams of one thread, or of one simulated rank."""

    device: int
    streams: dict[int, int] = field(default_factory=dict)


class Runtime:
    """The software NPU as torch sees it.

    Args:
        machine: where the commands go.
        num_devices: how many NPUs there are.
        memory_bytes: memory of each.
    """

    def __init__(self, machine: Machine, num_devices: int, memory_bytes: int) -> None:
        self.machine = machine
        self.num_devices = num_devices
        self.memories = [Memory(machine, memory_bytes) for _ in range(num_devices)]
        self.random = [RandomState() for _ in range(num_devices)]
        self.captures: dict[int, Capture] = {}
        self._pools = 0
        self._defaults = [0] + [machine.stream(f"default of npu:{n}") for n in range(1, num_devices)]
        self._streams: list[list[int]] = [[] for _ in range(num_devices)]
        self._handed_out = [0] * num_devices
        self._selected: dict[tuple[int, int], _Selected] = {}
        self._last: dict[int, _Selected] = {}

    @property
    def device(self) -> int:
        """The current device."""
        return self._now().device

    @device.setter
    def device(self, index: int) -> None:
        if not 0 <= index < self.num_devices:
            raise RuntimeError(f"Invalid device ID {index}: the software NPU has {self.num_devices} device(s).")
        self._now().device = index

    def default_stream(self, device: int) -> int:
        """Return a device's default stream."""
        return self._defaults[device]

    def current_stream(self, device: int | None = None) -> int:
        """Return the stream that a device's work goes to now."""
        now = self._now()
        device = now.device if device is None else device
        return now.streams.get(device, self._defaults[device])

    def set_stream(self, stream: int, device: int) -> None:
        """Let a device's work go to `stream`, and make it the current device."""
        now = self._now()
        now.device, now.streams[device] = device, stream

    def new_stream(self, device: int, name: str) -> int:
        """Return the next stream of a device's ring of streams."""
        ring = self._streams[device]
        turn = self._handed_out[device] % STREAMS_PER_DEVICE
        self._handed_out[device] += 1
        if turn == len(ring):
            ring.append(self.machine.stream(name))
        return ring[turn]

    def new_pool(self) -> PoolId:
        """Return the number of a new private pool."""
        self._pools += 1
        return (0, self._pools)

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
        if isinstance(threading.current_thread(), threading._DummyThread):
            # A thread of the autograd engine works for the thread that called it.
            found = self._last.get(rank)
        else:
            found = self._selected.get((rank, threading.get_ident()))
        if found is None:
            found = _Selected(rank % self.num_devices)
            self._selected[rank, threading.get_ident()] = found
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
            "device 'npu' was asked for, and no software NPU is there. Call slipstream.device.soft.install() first."
        )
    return _active


def is_active() -> bool:
    """Return whether a software NPU is installed."""
    return _active is not None


def plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an ordinary one in host memory."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu"

"""torch.npu's streams and events, over the machine's."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import torch

from slipstream.device.soft import machine
from slipstream.device.soft.binding.naming import named
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.face.devices import device as device_context
from slipstream.device.soft.face.devices import index_of
from slipstream.device.soft.machine.errors import GraphCheck
from slipstream.device.soft.machine.places import here

#: c10::DeviceType::PrivateUse1.
DEVICE_TYPE = 20


class _StreamBase(torch.Stream):
    """What every kind of stream can do."""

    _before: list[tuple[int, int]]

    def wait_event(self, event: Any) -> None:
        """Let what this stream is given from now on wait for `event`."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Let what this stream is given from now on wait for what `stream` was given so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Record `event`, or a new one, and return it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Return whether all that the stream was given is done."""
        return active().machine.query(self.stream_id)

    def synchronize(self) -> None:
        """Let the host wait for all that the stream was given."""
        active().machine.synchronize(self.stream_id)

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        """Do nothing: the model has no priorities."""

    @property
    def npu_stream(self) -> int:
        """The stream's handle."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """0: the model has no priorities."""
        return 0

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_stream)

    def __enter__(self) -> Any:
        runtime = active()
        if "_before" not in vars(self):
            self._before = []
        self._before.append((runtime.device, runtime.current_stream(self.device_index)))
        runtime.set_stream(self.stream_id, self.device_index)
        return self

    def __exit__(self, *_: object) -> None:
        runtime = active()
        device_before, stream_before = self._before.pop()
        runtime.set_stream(stream_before, self.device_index)
        runtime.device = device_before

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _StreamBase):
            return False
        return bool(self.stream_id == other.stream_id and self.device_index == other.device_index)

    def __hash__(self) -> int:
        return hash((self.npu_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch_npu.npu.{type(self).__name__} device={self.device} npu_stream={self.npu_stream:#x}>"


def _stream_id(given: dict[str, Any], kind: str) -> tuple[int, int]:
    runtime = active()
    if "stream_id" in given:
        return given["stream_id"], given.get("device_index", runtime.device)
    return runtime.new_stream(runtime.device, named(kind)), runtime.device


class Stream(_StreamBase):
    """An in-order queue of a device."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        with device_context(device):
            stream_id, index = _stream_id(kwargs, "stream")
        return super().__new__(cls, stream_id=stream_id, device_index=index, device_type=DEVICE_TYPE)


class SyncLaunchStream(_StreamBase):
    """A stream whose commands bypass the host's task queue; to the model, a stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        with device_context(device):
            stream_id, index = _stream_id(kwargs, "sync-launch stream")
        return super().__new__(cls, stream_id=stream_id, device_index=index, device_type=DEVICE_TYPE)


class _EventBase(torch.Event):
    def __new__(cls, **kwargs: Any) -> Any:
        return super().__new__(cls, device=torch.device("npu", active().device), **kwargs)


class Event(_EventBase):
    """A point in a stream's work. A wait sees the latest record issued, and without one waits for nothing."""

    _event: machine.Event
    _timed: bool
    _time_ns: int | None

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Any:
        made = super().__new__(cls, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)
        made._event = active().machine.event(f"event made at {caller()}")
        made._timed, made._time_ns = enable_timing, None
        return made

    def record(self, stream: Any = None) -> None:
        """Record the event in a stream, the current one unless given."""
        stream_id = _id_of(stream)
        if self._timed:
            active().machine.kernel(stream_id, "timestamp", (), (), self._stamp)
        active().machine.record(stream_id, self._event)

    def wait(self, stream: Any = None) -> None:
        """Let what a stream is given from now on wait for the event."""
        active().machine.wait(_id_of(stream), self._event)

    def query(self) -> bool:
        """Return whether the recorded point has been reached."""
        return active().machine.query(self._event)

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds between two recorded points, in the model's own time: the host's clock.

        Raises:
            RuntimeError: one of the two does not time, or has not been reached.
        """
        later: int = end_event.recorded_time()
        return (later - self.recorded_time()) / 1e6

    def recorded_time(self) -> int:
        """Return when the recorded point was reached, in nanoseconds."""
        if not self._timed:
            raise RuntimeError("The event was made without enable_timing=True, so it has no time.")
        if self._time_ns is None:
            raise RuntimeError("The event has no time yet: record it, and synchronize with it.")
        return int(self._time_ns)

    def synchronize(self) -> None:
        """Let the host wait for the recorded point."""
        active().machine.synchronize_event(self._event)

    @property
    def npu_event(self) -> int:
        """The event's handle."""
        return id(self._event)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_event)

    def _stamp(self) -> None:
        self._time_ns = time.perf_counter_ns()

    def __repr__(self) -> str:
        return f"<torch_npu.npu.Event {self.npu_event:#x}>"


class ExternalEvent(_EventBase):
    """A one-bit event: a wait blocks its stream until it is recorded, and clears it. A wait may come first."""

    _gate: machine.Gate
    _waited: bool

    def __new__(cls) -> Any:
        made = super().__new__(cls)
        made._gate, made._waited = active().machine.gate(named("external event")), False
        return made

    def record(self, stream: Any = None) -> None:
        """Set the bit when the stream gets here. Setting it twice is setting it once."""
        self._waited = False
        active().machine.open(_id_of(stream), self._gate)

    def wait(self, stream: Any = None) -> None:
        """Block a stream until the bit is set, then clear it.

        Raises:
            RuntimeError: it was waited for before, and not recorded since. torch_npu looks at that on the host,
                after the wait is in the queue; it knows nothing of the waits of a replay.
        """
        active().machine.wait_gate(_id_of(stream), self._gate)
        if self._waited:
            raise GraphCheck(
                "A single record operation cannot be associated with multiple wait operations. This external "
                "event is waited for a second time, and was not recorded in between."
            )
        self._waited = True

    def reset(self, stream: Any = None) -> None:
        """Do nothing: where the runtime can wait for a value, a wait clears the bit by itself."""
        _id_of(stream)

    @property
    def npu_event(self) -> int:
        """The event's handle."""
        return id(self._gate)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_event)

    def __repr__(self) -> str:
        return f"<torch_npu.npu.ExternalEvent {self.npu_event:#x}>"


class StreamContext:
    """Makes a stream the current one for a while; None changes nothing."""

    def __init__(self, stream_ctx: Any) -> None:
        self.stream = stream_ctx
        self.src_prev_stream: Any = None
        self.dst_prev_stream: Any = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self.src_prev_stream = current_stream()
        if self.src_prev_stream.device != self.stream.device:
            self.dst_prev_stream = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(self, exec_type: Any, exec_value: Any, traceback: Any) -> None:
        if self.stream is None:
            return
        if self.src_prev_stream.device != self.stream.device:
            set_stream(self.dst_prev_stream)
        set_stream(self.src_prev_stream)


def stream(stream: Any) -> StreamContext:
    """Return a context in which `stream` is the current one."""
    return StreamContext(stream)


def set_stream(stream: Any) -> None:
    """Make `stream` the current one; None changes nothing."""
    if stream is not None:
        active().set_stream(stream.stream_id, stream.device_index)


def current_stream(device: Any = None) -> Stream:
    """Return the stream that the device's work goes to now."""
    index = index_of(device)
    return Stream(stream_id=active().current_stream(index), device_index=index, device_type=DEVICE_TYPE)  # type: ignore[no-any-return]


def default_stream(device: Any = None) -> Stream:
    """Return the device's default stream."""
    index = index_of(device)
    return Stream(stream_id=active().default_stream(index), device_index=index, device_type=DEVICE_TYPE)  # type: ignore[no-any-return]


def synchronize(device: Any = None) -> None:
    """Let the host wait for all streams."""
    index_of(device)
    active().machine.synchronize()


def _id_of(stream: Any) -> int:
    return int(active().current_stream() if stream is None else stream.stream_id)


def caller() -> str:
    """Return the line of the user's code that is being run, as in `file.py:12`."""
    return here().where

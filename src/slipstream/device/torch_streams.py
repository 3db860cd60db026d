"""What the backends over `torch.cuda` and `torch.npu` share: streams, events, graphs, memory.

Both modules have the same names for these. A backend says what its module is, how its graphs are made and
captured, and what its gates are. What neither module tells (a graph's nodes, times inside a replay) is empty.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from slipstream.device.api import Device, Event, Graph, Stream
from slipstream.errors import CaptureError, HangError, ReplayError
from slipstream.trace import PartTimes


class TorchStream(Stream):
    """A stream of a torch module.

    Attributes:
        raw: torch's own.
    """

    def __init__(self, device: TorchDevice, name: str, raw: Any) -> None:
        self.name, self.raw = name, raw
        self._device = device
        self._contexts: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> Self:
        context = self._device.module.stream(self.raw)
        context.__enter__()
        self._contexts.append(context)
        self._device.entered.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._device.entered.pop()
        self._contexts.pop().__exit__(kind, value, traceback)

    def wait_stream(self, other: Stream) -> None:
        self.raw.wait_stream(raw_of(other))

    def synchronize(self) -> None:
        self.raw.synchronize()


class TorchEvent(Event):
    """An event of a torch module, which knows whether it was recorded: torch's own waits for nothing if not."""

    def __init__(self, device: TorchDevice) -> None:
        self._raw = device.module.Event()
        self._recorded = False

    def record(self, stream: Stream) -> None:
        self._raw.record(raw_of(stream))
        self._recorded = True

    def wait(self, stream: Stream) -> None:
        if not self._recorded:
            raise HangError(
                f"stream {stream.name!r} waits for an event that was never recorded. Record it first: the device "
                "would not wait at all."
            )
        self._raw.wait(raw_of(stream))


class TorchGraph(Graph):
    """A graph of a torch module, with a memory pool of its own.

    A pool shared by the graphs would be smaller, but what one graph returned would be lost at the next one's
    replay, and a round reads the verify graph's results after it has replayed others.
    """

    def __init__(self, device: TorchDevice, name: str) -> None:
        self.name = name
        self._device = device
        self._raw: Any = None
        self._result: Any = None
        self._inputs: list[tuple[str, torch.Tensor, int]] = []
        self._open: tuple[Any, _StaticInputs, ExitStack] | None = None
        self._memory_bytes = 0

    def capture(self, function: Callable[[], Any], stream: Stream) -> Any:
        if self._raw is not None:
            raise CaptureError(f"graph {self.name!r} was captured before; make a new one.")
        raw, seen = self._device.new_graph(self.name), _StaticInputs(self._look_at)
        try:
            # Entered outside: where the end of a broken capture raises, torch leaves its stream the current one.
            with stream, torch.inference_mode(), self._device.capturing(raw, stream), seen:
                reserved = self._device.module.memory_reserved()
                result = function()
        except RuntimeError as error:
            raise CaptureError(f"graph {self.name!r} could not be captured: {_first(error)}") from error
        self._memory_bytes = self._device.module.memory_reserved() - reserved
        self._raw, self._result, self._inputs = raw, result, seen.addresses()
        return result

    def begin(self, stream: Stream, pool_of: Graph | None = None) -> None:
        if self._raw is not None:
            raise CaptureError(f"graph {self.name!r} was captured before; make a new one.")
        raw, seen = self._device.new_graph(self.name), _StaticInputs(self._look_at)
        contexts = ExitStack()
        pool = pool_of._raw.pool() if isinstance(pool_of, TorchGraph) else None
        try:
            for context in (stream, torch.inference_mode(), self._device.capturing(raw, stream, pool), seen):
                contexts.enter_context(context)
        except RuntimeError as error:
            contexts.close()
            raise CaptureError(f"graph {self.name!r} could not be captured: {_first(error)}") from error
        self._open = raw, seen, contexts
        self._memory_bytes = -self._device.module.memory_reserved()

    def end(self, error: BaseException | None = None) -> bool:
        assert self._open is not None, "end without begin"
        (raw, seen, contexts), self._open = self._open, None
        try:
            # What broke the piece is shown to the contexts, and goes on to whoever called.
            contexts.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except RuntimeError as refused:
            if error is not None:
                return False  # the end of a broken capture raises once more
            raise CaptureError(f"graph {self.name!r} could not be captured: {_first(refused)}") from refused
        if error is None:
            self._memory_bytes += self._device.module.memory_reserved()
            self._raw, self._inputs = raw, seen.addresses()
        return seen.busy

    def seal(self, readers: Iterable[torch.Tensor]) -> None:
        """Nothing to do: whoever reads a tensor holds it, and a replay writes where the capture did."""

    def inputs(self) -> list[torch.Tensor]:
        return [tensor for _, tensor, _ in self._inputs]

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def replay(self) -> Any:
        if self.num_tasks:
            raise ReplayError(
                f"graph {self.name!r} has {self.num_tasks} tasks that wait for numbers from the host; replay it "
                "through its GraphTasks, which updates them."
            )
        return self.replay_with_tasks()

    def replay_with_tasks(self) -> Any:
        if self._raw is None:
            raise ReplayError(f"graph {self.name!r} was never captured; capture it first.")
        self._raw.replay()
        return self._result

    def _look_at(self, op: Any) -> None:
        """See an op before it is captured.

        Raises:
            CaptureError: it must not be.
        """

    def check_addresses(self) -> None:
        for where, tensor, address in self._inputs:
            if tensor.data_ptr() != address:
                raise ReplayError(
                    f"graph {self.name!r}: a static input moved since the capture ({where}). "
                    "Write new values into the buffer that was captured, or capture again."
                )

    def spent_ns(self) -> dict[str, int]:
        return {}

    def group_times(self) -> list[PartTimes]:
        return []

    @property
    def num_sections(self) -> int:
        return 0

    @property
    def callbacks(self) -> dict[str, int]:
        return {}

    def topology(self) -> list[dict[str, Any]]:
        return []

    @property
    def node_counts(self) -> dict[str, int]:
        return {}


class TorchDevice(Device):
    """The current device of a torch module.

    Args:
        module: `torch.cuda`, `torch.npu`.

    Attributes:
        entered: the streams that are entered, innermost last.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.torch_device = torch.device(self.name, module.current_device())
        self.entered: list[TorchStream] = []

    @abstractmethod
    def new_graph(self, name: str) -> Any:
        """Return an empty graph of the module."""

    def capturing(self, raw: Any, stream: Stream, pool: Any = None) -> AbstractContextManager[Any]:
        """Return the context in which work on `stream` is captured into `raw`, in a memory pool or its own."""
        captured: AbstractContextManager[Any] = self.module.graph(raw, pool=pool, stream=raw_of(stream))
        return captured

    def new_stream(self, name: str) -> Any:
        """Return a new stream of the module."""
        return self.module.Stream()

    def stream(self, name: str) -> TorchStream:
        return TorchStream(self, name, self.new_stream(name))

    def event(self) -> Event:
        return TorchEvent(self)

    def graph(self, name: str) -> TorchGraph:
        return TorchGraph(self, name)

    def current_stream(self) -> Stream:
        raw = self.module.current_stream()
        if self.entered and self.entered[-1].raw == raw:
            return self.entered[-1]
        return TorchStream(self, "default" if raw == self.module.default_stream() else "unnamed", raw)

    def synchronize(self) -> None:
        self.module.synchronize()

    def memory_bytes(self) -> int:
        return int(self.module.max_memory_allocated())

    def pool_bytes(self) -> int:
        """Nothing: each graph has a pool of its own."""
        return 0

    def drop_pool(self) -> None:
        """Give back to the device what the dropped graphs computed in."""
        self.module.empty_cache()


class _StaticInputs(TorchDispatchMode):
    """Sees the ops of a captured function, and the tensors that it reads from outside."""

    def __init__(self, look_at: Callable[[Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look_at = look_at
        # Weak: what the graph is done with, its pool gives to the next tensor.
        self._made: MutableMapping[torch.Tensor, bool] = WeakTensorKeyDictionary()
        self._read: dict[int, tuple[str, torch.Tensor]] = {}
        self.busy = False

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.busy = True
        self._look_at(op)
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and value not in self._made:
                self._read.setdefault(id(value), (f"read by {op}", value))
        result = op(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and id(value) not in self._read:
                self._made[value] = True
        return result

    def addresses(self) -> list[tuple[str, torch.Tensor, int]]:
        """Return where each input was first read, the input, and its address."""
        return [(where, tensor, tensor.data_ptr()) for where, tensor in self._read.values()]


def raw_of(stream: Stream) -> Any:
    """Return torch's stream behind one of ours."""
    assert isinstance(stream, TorchStream)
    return stream.raw


def _first(error: BaseException) -> BaseException:
    """Return the error that a chain of them began with: the end of a broken capture raises once more."""
    while error.__context__ is not None:
        error = error.__context__
    return error

"""The interface of a device: streams, events, gates, graphs. Names follow PyTorch.

    main, plan = device.stream("main"), device.stream("plan")
    plan.wait_stream(main)              # fork: what `plan` does next comes after what `main` did so far
    with plan:
        prepare()
    main.wait_stream(plan)              # join

A device that cannot do something says so in `caps`; nothing above this file asks which device it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from slipstream.device.caps import Caps
from slipstream.errors import CaptureError, DeviceError
from slipstream.trace import PartTimes


@dataclass(frozen=True, slots=True)
class Span:
    """Memory that crosses pieces of one function.

    Attributes:
        tensor: one that lies in it, from its start or not.
        first, last: the piece that makes it, and the last that reads it, counted with what runs between pieces.
    """

    tensor: torch.Tensor
    first: int
    last: int


class Event(ABC):
    """A point in a stream's work that another stream, or the host, can wait for."""

    @abstractmethod
    def record(self, stream: Stream) -> None:
        """Mark the point that `stream` has reached."""

    @abstractmethod
    def wait(self, stream: Stream) -> None:
        """Let what `stream` does next wait for the recorded point.

        Raises:
            HangError: the event was never recorded.
        """


class Gate(ABC):
    """A one-bit, self-closing event (torch_npu: ExternalEvent).

    `wait` blocks its stream until the gate is open, then closes it. Opening an open gate changes nothing, so
    two openings before one wait are one opening.

    Attributes:
        openings: how often `open` was called.
    """

    openings: int = 0

    @abstractmethod
    def open(self, stream: Stream) -> None:
        """Open the gate when `stream` gets here."""

    @abstractmethod
    def wait(self, stream: Stream) -> None:
        """Hold `stream` until the gate is open, then close it.

        Raises:
            HangError: the device runs in program order and the gate is closed, so nothing can open it.
        """


class Stream(ABC):
    """An in-order queue of work. Used as a context manager it is the current stream inside the block."""

    name: str

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @abstractmethod
    def wait_stream(self, other: Stream) -> None:
        """Let what this stream does next wait for all that `other` was given so far."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until this stream is idle."""


class HostOp(ABC):
    """One call of an op that takes numbers from the host, over tensors that stay where they are.

    A graph keeps the numbers that it was captured with; a task gives it others (`Graph.task`).
    """

    @abstractmethod
    def run(self, values: Sequence[int]) -> torch.Tensor:
        """Run the op once with these numbers, and return a new result."""

    @abstractmethod
    def workspace(self) -> torch.Tensor:
        """Return scratch memory that is enough whatever the numbers are."""

    @abstractmethod
    def outputs(self) -> list[torch.Tensor]:
        """Return new tensors for `issue` to write; the first is the result."""

    @abstractmethod
    def issue(self, values: Sequence[int], workspace: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        """Issue the op to the current stream: inside a task, or as the task's update."""


@dataclass(frozen=True, slots=True)
class PagedQuery:
    """What attention over pages reads, but for the contexts' lengths. Legend of shapes: `slipstream.ops`.

    Attributes:
        query_BWQD: of each request, its rows behind one another at the end of its context.
        keys_NLE, values_NLE: N pages of L slots, E = K D numbers each.
        table_BP: int32, the pages of each request.
        num_heads, num_kv_heads: Q and K.
        longest: the longest context that a request can have.
    """

    query_BWQD: torch.Tensor
    keys_NLE: torch.Tensor
    values_NLE: torch.Tensor
    table_BP: torch.Tensor
    num_heads: int
    num_kv_heads: int
    longest: int


class Task(ABC):
    """An op of a captured graph whose numbers from the host can be replaced (torch_npu: a task group).

    Attributes:
        updates: how often they were.
    """

    updates: int = 0

    @abstractmethod
    def update(self, issue: Callable[[], None], stream: Stream) -> None:
        """Let the op that `issue` issues to `stream` take the captured one's place, when `stream` gets here.

        Raises:
            ReplayError: the device refuses.
        """


class Graph(ABC):
    """Work captured once and replayed over the same buffers.

    The tensors that the captured function reads from outside are its static inputs: they must stay where they
    are. Its results are valid until the next replay.

    Attributes:
        num_tasks: tasks that were captured.
    """

    name: str
    num_tasks: int = 0

    def task(self, issue: Callable[[], None], stream: Stream) -> Task:
        """Capture the op that `issue` issues to `stream` as a task, inside `capture`.

        Raises:
            CaptureError: the device has no tasks, or nothing is being captured.
        """
        raise CaptureError(
            f"graph {self.name!r}: this device has no ops with numbers of the host, so no tasks."
        )

    def replay_with_tasks(self) -> Any:
        """`replay`, for a caller who updates every task and lets it run: `graph.tasks.GraphTasks`."""
        return self.replay()

    @abstractmethod
    def capture(self, function: Callable[[], Any], stream: Stream) -> Any:
        """Run `function` once, record its device work, and return what it returned.

        Raises:
            CaptureError: the function reads a device value on the host, or was captured before.
        """

    @abstractmethod
    def replay(self) -> Any:
        """Run the captured work on the current stream and return its results, in the function's structure.

        Raises:
            ReplayError: nothing was captured, or the graph has tasks, which would wait for their update for ever.
        """

    @abstractmethod
    def begin(self, stream: Stream, pool_of: Graph | None = None) -> None:
        """Begin to capture what `stream` is given: a piece of a longer function.

        Between `begin` and `end` nothing else may be captured, and the current streams stay as they are.

        Args:
            stream: where the work goes.
            pool_of: an earlier piece of the same function, to share memory with: pieces are replayed in order.

        Raises:
            CaptureError: something was captured before, or a capture is under way.
        """

    @abstractmethod
    def end(self, error: BaseException | None = None) -> bool:
        """End the piece, and return whether anything was captured.

        Args:
            error: what broke the piece; then nothing is kept, and the graph is as new.

        Raises:
            CaptureError: the device refuses what was captured.
        """

    @abstractmethod
    def seal(self, readers: Iterable[torch.Tensor]) -> None:
        """Make the piece ready for `replay`, which then returns nothing.

        Args:
            readers: tensors that are read outside of it. Those that it makes stay where they are, and each replay
                fills them.
        """

    @abstractmethod
    def inputs(self) -> list[torch.Tensor]:
        """Return the tensors that the captured work reads and does not make; after `end`."""

    def made(self) -> list[torch.Tensor]:
        """Return the tensors that the captured work makes, where these can be moved; between `end` and `seal`."""
        return []

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes that only this graph holds: its results and, where memory is not shared, all it computes in."""

    @property
    def num_streams(self) -> int:
        """Streams that the captured work ran on; 0 where the device cannot tell."""
        return 0

    @abstractmethod
    def check_addresses(self) -> None:
        """Compare the static inputs' addresses with those at capture.

        Raises:
            ReplayError: one of them moved; names it.
        """

    @abstractmethod
    def spent_ns(self) -> dict[str, int]:
        """Return the time of all replays so far by kernel, in nanoseconds; empty where the device cannot tell."""

    @abstractmethod
    def group_times(self) -> list[PartTimes]:
        """Return when the groups that the capture named began and ended in the last replay, in nanoseconds of
        `time.perf_counter_ns`; empty where the device cannot tell."""

    @property
    @abstractmethod
    def num_sections(self) -> int:
        """Runs of nodes whose branches a replay works on side by side."""

    @property
    @abstractmethod
    def callbacks(self) -> dict[str, int]:
        """Captured nodes, by op name, that are not Slipstream's: a replay hands them to PyTorch.

        Views cost nothing and do not count.
        """

    @abstractmethod
    def topology(self) -> list[dict[str, Any]]:
        """Return the captured nodes in order: index, op, stream, inputs (node indices)."""

    @property
    @abstractmethod
    def node_counts(self) -> dict[str, int]:
        """Captured nodes by op name; a call-back into PyTorch counts as `aten::...`."""


class Device(ABC):
    """One device of one kind."""

    name: str
    torch_device: torch.device
    caps: Caps

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """Make a stream; `name` is its track in a trace."""

    @abstractmethod
    def event(self) -> Event:
        """Make an event that is not recorded yet."""

    @abstractmethod
    def gate(self) -> Gate:
        """Make a closed gate."""

    @abstractmethod
    def graph(self, name: str) -> Graph:
        """Make an empty graph."""

    def paged_attention(self, query: PagedQuery) -> HostOp:
        """Return attention that takes the contexts' lengths from the host.

        Raises:
            DeviceError: the device has none (`caps.attentions`).
        """
        raise DeviceError(
            f"device {self.name!r} has no attention with lengths of the host; it has: "
            f"{', '.join(self.caps.attentions)}."
        )

    @abstractmethod
    def current_stream(self) -> Stream:
        """Return the stream that work goes to now."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the device is idle."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Return the most memory that the device's work has held so far, in bytes."""

    def share(
        self, spans: Sequence[Span], graphs: Sequence[Graph], outside: Iterable[torch.Tensor]
    ) -> frozenset[int]:
        """Let memory that crosses pieces be shared, by spans that do not meet and by all graphs; before `seal`.

        Args:
            spans: the memory.
            graphs: the pieces.
            outside: other tensors that may lie in it.

        Returns:
            Addresses of storages that are shared now; none where captured work cannot be moved.
        """
        return frozenset()

    @abstractmethod
    def pool_bytes(self) -> int:
        """Return the memory that graphs share for what they compute in, in bytes."""

    @abstractmethod
    def drop_pool(self) -> None:
        """Let go of that memory; to be called when the graphs are gone."""

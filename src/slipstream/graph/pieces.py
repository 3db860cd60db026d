"""A phase captured as the pieces between its attention: PIECEWISE.

    phase      embed, norm, qkv, rope | attention | output, feed-forward, norm, qkv, rope | attention | ...
    capture    [       piece 0       ]   noted     [              piece 1                ]   noted
    replay     [       graph 0       ]   eager     [              graph 1                ]   eager

The phase's function is run once. At each op that splits graphs (`ops.registry.Split`) the recorder ends the piece,
runs the op eagerly, notes it, and begins the next piece. A replay runs the graphs and, between them, the noted
ops on the rows and requests that the batch really has. So the pieces know rows only, and whose they are may
change.

What crosses a border stays where it is. What a piece makes and another reads is held by the reader, and named to
the graph that makes it (`Graph.seal`); the result of an eager op has one place too, to which each replay copies
it. There, rows behind the batch's own are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils._pytree import tree_leaves

from slipstream import ops
from slipstream.device.api import Device, Graph, Span, Stream
from slipstream.errors import CaptureError, ReplayError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.tasks import GraphTasks, TaskBook
from slipstream.ops.registry import Op


class Live(NamedTuple):
    """What of a replay is real: the rest is padding.

    Attributes:
        num_reqs: requests.
        rows: rows of all of them.
    """

    num_reqs: int
    rows: int


class Replayable(Protocol):
    """A captured phase, whole or in pieces."""

    def replay(self, live: Live) -> Any:
        """Run it on the current stream and return its results, valid until its next replay."""

    def check_addresses(self) -> None:
        """Compare the static inputs' addresses with those at capture.

        Raises:
            ReplayError: one of them moved; names it.
        """

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The device's graphs in it, in order."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that only it holds: its results, and what crosses its pieces."""

    @property
    def tasks(self) -> GraphTasks | None:
        """Its ops that take numbers from the host, None where it has none."""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Stands for the result of an eager op of the same replay: number, and which of its tensors."""

    step: int
    index: int | None


@dataclass(slots=True)
class _EagerStep:
    """One op between two pieces.

    Attributes:
        op: what runs.
        arguments: by name; `_Earlier` stands for what an eager op gave.
        per_request: rows a request at capture, where the key is exact.
        out: where its result goes for pieces to read, or None.
    """

    op: Op[Any, Any]
    arguments: dict[str, Any]
    per_request: int | None
    out: torch.Tensor | None
    # What the newest batch took, for the next one is most often as large.
    _live: Live | None = None
    _given: dict[str, Any] = field(default_factory=dict)
    _target: torch.Tensor | None = None
    _padding: torch.Tensor | None = None

    def run(self, live: Live, earlier: list[Any]) -> Any:
        """Run on the live rows, and return the result."""
        if live != self._live:
            self._settle(live)
        given = self._given
        for name, value in self.arguments.items():
            if isinstance(value, _Earlier):
                result = earlier[value.step]
                given[name] = result if value.index is None else result[value.index]
        result = self.op.direct(**given)
        if self._target is not None:
            self._target.copy_(result)
        if self._padding is not None:
            self._padding.zero_()
        return result

    def _settle(self, live: Live) -> None:
        """Find the live parts of the arguments and of the place for the result."""
        split = self.op.split
        assert split is not None
        rows = live.rows if self.per_request is None else live.num_reqs * self.per_request
        for name, value in self.arguments.items():
            if name in split.rows:
                value = value.narrow(0, 0, rows)
            elif name in split.requests:
                value = value.narrow(0, 0, live.num_reqs)
            self._given[name] = value
        if self.out is not None:
            self._target = self.out.narrow(0, 0, rows)
            behind = self.out.shape[0] - rows
            self._padding = self.out.narrow(0, rows, behind) if behind else None
        self._live = live

    def forget(self) -> None:
        """Forget the newest batch: the arguments have moved."""
        self._live = self._target = self._padding = None
        self._given.clear()


class PieceGraph:
    """A phase as graphs with eager ops between them.

    Attributes:
        steps: graphs and eager ops, in order.
        result: what the phase's function returned; its tensors are filled by every replay.
    """

    def __init__(self, name: str, steps: tuple[Graph | _EagerStep, ...], result: Any, own_bytes: int) -> None:
        self.name = name
        self._own_bytes = own_bytes
        self.steps = steps
        self.result = result
        self._graphs = tuple(step for step in steps if isinstance(step, Graph))
        # Every address that the eager ops read; those of the graphs they know themselves.
        self._addresses = [
            (f"{step.op.name}, argument {name}", value, value.data_ptr())
            for step in steps
            if isinstance(step, _EagerStep)
            for name, value in step.arguments.items()
            if isinstance(value, torch.Tensor)
        ]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The pieces' graphs, in order."""
        return self._graphs

    @property
    def tasks(self) -> None:
        """None: attention is not part of the pieces."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pieces and of the places for eager results; what is shared with other graphs left out."""
        return sum(graph.memory_bytes for graph in self._graphs) + self._own_bytes

    @torch.inference_mode()
    def replay(self, live: Live) -> Any:
        """Run the pieces, and between them the eager ops on the live rows; return the results."""
        earlier: list[Any] = []
        for step in self.steps:
            if isinstance(step, _EagerStep):
                earlier.append(step.run(live, earlier))
            else:
                step.replay()
        return self.result

    def check_addresses(self) -> None:
        """Compare the addresses of all that comes from outside with those at capture.

        Raises:
            ReplayError: one of them moved; names it.
        """
        for graph in self._graphs:
            graph.check_addresses()
        for where, tensor, address in self._addresses:
            if tensor.data_ptr() != address:
                raise ReplayError(
                    f"pieces {self.name!r}: a static input moved since the capture ({where}). Write new values "
                    "into the buffer that was captured, or capture again."
                )


class WholeGraph:
    """A phase as one graph: FULL.

    Attributes:
        tasks: its ops that take numbers from the host; None where it has none.
    """

    def __init__(self, graph: Graph, tasks: GraphTasks | None = None) -> None:
        self.tasks = tasks or None
        self._graph = graph
        self._replay = self.tasks.replay if self.tasks else graph.replay
        self.check_addresses = graph.check_addresses

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The one graph."""
        return (self._graph,)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the graph, and of its ops' workspace."""
        return self._graph.memory_bytes + (self.tasks.workspace_bytes if self.tasks else 0)

    def replay(self, live: Live) -> Any:
        """Replay it: padding included, for the graph knows of no other rows."""
        return self._replay()


def capture_whole(
    device: Device,
    key: BatchDescriptor,
    function: Callable[[], Any],
    stream: Stream,
    book: TaskBook | None = None,
) -> tuple[WholeGraph, Any]:
    """Capture a function as one graph, and return it with what the function returned.

    Args:
        device, key, function, stream: of the capture.
        book: makes ops that take numbers from the host tasks of the graph.

    Raises:
        CaptureError: it cannot be captured.
    """
    graph = device.graph(str(key))
    if book is None:
        result = graph.capture(function, stream)
        return WholeGraph(graph), result
    with book.capture(graph) as tasks:
        result = graph.capture(function, stream)
    return WholeGraph(graph, tasks), result


def capture_pieces(
    device: Device, key: BatchDescriptor, function: Callable[[], Any], stream: Stream
) -> tuple[PieceGraph, Any]:
    """Run a function once and capture it in pieces; return them with what the function returned.

    Raises:
        CaptureError: a piece cannot be captured, or a piece reads what only eager ops may.
    """
    recorder = _PieceRecorder(device, key, stream)
    with stream, torch.inference_mode():
        return recorder.record(function)


class _PieceRecorder:
    """Cuts one run of a phase into pieces."""

    def __init__(self, device: Device, key: BatchDescriptor, stream: Stream) -> None:
        self._device, self._key, self._stream = device, key, stream
        self._steps: list[Graph | _EagerStep] = []
        self._results: list[Any] = []
        #: Tensors that an eager op made, by id: where an eager op reads them, it reads the live ones.
        self._earlier: dict[int, _Earlier] = {}
        self._open: Graph | None = None
        self.own_bytes = 0

    def record(self, function: Callable[[], Any]) -> tuple[PieceGraph, Any]:
        self._begin()
        try:
            with ops.splitting(self._cut):
                result = function()
        except BaseException as error:
            if self._open is not None:
                self._open.end(error)
            if isinstance(error, RuntimeError):
                raise CaptureError(f"graph '{self._key}' could not be captured in pieces: {error}") from error
            raise
        self._end()
        self._seal(result)
        return PieceGraph(str(self._key), tuple(self._steps), result, self.own_bytes), result

    def _begin(self) -> None:
        pieces = [step for step in self._steps if isinstance(step, Graph)]
        graph = self._device.graph(f"{self._key} piece {len(pieces)}")
        graph.begin(self._stream, pieces[0] if pieces else None)
        self._open = graph

    def _end(self) -> None:
        graph, self._open = self._open, None
        assert graph is not None
        if graph.end():
            self._steps.append(graph)

    def _cut(self, op: Op[Any, Any], arguments: dict[str, Any]) -> Any:
        """End the piece, run an op eagerly and note it, begin the next piece."""
        current = self._device.current_stream().name
        if current != self._stream.name:
            raise CaptureError(
                f"graph '{self._key}' splits at {op.name} on stream {current!r}, and is captured on "
                f"{self._stream.name!r}. Pieces are of one stream: capture it whole (--graph full)."
            )
        self._end()
        result = self._note(op, arguments)
        self._begin()
        return result

    def _note(self, op: Op[Any, Any], arguments: dict[str, Any]) -> Any:
        split = op.split
        assert split is not None
        rows = arguments[split.rows[0]].shape[0]
        if self._key.num_reqs is None:
            # Relaxed: the capture takes the rows for one request's, a replay says whose they are.
            live, per_request = Live(1, rows), None
        else:
            live, per_request = Live(self._key.num_reqs, rows), rows // self._key.num_reqs
        noted = {name: self._earlier.get(id(value), value) for name, value in arguments.items()}
        step = _EagerStep(op, noted, per_request, None)
        result = step.run(live, self._results)
        step.out = result if split.fixed else None
        if not split.fixed:
            number = len(self._results)
            several = isinstance(result, (tuple, list))
            for index, tensor in enumerate(result) if several else [(None, result)]:
                self._earlier[id(tensor)] = _Earlier(number, index)
        self._results.append(result)  # keeps the ids from being given to other tensors
        self._steps.append(step)
        return result

    def _seal(self, result: Any) -> None:
        """Name to each piece the tensors that something outside of it reads."""
        graphs = [step for step in self._steps if isinstance(step, Graph)]
        steps = [step for step in self._steps if isinstance(step, _EagerStep)]
        readers = [tensor for graph in graphs for tensor in graph.inputs()]
        readers += [v for step in steps for v in step.arguments.values() if isinstance(v, torch.Tensor)]
        readers += [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        for tensor in readers:
            if id(tensor) in self._earlier:
                maker = steps[self._earlier[id(tensor)].step].op.name
                raise CaptureError(
                    f"graph '{self._key}': a piece reads what {maker} made between the pieces, whose shape may "
                    "change. Only attention may read it."
                )
        shared = self._share(result)
        for graph in graphs:
            graph.seal(readers)
        for step in steps:
            step.forget()
            if step.out is not None and step.out.untyped_storage().data_ptr() not in shared:
                self.own_bytes += step.out.nbytes

    def _share(self, result: Any) -> frozenset[int]:
        """Let what crosses pieces share memory: all but results, which stay until the next replay."""
        made: dict[int, tuple[torch.Tensor, int]] = {}
        outside = {_address(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        last: dict[int, int] = {}
        for index, step in enumerate(self._steps):
            given = step.inputs() if isinstance(step, Graph) else _tensors_of(step)
            for tensor in given:
                if _address(tensor) in made:
                    last[_address(tensor)] = index
                else:
                    outside.add(_address(tensor))  # static inputs, and memory that in-place ops write
            makes = step.made() if isinstance(step, Graph) else [] if step.out is None else [step.out]
            for tensor in makes:
                if _address(tensor) not in outside:
                    made.setdefault(_address(tensor), (tensor, index))
        spans = [Span(made[at][0], made[at][1], until) for at, until in last.items() if until > made[at][1]]
        if not spans:
            return frozenset()
        graphs = [step for step in self._steps if isinstance(step, Graph)]
        steps = [step for step in self._steps if isinstance(step, _EagerStep)]
        others = [tensor for step in steps for tensor in _tensors_of(step)]
        others += [step.out for step in steps if step.out is not None]
        return self._device.share(spans, graphs, others)


def _tensors_of(step: _EagerStep) -> list[torch.Tensor]:
    return [value for value in step.arguments.values() if isinstance(value, torch.Tensor)]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

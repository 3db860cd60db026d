"""Files beside a trace: topologies of captured graphs, and how many tokens each round gave.

CUDA      JSON of `CUDAGraph.get_graph_data()`: nodes with their ids, kinds and dependencies
Ascend    `NPUGraph.debug_dump(path)`: the tasks of every stream, events by their addresses
tokens    JSON lines, a round a line: {"accepted": [2, 0, 3]} or {"advanced": [3, 1, 4]}, an entry a request;
          or one number; optionally "round" (its number) and "start_ns" (on the trace's clock)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.replays import Topology
from slipstream.timeline.table import Advanced, Int32

#: Kinds of nodes of a CUDA graph that leave a row in a trace.
_TIMED: Final = ("kernel", "memcpy", "memset")
_RECORD, _WAIT, _RESET = "EVENT_RECORD_", "EVENT_WAIT_", "EVENT_RESET_"


class _Node(msgspec.Struct):
    tools_id: int
    node_type: str = "kernel"
    dependencies: list[int] = []


class _CudaGraph(msgspec.Struct):
    exec_graph_id: int
    nodes: list[_Node]


class _Keys(msgspec.Struct):
    model: int = msgspec.field(name="Model Id")
    stream: int = msgspec.field(name="Stream Id")
    task: int = msgspec.field(name="Task Id")


class _Task(msgspec.Struct):
    name: str
    args: _Keys


class _Line(msgspec.Struct):
    advanced: int | list[int] | None = None
    accepted: int | list[int] | None = None
    round: int = -1
    start_ns: int | None = None


@dataclass
class Sides:
    """What the files beside a trace say."""

    topologies: list[Topology] = field(default_factory=list)
    advanced: list[Advanced] = field(default_factory=list)


def read_sides(paths: Sequence[str | Path]) -> Sides:
    """Read files beside a trace, each by what it holds.

    Raises:
        TraceError: a file cannot be read or is none of them.
    """
    sides = Sides()
    for path in map(Path, paths):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
        _read_one(path, data, sides)
    return sides


def _read_one(path: Path, data: bytes, sides: Sides) -> None:
    tries: list[str] = []
    for read in (_cuda, _ascend, _tokens):
        try:
            found = read(path, data)
        except (msgspec.DecodeError, ValueError, IndexError) as error:
            tries.append(f"{read.__doc__}: {error}")
            continue
        for each in found:
            if isinstance(each, Topology):
                sides.topologies.append(each)
            else:
                sides.advanced.append(each)
        return
    raise TraceError(f"{path} is no file that goes beside a trace. It may be " + "; ".join(tries) + ".")


def _cuda(path: Path, data: bytes) -> list[Topology]:
    """the JSON of CUDAGraph.get_graph_data() or a list of them"""
    text = data.lstrip()
    graphs = (
        msgspec.json.decode(data, type=list[_CudaGraph])
        if text.startswith(b"[")
        else [msgspec.json.decode(data, type=_CudaGraph)]
    )
    if not graphs:
        raise ValueError("it is empty")
    return [
        Topology(
            graph.exec_graph_id,
            np.array([node.tools_id for node in graph.nodes], np.int64),
            _timed_edges(graph.nodes),
            str(path),
        )
        for graph in graphs
    ]


def _timed_edges(nodes: list[_Node]) -> Int32:
    """Edges between nodes that a trace shows; those that it does not are stepped over."""
    edges: set[tuple[int, int]] = set()
    for number, node in enumerate(nodes):
        if node.node_type not in _TIMED:
            continue
        waiting, seen = list(node.dependencies), set[int]()
        while waiting:
            before = waiting.pop()
            if before in seen:
                continue
            seen.add(before)
            if nodes[before].node_type in _TIMED:
                edges.add((before, number))
            else:
                waiting += nodes[before].dependencies
    return np.array(sorted(edges), np.int32).reshape(-1, 2)


def _ascend(path: Path, data: bytes) -> list[Topology]:
    """the JSON of NPUGraph.debug_dump()"""
    tasks = msgspec.json.decode(data, type=list[_Task])
    if not tasks:
        raise ValueError("it is empty")
    models: dict[int, list[_Task]] = defaultdict(list)
    for task in tasks:
        models[task.args.model].append(task)
    return [
        Topology(model, _node_keys(of_model), _ascend_edges(of_model), str(path))
        for model, of_model in models.items()
    ]


def _node_keys(tasks: list[_Task]) -> Any:
    return np.array([node_key(task.args.stream, task.args.task) for task in tasks], np.int64)


def node_key(stream: int, task: int) -> int:
    """The id of a task of an Ascend graph."""
    return (stream << 32) | task


def _ascend_edges(tasks: list[_Task]) -> Int32:
    """Streams run in order, and a wait for an event comes after its record."""
    edges: list[tuple[int, int]] = []
    streams: dict[int, list[int]] = defaultdict(list)
    records: dict[str, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        streams[task.args.stream].append(number)
        if task.name.startswith(_RECORD):
            records[task.name.removeprefix(_RECORD)].append(number)
    for numbers in streams.values():
        numbers.sort(key=lambda number: tasks[number].args.task)
        edges += pairwise(numbers)
    for number, task in enumerate(tasks):
        if task.name.startswith(_WAIT):
            edges += ((record, number) for record in records[task.name.removeprefix(_WAIT)])
    return np.array(sorted(edges), np.int32).reshape(-1, 2)


def _tokens(path: Path, data: bytes) -> list[Advanced]:
    """JSON lines with "accepted" or "advanced" """
    rounds = []
    for line in data.splitlines():
        if not line.strip():
            continue
        entry = msgspec.json.decode(line, type=_Line)
        given, more = (entry.advanced, 0) if entry.advanced is not None else (entry.accepted, 1)
        if given is None:
            raise ValueError('a line has neither "advanced" nor "accepted"')
        counts = [given] if isinstance(given, int) else given
        if any(count + more < 0 for count in counts):
            raise ValueError("a count is below zero")
        rounds.append(Advanced(entry.round, tuple(count + more for count in counts), entry.start_ns))
    if not rounds:
        raise ValueError("it is empty")
    return rounds

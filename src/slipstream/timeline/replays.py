"""Which graph an operation belongs to, in which of its replays, and where in the graph.

One launch of a graph is many operations, and what tells them apart differs:

    CUDA with ids         every operation names its graph and its node in it
    CUDA, ROCm without    all operations of a replay have the launch's correlation; equal sequences are one graph
    Ascend                tasks name their model; (stream, task id, name) is the same in every replay
    no ids at all         as many equal sequences as there are launches; and only then
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slipstream.timeline.part import Part
from slipstream.timeline.table import Bool, Graph, Int32, Int64, Kind, Source

#: What a reader may leave for this module: the trace's id of the graph (-1 none), and of the operation in it.
GRAPH_KEY: Final = "graph_key"
NODE_KEY: Final = "node_key"


@dataclass(frozen=True)
class Topology:
    """The dump of a captured graph.

    Attributes:
        graph_key: the trace's id of the graph.
        node_keys: int64 [nodes], the trace's ids of its operations; their places are the nodes' numbers.
        edges: int32 [E, 2], node then dependent node.
        path: where it was read.
    """

    graph_key: int
    node_keys: Int64
    edges: Int32
    path: str


def find_replays(part: Part, topologies: Sequence[Topology] = ()) -> None:
    """Fill in `graph`, `replay` and `node`, and the list of graphs."""
    if len(part):
        _Finder(part, topologies).find()


class _Finder:
    """The graphs of one part."""

    def __init__(self, part: Part, topologies: Sequence[Topology]) -> None:
        self.part = part
        self.topologies = {topology.graph_key: topology for topology in topologies}
        self.matched: set[int] = set()
        columns = part.columns
        self.start_ns: Int64 = columns["start_ns"]
        self.kind, self.launch = part.column("kind"), part.column("launch")
        self.graph, self.replay, self.node = (part.column(key) for key in ("graph", "replay", "node"))
        devices = np.array([stream.device is not None for stream in part.streams], np.bool_)
        self.device: Bool = devices[columns["stream"]]

    def find(self) -> None:
        part = self.part
        if GRAPH_KEY in part.columns:
            self._named()
        launched = self.device & (self.launch >= 0) & (self.graph < 0)
        launched[launched] = self.kind[self.launch[launched]] == Kind.LAUNCH
        self._launched(np.flatnonzero(launched))
        launches = np.flatnonzero((self.kind == Kind.LAUNCH) & (self.graph < 0))
        if len(launches):
            self._without_ids(launches)
        for key, topology in self.topologies.items():
            if key not in self.matched:
                part.note(
                    "unmatched", 1, f"{topology.path} describes graph {key}, which this trace does not name"
                )

    # Graphs that the trace names.

    def _named(self) -> None:
        keys, node_keys = self.part.columns[GRAPH_KEY], self.part.columns[NODE_KEY]
        for key in np.unique(keys[(keys >= 0) & self.device]):
            rows = np.flatnonzero((keys == key) & self.device)
            rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
            self._name_one(int(key), rows, node_keys[rows])

    def _name_one(self, key: int, rows: Int64, node_keys: Int64) -> None:
        """One graph: its rows in the order of their starts."""
        part = self.part
        topology = self.topologies.get(key)
        known, node = np.unique(node_keys, return_inverse=True)
        count, edges = len(known), None
        if topology is not None:
            self.matched.add(key)
            place = {int(node_key): number for number, node_key in enumerate(topology.node_keys)}
            unknown = [number for number, node_key in enumerate(known) if int(node_key) not in place]
            if unknown:
                why = f"operations of graph {key} that {topology.path} does not have"
                part.note("unmatched", len(unknown), why)
            extra = {number: len(place) + position for position, number in enumerate(unknown)}
            numbers = [
                place.get(int(node_key), extra.get(number, -1)) for number, node_key in enumerate(known)
            ]
            node = np.array(numbers, np.int64)[node]
            count, edges = len(place) + len(unknown), topology.edges
        launches = self._launches_of(rows)
        if launches is not None and _distinct(launches, node):
            replay = np.unique(launches, return_inverse=True)[1]
            # Numbered by the launches' times, not by their rows.
            replay = _by_first(replay, self.start_ns[launches])
        else:
            replay = self._nth_time(key, rows, node)
            launches = None
        number = len(part.graphs)
        part.graphs.append(Graph(0, f"graph {key}", Source.GIVEN, count, edges))
        self.graph[rows], self.replay[rows], self.node[rows] = number, replay, node
        if launches is not None:
            self.graph[launches], self.replay[launches] = number, replay

    def _launches_of(self, rows: Int64) -> Int64 | None:
        """The launch of every row, None if not every row has that of a graph."""
        launches: Int64 = self.launch[rows].astype(np.int64)
        if (launches < 0).any() or (self.kind[launches] != Kind.LAUNCH).any():
            return None
        return launches

    def _nth_time(self, key: int, rows: Int64, node: Int64) -> Int64:
        """The how-manieth time each node is seen.

        A node that is seen less often than others was clipped somewhere: its times belong to the nearest replays.
        """
        order = np.argsort(node, kind="stable")
        counts = np.bincount(node)
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        nth = np.empty(len(node), np.int64)
        nth[order] = np.arange(len(node)) - first[node[order]]
        times = int(counts.max())
        whole = counts[node] == times
        if whole.all():
            return nth
        self.part.note(
            "clipped", 1, f"replays of graph {key} that are not whole: some operations are missing"
        )
        start_ns, end_ns = self.start_ns[rows], self.part.columns["end_ns"][rows]
        begin, end = np.full(times, np.iinfo(np.int64).max), np.full(times, np.iinfo(np.int64).min)
        np.minimum.at(begin, nth[whole], start_ns[whole])
        np.maximum.at(end, nth[whole], end_ns[whole])
        at = start_ns[~whole]
        before = np.clip(np.searchsorted(begin, at, side="right") - 1, 0, times - 1)
        after = np.minimum(before + 1, times - 1)
        nth[~whole] = np.where(np.abs(begin[after] - at) < np.maximum(at - end[before], 0), after, before)
        return nth

    # Graphs known by their sequences.

    def _launched(self, rows: Int64) -> None:
        """Operations that have a graph's launch: replays with equal sequences are those of one graph."""
        part = self.part
        streams, names = part.columns["stream"], part.columns["name"]
        rows = rows[np.lexsort((self.start_ns[rows], streams[rows], self.launch[rows]))]
        borders = np.flatnonzero(np.diff(self.launch[rows])) + 1
        replays = [group for group in np.split(rows, borders) if len(group)]
        replays.sort(key=lambda group: int(self.start_ns[self.launch[group[0]]]))
        first = len(part.graphs)
        graphs: dict[tuple[bytes, ...], int] = {}
        times: list[int] = []
        for group in replays:
            ordered, signature = _signature(group, streams, names)
            number = graphs.setdefault(signature, len(graphs))
            if number == len(times):
                times.append(0)
                key = f"static {first + number}"
                part.graphs.append(Graph(0, key, Source.INFERRED, len(group)))
            launch = self.launch[group[0]]
            for place in (ordered, launch):
                self.graph[place], self.replay[place] = first + number, times[number]
            self.node[ordered] = np.arange(len(ordered))
            times[number] += 1

    def _without_ids(self, launches: Int64) -> None:
        """Launches without an operation: give them those without a launch, if these repeat just so often."""
        part = self.part
        correlation = part.columns["correlation"]
        rows = np.flatnonzero(self.device & (self.launch < 0) & (correlation == -1) & (self.graph < 0))
        launches = launches[np.argsort(self.start_ns[launches], kind="stable")]
        replays = _equal_parts(part, rows, len(launches)) if len(rows) else None
        if replays is None:
            part.note("missing", len(launches), "launches of graphs of which no operation is in the trace")
            return
        number = len(part.graphs)
        part.graphs.append(Graph(0, f"static {number}", Source.INFERRED, len(replays[0])))
        part.note(
            "inferred", len(launches), "replays told apart by their equal sequences: the trace has no ids"
        )
        for nth, (launch, group) in enumerate(zip(launches, replays, strict=True)):
            self.graph[group], self.replay[group], self.node[group] = number, nth, np.arange(len(group))
            self.graph[launch], self.replay[launch] = number, nth
            self.launch[group] = launch


def _distinct(launches: Int64, node: Int64) -> bool:
    """Whether no node is seen twice under one launch."""
    pairs = np.sort(launches * (int(node.max(initial=0)) + 1) + node)
    return not bool((np.diff(pairs) == 0).any())


def _by_first(group: Int64, times: Int64) -> Int64:
    """Number groups by their first time."""
    first = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, group, times)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    return place[group]


def _signature(group: Int64, streams: Any, names: Any) -> tuple[Int64, tuple[bytes, ...]]:
    """The rows of a replay in an order that no choice of streams changes, and what tells its graph from others.

    Args:
        group: rows sorted by (stream, start).
    """
    borders = np.flatnonzero(np.diff(streams[group])) + 1
    lanes = [(names[lane].tobytes(), lane) for lane in np.split(group, borders)]
    lanes.sort(key=lambda lane: (-len(lane[1]), lane[0]))
    return np.concatenate([lane for _, lane in lanes]), tuple(signature for signature, _ in lanes)


def _equal_parts(part: Part, rows: Int64, count: int) -> list[Int64] | None:
    """Split every stream's rows into `count` equal sequences; None if they do not repeat so."""
    found: list[list[Int64]] = [[] for _ in range(count)]
    for lane in _lanes(part, rows):
        if len(lane) % count:
            return None
        parts = np.split(lane, count)
        names = [part.columns["name"][each].tobytes() for each in parts]
        if any(name != names[0] for name in names):
            return None
        for collected, each in zip(found, parts, strict=True):
            collected.append(each)
    return [np.concatenate(lanes) for lanes in found]


def _lanes(part: Part, rows: Int64) -> Iterator[Int64]:
    streams, start_ns = part.columns["stream"], part.columns["start_ns"]
    for stream in np.unique(streams[rows]):
        lane = rows[streams[rows] == stream]
        yield lane[np.argsort(start_ns[lane], kind="stable")]

"""Slices and arrows of Slipstream's own traces as rows: kinds, graphs, and what an arrow between two tracks says.

host         [replay]                  [wait .......]     launch: from the end of a call to a start
                    \\                  /                  stand:  from a device's end to the end of a call
main                 [verify ........]                    event:  from a stream to a stream
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slipstream.timeline.part import Part, Pool
from slipstream.timeline.table import Graph, Group, Kind, Role, Source, Stream
from slipstream.trace import names as tracks
from slipstream.trace.events import COMMUNICATION, COPY, KERNEL, KIND, SET

_BELOW: Final = tracks.graph_track("")
#: What the args of a slice may say that it is.
_KINDS: Final = {KERNEL: Kind.KERNEL, COPY: Kind.COPY, SET: Kind.SET, COMMUNICATION: Kind.COMM}
#: Columns that every row has a value of, and those that few have.
_ALL: Final = ("start_ns", "end_ns", "name", "stream", "kind")
_FEW: Final = (
    "launch",
    "graph",
    "replay",
    "node",
    "group",
    "bytes",
    "sequence",
    "parent",
    "record",
    "waited",
)


def stream_of(track: str) -> str:
    """Return the stream of a track: its own, or the one that it is below.

    >>> stream_of("main graph")
    'main'
    """
    return track.removesuffix(_BELOW) if track != _BELOW else track


@dataclass(slots=True)
class Placed:
    """A slice of the file.

    Attributes:
        name, track, args: as written.
        start_ns, end_ns: from the file's time 0.
        stream: where it ran, whether on the stream's own track or below.
        is_phase: whether it stands on the own track of a device's stream.
        kind: what its row is.
    """

    name: str
    track: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]
    stream: str = ""
    is_phase: bool = False
    kind: Kind = Kind.HOST

    def __post_init__(self) -> None:
        self.stream = stream_of(self.track)
        if self.stream == tracks.HOST:
            return
        self.is_phase = self.stream == self.track
        self.kind = Kind.KERNEL if self.is_phase else Kind.SUBTASK
        if KIND in self.args:
            self.kind = _KINDS.get(str(self.args[KIND]), self.kind)


def phases_of(slices: Sequence[Placed]) -> dict[int, int]:
    """Return, of each operation below a stream that its device timed, the phase that it names and that was on.

    Both as positions in `slices`. The phase may be another stream's: a branch of a graph.
    """
    by_name: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, item in enumerate(slices):
        if item.is_phase:
            by_name[item.name].append((item.start_ns, number))
    for found in by_name.values():
        found.sort()
    held: dict[int, int] = {}
    for number, item in enumerate(slices):
        if item.is_phase or item.kind in (Kind.HOST, Kind.SUBTASK):
            continue
        phases = by_name.get(str(item.args.get("phase")), [])
        before = bisect_left(phases, (item.start_ns + 1, -1)) - 1
        if before >= 0 and item.start_ns < slices[phases[before][1]].end_ns:
            held[number] = phases[before][1]
    return held


def replays_of(slices: Sequence[Placed]) -> dict[int, tuple[str, int]]:
    """Return, of each phase that was one replay, its graph's name and the how-manieth replay of it that it is."""
    found: dict[int, tuple[str, int]] = {}
    times: Counter[str] = Counter()
    for number in sorted(range(len(slices)), key=lambda number: slices[number].start_ns):
        args = slices[number].args
        # Only piecewise ones say their mode: those are many replays and eager work.
        if not slices[number].is_phase or args.get("route") != "replay" or "mode" in args:
            continue
        key = slices[number].name
        if "bucket" in args and "width" in args:
            key = f"{key} {args['bucket']} x {args['width']}"
        found[number] = (key, times[key])
        times[key] += 1
    return found


class OwnRows:
    """The rows of one file.

    Args:
        part: gets them.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.names, self.streams, self.groups, self.graphs = Pool(), Pool(), Pool(), Pool()
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.few: dict[str, dict[int, int]] = {key: {} for key in _FEW}
        self.became: dict[int, Kind] = {}  # calls of the host that an arrow says more of
        self._nodes: Counter[tuple[int, int]] = Counter()
        self._begins: dict[str, list[tuple[int, int]]] | None = None
        self._calls: dict[int, int] = {}  # by their ends
        self._moments: dict[int, int] = {}  # those without length

    def add(self, name: str, stream: str, kind: Kind, start_ns: int, end_ns: int) -> int:
        """Add a row and return its number."""
        self.rows.append((start_ns, end_ns, self.names[name], self.streams[stream], kind))
        return len(self.rows) - 1

    def of_device(self, row: int, args: dict[str, Any], replay: tuple[str, int] | None) -> None:
        """Fill in what the args say of a device's operation, and its place in a replay: (graph, which one)."""
        if KIND in args:
            for key in ("bytes", "sequence"):
                value = args.get(key)
                if isinstance(value, int) and 0 <= value < 1 << 62:
                    self.few[key][row] = value
            if "group" in args and self.rows[row][4] == Kind.COMM:
                self.few["group"][row] = self.groups[str(args["group"])]
        if replay is not None:
            place = self.graphs[replay[0]], replay[1]
            self.few["graph"][row], self.few["replay"][row] = place
            # In the order of the file, which is that of each stream: the same in every replay.
            self.few["node"][row] = self._nodes[place]
            self._nodes[place] += 1

    def link(self, name: str, source: str, began_ns: int, target: str, ended_ns: int) -> int:
        """Take in that one stream or the host waited for another; return how many rows it took.

        Args:
            name: what was waited for.
            source, began_ns: where and when that was done.
            target, ended_ns: where and when the wait ended.
        """
        before = len(self.rows)
        if source == target == tracks.HOST:
            return 0
        if source == tracks.HOST:
            self._launch(name, began_ns, target, ended_ns)
            return len(self.rows) - before
        record = self.add(name, source, Kind.RECORD, began_ns, began_ns)
        waiter = -1
        if target == tracks.HOST:
            # What ended then and took no time stood for nothing, whatever else ended then.
            waiter = self._call(ended_ns, (self._moments, self._calls))
        if waiter >= 0:
            self.became[waiter] = Kind.SYNC
        else:
            waiter = self.add(
                name, target, Kind.SYNC if target == tracks.HOST else Kind.WAIT, ended_ns, ended_ns
            )
        self.few["record"][waiter], self.few["waited"][waiter] = record, self.streams[source]
        return len(self.rows) - before

    def _launch(self, name: str, called_ns: int, stream: str, start_ns: int) -> None:
        """A call of the host issued what begins on a stream."""
        begins = self._index().get(stream, [])
        at = bisect_left(begins, (start_ns, -1))
        if at == len(begins):
            return
        call = self._call(called_ns, (self._calls, self._moments))
        if call < 0:
            call = self.add(name, tracks.HOST, Kind.HOST, called_ns, called_ns)
        self.few["launch"][begins[at][1]] = call

    def _call(self, end_ns: int, among: Sequence[dict[int, int]]) -> int:
        """Return the call of the host that ended then, of the first sort that has one, or -1."""
        self._index()
        return next((calls[end_ns] for calls in among if end_ns in calls), -1)

    def _index(self) -> dict[str, list[tuple[int, int]]]:
        """Return (start, row) of the work of each stream. Made at the first arrow, when all slices are there."""
        if self._begins is None:
            self._begins = defaultdict(list)
            streams = list(self.streams)
            for row, (start_ns, end_ns, _, stream, kind) in enumerate(self.rows):
                if kind <= Kind.COMM:
                    self._begins[streams[stream]].append((start_ns, row))
                elif kind == Kind.HOST:
                    (self._calls if end_ns > start_ns else self._moments)[end_ns] = row
            for found in self._begins.values():
                found.sort()
        return self._begins

    def finish(self) -> None:
        """Hand everything to the part."""
        part = self.part
        self._launch_replays()
        table = np.array(self.rows, np.int64).reshape(-1, len(_ALL))
        part.columns = {key: table[:, place].copy() for place, key in enumerate(_ALL)}
        few: dict[str, Mapping[int, int]] = {**self.few, "kind": self.became}
        for key, values in few.items():
            part.column(key)[list(values)] = list(values.values())
        part.names = [str(name) for name in self.names]
        busy = table[table[:, 4] <= Kind.COMM]
        computing = set(busy[busy[:, 4] != Kind.COMM, 3].tolist())
        talking = set(busy[busy[:, 4] == Kind.COMM, 3].tolist()) - computing
        part.streams = [
            Stream(0, None, track, number, Role.HOST)
            if track == tracks.HOST
            else Stream(0, 0, track, number, Role.COMM if number in talking else Role.COMPUTE, Source.GIVEN)
            for track, number in self.streams.items()
        ]
        part.groups = [Group(name) for name in self.groups]
        sizes: Counter[int] = Counter()
        for (graph, _), nodes in self._nodes.items():
            sizes[graph] = max(sizes[graph], nodes)
        part.graphs = [Graph(0, str(key), Source.GIVEN, sizes[number]) for key, number in self.graphs.items()]

    def _launch_replays(self) -> None:
        """All of a replay has one launch, wherever the arrow from it ends; a call of nothing else launched it."""
        graph, replay, launch = (self.few[key] for key in ("graph", "replay", "launch"))
        called: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for row, call in launch.items():
            called[call].add((graph.get(row, -1), replay.get(row, -1)))
        launch_of: dict[tuple[int, int], int] = {}
        for call, places in called.items():
            place = next(iter(places))
            if len(places) == 1 and place[0] >= 0 and call not in self.became:
                self.became[call] = Kind.LAUNCH
                launch_of[place] = call
        if launch_of:
            for row in list(graph):
                made = launch_of.get((graph[row], replay[row]), -1)
                if made >= 0:
                    launch.setdefault(row, made)
        for place, call in launch_of.items():
            graph[call], replay[call] = place

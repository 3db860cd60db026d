"""Slices and arrows of Slipstream's own traces as rows: kinds, graphs, and what an arrow between two tracks says.

host         [replay]                  [wait .......]     launch: from the end of a call to a start
                    \\                  /                  stand:  from a device's end to the end of a call
main                 [verify ........]                    event:  from a stream to a stream
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
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
_COLUMNS: Final = (
    "start_ns",
    "end_ns",
    "name",
    "stream",
    "kind",
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


@dataclass(frozen=True, slots=True)
class Placed:
    """A slice of the file: what, where, when, in ns from the file's time 0."""

    name: str
    track: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]

    @property
    def stream(self) -> str:
        """Where it ran, whether on the stream's own track or below."""
        return stream_of(self.track)

    @property
    def is_phase(self) -> bool:
        """Whether it stands on the own track of a device's stream."""
        return self.track not in (tracks.HOST, tracks.graph_track(tracks.HOST)) and self.stream == self.track

    @property
    def kind(self) -> Kind:
        """What its row is."""
        if self.stream == tracks.HOST:
            return Kind.HOST
        said = _KINDS.get(str(self.args.get(KIND)))
        return said if said is not None else Kind.KERNEL if self.is_phase else Kind.SUBTASK


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
        self.columns: dict[str, list[int]] = {key: [] for key in _COLUMNS}
        self._nodes: Counter[tuple[int, int]] = Counter()
        self._begins: dict[str, list[tuple[int, int]]] | None = None
        self._calls: dict[int, int] = {}  # by their ends
        self._moments: dict[int, int] = {}  # those without length

    def add(self, name: str, stream: str, kind: Kind, start_ns: int, end_ns: int, **more: int) -> int:
        """Add a row and return its number."""
        values = {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "name": self.names[name],
            "stream": self.streams[stream],
            "kind": kind,
            **more,
        }
        for key, column in self.columns.items():
            column.append(values.get(key, -1))
        return len(self.columns["kind"]) - 1

    def of_device(self, row: int, args: dict[str, Any], replay: tuple[str, int] | None) -> None:
        """Fill in what the args say of a device's operation, and its place in a replay: (graph, which one)."""
        for key in ("bytes", "sequence"):
            value = args.get(key)
            if isinstance(value, int) and 0 <= value < 1 << 62:
                self.columns[key][row] = value
        if "group" in args and self.columns["kind"][row] == Kind.COMM:
            self.columns["group"][row] = self.groups[str(args["group"])]
        if replay is not None:
            graph, number = self.graphs[replay[0]], replay[1]
            # In the order of the file, which is that of each stream: the same in every replay.
            node = self._nodes[graph, number]
            self._nodes[graph, number] += 1
            for key, value in (("graph", graph), ("replay", number), ("node", node)):
                self.columns[key][row] = value

    def link(self, name: str, source: str, began_ns: int, target: str, ended_ns: int) -> int:
        """Take in that one stream or the host waited for another; return how many rows it took.

        Args:
            name: what was waited for.
            source, began_ns: where and when that was done.
            target, ended_ns: where and when the wait ended.
        """
        before = len(self.columns["kind"])
        if source == target == tracks.HOST:
            return 0
        if source == tracks.HOST:
            self._launch(name, began_ns, target, ended_ns)
        else:
            record = self.add(name, source, Kind.RECORD, began_ns, began_ns)
            about = {"record": record, "waited": self.streams[source]}
            # What ended then and took no time stood for nothing, whatever else ended then.
            call = self._call(ended_ns, (self._moments, self._calls)) if target == tracks.HOST else -1
            if call >= 0:
                for key, value in {**about, "kind": int(Kind.SYNC)}.items():
                    self.columns[key][call] = value
            else:
                kind = Kind.SYNC if target == tracks.HOST else Kind.WAIT
                self.add(name, target, kind, ended_ns, ended_ns, **about)
        return len(self.columns["kind"]) - before

    def _launch(self, name: str, called_ns: int, stream: str, start_ns: int) -> None:
        """A call of the host issued what begins on a stream."""
        if self._begins is None:
            self._index()
        begins = (self._begins or {}).get(stream, [])
        at = bisect_left(begins, (start_ns, -1))
        if at == len(begins):
            return
        row, call = begins[at][1], self._call(called_ns, (self._calls, self._moments))
        if call < 0:
            call = self.add(name, tracks.HOST, Kind.HOST, called_ns, called_ns)
        self.columns["launch"][row] = call

    def _call(self, end_ns: int, among: Sequence[dict[int, int]]) -> int:
        """Return the call of the host that ended then, of the first sort that has one, or -1."""
        if self._begins is None:
            self._index()
        return next((calls[end_ns] for calls in among if end_ns in calls), -1)

    def _index(self) -> None:
        """Find things by their times. Before any arrow: all slices are there."""
        begins: dict[str, list[tuple[int, int]]] = defaultdict(list)
        columns = self.columns
        streams = list(self.streams)
        for row, kind in enumerate(columns["kind"]):
            start_ns, end_ns = columns["start_ns"][row], columns["end_ns"][row]
            if kind <= Kind.COMM:
                begins[streams[columns["stream"][row]]].append((start_ns, row))
            elif kind == Kind.HOST:
                (self._calls if end_ns > start_ns else self._moments)[end_ns] = row
        for found in begins.values():
            found.sort()
        self._begins = begins

    def finish(self) -> None:
        """Hand everything to the part."""
        part = self.part
        self._launch_replays()
        part.columns = {key: np.array(column, np.int64) for key, column in self.columns.items()}
        part.names = [str(name) for name in self.names]
        kinds: dict[int, set[int]] = defaultdict(set)
        for stream, kind in zip(self.columns["stream"], self.columns["kind"], strict=True):
            if kind <= Kind.COMM:
                kinds[stream].add(kind)
        part.streams = [
            Stream(0, None, track, number, Role.HOST)
            if track == tracks.HOST
            else Stream(
                0,
                0,
                track,
                number,
                Role.COMM if kinds[number] == {int(Kind.COMM)} else Role.COMPUTE,
                Source.GIVEN,
            )
            for track, number in self.streams.items()
        ]
        part.groups = [Group(name) for name in self.groups]
        sizes: Counter[int] = Counter()
        for (graph, _), nodes in self._nodes.items():
            sizes[graph] = max(sizes[graph], nodes)
        part.graphs = [Graph(0, str(key), Source.GIVEN, sizes[number]) for key, number in self.graphs.items()]

    def _launch_replays(self) -> None:
        """All of a replay has one launch, wherever the arrow from it ends; a call of nothing else launched it."""
        columns = self.columns
        places = list(zip(columns["graph"], columns["replay"], strict=True))
        called: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for row, call in enumerate(columns["launch"]):
            if call >= 0:
                called[call].add(places[row])
        launch_of: dict[tuple[int, int], int] = {}
        for call, replays in called.items():
            place = next(iter(replays))
            if len(replays) == 1 and place[0] >= 0 and columns["kind"][call] == Kind.HOST:
                columns["kind"][call] = int(Kind.LAUNCH)
                columns["graph"][call], columns["replay"][call] = place
                launch_of[place] = call
        for row, place in enumerate(places):
            if columns["kind"][row] <= Kind.COMM and columns["launch"][row] < 0 and place in launch_of:
                columns["launch"][row] = launch_of[place]

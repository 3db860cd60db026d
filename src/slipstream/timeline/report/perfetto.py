"""Export to Chrome's trace JSON, laid out so that Perfetto loses nothing of it.

    process   "critical path", then "rank 0", "rank 1", ...
    thread    a track: rounds, phases, exposed communication, each stream, each host's thread, marks
    slice     a row; its args say all that the table knows of it
    flow      an arrow: launch, event, graph, synchronisation, collective

Perfetto drops a slice that lies across another on its track, joins threads of one number though their processes
differ, and binds an arrow's end to whatever slice was begun last on its track. So rows that overlap get tracks of
their own ("stream 7 (2)"), every track a number of its own, every arrow too, and the events stand in the order in
which each end is met by its slice. Times are decimals of microseconds from the table's zero, exact to the ns.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from slipstream.errors import UsageError
from slipstream.timeline.analysis import Analysis
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import Dependencies, find_dependencies
from slipstream.timeline.overlap import Intervals, subtract, union
from slipstream.timeline.path import Path, Piece
from slipstream.timeline.report.choice import rounds_numbered
from slipstream.timeline.report.tracks import nested, side_by_side
from slipstream.timeline.report.words import CONFIDENCES, EDGES
from slipstream.timeline.table import Int32, Int64, Kind, Source, Timeline
from slipstream.trace.files import replace_file

#: Edges that become arrows. The order of a stream or a thread is what its track shows already.
_ARROWS = {
    EdgeKind.LAUNCH: "launch",
    EdgeKind.EVENT: "event",
    EdgeKind.EVENT_INFERRED: "event (inferred)",
    EdgeKind.GRAPH: "graph",
    EdgeKind.HOST: "synchronisation",
    EdgeKind.COLLECTIVE: "collective",
}
_PIECES = {Piece.HOST: "host", Piece.DELAY: "delay", Piece.UNKNOWN: "unexplained"}
#: Events that are encoded at once.
_BLOCK = 20_000

Event = dict[str, Any]


def write_perfetto(what: Analysis | Timeline, path: str | FilePath, *, round: int | None = None) -> None:
    """Write a trace for ui.perfetto.dev or chrome://tracing; the file is replaced as a whole or not at all.

    Args:
        what: an analysis, or only a timeline: then without critical path and rounds.
        path: of the file; one that ends with .gz is compressed.
        round: only the operations of this round, on every rank, and the calls that launched them.

    Raises:
        UsageError: there is no such round, or a round of a mere timeline was asked for.
        SlipstreamError: the file cannot be written.
    """
    text = _text(what, round)
    replace_file(FilePath(path), _gzip(text) if FilePath(path).suffix == ".gz" else text, "trace")


def _gzip(text: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(level=6, wbits=31)
    for piece in text:
        yield packer.compress(piece)
    yield packer.flush()


def _text(what: Analysis | Timeline, number: int | None) -> Iterator[bytes]:
    export = _Export.of(what, number)
    header = {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": export.timeline.base_ns,
        "otherData": {"writer": "slipstream trace export", "base_ns": str(export.timeline.base_ns)},
    }
    yield msgspec.json.encode(header)[:-1] + b',"traceEvents":[\n'
    block: list[bytes] = []
    first = True
    for event in export.events():
        block.append(msgspec.json.encode(event))
        if len(block) == _BLOCK:
            yield (b"" if first else b",\n") + b",\n".join(block)
            first, block = False, []
    if block:
        yield (b"" if first else b",\n") + b",\n".join(block)
    yield b"\n]}\n"


@dataclass(frozen=True)
class _Export:
    """What is written.

    Attributes:
        deps: rows and edges.
        analysis: None of a mere timeline.
        rows: int64 [K], ascending.
        marks: int64 [L].
        window: (start_ns, end_ns) of the round, or None for everything.
    """

    deps: Dependencies
    analysis: Analysis | None
    rows: Int64
    marks: Int64
    window: tuple[int, int] | None

    @classmethod
    def of(cls, what: Analysis | Timeline, number: int | None) -> _Export:
        analysis = what if isinstance(what, Analysis) else None
        if isinstance(what, Analysis):
            deps = what.deps
        elif number is not None:
            raise UsageError(f"round {number} was asked for, but rounds are known only after an analysis.")
        else:
            deps = find_dependencies(what)
        table = deps.timeline
        if analysis is None or number is None:
            return cls(deps, analysis, np.arange(len(table)), np.arange(len(table.marks)), None)
        wanted = rounds_numbered(analysis, number)
        low = min(report.round.start_ns for report in wanted)
        high = max(report.round.end_ns for report in wanted)
        kept = (table.start_ns <= high) & (table.end_ns >= low)
        for report in wanted:
            kept[report.path.row[report.path.row >= 0]] = True
        launches = table.launch[kept]
        kept[launches[launches >= 0]] = True
        marks = np.flatnonzero((table.marks.start_ns <= high) & (table.marks.end_ns >= low))
        return cls(deps, analysis, np.flatnonzero(kept), marks, (low, high))

    @property
    def timeline(self) -> Timeline:
        return self.deps.timeline

    def events(self) -> Iterator[Event]:
        """Yield metadata, then every other event in the order of time."""
        tracks = _Tracks()
        if self.analysis is not None:
            yield from self._by_rank(tracks)
        track = self._place(tracks)
        yield from self._marks(tracks)
        yield from tracks.events()
        yield from self._rows(track)

    def _place(self, tracks: _Tracks) -> Int32:
        """Return of each row its track's number, 0 where it is not written."""
        table = self.timeline
        track = np.zeros(len(table), np.int32)
        by_stream = self.rows[np.argsort(table.stream[self.rows], kind="stable")]
        bounds = np.searchsorted(table.stream[by_stream], np.arange(len(table.streams) + 1))
        for number, stream in enumerate(table.streams):
            mine = by_stream[bounds[number] : bounds[number + 1]]
            if not len(mine):
                continue
            lay = nested if stream.device is None else side_by_side
            which = lay(table.start_ns[mine], table.end_ns[mine])
            numbers = [
                tracks.new(stream.rank, f"{stream.name} ({extra + 1})" if extra else stream.name)
                for extra in range(int(which.max()) + 1)
            ]
            track[mine] = np.array(numbers, np.int32)[which]
        return track

    def _rows(self, track: Int32) -> Iterator[Event]:
        """Yield slices by time, each with its arrows behind it, begins before ends."""
        table = self.timeline
        src, dst, kind, sure = self._arrows(track)
        begin = table.start_ns[src]
        # What a row waits for may begin after it (a call that stands): the arrow ends when that has begun.
        end = np.maximum(table.start_ns[dst], begin)
        follows = np.where((end > table.start_ns[dst]) | ((begin == end) & (src > dst)), src, dst)
        times = np.concatenate((table.start_ns[self.rows], begin, end))
        row = np.concatenate((self.rows, src, follows))
        place = np.repeat(np.arange(3), (len(self.rows), len(src), len(dst)))
        order = np.lexsort((place, row, times)).tolist()
        rows, arrows = len(self.rows), len(src)
        names = [f"{_ARROWS[EdgeKind(k)]}{' ?' if s and k != EdgeKind.EVENT_INFERRED else ''}"
                 for k, s in zip(kind.tolist(), sure.tolist(), strict=True)]  # fmt: skip
        for at in order:
            if at < rows:
                yield self._slice(int(self.rows[at]), track)
                continue
            which, ends = (at - rows) % arrows, at - rows >= arrows
            mine = int((dst if ends else src)[which])
            event = {
                "ph": "f" if ends else "s",
                "id": which + 1,
                "pid": table.streams[table.stream[mine]].rank + 1,
                "tid": int(track[mine]),
                "ts": _microseconds(int((end if ends else begin)[which])),
                "cat": "dependency",
                "name": names[which],
            }
            yield {**event, "bp": "e"} if ends else event

    def _arrows(self, track: Int32) -> tuple[Int64, Int64, Any, Any]:
        """Return (src, dst, kind, confidence) of the arrows between rows that are written."""
        edges, table = self.deps.edges, self.timeline
        between = table.on_device[edges.src] | table.on_device[edges.dst]
        kept = np.isin(edges.kind, list(_ARROWS)) & between & (track[edges.src] > 0) & (track[edges.dst] > 0)
        src, dst = edges.src[kept].astype(np.int64), edges.dst[kept].astype(np.int64)
        kind, sure = edges.kind[kept], edges.confidence[kept]
        # A launch is an arrow also where no edge needs it: of what the device does not queue.
        launched = self.rows[table.launch[self.rows] >= 0]
        launched = launched[track[table.launch[launched]] > 0]
        launched = np.setdiff1d(launched, dst[kind == EdgeKind.LAUNCH])
        return (
            np.concatenate((src, table.launch[launched])),
            np.concatenate((dst, launched)),
            np.concatenate((kind, np.full(len(launched), EdgeKind.LAUNCH))),
            np.concatenate((sure, np.full(len(launched), Confidence.GIVEN))),
        )

    def _slice(self, row: int, track: Int32) -> Event:
        table = self.timeline
        return {
            "ph": "X",
            "name": table.name_of(row),
            "cat": Kind(int(table.kind[row])).name.lower(),
            "pid": table.streams[table.stream[row]].rank + 1,
            "tid": int(track[row]),
            "ts": _microseconds(int(table.start_ns[row])),
            "dur": _microseconds(int(table.dur_ns[row])),
            "args": self._args(row),
        }

    def _args(self, row: int) -> Event:
        table = self.timeline
        args: Event = {"row": row}
        for key in ("correlation", "bytes", "replay", "node", "sequence", "launch", "parent", "record"):
            value = int(getattr(table, key)[row])
            if value != -1:
                args[key] = value
        if table.graph[row] >= 0:
            args["graph"] = table.graphs[table.graph[row]].key
        if table.group[row] >= 0:
            args["group"] = table.groups[table.group[row]].name
        if table.waited[row] >= 0:
            args["waited"] = table.streams[table.waited[row]].name
        if table.kind_source[row] == Source.INFERRED:
            args["kind is inferred"] = True
        for key, said in table.args(row).items():
            args.setdefault(key, said if isinstance(said, int | float | str) else str(said))
        return args

    def _marks(self, tracks: _Tracks) -> Iterator[Event]:
        table, marks = self.timeline, self.timeline.marks
        for number in np.unique(marks.stream[self.marks]).tolist():
            mine = self.marks[marks.stream[self.marks] == number]
            stream = table.streams[number]
            yield from tracks.slices(
                stream.rank,
                f"marks of {stream.name}",
                [
                    (int(marks.start_ns[mark]), int(marks.end_ns[mark]), table.names[marks.name[mark]],
                     dict(marks.args.get(mark, {})))
                    for mark in mine.tolist()
                ],
            )  # fmt: skip

    def _by_rank(self, tracks: _Tracks) -> Iterator[Event]:
        """Yield rounds, phases, exposed communication and the critical path of every rank."""
        assert self.analysis is not None
        for rank, reports in self.analysis.reports.items():
            wanted = [
                report for report in reports if self._inside(report.round.start_ns, report.round.end_ns)
            ]
            rounds = [
                (r.round.start_ns, r.round.end_ns, f"round {r.round.number} ({r.round.kind.value})",
                 {**r.round.facts, **({"why": r.round.why} if r.round.why else {})})
                for r in wanted
            ]  # fmt: skip
            phases = [
                (phase.start_ns, phase.end_ns, phase.name, {"route": phase.route.value, **phase.facts})
                for report in wanted
                for phase in report.round.phases
            ]
            yield from tracks.slices(rank, "rounds", rounds)
            yield from tracks.slices(rank, "phases", phases)
            hidden = self._exposed(rank)
            stretches = zip(hidden.start_ns.tolist(), hidden.end_ns.tolist(), strict=True)
            exposed: list[_Slice] = [(start, end, "exposed communication", {}) for start, end in stretches]
            yield from tracks.slices(rank, "exposed communication", exposed)
            pieces = [piece for report in wanted for piece in self._path(report.path)]
            yield from tracks.slices(-1, f"critical path of rank {rank}", pieces)

    def _inside(self, start: int, end: int) -> bool:
        return self.window is None or (start < self.window[1] and end > self.window[0])

    def _exposed(self, rank: int) -> Intervals:
        table = self.timeline
        rows = self.rows[table.is_work[self.rows] & (table.rank[self.rows] == rank)]
        comm, kernels = rows[table.kind[rows] == Kind.COMM], rows[table.kind[rows] == Kind.KERNEL]
        return subtract(
            union(table.start_ns[comm], table.end_ns[comm]),
            union(table.start_ns[kernels], table.end_ns[kernels]),
        )

    def _path(self, path: Path) -> Iterator[_Slice]:
        table = self.timeline
        columns = (
            path.starts_ns,
            path.ends_ns,
            path.row,
            path.piece,
            path.edge,
            path.confidence,
            path.waited,
        )
        for start, end, row, piece, edge, sure, waited in zip(*(c.tolist() for c in columns), strict=True):
            args: Event = {"by": EDGES[edge], "known": CONFIDENCES[Confidence(sure)]}
            name = table.name_of(row) if row >= 0 else "nothing known"
            if row >= 0:
                args |= {"row": row, "stream": table.streams[table.stream[row]].name}
            if waited >= 0:
                args["after"] = table.name_of(waited)
            yield start, end, name if piece == Piece.WORK else f"{_PIECES[Piece(piece)]}: {name}", args


_Slice = tuple[int, int, str, Event]


class _Tracks:
    """Numbers of tracks, over all processes; 0 is the system's own."""

    def __init__(self) -> None:
        self._made: list[tuple[int, str]] = []

    def new(self, rank: int, name: str) -> int:
        """Return the number of a new track of a rank; -1 is the process of critical paths."""
        self._made.append((rank, name))
        return len(self._made)

    def slices(self, rank: int, name: str, slices: Sequence[_Slice]) -> Iterator[Event]:
        """Yield slices as events, on as many tracks as it takes that none lies across another."""
        ordered = sorted(slices, key=lambda item: (item[0], -item[1]))
        start = np.array([item[0] for item in ordered], np.int64)
        end = np.array([item[1] for item in ordered], np.int64)
        which = nested(start, end)
        numbers = [
            self.new(rank, f"{name} ({extra + 1})" if extra else name)
            for extra in range(int(which.max(initial=-1)) + 1)
        ]
        for (begin, until, text, args), track in zip(ordered, which.tolist(), strict=True):
            yield {
                "ph": "X",
                "name": text,
                "cat": "slipstream",
                "pid": rank + 1 if rank >= 0 else _PATHS,
                "tid": numbers[track],
                "ts": _microseconds(begin),
                "dur": _microseconds(until - begin),
                "args": args,
            }

    def events(self) -> Iterable[Event]:
        """Yield the names and the order of processes and tracks."""
        for rank in sorted({rank for rank, _ in self._made}):
            pid = rank + 1 if rank >= 0 else _PATHS
            name = f"rank {rank}" if rank >= 0 else "critical path"
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            yield {
                "ph": "M",
                "name": "process_sort_index",
                "pid": pid,
                "tid": 0,
                "args": {"sort_index": rank + 1},
            }
        for number, (rank, name) in enumerate(self._made, 1):
            where = {"ph": "M", "pid": rank + 1 if rank >= 0 else _PATHS, "tid": number}
            yield {**where, "name": "thread_name", "args": {"name": name}}
            yield {**where, "name": "thread_sort_index", "args": {"sort_index": number}}


#: The process of critical paths: no rank has this number.
_PATHS = 1_000_000


def _microseconds(time_ns: int) -> msgspec.Raw:
    """A JSON number that no float has rounded."""
    sign, size = (b"-", -time_ns) if time_ns < 0 else (b"", time_ns)
    return msgspec.Raw(sign + b"%d.%03d" % divmod(size, 1000))

"""From columns in the order of reading to a sorted Timeline; and small timelines from a list of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from slipstream.timeline.table import (
    Advanced,
    Args,
    Graph,
    Group,
    Int64,
    Kind,
    Marks,
    Note,
    Role,
    Source,
    SourceFile,
    Stream,
    Timeline,
    VendorStep,
)

#: Columns of a table, their types, and what a row holds that says nothing.
COLUMNS: Final[Mapping[str, tuple[Any, int]]] = {
    "start_ns": (np.int64, 0),
    "end_ns": (np.int64, 0),
    "name": (np.int32, 0),
    "stream": (np.int32, 0),
    "kind": (np.uint8, Kind.KERNEL),
    "kind_source": (np.uint8, Source.GIVEN),
    "correlation": (np.int64, -1),
    "launch": (np.int32, -1),
    "graph": (np.int32, -1),
    "replay": (np.int32, -1),
    "node": (np.int32, -1),
    "group": (np.int32, -1),
    "bytes": (np.int64, -1),
    "sequence": (np.int64, -1),
    "parent": (np.int32, -1),
    "record": (np.int32, -1),
    "waited": (np.int32, -1),
}
#: Columns that hold a row's number, so change when rows are sorted.
ROW_NUMBERS: Final = ("launch", "parent", "record")


def assemble(
    columns: Mapping[str, Any],
    *,
    names: Sequence[str],
    streams: Sequence[Stream],
    marks: Marks | None = None,
    groups: Sequence[Group] = (),
    graphs: Sequence[Graph] = (),
    details: Mapping[int, Args] | None = None,
    base_ns: int = 0,
    notes: Iterable[Note] = (),
    sources: Iterable[SourceFile] = (),
    vendor: Iterable[VendorStep] = (),
    advanced: Iterable[Advanced] = (),
) -> Timeline:
    """Sort rows and marks by (start, end descending) and return them as a Timeline.

    Args:
        columns: arrays or lists of one length by the names of COLUMNS; one that is left out says nothing.
            Columns that hold rows mean positions in these arrays.
        details: by position in these arrays.
    """
    count = len(columns["start_ns"])
    start_ns = np.asarray(columns["start_ns"], np.int64)
    end_ns = np.asarray(columns["end_ns"], np.int64)
    order = sort_order(start_ns, end_ns)
    place = np.empty(count + 1, np.int32)
    place[order] = np.arange(count, dtype=np.int32)
    place[count] = -1  # where -1 points
    made: dict[str, Any] = {}
    for key, (dtype, nothing) in COLUMNS.items():
        if key not in columns:
            made[key] = np.full(count, nothing, dtype)
            continue
        value = np.asarray(columns[key], dtype)[order]
        made[key] = place[value] if key in ROW_NUMBERS else value
    return Timeline(
        **made,
        names=tuple(names),
        streams=tuple(streams),
        marks=sort_marks(marks) if marks is not None else no_marks(),
        groups=tuple(groups),
        graphs=tuple(graphs),
        details={int(place[row]): args for row, args in (details or {}).items()},
        base_ns=base_ns,
        notes=tuple(notes),
        sources=tuple(sources),
        vendor=tuple(vendor),
        advanced=tuple(advanced),
    )


def sort_order(start_ns: Int64, end_ns: Int64) -> Int64:
    """Return int64 [N]: rows by start, at one start the longest first, else as they came."""
    return np.lexsort((-end_ns, start_ns))


def no_marks() -> Marks:
    """Return an empty table of marks."""
    return Marks(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))


def sort_marks(marks: Marks) -> Marks:
    """Return the marks in their order."""
    order = sort_order(marks.start_ns, marks.end_ns)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Marks(
        marks.start_ns[order],
        marks.end_ns[order],
        marks.name[order],
        marks.stream[order],
        {int(place[mark]): args for mark, args in marks.args.items()},
    )


# Small timelines.


@dataclass(frozen=True, slots=True)
class Op:
    """One row, for `timeline_of`. `launch`, `record` and `parent` are positions in the list of ops.

    `stream` is the name of one of the streams; one that is not given is made: a host's thread for host kinds,
    else a stream of device 0.
    """

    name: str
    start_ns: int
    end_ns: int
    stream: str = "stream 0"
    kind: Kind = Kind.KERNEL
    kind_source: Source = Source.GIVEN
    correlation: int = -1
    launch: int = -1
    graph: int = -1
    replay: int = -1
    node: int = -1
    group: int = -1
    bytes: int = -1
    sequence: int = -1
    parent: int = -1
    record: int = -1
    waited: str = ""
    rank: int = 0
    args: Args = field(default_factory=dict)


def timeline_of(
    ops: Sequence[Op],
    *,
    streams: Sequence[Stream] = (),
    marks: Iterable[tuple[str, int, int, str] | tuple[str, int, int, str, int]] = (),
    groups: Sequence[Group] = (),
    graphs: Sequence[Graph] = (),
    **rest: Any,
) -> Timeline:
    """Return the timeline of a few operations, for tests and generators.

    Args:
        ops: in any order.
        streams: where not all are of device 0 or host threads by their kinds.
        marks: (text, start_ns, end_ns, stream) or (text, start_ns, end_ns, stream, rank).
        rest: as of `assemble`.
    """
    table = list(streams)
    index = {(stream.rank, stream.name): number for number, stream in enumerate(table)}
    names: dict[str, int] = {}

    def stream_of(rank: int, name: str, host: bool) -> int:
        if (rank, name) not in index:
            index[rank, name] = len(table)
            role = Role.HOST if host else Role.COMPUTE
            table.append(Stream(rank, None if host else 0, name, len(table), role))
        return index[rank, name]

    columns: dict[str, list[int]] = {key: [] for key in COLUMNS}
    for op in ops:
        host = op.kind in (Kind.HOST, Kind.LAUNCH, Kind.SYNC)
        for key in COLUMNS:
            if key not in ("name", "stream", "waited"):
                columns[key].append(int(getattr(op, key)))
        columns["name"].append(names.setdefault(op.name, len(names)))
        columns["stream"].append(stream_of(op.rank, op.stream, host))
    for op in ops:
        columns["waited"].append(stream_of(op.rank, op.waited, False) if op.waited else -1)
    written = [(*mark, 0)[:5] for mark in marks]
    mark_table = Marks(
        np.array([mark[1] for mark in written], np.int64),
        np.array([mark[2] for mark in written], np.int64),
        np.array([names.setdefault(mark[0], len(names)) for mark in written], np.int32),
        np.array([stream_of(mark[4], mark[3], True) for mark in written], np.int32),
    )
    return assemble(
        columns,
        names=list(names),
        streams=table,
        marks=mark_table,
        groups=groups,
        graphs=graphs,
        details={row: op.args for row, op in enumerate(ops) if op.args},
        **rest,
    )

"""What one file gives, and how the parts of a run become one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from slipstream.timeline.assemble import COLUMNS, ROW_NUMBERS, assemble
from slipstream.timeline.table import (
    Advanced,
    Args,
    Graph,
    Group,
    Int64,
    Marks,
    Note,
    SourceFile,
    Stream,
    Timeline,
    VendorStep,
)

#: A time that is further than this from the others belongs to no profile.
_FAR_NS: Final = 24 * 3600 * 1_000_000_000


class Pool(dict[Any, int]):
    """Numbers things in the order in which they are first seen."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


@dataclass
class Part:
    """The rows, marks and notes of one file, in the order of reading.

    Attributes:
        path: of the file or folder.
        format: as in SourceFile.
        rank: whose it is, None if the file does not say.
        columns: by the names of `assemble.COLUMNS`; times in ns on the file's clock, without `offset_ns`.
        offset_ns: what has to be added to be on the clock of the run (Kineto's `baseTimeNanoseconds`).
        marks: (start_ns, end_ns, name, stream), arrays of one length.
        read: events seen; `dropped` says why some became neither a row nor a mark.
        advanced: what the trace itself says that rounds gave; `start_ns` on the file's clock.
        run: what tells one run from another, None if unknown: equal for all parts of a run.
    """

    path: str
    format: str
    rank: int | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    marks: Marks | None = None
    details: dict[int, Args] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    vendor: list[VendorStep] = field(default_factory=list)
    advanced: list[Advanced] = field(default_factory=list)
    offset_ns: int = 0
    read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    run: object = None

    def __len__(self) -> int:
        return len(self.columns["start_ns"]) if self.columns else 0

    def drop(self, reason: str, count: int = 1) -> None:
        """Count events that become no row."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def note(self, what: str, count: int, why: str) -> None:
        """Say something about the data."""
        self.notes.append(Note(what, count, why, self.rank))

    def column(self, key: str) -> Any:
        """Return a column for reading and writing; one that the file does not have is made."""
        if key not in self.columns:
            dtype, nothing = COLUMNS[key]
            self.columns[key] = np.full(len(self), nothing, dtype)
        return self.columns[key]

    def keep_rows(self, keep: Any) -> None:
        """Keep the rows where `keep` is true. Before any column holds rows."""
        place = np.cumsum(keep) - 1
        self.columns = {key: value[keep] for key, value in self.columns.items()}
        self.details = {int(place[row]): args for row, args in self.details.items() if keep[row]}


def check_times(part: Part) -> None:
    """Set durations below nothing to nothing, and drop rows whose times cannot be meant."""
    if not len(part):
        return
    start_ns, end_ns = part.columns["start_ns"], part.columns["end_ns"]
    negative = end_ns < start_ns
    if negative.any():
        end_ns[negative] = start_ns[negative]
        part.note("negative", int(negative.sum()), "durations below zero, taken as zero")
    middle = int(np.median(start_ns))
    far = (np.abs(start_ns - middle) > _FAR_NS) | (end_ns - start_ns > _FAR_NS)
    if far.any():
        part.drop("time", int(far.sum()))
        part.note(
            "dropped", int(far.sum()), "events more than a day long, or more than a day from the others"
        )
        part.keep_rows(~far)
    if part.marks is not None and len(part.marks):
        marks = part.marks
        good = (np.abs(marks.start_ns - middle) <= _FAR_NS) & (marks.end_ns - marks.start_ns <= _FAR_NS)
        good &= marks.end_ns >= marks.start_ns
        if not good.all():
            part.drop("time", int((~good).sum()))
            part.note("dropped", int((~good).sum()), "annotations whose times cannot be meant")
            place = np.cumsum(good) - 1
            args = {int(place[mark]): args for mark, args in marks.args.items() if good[mark]}
            part.marks = Marks(
                marks.start_ns[good], marks.end_ns[good], marks.name[good], marks.stream[good], args
            )


def _drop_unused_streams(part: Part) -> None:
    """Leave out streams that hold nothing: lanes that a profiler names but that its tables show elsewhere."""
    used = np.zeros(len(part.streams) + 1, np.bool_)
    if len(part):
        used[part.columns["stream"]] = True
        if "waited" in part.columns:
            used[part.columns["waited"]] = True
    if part.marks is not None:
        used[part.marks.stream] = True
    used[-1] = False
    if used[:-1].all():
        return
    place = (np.cumsum(used) - 1).astype(np.int32)
    place[-1] = -1
    for key in ("stream", "waited"):
        if key in part.columns:
            part.columns[key] = place[part.columns[key]]
    if part.marks is not None:
        part.marks = replace(part.marks, stream=place[part.marks.stream])
    part.streams = [stream for stream, keep in zip(part.streams, used[:-1], strict=True) if keep]


def merge(
    parts: Sequence[Part], *, notes: Iterable[Note] = (), advanced: Iterable[Advanced] = ()
) -> Timeline:
    """Return the table of a run: its parts one after another, on one clock."""
    names, groups = Pool(), Pool()
    streams: list[Stream] = []
    graphs: list[Graph] = []
    columns: dict[str, list[Any]] = {key: [] for key in _used(parts)}
    details: dict[int, Args] = {}
    marks: list[Marks] = []
    # Files beside a trace count in its clock's own time.
    gave = list(advanced)
    rows = 0
    base_ns = min((_first_ns(part) for part in parts if _has_times(part)), default=0)
    for part in parts:
        _drop_unused_streams(part)
        gave = gave or _on_run_clock(part)
        shift = part.offset_ns - base_ns
        name_map = np.array([names[name] for name in part.names], np.int32)
        for key, collected in columns.items():
            value = part.column(key)
            if key in ("start_ns", "end_ns"):
                value = value + shift
            elif key == "name":
                value = name_map[value] if len(name_map) else value
            elif key in ("stream", "waited"):
                value = _shifted(value, len(streams))
            elif key == "group":
                group_map = np.array([groups[group] for group in part.groups] + [-1], np.int32)
                value = group_map[value]
            elif key == "graph":
                value = _shifted(value, len(graphs))
            elif key in ROW_NUMBERS:
                value = _shifted(value, rows)
            collected.append(value)
        if part.marks is not None and len(part.marks):
            marks.append(_moved(part.marks, shift, name_map, len(streams), sum(len(each) for each in marks)))
        details.update({row + rows: args for row, args in part.details.items()})
        streams += [replace(stream, rank=part.rank or 0) for stream in part.streams]
        graphs += [replace(graph, rank=part.rank or 0) for graph in part.graphs]
        rows += len(part)
    return assemble(
        {key: value[0] if len(value) == 1 else np.concatenate(value) for key, value in columns.items()},
        names=list(names),
        streams=streams,
        marks=_joined(marks),
        groups=list(groups),
        graphs=graphs,
        details=details,
        base_ns=base_ns,
        notes=[*(note for part in parts for note in part.notes), *notes],
        sources=[_source(part) for part in parts],
        vendor=[step for part in parts for step in part.vendor],
        advanced=[
            each if each.start_ns is None else replace(each, start_ns=each.start_ns - base_ns)
            for each in gave
        ],
    )


def _on_run_clock(part: Part) -> list[Advanced]:
    return [
        replace(each, start_ns=(each.start_ns or 0) + part.offset_ns, rank=part.rank or 0)
        for each in part.advanced
    ]


def _used(parts: Sequence[Part]) -> list[str]:
    """Columns that any part has; the others say nothing."""
    return [
        key for key in COLUMNS if key in ("start_ns", "end_ns") or any(key in part.columns for part in parts)
    ]


def _has_times(part: Part) -> bool:
    return bool(len(part)) or bool(part.marks is not None and len(part.marks))


def _first_ns(part: Part) -> int:
    rows = [int(part.columns["start_ns"].min())] if len(part) else []
    marks = [int(part.marks.start_ns.min())] if part.marks is not None and len(part.marks) else []
    return min(rows + marks) + part.offset_ns


def _shifted(value: Any, by: int) -> Any:
    return value if by == 0 else np.where(value < 0, value, value + by).astype(value.dtype)


def _moved(marks: Marks, shift: int, name_map: Any, streams: int, before: int) -> Marks:
    return Marks(
        marks.start_ns + shift,
        marks.end_ns + shift,
        name_map[marks.name],
        _shifted(marks.stream, streams),
        {mark + before: args for mark, args in marks.args.items()},
    )


def _joined(marks: list[Marks]) -> Marks | None:
    if not marks:
        return None
    args: dict[int, Args] = {}
    for each in marks:
        args |= each.args
    return Marks(
        np.concatenate([each.start_ns for each in marks]),
        np.concatenate([each.end_ns for each in marks]),
        np.concatenate([each.name for each in marks]),
        np.concatenate([each.stream for each in marks]),
        args,
    )


def _source(part: Part) -> SourceFile:
    marks = len(part.marks) if part.marks is not None else 0
    return SourceFile(part.path, part.format, part.rank or 0, part.read, len(part), marks, dict(part.dropped))


# Helpers of the readers.


def nanoseconds(times_us: list[Any]) -> tuple[Int64, Any]:
    """Microseconds as JSON gave them, to int64 ns; and where they were no usable number (then 0).

    Integers, decimal strings and Decimals are exact; so are floats below 2**43 with three decimals.
    """
    values = np.array(times_us) if times_us else np.empty(0, np.int64)
    if values.dtype.kind == "i":
        bad = np.abs(values) > 9_000_000_000_000_000
        return np.where(bad, 0, values) * 1000, bad
    if values.dtype.kind == "f":
        bad = ~(np.abs(values) < 9e15)
        fraction, whole = np.modf(np.where(bad, 0.0, values))
        return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64), bad
    if all(isinstance(value, str) and value[-4:-3] == "." for value in times_us):
        # As Ascend writes them: without the point they are nanoseconds.
        with suppress(ValueError, OverflowError):
            values = np.array([int(value.replace(".", "", 1)) for value in times_us], np.int64)
            return values, np.zeros(len(values), np.bool_)
    exact = [_exact(value) for value in times_us]
    bad = np.array([value is None for value in exact], np.bool_)
    return np.array([value or 0 for value in exact], np.int64), bad


def _exact(value: Any) -> int | None:
    """One time in microseconds, of whatever type, to ns; None if it is none."""
    try:
        if isinstance(value, str):
            whole, _, fraction = value.strip().partition(".")
            sign = -1 if whole.startswith("-") else 1
            made = int(whole or "0") * 1000 + sign * round(int(fraction or "0") * 1000 / 10 ** len(fraction))
        else:
            made = int((value * 1000).__round__())
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return None
    return made if abs(made) < 9_000_000_000_000_000_000 else None


class Numbers:
    """Turns ids into int64. What is no such number, as an id over 64 bits, gets a number of its own."""

    def __init__(self) -> None:
        self.odd = Pool()

    def __call__(self, ids: list[Any]) -> Int64:
        try:
            return np.array(ids, np.int64)
        except (ValueError, TypeError, OverflowError):
            return np.array([self.one(value) for value in ids], np.int64)

    def one(self, value: Any) -> int:
        """One id; -1 for none."""
        if value is None or value == "":
            return -1
        try:
            number = int(value)
        except (ValueError, TypeError, OverflowError):
            return -2 - self.odd[str(value)]
        return number if -1 <= number < 1 << 62 else -2 - self.odd[str(number)]


def first_of(keys: Int64, values: Int64, wanted: Int64) -> Int64:
    """For each of `wanted` the value of the first equal key; -1 where there is none."""
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = np.searchsorted(ordered, wanted)
    place[place == len(ordered)] = 0
    return np.where(ordered[place] == wanted, values[order[place]], -1)

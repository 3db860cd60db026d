"""From a path to a Timeline: one module a format."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.clocks import align
from slipstream.timeline.collectives import number_collectives
from slipstream.timeline.kinds import Rules, apply_rules
from slipstream.timeline.part import Part, merge
from slipstream.timeline.readers.ascend_db import read_database, read_totals
from slipstream.timeline.readers.ascend_tables import read_tables
from slipstream.timeline.readers.ascend_text import read_trace_view
from slipstream.timeline.readers.folder import Found, find_traces
from slipstream.timeline.readers.kineto import read_kineto
from slipstream.timeline.readers.ours import read_ours
from slipstream.timeline.readers.sides import Sides, read_sides
from slipstream.timeline.replays import find_replays
from slipstream.timeline.table import Note, Timeline

#: Called with how many bytes of the files have been read, and of how many.
Progress = Callable[[int, int], None]

_RANK: Final = re.compile(r"(?i)rank[_\-. ]?(\d{1,6})|worker[_\-. ]?(\d{1,6})")


def open_timeline(
    path: str | Path | Sequence[str | Path],
    *,
    sides: Sequence[str | Path] = (),
    rules: Rules | None = None,
    progress: Progress | None = None,
    one_clock: bool = True,
) -> Timeline:
    """Read a trace, or a folder of the traces of one run's ranks.

    What is damaged or missing is left out, and the timeline's notes say what and how much.

    Args:
        path: a profiler's file, an Ascend profile's folder, a folder of ranks, or several of them: one run.
        sides: topologies of graphs, and tokens of rounds; see `readers.sides`.
        rules: a user's; see `kinds`.
        progress: is told while files are read.
        one_clock: whether ranks are brought to one clock where collectives show that theirs differ; see `clocks`.

    Raises:
        TraceError: there is no trace, none of it can be read, or two files claim one rank.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
    # The same file by two names is one trace.
    found = list({each.path.resolve(): each for one in paths for each in find_traces(one)}.values())
    beside = read_sides(sides)
    parts = []
    with _without_collector():
        meter = _Meter(found, progress)
        for each in found:
            parts.append(_read(each, rules or Rules(), beside, meter))
            meter.end(each)
    notes = _settle_ranks(parts)
    # One run, in whatever order its files were named.
    parts.sort(key=lambda part: part.rank or 0)
    if not any(part.read - sum(part.dropped.values()) > 0 or part.vendor for part in parts):
        raise TraceError(
            f"{paths[0]} is a trace without a single operation. Was the profiler stopped and exported?"
        )
    merged = merge(parts, notes=notes, advanced=beside.advanced)
    line = number_collectives(merged)
    if one_clock and not any(note.what == "mixed" for note in notes):
        line = align(line, given=merged.sequence >= 0)
    line = _apart(line)
    if not line.on_device.any():
        why = "no operation of a device is in this trace: nothing can be said of streams or graphs"
        line = replace(line, notes=(*line.notes, Note("missing", 1, why)))
    return line


@contextmanager
def _without_collector() -> Iterator[None]:
    """Events by the million hold no cycles: looking for some among them would take as long as reading them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Meter:
    """Adds up what has been read, and tells.

    Args:
        found: the files.
        progress: whom to tell, or None.
    """

    def __init__(self, found: Sequence[Found], progress: Progress | None) -> None:
        self.sizes = {each.path: each.path.stat().st_size if each.path.is_file() else 0 for each in found}
        self.total = sum(self.sizes.values())
        self.progress = progress
        self.before = self.within = 0

    def __call__(self, count: int) -> None:
        self.within += count
        if self.progress is not None:
            self.progress(self.before + self.within, self.total)

    def end(self, found: Found) -> None:
        """A file is read, whatever its reader told."""
        self.before += self.sizes[found.path]
        self.within = 0
        self(0)


def _read(found: Found, rules: Rules, beside: Sides, meter: _Meter) -> Part:
    match found.kind:
        case "ascend db":
            part = read_database(found.path)
        case "ascend text":
            part = read_trace_view(found.path, meter)
        case "ascend folder":
            part = read_tables(found.path)
        case "slipstream":
            part = read_ours(found.path, meter)
        case _:
            part = read_kineto(found.path, meter)
    if found.folder is not None and (found.folder / "analysis.db").is_file() and not part.vendor:
        read_totals(part, found.folder / "analysis.db")
    if part.format != "slipstream":
        apply_rules(part, rules)
    find_replays(part, beside.topologies)
    return part


def _settle_ranks(parts: list[Part]) -> list[Note]:
    """Give every part its rank. Two of one rank are no run."""
    notes = []
    unknown = [part for part in parts if part.rank is None]
    if len(parts) > 1 and unknown:
        taken = {part.rank for part in parts}
        for part in unknown:
            match = _RANK.search(Path(part.path).name)
            rank = int(match.group(1) or match.group(2)) if match else None
            if rank is None or rank in taken:
                rank = next(number for number in range(len(parts) + len(taken)) if number not in taken)
            part.rank = rank
            taken.add(rank)
        why = "files do not say their rank; it was taken from their names, or from their order"
        notes.append(Note("inferred", len(unknown), why))
    ranks: dict[int, str] = {}
    for part in parts:
        rank = part.rank or 0
        if rank in ranks:
            raise TraceError(
                f"rank {rank} is there twice: {ranks[rank]} and {part.path}. Give one of them, or one run."
            )
        ranks[rank] = part.path
    sizes = {part.run for part in parts if part.run is not None}
    if len(sizes) > 1:
        sizes_text = ", ".join(map(str, sorted(sizes, key=str)))
        why = f"ranks say that they are of {sizes_text}: they are not of one run"
        notes.append(Note("mixed", len(parts), why))
    return notes


def _apart(line: Timeline) -> Timeline:
    """Say it where ranks have no moment in common: nothing then shows that they are of one run."""
    if len(line.ranks) < 2:
        return line
    ranks = [np.flatnonzero(line.rank == rank) for rank in line.ranks]
    spans = [(line.start_ns[rows].min(), line.end_ns[rows].max()) for rows in ranks if len(rows)]
    if len(spans) < 2 or max(first for first, _ in spans) < min(last for _, last in spans):
        return line
    why = "ranks share no moment: they are of different runs, or their clocks differ"
    return replace(line, notes=(*line.notes, Note("mixed", len(spans), why)))

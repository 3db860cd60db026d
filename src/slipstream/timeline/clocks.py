"""The clocks of ranks, brought to one: by collectives, where they show that they differ, and only there.

Ranks of one host share a clock. Those of several have clocks that NTP keeps within microseconds to milliseconds
of each other; a profiler may count from an epoch of its own; and of four NPUs whose trace is public one was 25 us
off. On such times it would be chance who came last to a collective.

    1. each pair of ranks that met often enough is compared (`clock_fit.fit`, where the rule stands)
    2. ranks that agree are one clock, and never moved against each other
    3. the clock with the most ranks stays as it is; each other one is measured against it, or against one that was
       measured, by the way with the least spread
    4. nothing is moved if more collectives would be impossible than before
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from slipstream.timeline.assemble import COLUMNS, ROW_NUMBERS, assemble
from slipstream.timeline.clock_fit import Fit, Line, Met, Verdict, collect, fit, side_of
from slipstream.timeline.table import Advanced, Bool, Clock, Int32, Int64, Marks, Note, Timeline
from slipstream.timeline.wording import counted, ranks_named

_Clock = tuple[int, ...]  # columns of `Met`, the ranks that share it


@dataclass(frozen=True)
class _Way:
    """How a clock is related to the one that stays.

    Attributes:
        line: what brings its times there.
        collectives: on so many ends the weakest step rests.
        spread_ns: of all steps together.
        steps: from clock to clock.
        world: which clock that is: collectives may not compare every clock with every other. 0 is the first.
    """

    line: Line
    collectives: int
    spread_ns: float
    steps: int
    world: int

    @property
    def error(self) -> tuple[float, int]:
        """How uncertain it is; of exact ways the shortest is the best."""
        return self.spread_ns, self.steps

    @property
    def moves(self) -> bool:
        """Whether times change."""
        return bool(self.line.at_ns or self.line.slope)


def align(line: Timeline, given: Bool | None = None) -> Timeline:
    """Return the timeline with all ranks on one clock, as far as collectives say how; itself if they share one.

    What was moved is in `clocks`, and a note says it. All rows and marks of a rank move by one integer, or along a
    line where its clock drifts.

    Args:
        line: collectives numbered.
        given: bool [N], whose numbers the trace says; by default all. The others have theirs from their order.
    """
    if len(line.ranks) < 2:
        return line
    met = collect(line, np.ones(len(line), np.bool_) if given is None else given)
    if not len(met.start_ns):
        return line
    pairs = _pairs(met)
    clocks = _shared(pairs, len(met.ranks))
    ways = _ways(met, clocks)
    moved = {clock: way for clock, way in ways.items() if way.moves}
    lines = {column: way.line for clock, way in moved.items() for column in clock}
    start, end = (_moved_columns(times, lines) for times in (met.start_ns, met.end_ns))
    worse = met.impossible(start, end) > met.impossible(met.start_ns, met.end_ns)
    if worse:
        moved = {}
    notes = [_note(met, clock, way) for clock, way in moved.items()]
    notes += _unknown(met, pairs, ways, bool(moved), worse)
    if not moved:
        return replace(line, notes=(*line.notes, *notes)) if notes else line
    line = _moved(line, {met.ranks[column]: lines[column] for column in lines})
    told = [
        Clock(met.ranks[column], way.line.at_ns, way.line.slope * 1e6, way.collectives, round(way.spread_ns))
        for clock, way in moved.items()
        for column in clock
    ]
    told.sort(key=lambda clock: clock.rank)
    return replace(line, notes=(*line.notes, *notes), clocks=tuple(told))


def _pairs(met: Met) -> dict[tuple[int, int], Fit]:
    """Compare every two ranks that met."""
    sides = [side_of(met, (column,)) for column in range(len(met.ranks))]
    found: dict[tuple[int, int], Fit] = {}
    for a, b in combinations(range(len(sides)), 2):
        compared = fit(sides[a], sides[b], met)
        if compared is not None:
            found[a, b] = compared
    return found


def _shared(pairs: Mapping[tuple[int, int], Fit], count: int) -> list[_Clock]:
    """Put ranks together that agree, the surest first, if none of them differs from another."""
    clock_of = {column: {column} for column in range(count)}
    apart = {
        pair
        for pair, compared in pairs.items()
        if compared.verdict is Verdict.APART or (compared.verdict is Verdict.UNKNOWN and compared.impossible)
    }
    agree = [pair for pair, compared in pairs.items() if compared.verdict is Verdict.SAME]
    for a, b in sorted(agree, key=lambda pair: (abs(pairs[pair].line.at_ns), pair)):
        one, other = clock_of[a], clock_of[b]
        if one is other or any((min(x, y), max(x, y)) in apart for x in one for y in other):
            continue
        one |= other
        for column in other:
            clock_of[column] = one
    return sorted(
        {tuple(sorted(clock)) for clock in clock_of.values()}, key=lambda clock: (-len(clock), clock)
    )


def _ways(met: Met, clocks: Sequence[_Clock]) -> dict[_Clock, _Way]:
    """Return how each clock is related to the one of its world that stays: the one with the most ranks."""
    sides = {clock: side_of(met, clock) for clock in clocks}
    fits: dict[_Clock, dict[_Clock, Fit]] = {clock: {} for clock in clocks}
    for a, b in permutations(clocks, 2):
        compared = fit(sides[a], sides[b], met)
        if compared is not None and compared.verdict is not Verdict.UNKNOWN:
            fits[a][b] = compared
    done: dict[_Clock, _Way] = {}
    for world, first in enumerate(clocks):
        reached = {} if first in done else {first: _Way(Line(), len(met.start_ns), 0.0, 0, world)}
        while reached:
            near = min(reached, key=lambda clock: (reached[clock].error, clocks.index(clock)))
            done[near] = here = reached.pop(near)
            for other, compared in fits[near].items():
                own = compared.line
                if compared.verdict is Verdict.SAME:
                    own = Line(0, 0.0, own.centre_ns)
                way = _Way(
                    own.then(here.line),
                    min(here.collectives, compared.collectives),
                    float(np.hypot(here.spread_ns, compared.spread_ns)),
                    here.steps + 1,
                    world,
                )
                if other not in done and (other not in reached or way.error < reached[other].error):
                    reached[other] = way
    return done


def _moved_columns(times_ns: Int64, lines: Mapping[int, Line]) -> Int64:
    times_ns = times_ns.copy()
    for column, line in lines.items():
        times_ns[:, column] += line.added(times_ns[:, column])
    return times_ns


def _moved(line: Timeline, lines: Mapping[int, Line]) -> Timeline:
    """Move all times of some ranks: the table is the one that files with such times would have given."""
    rank_of = np.array([stream.rank for stream in line.streams], np.int32)

    def onto(times_ns: Int64, ranks: Int32) -> Int64:
        times_ns = times_ns.copy()
        for rank, way in lines.items():
            mine = ranks == rank
            times_ns[mine] += way.added(times_ns[mine])
        return times_ns

    # Of rows at one moment those of the first rank come first, as they were read; others were between them so far.
    order, of_row = np.argsort(line.rank, kind="stable"), np.sort(line.rank)
    place = np.append(np.argsort(order), -1).astype(np.int32)
    columns: dict[str, Any] = {
        key: place[getattr(line, key)[order]] if key in ROW_NUMBERS else getattr(line, key)[order]
        for key in COLUMNS
    }
    columns["start_ns"], columns["end_ns"] = (onto(columns[key], of_row) for key in ("start_ns", "end_ns"))
    marks = line.marks
    mark_order, of_mark = np.argsort(rank_of[marks.stream], kind="stable"), np.sort(rank_of[marks.stream])
    mark_place = np.argsort(mark_order)
    starts, ends = (onto(times[mark_order], of_mark) for times in (marks.start_ns, marks.end_ns))
    first = min(int(times.min()) for times in (columns["start_ns"], starts) if len(times))
    columns |= {key: columns[key] - first for key in ("start_ns", "end_ns")}
    made = assemble(
        columns,
        names=line.names,
        streams=line.streams,
        marks=Marks(
            starts - first,
            ends - first,
            marks.name[mark_order],
            marks.stream[mark_order],
            {int(mark_place[mark]): args for mark, args in marks.args.items()},
        ),
        details={int(place[row]): args for row, args in line.details.items()},
        base_ns=line.base_ns + first,
    )
    advanced = tuple(_advanced(each, lines.get(each.rank, Line()), first) for each in line.advanced)
    kept = {key: getattr(line, key) for key in ("groups", "graphs", "notes", "sources", "vendor")}
    return replace(made, advanced=advanced, **kept)


def _advanced(entry: Advanced, way: Line, first: int) -> Advanced:
    if entry.start_ns is None:
        return entry
    added = int(way.added(np.array([entry.start_ns], np.int64))[0])
    return replace(entry, start_ns=entry.start_ns + added - first)


def _note(met: Met, clock: _Clock, way: _Way) -> Note:
    ranks = ranks_named([met.ranks[column] for column in clock])
    drift = f", and by {way.line.slope * 1e6:+.1f} us more each second" if way.line.slope else ""
    return Note(
        "clocks",
        1,
        f"the times of {ranks} were moved by {way.line.at_ns / 1000:+,.3f} us{drift}, by the ends of "
        f"{counted(way.collectives, 'collective')}, spread {way.spread_ns / 1000:.1f} us",
    )


def _unknown(
    met: Met, pairs: Mapping[tuple[int, int], Fit], ways: Mapping[_Clock, _Way], moved: bool, worse: bool
) -> list[Note]:
    """Say which clocks could not be compared, where that matters: because they differ, or because others do."""
    world = {column: way.world for clock, way in ways.items() for column in clock}
    # Where nothing was moved, ranks that met in nothing may as well share a clock.
    left = [column for column, number in sorted(world.items()) if number] if moved else []
    why = {
        compared.why
        for (a, b), compared in pairs.items()
        if compared.impossible and compared.why and (worse or world[a] != world[b])
    }
    if worse:
        why.add("together they contradict each other")
    notes = []
    if why:
        text = f"ranks' clocks differ, and collectives do not say by how much: {'; '.join(sorted(why))}"
        notes.append(Note("clocks", 1, text))
    if left:
        ranks = ranks_named([met.ranks[column] for column in left])
        notes.append(Note("clocks", 1, f"no collectives bring {ranks} to the clock of the others"))
    return notes

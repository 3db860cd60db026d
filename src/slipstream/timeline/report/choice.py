"""Which rows a page carries: all of them, or of a long trace whole rounds, the telling ones first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.errors import UsageError
from slipstream.timeline.analysis import Analysis, RoundReport
from slipstream.timeline.table import Bool, Int64, Kind
from slipstream.timeline.wording import counted

#: Rounds that are told of at each end of the distribution, and around its middle.
_TELLING = 5


@dataclass(frozen=True)
class Chosen:
    """Rows of a page.

    Attributes:
        rows: int64 [K], ascending.
        rounds: (rank, number) of the rounds whose rows are among them.
        left_out: what is not, in a sentence; "" if nothing.
    """

    rows: Int64
    rounds: frozenset[tuple[int, int]]
    left_out: str


def choose(analysis: Analysis, *, number: int | None, most: int) -> Chosen:
    """Return the rows to carry.

    Args:
        analysis: of all.
        number: only this round, on every rank that has it.
        most: rows at most.

    Raises:
        UsageError: no rank has a round of that number.
    """
    table = analysis.timeline
    reports = [report for made in analysis.reports.values() for report in made]
    everything = frozenset((r.round.rank, r.round.number) for r in reports)
    if number is None and len(table) <= most:
        return Chosen(np.arange(len(table)), everything, "")
    if number is not None:
        wanted = rounds_numbered(analysis, number)
        kept = _within(analysis, wanted)
    else:
        wanted = _telling(analysis, reports, most)
        kept = _within(analysis, wanted) if wanted else np.ones(len(table), np.bool_)
    rows = np.flatnonzero(kept)
    cut = len(rows) - most
    if cut > 0:
        rows = _weightiest(analysis, rows, wanted or reports, most)
    shown = frozenset((r.round.rank, r.round.number) for r in wanted) if wanted else everything
    return Chosen(rows, shown, _words(len(table), len(rows), len(shown), len(everything), cut))


def rounds_numbered(analysis: Analysis, number: int) -> list[RoundReport]:
    """Return the round of a number on every rank that has it.

    Raises:
        UsageError: none has.
    """
    found = [r for made in analysis.reports.values() for r in made if r.round.number == number]
    if not found:
        last = max((len(made) for made in analysis.reports.values()), default=0) - 1
        there = f"Rounds are numbered from 0 to {last}." if last >= 0 else "No round was found in it."
        raise UsageError(f"the trace has no round {number}. {there}")
    return found


def _words(total: int, kept: int, shown: int, rounds: int, cut: int) -> str:
    if kept == total:
        return ""
    text = f"This page shows {kept:,} of {counted(total, 'operation')}"
    if shown < rounds:
        text += f": those of {shown:,} of {counted(rounds, 'round')}"
    if cut > 0:
        text += f", without the {counted(cut, 'shortest call', 'shortest calls')} of the host"
    return f"{text}. All numbers are of the whole trace."


def _telling(analysis: Analysis, reports: list[RoundReport], most: int) -> list[RoundReport]:
    """Return as many rounds as fit: the longest, the middle ones, then from the first on; all ranks of each."""
    table = analysis.timeline
    by_number: dict[int, list[RoundReport]] = {}
    for report in reports:
        by_number.setdefault(report.round.number, []).append(report)
    usual = [n for n, made in by_number.items() if made[0].round.counts] or list(by_number)
    ordered = sorted(usual, key=lambda n: -by_number[n][0].round.took_ns)
    middle = max(0, len(ordered) // 2 - _TELLING // 2)
    first = [*ordered[:_TELLING], *ordered[middle : middle + _TELLING], *sorted(by_number)]
    found: list[RoundReport] = []
    room = most
    for number in dict.fromkeys(first):
        begin = min(r.round.start_ns for r in by_number[number])
        end = max(r.round.end_ns for r in by_number[number])
        low, high = np.searchsorted(table.start_ns, [begin, end])
        room -= int(high - low)
        if room < 0 and found:
            break
        found += by_number[number]
    return found


def _within(analysis: Analysis, reports: Iterable[RoundReport]) -> Bool:
    """Return bool [N], the rows that reach into rounds, and the calls that launched them or led there."""
    table = analysis.timeline
    # +1 where a round begins, -1 where it ends: a row is in one if the sum over its time is not zero.
    spans = sorted((report.round.start_ns, report.round.end_ns) for report in reports)
    joined: list[list[int]] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    begins = np.array([span[0] for span in joined], np.int64)
    ends = np.array([span[1] for span in joined], np.int64)
    # The first span that ends after the row begins is the only one to look at.
    at = np.searchsorted(ends, table.start_ns, side="right")
    known = at < len(ends)
    kept: Bool = known & (begins[np.minimum(at, len(ends) - 1)] <= table.end_ns)
    launches = table.launch[kept]
    kept[launches[launches >= 0]] = True
    for rows in _on_paths(reports):
        kept[rows] = True
    return kept


def _on_paths(reports: Iterable[RoundReport]) -> Iterable[Any]:
    for report in reports:
        for rows in (report.path.row, report.path.waited):
            yield rows[rows >= 0]


def _weightiest(analysis: Analysis, rows: Int64, reports: Iterable[RoundReport], most: int) -> Int64:
    """Return the rows that matter most: devices' work, launches and paths, then the host's longest calls."""
    table = analysis.timeline
    weight = np.full(len(table), 2, np.int8)
    weight[table.on_device | (table.kind == Kind.LAUNCH) | (table.kind == Kind.SYNC)] = 1
    weight[table.is_work] = 0
    launches = table.launch[rows]
    weight[launches[launches >= 0]] = 0
    for on_path in _on_paths(reports):
        weight[on_path] = 0
    order = np.lexsort((-table.dur_ns[rows], weight[rows]))
    return np.sort(rows[order[:most]])

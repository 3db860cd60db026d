"""Everything that `slipstream trace analyse` says of a timeline, before it is put into words or a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.timeline import markers
from slipstream.timeline.answers import answer_all
from slipstream.timeline.belonging import Belonging
from slipstream.timeline.breakdown import Join, Stretch, communication, joins, stretches
from slipstream.timeline.edge_types import Confidence
from slipstream.timeline.edges import Dependencies, find_dependencies
from slipstream.timeline.overlap import Share
from slipstream.timeline.path import Bubble, Path, bubbles, critical_path
from slipstream.timeline.quality import Quality, quality
from slipstream.timeline.question import Across, Answer, Facts
from slipstream.timeline.rounds import Round, RoundKind, Rounds, Route
from slipstream.timeline.segment import find_rounds
from slipstream.timeline.stats import Stats, stats_of
from slipstream.timeline.table import Note, Timeline

#: Of a round, so many of the longest are kept.
KEPT = 20


@dataclass(frozen=True)
class RoundReport:
    """One round.

    Attributes:
        round: its phases and times.
        path: its critical path.
        parts: the path by phases and seams.
        rests_on: the path's time by (edge kind, confidence).
        communication: in total, then by family.
        joins, bubbles: the longest of them.
        answers: to the nine questions.
        advanced: tokens that each request got from it, or None.
    """

    round: Round
    path: Path
    parts: tuple[Stretch, ...]
    rests_on: Mapping[tuple[int, Confidence], int]
    communication: tuple[Share, ...]
    joins: tuple[Join, ...]
    bubbles: tuple[Bubble, ...]
    answers: tuple[Answer, ...]
    advanced: tuple[float, ...] | None

    @property
    def cost_ns(self) -> float | None:
        """The path by output token, all requests together."""
        total = sum(self.advanced) if self.advanced else 0
        return self.path.length_ns / total if total else None


@dataclass(frozen=True)
class Analysis:
    """A timeline, analysed.

    Attributes:
        deps: rows and edges.
        rounds: how it was cut.
        reports: of each rank, its rounds of every kind, in order.
        summary: of each rank, each number over its counted rounds, by name.
        quality: of the data.
    """

    deps: Dependencies
    rounds: Rounds
    reports: Mapping[int, tuple[RoundReport, ...]]
    summary: Mapping[int, Mapping[str, Stats]]
    quality: Quality

    @property
    def timeline(self) -> Timeline:
        """The rows."""
        return self.deps.timeline


def analyse(
    timeline: Timeline,
    *,
    advanced: float | None = None,
    width: int | None = None,
    infer: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Analysis:
    """Analyse a timeline.

    Args:
        timeline: the rows.
        advanced: tokens a request gets from a round on average, where neither the trace nor a side file says.
        width: rows that a request has in verify, where no mark says it.
        infer: whether to conclude dependencies that the trace does not state.
        progress: told the share that is done.
    """
    deps = find_dependencies(timeline, infer=infer)
    rounds = find_rounds(deps, width)
    across, belonging = _across(deps, rounds), Belonging(deps, rounds)
    told = _advanced(timeline, rounds, advanced)
    total = sum(len(items) for items in rounds.of_rank.values()) or 1
    done = 0
    reports: dict[int, tuple[RoundReport, ...]] = {}
    for rank, items in rounds.of_rank.items():
        made: list[RoundReport] = []
        for item in items:
            made.append(_report(deps, rounds, belonging, item, across, told.get((rank, item.number))))
            done += 1
            if progress is not None:
                progress(done / total)
        reports[rank] = tuple(made)
    summary = {rank: summarise([r for r in made if r.round.counts]) for rank, made in reports.items()}
    notes = (*rounds.notes, *_width_notes(rounds, width))
    return Analysis(deps, rounds, reports, summary, quality(deps, notes))


def _report(
    deps: Dependencies,
    rounds: Rounds,
    belonging: Belonging,
    item: Round,
    across: Across,
    advanced: tuple[float, ...] | None,
) -> RoundReport:
    before = item.following if item.following >= 0 else None
    path = critical_path(deps, item.start_ns, item.end_ns, before=before)
    parts = stretches(deps, belonging, item, path)
    comm = communication(deps, item)
    joined = joins(deps, path, rank=item.rank)
    facts = Facts(deps, rounds, item, parts, comm, joined, across)
    idle = bubbles(deps, item.start_ns, item.end_ns, rank=item.rank, least_ns=1_000, most=KEPT)
    return RoundReport(
        item,
        path,
        tuple(parts),
        path.rests_on(),
        tuple(comm),
        tuple(joined[:KEPT]),
        tuple(idle),
        answer_all(facts),
        advanced,
    )


def _width_notes(rounds: Rounds, width: int | None) -> list[Note]:
    """Say where the marks know better than the user, or where nothing could be done with what the user said."""
    if width is None:
        return []
    items = [item for made in rounds.of_rank.values() for item in made]
    verifies = [phase for item in items for phase in item.phases if phase.name == markers.VERIFY]
    marked = [phase.facts["width"] for phase in verifies if "width" in phase.facts and not phase.told]
    others = sorted({str(each) for each in marked if each != width})
    if others:
        count = sum(each != width for each in marked)
        wide = ", ".join(others[:3])
        why = f"by its marks verify is {wide} wide, and not {width} as --width says: the marks count"
        return [Note("unmatched", count, why)]
    ragged = sum("width" not in phase.facts for phase in verifies)
    if ragged:
        why = (
            f"--width {width} is not used: by its marks verify has rows that are no multiple of its requests"
        )
        return [Note("unmatched", ragged, why)]
    if not verifies:
        return [Note("unmatched", 1, f"--width {width} says nothing here: no work is known to be a verify")]
    return []


def summarise(reports: Sequence[RoundReport]) -> dict[str, Stats]:
    """Return each number that rounds have, over rounds.

    Names: "round_ns", "phase verify_ns" (its span), "path verify_ns", "path draft → verify_ns", and the
    numbers of the answers as "q7 exposed_ns".
    """
    found: dict[str, dict[int, float]] = {}
    for report in reports:
        number = report.round.number
        found.setdefault("round_ns", {})[number] = report.round.took_ns
        if report.cost_ns is not None:
            found.setdefault("token_ns", {})[number] = report.cost_ns
        for phase in report.round.phases:
            spans = found.setdefault(f"phase {phase.name}_ns", {})
            spans[number] = spans.get(number, 0) + phase.span_ns
        for part in report.parts:
            found.setdefault(f"path {part.label}_ns", {})[number] = part.took_ns
        for answer in report.answers:
            for key, value in answer.values.items():
                if isinstance(value, int | float):
                    found.setdefault(f"q{answer.question} {key}", {})[number] = value
    return {name: stats_of(values) for name, values in found.items()}


def _across(deps: Dependencies, rounds: Rounds) -> Across:
    by_rows: dict[str, list[tuple[int, int]]] = {}
    spans: dict[tuple[str, Route], list[int]] = {}
    peers: dict[int, list[Round]] = {}
    for items in rounds.of_rank.values():
        for item in items:
            peers.setdefault(item.number, []).append(item)
            if not item.counts:
                continue
            for phase in item.phases:
                spans.setdefault((phase.name, phase.route), []).append(phase.span_ns)
                if phase.facts.get("rows") and phase.route is Route.REPLAY:
                    by_rows.setdefault(phase.name, []).append((phase.facts["rows"], phase.busy_ns))
    return Across(
        {name: slope for name, pairs in by_rows.items() if (slope := _slope(pairs)) is not None},
        {key: (float(np.median(values)), len(values)) for key, values in spans.items()},
        peers,
        _late_by_round(deps, rounds),
    )


def _late_by_round(deps: Dependencies, rounds: Rounds) -> dict[tuple[int, int], tuple[int, int]]:
    """Return, by (round, rank), how long others stood in collectives for it, and it for others."""
    table = deps.timeline
    caused: Counter[tuple[int, int]] = Counter()
    stood: Counter[tuple[int, int]] = Counter()
    for members in deps.collectives:
        last = int(members[0])
        key = (int(rounds.round_of[last]), int(table.rank[last]))
        for row in members[1:].tolist():
            waited = int(deps.release_ns[row] - table.start_ns[row])
            caused[key] += waited
            stood[int(rounds.round_of[row]), int(table.rank[row])] += waited
    return {key: (caused[key], stood[key]) for key in caused.keys() | stood.keys()}


def _slope(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Return ns a row, by least squares over the medians of each number of rows, or None with only one."""
    by_rows: dict[int, list[int]] = {}
    for rows, took in pairs:
        by_rows.setdefault(rows, []).append(took)
    if len(by_rows) < 2:
        return None
    x = np.array(list(by_rows), np.float64)
    y = np.array([np.median(took) for took in by_rows.values()], np.float64)
    return float(np.polyfit(x, y, 1)[0])


def _advanced(
    timeline: Timeline, rounds: Rounds, given: float | None
) -> dict[tuple[int, int], tuple[float, ...]]:
    """Return what each round advanced by, by (rank, round): from a side file, else from marks, else as given.

    Plain steps advance by one a request, whatever is given for the others.

    A side file's entries go to the rounds by time where they have one, else in turn to speculative and plain
    rounds, warm-up and clipped ones included: the engine counted them too.
    """
    found: dict[tuple[int, int], tuple[float, ...]] = {}
    for rank, items in rounds.of_rank.items():
        turns = [item for item in items if item.kind is not RoundKind.PREFILL]
        by_time = [(entry, entry.start_ns) for entry in timeline.advanced if entry.start_ns is not None]
        if by_time:
            starts = np.array([item.start_ns for item in turns])
            for entry, began in by_time:
                at = int(np.searchsorted(starts, began, side="right")) - 1
                if at >= 0:
                    found[rank, turns[at].number] = entry.advanced
        else:
            for item, entry in zip(turns, timeline.advanced, strict=False):
                found[rank, item.number] = entry.advanced
        for item in turns:
            marked = next((p.facts["advanced"] for p in item.phases if "advanced" in p.facts), None)
            marked = item.facts.get("advanced", marked)
            if (rank, item.number) in found:
                continue
            if marked:
                found[rank, item.number] = (marked,)
            elif item.kind is RoundKind.DECODE:
                # A plain step advances each of its requests by one; how many there are must be known.
                requests = max((p.facts.get("requests", 0) for p in item.phases), default=0)
                if requests:
                    found[rank, item.number] = (1.0,) * requests
            elif given:
                requests = max((p.facts.get("requests", 0) for p in item.phases), default=0)
                found[rank, item.number] = (given,) * max(1, requests)
    return found

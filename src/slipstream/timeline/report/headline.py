"""The beginning of a page: the verdict, and the few figures that a reader looks for first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath

from slipstream.errors import TraceError
from slipstream.timeline.analysis import Analysis
from slipstream.timeline.report.ledger import Entry
from slipstream.timeline.report.overview import Overview, overviews, rank_lines, slowest
from slipstream.timeline.report.verdict import verdict
from slipstream.timeline.report.words import ROUNDS, rounds_of
from slipstream.timeline.rounds import RoundKind
from slipstream.timeline.wording import counted, duration, percent

#: Files and folders that every profile of Ascend has.
_ALIKE = frozenset({"trace_view.json", "ASCEND_PROFILER_OUTPUT"})


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its name and what to know of it."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Headline:
    """What stands at the top.

    Attributes:
        title: of the trace, short.
        about: what it holds.
        verdict: the sentence.
        support: what the rounds were told apart by, and who was waited for.
        figures: key figures.
        rank, round: where to begin.
    """

    title: str
    about: str
    verdict: str
    support: tuple[str, ...]
    figures: tuple[Figure, ...]
    rank: int
    round: int


def headline(analysis: Analysis) -> Headline:
    """Return the beginning of the page of an analysis, also of one without any device."""
    title = _title(analysis)
    try:
        views = overviews(analysis)
    except TraceError as error:
        text = str(error)
        return Headline(title, _about(analysis, None), f"{text[:1].upper()}{text[1:]}", (), (), -1, -1)
    lines = rank_lines(analysis, views)
    rank = slowest(lines)
    view = views[rank]
    support = [f"Rounds are told apart by: {analysis.rounds.evidence.get(rank, '')}."]
    late = max(lines, key=lambda line: line.caused_ns)
    if late.caused_ns:
        support.append(
            f"Rank {late.rank} came last in {counted(late.last, 'collective')}: "
            f"the others stood {duration(late.caused_ns)} for it, all together"
            f"{'' if late.sure else '; that is not sure, as clocks may differ'}."
        )
    return Headline(
        title,
        _about(analysis, view),
        verdict(view),
        tuple(support),
        _figures(view),
        rank,
        view.typical.round.number,
    )


def _title(analysis: Analysis) -> str:
    paths = [PurePath(source.path) for source in analysis.timeline.sources]
    if not paths:
        return "trace"
    first = paths[0]
    # Ascend's files are all called alike; their folder has the name.
    while (first.name in _ALIKE or first.suffix in (".db", ".csv")) and first.parent.name:
        first = first.parent
    return first.name if len(paths) == 1 else f"{first.name} and {len(paths) - 1} more"


def _about(analysis: Analysis, view: Overview | None) -> str:
    formats = Counter(source.format for source in analysis.timeline.sources)
    words = [*sorted(formats)]
    ranks = len(analysis.reports)
    if ranks > 1:
        words.append(counted(ranks, "rank"))
    words.append(counted(analysis.quality.work, "device operation"))
    if view is not None:
        words.append(rounds_of(report.round.kind for report in analysis.reports[view.rank]))
        if ranks > 1 and view.kind is not RoundKind.WHOLE:
            words[-1] += f" of rank {view.rank}"
    return " · ".join(words)


def _figures(view: Overview) -> tuple[Figure, ...]:
    took, ledger = view.took, view.ledger
    one, several = ROUNDS[view.kind]
    name = "Whole trace" if view.kind is RoundKind.WHOLE else f"{one[0].upper()}{one[1:]}"
    spread = f"p90 {duration(took.p90)}, longest {duration(took.high)}, {counted(took.count, one, several)}"
    alone = "not cut into rounds" if view.kind is RoundKind.WHOLE else f"the only {one}"
    figures = [Figure(name, duration(took.median), spread if took.count > 1 else alone)]
    article = "the" if view.kind is RoundKind.WHOLE else "a"
    device = ledger.share(Entry.WORK, Entry.COMM, Entry.COPY)
    figures.append(
        Figure(
            "Critical path: device",
            percent(device),
            f"host {percent(ledger.share(Entry.HOST))}, delays {percent(ledger.share(Entry.DELAY))}, "
            f"unexplained {percent(ledger.share(Entry.IDLE))}",
        )
    )
    mean = max(1.0, ledger.total_ns / len(view.reports))
    if view.communication:
        whole = view.communication[0]
        note = f"{percent(whole.exposed_ns / mean)} of {article} {one}; {duration(whole.total_ns)} in all"
        figures.append(Figure("Exposed communication", duration(whole.exposed_ns), note))
    else:
        figures.append(Figure("Exposed communication", "none", "no operation is known to be communication"))
    figures.append(_joins(view))
    figures.append(_padding(view))
    if view.token_ns is not None and view.advanced is not None:
        note = f"{counted(view.advanced, 'token')} a {one}, all requests together"
        figures.append(Figure("Cost of an output token", duration(view.token_ns), note))
    else:
        figures.append(Figure("Cost of an output token", "–", "nothing says how many tokens a round gave"))
    return tuple(figures)


def _joins(view: Overview) -> Figure:
    """Tell of the longest join of each round: joins that stand beside each other must not be added up."""
    if not any(report.joins for report in view.reports):
        return Figure("Longest join", "–", "no operation is known to wait for two streams")
    waited = [
        max((join.waited_ns for join in report.joins if join.on_path and join.side_by_side), default=0)
        for report in view.reports
    ]
    if not any(waited):
        return Figure("Longest join", "nothing", "no join of branches side by side is on the path")
    branches = Counter(
        str(answer.values["branch"])
        for report in view.reports
        for answer in report.answers
        if answer.question == 6 and "branch" in answer.values
    )
    one, _ = ROUNDS[view.kind]
    name = branches.most_common(1)[0][0] if branches else "a branch that has no name"
    return Figure(
        "Longest join waits",
        duration(sum(waited) / len(waited)),
        f"for {name}" if len(waited) == 1 else f"in a {one}; most often for {name}",
    )


def _padding(view: Overview) -> Figure:
    padded = [item for item in view.padding if item.padded_rows]
    if not view.padding:
        return Figure("Padding costs", "–", "no mark says what was padded")
    if not padded:
        return Figure("Padding costs", "nothing", "no padded row")
    worst = max(padded, key=lambda item: item.cost_ns)
    cost = sum(item.cost_ns for item in padded)
    bound = "at most " if any(item.at_most for item in padded) else ""
    share = percent(worst.padded_rows / worst.rows)
    return Figure(
        "Padding costs", f"{bound}{duration(cost)}", f"{share} of the rows of {worst.phase} are padding"
    )

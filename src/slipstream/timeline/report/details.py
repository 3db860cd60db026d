"""What is told on request: the nine answers with their evidence, one round in full, all of the data's quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream.errors import UsageError
from slipstream.timeline.analysis import Analysis, RoundReport
from slipstream.timeline.breakdown import Join, short_name
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.markers import OTHER
from slipstream.timeline.padding_answers import OPTION
from slipstream.timeline.path import NO_EDGE, Bubble
from slipstream.timeline.question import QUESTIONS, Answer
from slipstream.timeline.report.overview import Overview
from slipstream.timeline.report.quality import quality_lines
from slipstream.timeline.report.words import CONFIDENCES, EDGES, ROUNDS, host_name
from slipstream.timeline.rounds import Phase, Round, RoundKind
from slipstream.timeline.stats import Stats
from slipstream.timeline.table import Source
from slipstream.timeline.wording import counted, duration, percent

_MOST = 8
_LISTED = 60


def show_details(out: Console, analysis: Analysis, view: Overview) -> None:
    """Print the nine answers of the typical round, what all rounds say of them, and all of the data's quality."""
    number = view.typical.round.number
    one, several = ROUNDS[view.kind]
    many = view.took.count > 1
    out.print()
    which = f"the {one}" if view.kind is RoundKind.WHOLE else f"{one} {number}"
    typical = f", of median length; over {several} in brackets" if many else ""
    _heading(out, f"The nine questions: {which}{typical}")
    _answers(out, view.typical.answers, analysis.summary.get(view.rank, {}) if many else {})
    out.print()
    _heading(out, "Phases")
    out.print(phase_statistics(view))
    out.print()
    _heading(out, "Communication, waits and holes of the typical one")
    _rows(
        out, _comm_lines(view) + _join_lines(analysis, view.typical) + _bubble_lines(analysis, view.typical)
    )
    out.print()
    _heading(out, f"Rounds of rank {view.rank}")
    _rows(out, _round_lines(analysis.reports[view.rank]))
    out.print()
    _heading(out, "Data")
    _rows(out, quality_lines(analysis, short=False))


def round_of(analysis: Analysis, rank: int, number: int) -> RoundReport:
    """Return one round of a rank.

    Raises:
        UsageError: there is no such round.
    """
    for report in analysis.reports[rank]:
        if report.round.number == number:
            return report
    count = len(analysis.reports[rank])
    there = f"0 to {count - 1}" if count > 1 else "0 only"
    raise UsageError(f"--round {number}: rank {rank} has {counted(count, 'round')}, {there}.")


def show_round(out: Console, analysis: Analysis, report: RoundReport) -> None:
    """Print one round: phases, path, communication, joins, holes, answers."""
    item = report.round
    one, _ = ROUNDS[item.kind]
    why = f" ({item.why})" if item.why else ""
    number = "" if item.kind is RoundKind.WHOLE else f" {item.number}"
    took = f"{duration(item.took_ns)}, from {_at(item.start_ns)} on"
    _heading(out, f"{one.capitalize()}{number} of rank {item.rank}{why}: {took}")
    if report.cost_ns is not None and report.advanced:
        out.print(
            f"advanced {counted(float(sum(report.advanced)), 'token')}: {duration(report.cost_ns)} a token"
        )
    out.print()
    out.print(phase_table(item))
    out.print()
    table = _table("Path", "time", "share", "device", "host", "delays", "unexplained", "longest on the host")
    for part in report.parts:
        names = part.host or part.meanwhile
        longest = max(names, key=lambda key: (names[key], key), default="")
        table.add_row(
            part.label,
            duration(part.took_ns),
            percent(part.took_ns / max(1, report.path.length_ns)),
            *(
                duration(ns) if ns else ""
                for ns in (part.work_ns, part.host_ns, part.delay_ns, part.unknown_ns)
            ),
            f"{host_name(longest)} {duration(names[longest])}" if longest else "",
        )
    table.add_row("together", duration(report.path.length_ns), style="bold")
    out.print(table)
    out.print()
    _rows(out, [rests_on(report), *_join_lines(analysis, report), *_bubble_lines(analysis, report)])
    out.print()
    _answers(out, report.answers, {})


def _heading(out: Console, text: str) -> None:
    out.print(Text(text, style="bold"))


def _rows(out: Console, lines: Sequence[tuple[str, str] | str]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(*(("", line) if isinstance(line, str) else line))
    out.print(grid)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(names):
        words = place == 0 or name in ("route", "longest on the host", "graphs")
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    return table


def _answers(out: Console, answers: Sequence[Answer], summary: Mapping[str, Stats]) -> None:
    """Print answers; of questions after each other that have none for one reason, the reason stands once."""
    for place, answer in enumerate(answers):
        following = answers[place + 1] if place + 1 < len(answers) else answer
        again = following is not answer and not answer.known and following.text == answer.text
        _answer(out, answer, summary, question_only=again)


def _answer(out: Console, answer: Answer, summary: Mapping[str, Stats], *, question_only: bool) -> None:
    marked = {
        Source.GIVEN: "",
        Source.RULE: " [by a name rule]",
        Source.INFERRED: " [inferred]",
        Source.USER: f" [with your {OPTION}]",
    }[answer.source]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(f"{answer.question}", Text(QUESTIONS[answer.question - 1], style="bold"))
    if question_only:
        out.print(grid)
        return
    grid.add_row("", answer.text + (marked if answer.known else ""))
    for key, value in answer.values.items():
        if isinstance(value, list):
            grid.add_row("", f"{key}: {'; '.join(map(str, value)) or 'none'}")
    over = _over(answer, summary) if answer.known else ""
    if over:
        grid.add_row("", f"({over})")
    out.print(grid)


def _over(answer: Answer, summary: Mapping[str, Stats]) -> str:
    """Say what the times of an answer are over all rounds."""
    words = []
    for key in answer.values:
        stats = summary.get(f"q{answer.question} {key}")
        if stats is None or not key.endswith("_ns"):
            continue
        name = key.removesuffix("_ns").replace("_", " ")
        words.append(f"{name} {duration(stats.median)}, p90 {duration(stats.p90)} in {stats.count}")
    return "; ".join(words[:4])


def phase_statistics(view: Overview) -> Table:
    """Return every phase over rounds: its span on the device, not the path's part of it."""
    table = _table("phase", "rounds", "route", "span, median", "p90", "busy, median", "rows", "padded")
    names: dict[str, list[Phase]] = {}
    for report in view.reports:
        for phase in report.round.phases:
            names.setdefault(phase.name, []).append(phase)
    for name, phases in names.items():
        spans = [phase.span_ns for phase in phases]
        routes = ", ".join(f"{route.value} {count}" for route, count in view.routes[name].most_common())
        table.add_row(
            name,
            str(len(phases)),
            routes,
            *_span(name, duration(float(np.median(spans))), duration(float(np.percentile(spans, 90)))),
            duration(float(np.median([phase.busy_ns for phase in phases]))),
            _mean(phases, "rows"),
            _mean(phases, "padded_rows"),
        )
    return table


def _mean(phases: Sequence[Phase], fact: str) -> str:
    known = [phase.facts[fact] for phase in phases if fact in phase.facts]
    return f"{sum(known) / len(known):.3g}" if known else ""


def phase_table(item: Round) -> Table:
    """Return the phases of one round."""
    table = _table(
        "phase", "begins", "span", "busy", "ops", "route", "requests", "bucket", "width", "rows", "padded"
    )
    for phase in item.phases:
        facts = [phase.facts.get(key) for key in ("requests", "bucket", "width", "rows", "padded_rows")]
        replays = f" ×{len(phase.graphs)}" if len(phase.graphs) > 1 else ""
        table.add_row(
            phase.name,
            *_span(phase.name, _signed(phase.start_ns - item.start_ns), duration(phase.span_ns)),
            duration(phase.busy_ns),
            f"{len(phase.rows):,}",
            phase.route.value + replays,
            *("" if fact is None else str(fact) for fact in facts),
        )
    return table


def rests_on(report: RoundReport) -> tuple[str, str]:
    """Say on which dependencies the path of a round rests."""
    total = max(1, report.path.length_ns)
    words = []
    for (edge, sure), ns in sorted(report.rests_on.items(), key=lambda item: -item[1]):
        named = sure == Confidence.GIVEN or edge == EdgeKind.EVENT_INFERRED
        mark = "" if named else f" ({CONFIDENCES[sure]})"
        if edge != NO_EDGE or ns / total >= 0.001:
            words.append(f"{EDGES[edge]}{mark} {percent(ns / total)}")
    return "rests on", ", ".join(words)


def _comm_lines(view: Overview) -> list[tuple[str, str]]:
    lines = []
    for number, part in enumerate(view.communication):
        text = f"{part.what}: {counted(part.count, 'operation')}, {duration(part.total_ns)}, hidden "
        text += f"{duration(part.covered_ns)}, exposed {duration(part.exposed_ns)}"
        lines.append(("communication" if number == 0 else "", text))
    return lines or [("communication", "none known")]


def _place(analysis: Analysis, rank: int, row: int) -> str:
    """Say which operation a row is, and where, as seen from a rank."""
    deps = analysis.deps
    stream = deps.timeline.streams[deps.place[row]]
    of_rank = "" if stream.rank == rank else f" of rank {stream.rank}"
    return f"{short_name(deps.timeline.name_of(row)).strip()} on {stream.name}{of_rank}"


def _join_lines(analysis: Analysis, report: RoundReport) -> list[tuple[str, str]]:
    place = partial(_place, analysis, report.round.rank)

    def line(join: Join) -> str:
        where = "on the path" if join.on_path else "beside the path"
        sure = "" if join.confidence == Confidence.GIVEN else f", {CONFIDENCES[Confidence(join.confidence)]}"
        return (
            f"{place(join.row)} waits {duration(join.waited_ns)} longer for "
            f"{place(join.branch)} than for {place(join.other)} ({where}{sure})"
        )

    beside = [join for join in report.joins if join.side_by_side]
    lines = [("joins" if number == 0 else "", line(join)) for number, join in enumerate(beside[:_MOST])]
    if lines:
        return lines
    if report.joins:
        count = counted(len(report.joins), "join")
        return [("joins", f"none of branches side by side; {count} of work that was one after the other")]
    return [("joins", "none known: nothing here waits for two streams")]


def _bubble_lines(analysis: Analysis, report: RoundReport) -> list[tuple[str, str]]:
    place = partial(_place, analysis, report.round.rank)

    def line(bubble: Bubble) -> str:
        stream = analysis.timeline.streams[bubble.stream].name
        text = f"{stream} idle for {duration(bubble.idle_ns)} before {place(bubble.row)}"
        if bubble.waited < 0:
            return f"{text}: nothing known held it up"
        named = bubble.confidence == Confidence.GIVEN or bubble.edge == EdgeKind.EVENT_INFERRED
        sure = "" if named else f", {CONFIDENCES[Confidence(bubble.confidence)]}"
        return f"{text}: it waited for {place(bubble.waited)} ({EDGES[bubble.edge]}{sure})"

    holes = report.bubbles[:_MOST]
    lines = [("holes" if number == 0 else "", line(bubble)) for number, bubble in enumerate(holes)]
    return lines or [("holes", "none of 1 us or more between operations of one stream")]


def _round_lines(reports: Sequence[RoundReport]) -> list[tuple[str, str]]:
    lines = []
    for report in reports[:_LISTED]:
        item = report.round
        facts = " | ".join(
            f"{phase.name} {duration(phase.busy_ns if phase.name == OTHER else phase.span_ns)}"
            for phase in item.phases
        )
        cost = f", advanced {sum(report.advanced):.3g}" if report.advanced else ""
        why = f" [{item.why}]" if item.why else ""
        lines.append((f"{item.number}", f"{item.kind.value} {duration(item.took_ns)}{cost}{why}: {facts}"))
    if len(reports) > _LISTED:
        lines.append(("", f"and {counted(len(reports) - _LISTED, 'more')} (--json has all)"))
    return lines


def _span(phase: str, *words: str) -> tuple[str, ...]:
    """Return what is said of a phase's extent, nothing of work that lies around all others."""
    return words if phase != OTHER else ("",) * len(words)


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}"


def _at(ns: int) -> str:
    return f"{ns / 1e6:,.3f} ms"

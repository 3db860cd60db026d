"""The first screen: verdict, critical path, communication, padding, cost of a token, ranks, data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding as Indented
from rich.table import Table
from rich.text import Text

from slipstream.timeline.analysis import Analysis
from slipstream.timeline.breakdown import short_name
from slipstream.timeline.edge_types import Confidence
from slipstream.timeline.path import NO_EDGE
from slipstream.timeline.report.ledger import Entry
from slipstream.timeline.report.overview import Overview, PathPart, RankLine, rank_lines
from slipstream.timeline.report.quality import quality_lines
from slipstream.timeline.report.verdict import verdict
from slipstream.timeline.report.words import CONFIDENCES, EDGES, ROUNDS, host_name, rounds_of
from slipstream.timeline.rounds import RoundKind, Route
from slipstream.timeline.wording import counted, duration, listed, percent

#: A path that never comes to the device within the round.
_LABELS = {"previous round → next round": "the host alone, all round"}
#: Columns where the output is no terminal.
WIDTH = 110
#: Parts of the path that are shown one by one.
_PARTS = 8
#: What is less of the path than this goes into one line with its like.
_SMALL = 0.005
_OPERATIONS = 4


def console(*, error: bool = False) -> Console:
    """Return a console: plain, and of a fixed width, where the output is no terminal."""
    made = Console(stderr=error, highlight=False, markup=False, emoji=False)
    if made.is_terminal:
        return made
    return Console(stderr=error, highlight=False, markup=False, emoji=False, width=WIDTH)


def show(out: Console, analysis: Analysis, views: dict[int, Overview], rank: int, title: str) -> None:
    """Print the first screen.

    Args:
        out: where to.
        analysis: of the trace.
        views: of every rank.
        rank: which one to tell of.
        title: what was analysed.
    """
    view = views[rank]
    out.print(Text(f"{title}: {contents(analysis, view)}", style="dim"))
    ranks = rank_lines(analysis, views)
    mine = next(line for line in ranks if line.rank == rank)
    out.print(Text(verdict(view, mine), style="bold"))
    out.print()
    out.print(path_table(view))
    for line in _path_lines(view):
        out.print(Indented(line, (0, 0, 0, 2)))
    out.print()
    for name, lines in (
        ("Outliers", _outliers(view)),
        ("Communication", _communication(view, mine.stood_ns)),
        ("Padding", _padding(view)),
        ("Cost of a token", [_cost(view)]),
    ):
        _paragraph(out, name, lines)
    if len(views) > 1:
        out.print(ranks_table(ranks, rank))
    _paragraph(out, "Data", quality_lines(analysis, short=True))


def contents(analysis: Analysis, view: Overview) -> str:
    """Say what a trace holds, and by what its rounds were told apart."""
    table = analysis.timeline
    formats = Counter(source.format for source in table.sources)
    words = [" and ".join(sorted(formats)), counted(len(analysis.reports), "rank")]
    words.append(counted(analysis.quality.work, "device operation"))
    words.append(rounds_of(report.round.kind for report in analysis.reports[view.rank]))
    if len(analysis.reports) > 1 and view.kind is not RoundKind.WHOLE:
        words[-1] += f" of rank {view.rank}"
    return f"{', '.join(words)}\ntold apart by: {_evidence(analysis.rounds.evidence.get(view.rank, ''))}"


def _evidence(text: str) -> str:
    """Shorten the names of kernels in it."""
    return re.sub(r"'(.+)' begins", lambda found: f"'{short_name(found[1])}' begins", text)


def path_table(view: Overview) -> Table:
    """Return the critical path by phases and seams; the shares are of all rounds' time."""
    one, _ = ROUNDS[view.kind]
    title = "Critical path" if view.kind is RoundKind.WHOLE else f"Critical path of a {one}"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(title, overflow="fold", min_width=max(24, len(title)))
    table.add_column("share", justify="right", no_wrap=True)
    many = view.took.count > 1
    table.add_column("median" if many else "time", justify="right", no_wrap=True)
    if many:
        table.add_column("p90", justify="right", no_wrap=True)
        table.add_column("rounds", justify="right", no_wrap=True)
    table.add_column("route", no_wrap=True)
    table.add_column("made of", overflow="fold")
    shown = [part for part in view.parts[:_PARTS] if part.share >= _SMALL]
    for part in shown:
        numbers = [percent(part.share), duration(part.stats.median)]
        if many:
            numbers += [duration(part.stats.p90), str(part.rounds)]
        table.add_row(
            _LABELS.get(part.label, part.label),
            *numbers,
            _route(view.routes.get(part.label), _replays(view, part.label)),
            made_of(part),
        )
    rest = view.parts[len(shown) :]
    if rest:
        share = sum(part.share for part in rest)
        blank = [""] * (3 if many else 1)
        table.add_row(counted(len(rest), "smaller part"), percent(share), *blank, "", "")
    return table


def _route(routes: Counter[Route] | None, replays: int) -> str:
    if not routes:
        return ""
    if len(routes) == 1:
        return next(iter(routes)).value + (f" ×{replays}" if replays > 1 else "")
    return ", ".join(f"{route.value} {count}" for route, count in routes.most_common())


def _replays(view: Overview, label: str) -> int:
    """Return how many graphs a phase of this name replays in the typical round."""
    phase = view.typical.round.phase(label)
    return len(phase.graphs) if phase else 0


def made_of(part: PathPart) -> str:
    """Say what the time of a part went to."""
    name = host_name(part.host_name)
    words = []
    for share, what, where in (
        (part.work, "device", ""),
        (part.host, "host", name),
        (part.delay, "delays", ""),
        (part.unknown, "unexplained", f"the host meanwhile: {name}" if name and not part.host else ""),
    ):
        if share >= 0.01:
            size = "" if share >= 0.995 else f" {100 * share:.0f} %"
            words.append(f"{what}{size}{f' ({where})' if where and share >= 0.05 else ''}")
    return ", ".join(words)


def _path_lines(view: Overview) -> list[Text]:
    ledger = view.ledger
    lines = []
    for what, entries in (
        ("longest operations on it", (Entry.WORK, Entry.COMM, Entry.COPY)),
        ("longest on the host", (Entry.HOST,)),
    ):
        longest = sorted(
            (item for item in ledger.spent.items() if item[0][0] in entries), key=lambda item: -item[1]
        )
        words = [
            f"{host_name(name) if Entry.HOST in entries else name} {percent(ns / ledger.total_ns)}"
            for (_, name), ns in longest[:_OPERATIONS]
            if ns >= _SMALL * ledger.total_ns
        ]
        if words:
            lines.append(Text(f"{what}: {', '.join(words)}"))
    inside = [f"{name} {percent(share)}" for name, share in view.inside[:_OPERATIONS] if share >= _SMALL]
    if inside:
        lines.append(Text(f"inside the replays: {', '.join(inside)}"))
    words = [
        f"{EDGES[edge]} {percent(share)}"
        for edge, share in _by_edge(view)
        if edge != NO_EDGE and share >= 0.001
    ]
    unsure = {sure: sum(s for _, c, s in view.rests_on if c == sure) for sure in Confidence}
    sure_words = [
        f"{percent(unsure[sure])} of it {CONFIDENCES[sure]}"
        for sure in (Confidence.INFERRED, Confidence.GUESSED)
        if unsure[sure]
    ]
    rests = ", ".join(words) or "nothing: no dependency leads into it"
    lines.append(Text(f"it rests on: {rests}; {listed(sure_words) or 'nothing of it inferred'}"))
    return lines


def _by_edge(view: Overview) -> list[tuple[int, float]]:
    found: dict[int, float] = {}
    for edge, _, share in view.rests_on:
        found[edge] = found.get(edge, 0.0) + share
    return sorted(found.items(), key=lambda item: -item[1])


def _outliers(view: Overview) -> list[str]:
    far = view.took.outliers
    if not far:
        return []
    took = {report.round.number: report.round.took_ns for report in view.reports}
    words = [f"{number} ({duration(took[number])})" for number in far[:5]]
    take = "takes" if len(far) == 1 else "take"
    more = "10 or more rounds" if len(far) == 10 else counted(len(far), "round")
    return [
        f"{more} {take} over 1.5 times the median: {', '.join(words)}; --round {far[0]} shows where it went"
    ]


def a_round(view: Overview) -> str:
    """Return " a round", as numbers are means of several; "" where there is only one."""
    return f" a {ROUNDS[view.kind][0]}" if view.took.count > 1 else ""


def _communication(view: Overview, stood_ns: int = 0) -> list[str]:
    if not view.communication:
        return ["none: no operation here is known to be communication (--rules FILE names yours)"]
    whole, *families = view.communication
    each = a_round(view)
    mean = view.ledger.total_ns / len(view.reports)
    lines = [
        f"{duration(whole.total_ns)}{each}: {duration(whole.covered_ns)} hidden by kernels, "
        f"{duration(whole.exposed_ns)} exposed ({percent(whole.exposed_ns / mean)} of the time); "
        f"{percent(view.ledger.share(Entry.COMM))} of the critical path"
    ]
    if stood_ns:
        of_it = (
            f"{duration(stood_ns)} of it"
            if view.took.count == 1
            else f"{duration(stood_ns)}, all rounds together,"
        )
        lines[0] += f"; {of_it} this rank stood until the last one came"
    for part in families[:4] if len(families) > 1 else ():
        lines.append(
            f"{part.what}: {counted(part.count, 'operation')}{each}, {duration(part.total_ns)}, "
            f"exposed {duration(part.exposed_ns)}"
        )
    if len(families) == 1:
        lines[0] += f"; all of it {families[0].what}"
    if len(families) > 4:
        lines.append(f"and {counted(len(families) - 4, 'more family', 'more families')} (--details)")
    return lines


def _padding(view: Overview) -> list[str]:
    if not view.padding:
        return ["not in this trace, because no mark says how many rows or slots were padded"]
    padded = [item for item in view.padding if item.padded_rows]
    if not padded:
        return [f"none: no padded row in {listed(item.phase for item in view.padding)}"]
    mean = view.ledger.total_ns / len(view.reports)
    return [
        f"{item.phase}: {percent(item.padded_rows / item.rows)} of its rows are padding, which cost "
        f"{'at most ' if item.at_most else ''}{duration(item.cost_ns)}{a_round(view)} "
        f"({percent(item.cost_ns / mean)} of the time)"
        for item in sorted(padded, key=lambda item: -item.cost_ns)
    ]


def _cost(view: Overview) -> str:
    if view.token_ns is None or view.advanced is None:
        return (
            "not in this trace, because nothing says how many tokens a round advanced by: "
            "--advanced 2.8, or --advanced FILE with a line a round"
        )
    return (
        f"{duration(view.token_ns)}: {duration(view.token_ns * view.advanced)} of path by "
        f"{counted(view.advanced, 'token')}{a_round(view)}, all requests together"
    )


def ranks_table(lines: Sequence[RankLine], rank: int) -> Table:
    """Return the ranks beside each other."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in (
        "Ranks",
        "rounds",
        "median",
        "communication",
        "exposed",
        "last to come",
        "others waited",
        "waited",
    ):
        table.add_column(name, justify="left" if name == "Ranks" else "right", no_wrap=True)
    for line in lines:
        table.add_row(
            f"rank {line.rank}{' (told of here)' if line.rank == rank else ''}",
            str(line.rounds),
            duration(line.round_ns),
            duration(line.comm_ns),
            duration(line.exposed_ns),
            str(line.last),
            duration(line.caused_ns),
            duration(line.stood_ns),
        )
    return table


def _paragraph(out: Console, name: str, lines: Sequence[str]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, min_width=15)
    grid.add_column(overflow="fold")
    for number, line in enumerate(lines):
        grid.add_row(Text(name if number == 0 else "", style="bold"), line)
    out.print(grid)

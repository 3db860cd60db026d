"""One rank's rounds in a few numbers: what the first screen, JSON and a difference have in common."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.analysis import Analysis, RoundReport
from slipstream.timeline.breakdown import Stretch
from slipstream.timeline.edge_types import Confidence
from slipstream.timeline.overlap import union
from slipstream.timeline.report.ledger import Ledger, ledger_of
from slipstream.timeline.rounds import RoundKind, Route
from slipstream.timeline.stats import Stats, stats_of
from slipstream.timeline.table import Kind

_NUMBER = re.compile(r"\b\d+\b")


@dataclass(frozen=True)
class CommShare:
    """Communication of a round, on average: covered + exposed = total."""

    what: str
    count: float
    total_ns: float
    covered_ns: float
    exposed_ns: float


@dataclass(frozen=True)
class Padding:
    """What padding a phase had, over its rounds.

    Attributes:
        phase: its name.
        rounds: rounds in which its rows are known.
        rows, padded_rows: in all of them.
        cost_ns: of a round on average, as the phase's part or as measured from rounds with other rows.
        at_most: whether it is only a bound.
    """

    phase: str
    rounds: int
    rows: int
    padded_rows: int
    cost_ns: float
    at_most: bool


@dataclass(frozen=True)
class PathPart:
    """A phase or a seam of the paths, over rounds.

    Attributes:
        label: as in Stretch.
        rounds: in how many it is.
        share: of all rounds' time.
        stats: of the rounds that have it.
        work, host, delay, unknown: shares of its own time.
        host_name: what most of the host's time went to, or of the time that nothing explains; "" unknown.
    """

    label: str
    rounds: int
    share: float
    stats: Stats
    work: float
    host: float
    delay: float
    unknown: float
    host_name: str


@dataclass(frozen=True)
class Overview:
    """One rank.

    Attributes:
        rank: whose.
        reports: the rounds that the numbers are of.
        kind: what most of them are.
        took: how long they took, ns.
        busy: the share of their time in which the device works.
        inside: of operations whose parts the trace shows (our own replays), the parts' shares of rounds' time.
        ledger: where their paths went.
        parts: the paths by phases and seams, the longest first.
        rests_on: shares of the paths by (edge kind, confidence), largest first.
        communication: in total, then by family; empty without any.
        comm_rounds: how many of the rounds have any.
        padding: by phase.
        routes: of each phase, how often it took which route.
        advanced: tokens a round on average, all requests together; None unknown.
        token_ns: rounds' time by tokens, or None.
    """

    rank: int
    reports: tuple[RoundReport, ...]
    kind: RoundKind
    took: Stats
    busy: float
    inside: tuple[tuple[str, float], ...]
    ledger: Ledger
    parts: tuple[PathPart, ...]
    rests_on: tuple[tuple[int, Confidence, float], ...]
    communication: tuple[CommShare, ...]
    comm_rounds: int
    padding: tuple[Padding, ...]
    routes: dict[str, Counter[Route]]
    advanced: float | None
    token_ns: float | None

    @property
    def typical(self) -> RoundReport:
        """The round whose time is nearest to the median; the first of several."""
        return min(self.reports, key=lambda report: abs(report.round.took_ns - self.took.median))


def focus(reports: Sequence[RoundReport]) -> tuple[RoundReport, ...]:
    """Return the rounds to tell of: those that count; else prefills; else whatever there is."""
    for kinds in (None, (RoundKind.PREFILL,), (RoundKind.CLIPPED, RoundKind.WARM_UP)):
        found = tuple(r for r in reports if (r.round.counts if kinds is None else r.round.kind in kinds))
        if found:
            return found
    return tuple(reports)


def overviews(analysis: Analysis) -> dict[int, Overview]:
    """Return the overview of every rank that has work of a device.

    Raises:
        TraceError: none has.
    """
    found = {rank: overview(analysis, rank) for rank, made in analysis.reports.items() if made}
    if found:
        return found
    table = analysis.timeline
    if not len(table):
        vendor = ", ".join(sorted({word for step in table.vendor for word in step.totals}))
        raise TraceError(
            f"there are no operations, only the vendor's totals ({vendor}): nothing can be said of rounds or "
            "paths. Give trace_view.json, kernel_details.csv or the database of the same profile."
        )
    raise TraceError(
        f"no operation of a device is in it, only the host's {len(table):,}: nothing can be said of streams, "
        "graphs or communication. Record the device too (ProfilerActivity.CUDA, or NPU)."
    )


def overview(analysis: Analysis, rank: int) -> Overview:
    """Return the overview of one rank that has rounds."""
    reports = focus(analysis.reports[rank])
    kinds = Counter(report.round.kind for report in reports)
    took = stats_of({report.round.number: report.round.took_ns for report in reports})
    total = sum(report.path.length_ns for report in reports)
    rests: Counter[tuple[int, Confidence]] = Counter()
    for report in reports:
        rests.update(report.rests_on)
    gave = [(sum(r.advanced), r.path.length_ns) for r in reports if r.advanced]
    tokens = sum(given for given, _ in gave)
    return Overview(
        rank,
        reports,
        kinds.most_common(1)[0][0],
        took,
        _busy(analysis, rank, reports),
        _inside(analysis, rank, reports, total),
        ledger_of(analysis.timeline, reports),
        _parts(reports, total),
        tuple((edge, sure, ns / total) for (edge, sure), ns in rests.most_common() if total),
        *_communication(reports),
        _padding(reports),
        _routes(reports),
        tokens / len(gave) if gave else None,
        sum(ns for _, ns in gave) / tokens if tokens else None,
    )


def _busy(analysis: Analysis, rank: int, reports: Sequence[RoundReport]) -> float:
    """Return the share of rounds' time in which at least one stream of the rank works."""
    table = analysis.timeline
    rows = np.flatnonzero(table.is_work & (table.rank == rank))
    work = union(table.start_ns[rows], table.end_ns[rows])
    starts = np.array([report.round.start_ns for report in reports], np.int64)
    ends = np.array([report.round.end_ns for report in reports], np.int64)
    busy = int((work.measure_before(ends) - work.measure_before(starts)).sum())
    return busy / max(1, int((ends - starts).sum()))


def _inside(
    analysis: Analysis, rank: int, reports: Sequence[RoundReport], total: int
) -> tuple[tuple[str, float], ...]:
    """Return the parts of operations by name, layers' as one: "layer * attention"."""
    table = analysis.timeline
    rows = np.flatnonzero((table.kind == Kind.SUBTASK) & (table.parent >= 0) & (table.rank == rank))
    parent = table.parent[rows]
    numbers = np.array([report.round.number for report in reports], np.int32)
    # Parts of a collective are its steps, beside each other.
    rows = rows[(table.kind[parent] == Kind.KERNEL) & np.isin(analysis.rounds.round_of[parent], numbers)]
    found: Counter[str] = Counter()
    for name, ns in zip(table.name[rows].tolist(), table.dur_ns[rows].tolist(), strict=True):
        found[_NUMBER.sub("*", table.names[name])] += ns
    return tuple((name, ns / max(1, total)) for name, ns in found.most_common())


def _parts(reports: Sequence[RoundReport], total: int) -> tuple[PathPart, ...]:
    by_label: dict[str, dict[int, Stretch]] = {}
    for report in reports:
        for part in report.parts:
            by_label.setdefault(part.label, {})[report.round.number] = part
    found = []
    for label, of_round in by_label.items():
        took = {number: part.took_ns for number, part in of_round.items()}
        whole = sum(took.values()) or 1
        names: Counter[str] = Counter()
        for part in of_round.values():
            names.update(part.host or part.meanwhile)
        work, host, delay, unknown = (
            sum(getattr(part, key) for part in of_round.values()) / whole
            for key in ("work_ns", "host_ns", "delay_ns", "unknown_ns")
        )
        name = max(names, key=lambda key: names[key], default="")
        share = whole / max(1, total)
        found.append(PathPart(label, len(of_round), share, stats_of(took), work, host, delay, unknown, name))
    return tuple(sorted(found, key=lambda part: -part.share))


def _communication(reports: Sequence[RoundReport]) -> tuple[tuple[CommShare, ...], int]:
    sums: dict[str, list[int]] = {}
    having = 0
    for report in reports:
        having += bool(report.communication)
        for part in report.communication:
            entry = sums.setdefault(part.what, [0, 0, 0, 0])
            for place, value in enumerate((part.count, part.total_ns, part.covered_ns, part.exposed_ns)):
                entry[place] += value
    shares = [CommShare(what, *(value / len(reports) for value in entry)) for what, entry in sums.items()]
    # The total comes first; a family that is hidden altogether stands behind those that are not.
    shares[1:] = sorted(shares[1:], key=lambda part: (-part.exposed_ns, -part.total_ns))
    return tuple(shares), having


def _padding(reports: Sequence[RoundReport]) -> tuple[Padding, ...]:
    found: dict[str, list[tuple[int, int, float, bool]]] = {}
    for report in reports:
        measured = {answer.question: answer.values for answer in report.answers}.get(4, {}).get("padded_ns")
        for phase in report.round.phases:
            facts = phase.facts
            rows, padded = facts.get("rows") or facts.get("bucket"), facts.get("padded_rows")
            if not rows or padded is None:
                continue
            cost: float = phase.busy_ns * padded / rows
            known = phase.name == "verify" and isinstance(measured, int | float)
            if known and isinstance(measured, int | float):
                cost = min(cost, measured)
            found.setdefault(phase.name, []).append((rows, padded, cost, not known))
    return tuple(
        Padding(
            name,
            len(items),
            sum(item[0] for item in items),
            sum(item[1] for item in items),
            float(np.sum([item[2] for item in items])) / len(reports),
            any(item[3] and item[1] for item in items),
        )
        for name, items in found.items()
    )


def _routes(reports: Sequence[RoundReport]) -> dict[str, Counter[Route]]:
    routes: dict[str, Counter[Route]] = {}
    for report in reports:
        for phase in report.round.phases:
            routes.setdefault(phase.name, Counter())[phase.route] += 1
    return routes


@dataclass(frozen=True)
class RankLine:
    """One rank beside the others.

    Attributes:
        rank: which.
        kernels: whether the trace holds its kernels; of some ranks only collectives are known.
        rounds: how many its numbers are of.
        round_ns: its median.
        comm_ns, exposed_ns: of a round, on average.
        caused_ns: how long other ranks stood in collectives until it came, all rounds.
        stood_ns: how long it stood in them until the last rank came.
        last: in how many collectives it was the last to come.
        sure: whether no collective shows that the ranks' clocks differ; else the three before are not.
    """

    rank: int
    kernels: bool
    rounds: int
    round_ns: float
    comm_ns: float
    exposed_ns: float
    caused_ns: int
    stood_ns: int
    last: int
    sure: bool = True


def rank_lines(analysis: Analysis, views: Mapping[int, Overview]) -> list[RankLine]:
    """Return every rank beside the others."""
    deps = analysis.deps
    table = deps.timeline
    kernels = set(table.rank[table.kind == Kind.KERNEL].tolist())
    caused: Counter[int] = Counter()
    stood: Counter[int] = Counter()
    last: Counter[int] = Counter()
    for members in deps.collectives:
        late = int(table.rank[members[0]])
        waits = np.maximum(deps.release_ns[members[1:]] - table.start_ns[members[1:]], 0)
        caused[late] += int(waits.sum())
        last[late] += bool(len(members) > 1)
        for rank, wait in zip(table.rank[members[1:]].tolist(), waits.tolist(), strict=True):
            stood[rank] += wait
    return [
        RankLine(
            rank,
            rank in kernels,
            len(view.reports),
            view.took.median,
            view.communication[0].total_ns if view.communication else 0.0,
            view.communication[0].exposed_ns if view.communication else 0.0,
            caused[rank],
            stood[rank],
            last[rank],
            not deps.impossible_collectives,
        )
        for rank, view in views.items()
    ]


def slowest(lines: Sequence[RankLine]) -> int:
    """Return the rank to tell of: the one that others wait for longest, else the one with the longest rounds.

    One of which only collectives are known has no say where others have kernels.
    """
    return max(lines, key=lambda line: (line.kernels, line.caused_ns, line.round_ns, -line.rank)).rank

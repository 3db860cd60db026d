"""A run cut into rounds and their phases, with the evidence for every cut.

    round 17     [ draft | seam | verify | accept | extend | seam ]
    plan stream                     [extend plan A]                 phases may overlap, rounds do not

A round begins where its first operation on the home stream begins, or a plan before it that nothing of the
round before runs beside; and ends where the next one begins: what the host does in between is a cost of the round.
Before a prefill it ends with its own last operation: between the two a server may have waited for somebody to
ask. A plain decoding step is a round of one phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from slipstream.timeline.edges import Dependencies
from slipstream.timeline.markers import PLANS
from slipstream.timeline.overlap import union
from slipstream.timeline.padding import facts_of
from slipstream.timeline.table import Int32, Kind, Note, Source


class RoundKind(StrEnum):
    """What a round is; prefill, warm-up and clipped ones are set apart from what is counted."""

    ROUND = "round"  # speculative
    DECODE = "decode"  # one plain step
    PREFILL = "prefill"
    WARM_UP = "warm-up"
    CLIPPED = "clipped"  # the trace begins or ends within it
    STRETCH = "stretch"  # equal stretches of kernels or graphs: steps perhaps, or layers
    WHOLE = "whole trace"  # no round was found


class Route(StrEnum):
    """How a phase ran."""

    REPLAY = "replay"
    EAGER = "eager"
    PIECEWISE = "piecewise"  # replays with eager work between them
    UNKNOWN = "unknown"


class HostMark(NamedTuple):
    """A phase's mark on the host: when it began and ended, and on which thread, a stream of the table."""

    start_ns: int
    end_ns: int
    thread: int


@dataclass(frozen=True)
class Phase:
    """One phase of one round.

    Attributes:
        name: by our words ("draft", "verify plan"), or the stack's own where we have none.
        start_ns, end_ns: from its first operation's start to its last one's end, on the device.
        busy_ns: of that, how long at least one of them ran.
        rows: int32 [R], its work on the device.
        route: how it ran, and whether the trace says so or its rows show it.
        facts: what marks say: requests, bucket, width, rows, padded_rows, forwards, topk, tokens.
        graphs: the graphs that it replayed, in order, a replay each.
        host: the host's mark over it, if there was one.
        told: which of the facts the user said, and no mark.
    """

    name: str
    start_ns: int
    end_ns: int
    busy_ns: int
    rows: Int32
    route: Route
    facts: Mapping[str, int] = field(default_factory=dict)
    graphs: tuple[int, ...] = ()
    host: HostMark | None = None
    told: tuple[str, ...] = ()

    @property
    def span_ns(self) -> int:
        """How long it took on the device, holes included."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Round:
    """One round of one rank.

    Attributes:
        number: among the rank's rounds of every kind, from 0.
        rank: whose.
        kind: what it is.
        why: for a round that is set apart: the reason.
        start_ns, end_ns: from its first operation to the next round's.
        first: the row that it begins with.
        following: the row that the next round begins with, -1 at the end and before a prefill.
        phases: in order of their start.
        facts: what marks say of the whole round.
    """

    number: int
    rank: int
    kind: RoundKind
    why: str
    start_ns: int
    end_ns: int
    first: int
    following: int
    phases: tuple[Phase, ...]
    facts: Mapping[str, int] = field(default_factory=dict)

    @property
    def took_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns

    def phase(self, *names: str) -> Phase | None:
        """Return the first phase of one of these names, or None."""
        return next((phase for phase in self.phases if phase.name in names), None)

    @property
    def counts(self) -> bool:
        """Whether it is among what medians are taken of."""
        return self.kind in (RoundKind.ROUND, RoundKind.DECODE, RoundKind.STRETCH)


@dataclass(frozen=True)
class Rounds:
    """All rounds of all ranks.

    Attributes:
        of_rank: the rounds of each rank, in order.
        evidence: of each rank, by what its rounds were told apart.
        source: GIVEN from marks, INFERRED from graphs or kernels.
        round_of: int32 [N], the number of a row's round within its rank, -1 none.
        phase_of: int32 [N], the index of its phase in that round, -1 none.
        home: of each rank, the stream that its rounds are cut on.
        notes: what does not fit.
    """

    of_rank: Mapping[int, tuple[Round, ...]]
    evidence: Mapping[int, str]
    source: Source
    round_of: Int32
    phase_of: Int32
    home: Mapping[int, int]
    notes: tuple[Note, ...] = ()

    def counted(self, rank: int) -> tuple[Round, ...]:
        """Return the rounds of a rank without prefill, warm-up and clipped ones."""
        return tuple(item for item in self.of_rank.get(rank, ()) if item.counts)


@dataclass
class Cut:
    """A round before its rows are known: phases as (name, facts, the host's mark)."""

    phases: list[tuple[str, dict[str, int], HostMark | None]]
    kind: RoundKind
    facts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Cuts:
    """One rank cut into rounds: what a segmentation hands over.

    Attributes:
        cuts: the rounds, in order.
        evidence: why it was cut so.
        source: GIVEN or INFERRED.
        rows: int32 [R], the rank's queued rows.
        cut_of: int32 [R], the cut each belongs to, -1 none.
        phase_of: int32 [R], the index of its phase in the cut, -1 none.
        routes: (cut, phase) -> what the trace says of the route.
    """

    cuts: list[Cut]
    evidence: str
    source: Source
    rows: Int32
    cut_of: Int32
    phase_of: Int32
    routes: Mapping[tuple[int, int], Route] = field(default_factory=dict)


def assemble_rounds(deps: Dependencies, by_rank: Mapping[int, Cuts], width: int | None = None) -> Rounds:
    """Return the rounds of every rank from how each was cut.

    Args:
        deps: rows and edges.
        by_rank: of each rank, its cuts.
        width: rows that a request has in verify, where no mark says it.
    """
    table = deps.timeline
    round_of = np.full(len(table), -1, np.int32)
    phase_of = np.full(len(table), -1, np.int32)
    rounds: dict[int, tuple[Round, ...]] = {}
    home: dict[int, int] = {}
    notes: list[Note] = []
    for rank, cuts in by_rank.items():
        home[rank] = home_stream(deps, rank)
        filled, empty = _with_rows(deps, rank, home[rank], cuts, round_of, phase_of, width)
        if empty:
            notes.append(Note("empty", empty, "rounds by their marks that hold no work of the device", rank))
        rounds[rank] = _set_apart(deps, filled, cuts)
    source = max((cuts.source for cuts in by_rank.values()), default=Source.INFERRED)
    evidence = {rank: cuts.evidence for rank, cuts in by_rank.items()}
    return Rounds(rounds, evidence, source, round_of, phase_of, home, tuple(notes))


def home_stream(deps: Dependencies, rank: int) -> int:
    """Return the stream on which a rank's device works longest, communication aside; -1 without a device."""
    table = deps.timeline
    mine = np.flatnonzero(table.is_work & (table.rank == rank))
    if not len(mine):
        return -1
    computing = mine[table.kind[mine] == Kind.KERNEL]
    mine = computing if len(computing) else mine
    return int(np.argmax(np.bincount(deps.place[mine], table.dur_ns[mine])))


def _with_rows(
    deps: Dependencies,
    rank: int,
    home: int,
    cuts: Cuts,
    round_of: Int32,
    phase_of: Int32,
    width: int | None,
) -> tuple[list[Round], int]:
    """Return a rank's rounds with their times; fill in each row's; count cuts that hold no work."""
    table = deps.timeline
    work = table.is_work[cuts.rows] & (cuts.cut_of >= 0)
    rows, cut_of, in_phase = cuts.rows[work], cuts.cut_of[work], cuts.phase_of[work]
    order = np.lexsort((rows, cut_of))
    rows, cut_of, in_phase = rows[order], cut_of[order], in_phase[order]
    bounds = np.searchsorted(cut_of, np.arange(len(cuts.cuts) + 1))
    kept = [index for index in range(len(cuts.cuts)) if bounds[index + 1] > bounds[index]]
    firsts: list[int] = []
    ended_ns = 0
    for index in kept:
        mine = rows[bounds[index] : bounds[index + 1]]
        name = cuts.cuts[index].phases[in_phase[bounds[index]]][0]
        alone = name in PLANS and table.start_ns[mine[0]] >= ended_ns
        firsts.append(int(mine[0]) if alone else _first(deps, home, mine, cuts.cuts[index]))
        ended_ns = max(ended_ns, int(table.end_ns[mine].max()))
    starts = np.maximum.accumulate(table.start_ns[firsts]) if kept else np.empty(0, np.int64)
    made: list[Round] = []
    number_of = np.full(len(cuts.cuts) + 1, -1, np.int32)
    routes: dict[int, dict[int, Route]] = {}
    for (index, place), route in cuts.routes.items():
        routes.setdefault(index, {})[place] = route
    for number, index in enumerate(kept):
        number_of[index] = number
        mine, which = rows[bounds[index] : bounds[index + 1]], in_phase[bounds[index] : bounds[index + 1]]
        cut = cuts.cuts[index]
        own_end = max(int(starts[number]), int(table.end_ns[mine].max()))
        until = int(starts[number + 1]) if number + 1 < len(kept) else own_end
        turns = number + 1 == len(kept) or _turns_to_prefill(cut, cuts.cuts[kept[number + 1]])
        end = min(own_end, until) if turns else until
        phases, places = _phases(deps, cut, mine, which, routes.get(index, {}), width)
        phase_of[mine] = places[which]
        made.append(
            Round(
                number,
                rank,
                cut.kind,
                "",
                int(starts[number]),
                end,
                int(firsts[number]),
                -1 if turns else int(firsts[number + 1]),
                phases,
                cut.facts,
            )
        )
    belongs = cuts.cut_of >= 0
    round_of[cuts.rows[belongs]] = number_of[cuts.cut_of[belongs]]
    return made, len(cuts.cuts) - len(kept)


def _turns_to_prefill(cut: Cut, following: Cut) -> bool:
    return cut.kind is not RoundKind.PREFILL and following.kind is RoundKind.PREFILL


def _first(deps: Dependencies, home: int, rows: Int32, cut: Cut) -> int:
    """Return the row that a round begins with; a trace without rounds begins with its first, on any stream."""
    at_home = rows[deps.place[rows] == home] if cut.kind is not RoundKind.WHOLE else rows
    return int(at_home[0] if len(at_home) else rows[0])


def _phases(
    deps: Dependencies,
    cut: Cut,
    rows: Int32,
    which: Int32,
    said: Mapping[int, Route],
    width: int | None,
) -> tuple[tuple[Phase, ...], Int32]:
    """Return the phases of a cut that hold work, by start, and of each of its phases the place among them."""
    table = deps.timeline
    made: list[tuple[int, int, Phase]] = []
    for index, (name, facts, host) in enumerate(cut.phases):
        mine = rows[which == index]
        if not len(mine):
            continue
        start, end = table.start_ns[mine], table.end_ns[mine]
        route = said.get(index) or route_of(deps, mine)
        known, told = facts_of(name, facts, width)
        made.append(
            (
                int(start.min()),
                index,
                Phase(
                    name,
                    int(start.min()),
                    int(end.max()),
                    union(start, end).total_ns,
                    mine,
                    route,
                    known,
                    replays_in(deps, mine),
                    host,
                    told,
                ),
            )
        )
    made.sort(key=lambda item: item[:2])
    places = np.full(len(cut.phases) + 1, -1, np.int32)
    for place, (_, index, _) in enumerate(made):
        places[index] = place
    return tuple(phase for _, _, phase in made), places


def route_of(deps: Dependencies, rows: Int32) -> Route:
    """Return how rows ran: by the share of their kernels' time that lies in replays.

    Not by communication's: it grows with how long it stands for other ranks.
    """
    table = deps.timeline
    kernels = rows[table.kind[rows] == Kind.KERNEL]
    rows = kernels if len(kernels) else rows
    took = table.dur_ns[rows] + 1
    inside = float(took[table.graph[rows] >= 0].sum()) / float(took.sum())
    if inside >= 0.95:
        return Route.REPLAY
    if inside <= 0.05:
        return Route.EAGER
    replays = len({(int(table.graph[row]), int(table.replay[row])) for row in rows if table.graph[row] >= 0})
    # One replay with a few eager kernels around it (sampling, copies) is a replay.
    return Route.REPLAY if inside >= 0.5 and replays == 1 else Route.PIECEWISE


def replays_in(deps: Dependencies, rows: Int32) -> tuple[int, ...]:
    """Return the graphs that rows replay, a number for each replay, in order."""
    table = deps.timeline
    inside = rows[table.graph[rows] >= 0]
    if not len(inside):
        return ()
    keys = np.stack((table.graph[inside], table.replay[inside]))
    _, first = np.unique(keys, axis=1, return_index=True)
    return tuple(table.graph[inside[np.sort(first)]].tolist())


def _set_apart(deps: Dependencies, rounds: Sequence[Round], cuts: Cuts) -> tuple[Round, ...]:
    """Mark clipped rounds and warm-up, with the reason."""
    if not rounds:
        return ()
    reasons: dict[int, tuple[RoundKind, str]] = {}
    for kind in (RoundKind.ROUND, RoundKind.DECODE, RoundKind.STRETCH):
        mine = [item for item in rounds if item.kind is kind]
        reasons.update(_clipped(mine, rounds))
        reasons.update(_warm_up([item for item in mine if item.number not in reasons]))
    return tuple(item if item.number not in reasons else _as(item, *reasons[item.number]) for item in rounds)


def _as(item: Round, kind: RoundKind, why: str) -> Round:
    return Round(
        item.number,
        item.rank,
        kind,
        why,
        item.start_ns,
        item.end_ns,
        item.first,
        item.following,
        item.phases,
        item.facts,
    )


def _clipped(mine: Sequence[Round], rounds: Sequence[Round]) -> dict[int, tuple[RoundKind, str]]:
    """Find a first and a last round that lack phases which the others have."""
    if len(mine) < 3:
        return {}
    inner = mine[1:-1]
    usual = set.intersection(*({phase.name for phase in item.phases} for item in inner))
    found: dict[int, tuple[RoundKind, str]] = {}
    for item, where in ((rounds[0], "begins"), (rounds[-1], "ends")):
        if item not in mine:
            continue
        missing = sorted(usual - {phase.name for phase in item.phases})
        if missing:
            why = f"the trace {where} within it: no {', '.join(missing)}"
            found[item.number] = (RoundKind.CLIPPED, why)
    return found


def _warm_up(mine: Sequence[Round]) -> dict[int, tuple[RoundKind, str]]:
    """Find rounds at the beginning that took more than three times the median of the later ones."""
    found: dict[int, tuple[RoundKind, str]] = {}
    for index, item in enumerate(mine[: max(0, len(mine) - 3)]):
        later = float(np.median([other.took_ns for other in mine[index + 1 :]]))
        if item.took_ns <= 3 * later:
            break
        why = f"took {item.took_ns / later:.1f} times the median of the rounds after it"
        found[item.number] = (RoundKind.WARM_UP, why)
    return found

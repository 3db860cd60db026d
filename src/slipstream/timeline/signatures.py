"""Rounds where nobody wrote marks: from the graphs that are replayed in turn, else from kernels that recur.

    replays   D V X  D V X  D V X      a period of three graphs: the longest is the verification, what stands
                                       before it the draft, what stands behind it the extend
    kernels   a b b c  a b b c         a name that comes once in each of equal stretches

What is found so is inferred, and says by what.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from slipstream.timeline import markers
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.rounds import Cut, Cuts, RoundKind, home_stream
from slipstream.timeline.table import Int32, Int64, Source
from slipstream.timeline.wording import counted

#: A sequence has a period if this share of it equals what stands a period later.
_ALIKE = 0.9
#: A name marks steps if this share of the stretches between its occurrences is equally long.
_EVEN = 0.8
#: The phase of steps of which only the borders are known.
STEP = "step"


@dataclass(frozen=True)
class _Run:
    """Replays of one graph in a row. `first`, `last`: positions among the rank's replays."""

    family: int
    first: int
    last: int


def cut_by_graphs(deps: Dependencies, rank: int, mine: Int32) -> Cuts | None:
    """Cut a rank by the order of its replays, or return None if they have no period.

    Args:
        deps: rows and edges.
        rank: whose.
        mine: int32 [R], its queued rows.
    """
    replays = _replays(deps, mine)
    if len(replays.start_ns) < 3:
        return None
    runs = _runs(replays.family)
    if len(runs) == 1:  # one graph again and again: each replay is a step
        runs = [_Run(int(family), place, place) for place, family in enumerate(replays.family.tolist())]
    sequence = np.array([run.family for run in runs])
    period = smallest_period(sequence)
    if period == 0 or len(runs) < 2 * period:
        return None
    took = {run.family: 0 for run in runs}
    for run in runs:
        took[run.family] += int(replays.took_ns[run.first : run.last + 1].sum())
    shift, roles = _roles(sequence, period, took, replays, runs)
    if _trains(deps, rank):
        roles = [STEP] * period
    return _cuts_of_runs(deps, rank, mine, replays, runs, period, shift, roles)


def _trains(deps: Dependencies, rank: int) -> bool:
    """Return whether a rank computes gradients: its graphs are no draft and no verification."""
    table = deps.timeline
    used = np.unique(table.name[table.rank == rank])
    return any("autograd::engine" in table.names[name] or "Backward0" in table.names[name] for name in used)


@dataclass(frozen=True)
class _Replays:
    """The replays of a rank in the order of their start: G of them."""

    family: Int64  # equal for graphs with alike kernels, as one model's graphs at two buckets
    start_ns: Int64
    end_ns: Int64
    took_ns: Int64


def _replays(deps: Dependencies, mine: Int32) -> _Replays:
    table = deps.timeline
    inside = mine[(table.graph[mine] >= 0) & table.is_work[mine]].astype(np.int64)
    key = table.graph[inside].astype(np.int64) << 32 | np.maximum(table.replay[inside], 0)
    order = np.argsort(key, kind="stable")
    inside, key = inside[order], key[order]
    heads = (
        np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if len(key) else np.empty(0, np.int64)
    )
    if not len(heads):
        empty = np.empty(0, np.int64)
        return _Replays(empty, empty, empty, empty)
    start = np.minimum.reduceat(table.start_ns[inside], heads)
    end = np.maximum.reduceat(table.end_ns[inside], heads)
    took = np.add.reduceat(table.dur_ns[inside], heads)
    family = _families(deps, inside, heads)[table.graph[inside[heads]]]
    by_start = np.argsort(start, kind="stable")
    return _Replays(family[by_start], start[by_start], end[by_start], took[by_start])


def _families(deps: Dependencies, inside: Int64, heads: Int64) -> Int64:
    """Return a number for each graph, the same for graphs of one model at two buckets: alike names and count."""
    table = deps.timeline
    family = np.full(len(table.graphs) + 1, -1, np.int64)
    tails = np.concatenate((heads[1:], [len(inside)]))
    known: list[tuple[frozenset[int], int, int]] = []
    for low, high in zip(heads.tolist(), tails.tolist(), strict=True):
        graph = int(table.graph[inside[low]])
        if family[graph] >= 0:
            continue
        names, count = frozenset(table.name[inside[low:high]].tolist()), high - low
        for others, other_count, number in known:
            alike = len(names & others) / len(names | others)
            if alike >= 0.8 and abs(count - other_count) <= 0.1 * max(count, other_count):
                family[graph] = number
                break
        else:
            family[graph] = graph
            known.append((names, count, graph))
    return family


def _runs(family: Int64) -> list[_Run]:
    change = np.flatnonzero(family[1:] != family[:-1]) + 1
    bounds = [0, *change.tolist(), len(family)]
    return [_Run(int(family[low]), low, high - 1) for low, high in itertools.pairwise(bounds)]


def smallest_period(sequence: Int64) -> int:
    """Return the smallest period of a sequence, at most half of it, or 0 if it has none."""
    for period in range(1, len(sequence) // 2 + 1):
        if np.mean(sequence[period:] == sequence[:-period]) >= _ALIKE:
            return period
    return 0


def _roles(
    sequence: Int64, period: int, took: dict[int, int], replays: _Replays, runs: list[_Run]
) -> tuple[int, list[str]]:
    """Return where in the period a round begins, and the phase of each of its runs from there on."""
    turn = [
        int(np.bincount(sequence[place::period] - sequence.min()).argmax() + sequence.min())
        for place in range(period)
    ]
    if period == 1:
        return 0, [markers.DECODE]
    if period > 3 or len(set(turn)) != period:
        return _widest_gap(replays, runs, period), [STEP] * period
    verify = max(range(period), key=lambda place: took[turn[place]])
    # A guess by length, and the evidence says so.
    names = [markers.DRAFT, markers.VERIFY, markers.EXTEND][:period]
    return (verify - 1) % period, names


def _kind_of(roles: list[str]) -> RoundKind:
    if markers.VERIFY in roles:
        return RoundKind.ROUND
    return RoundKind.DECODE if markers.DECODE in roles else RoundKind.STRETCH


def _widest_gap(replays: _Replays, runs: list[_Run], period: int) -> int:
    """Return the place in the period before which the device stands still longest."""
    first = np.array([run.first for run in runs[1:]])
    gap = replays.start_ns[first] - replays.end_ns[first - 1]
    places = np.arange(1, len(runs)) % period
    return int(max(range(period), key=lambda place: float(np.median(gap[places == place]))))


def _cuts_of_runs(
    deps: Dependencies,
    rank: int,
    mine: Int32,
    replays: _Replays,
    runs: list[_Run],
    period: int,
    shift: int,
    roles: list[str],
) -> Cuts:
    """Make a cut of each period. Eager work goes to the run before it that has ended, else to the next."""
    table = deps.timeline
    kind = _kind_of(roles)
    cuts: list[Cut] = []
    owner = np.zeros(len(runs), np.int32)
    index_of = np.zeros(len(runs), np.int32)
    for number, run in enumerate(runs):
        place = (number - shift) % period
        if place == 0 or not cuts:
            cuts.append(Cut([], kind))
        name = roles[place]
        if not cuts[-1].phases or cuts[-1].phases[-1][0] != name or name != STEP:
            facts = (
                {"forwards": run.last - run.first + 1}
                if name == markers.DRAFT and run.last > run.first
                else {}
            )
            cuts[-1].phases.append((name, facts, None))
        owner[number], index_of[number] = len(cuts) - 1, len(cuts[-1].phases) - 1
    begins = replays.start_ns[[run.first for run in runs]]
    at = np.searchsorted(begins, table.start_ns[mine], side="right") - 1
    known = at >= 0
    cut_of = np.where(known, owner[np.maximum(at, 0)], -1).astype(np.int32)
    phase_of = np.where(known, index_of[np.maximum(at, 0)], -1).astype(np.int32)
    graphs = len(np.unique(replays.family))
    evidence = (
        f"no marks; {counted(len(replays.start_ns), 'replay')} of "
        f"{counted(graphs, 'kind of graph', 'kinds of graph')} recur with a period of {period}"
        + (f", read as {', '.join(roles)} by their lengths" if kind is RoundKind.ROUND else "")
    )
    return Cuts(cuts, evidence, Source.INFERRED, mine, cut_of, phase_of)


def cut_by_kernels(deps: Dependencies, rank: int, mine: Int32) -> Cuts | None:
    """Cut a rank where a kernel's name recurs at even distances, or return None if none does.

    Args:
        deps: rows and edges.
        rank: whose.
        mine: int32 [R], its queued rows.
    """
    table = deps.timeline
    home = home_stream(deps, rank)
    rows = mine[(deps.place[mine] == home) & table.is_work[mine]]
    found = anchor(table.name[rows])
    if found is None:
        return None
    name, positions, length = found
    begins = table.start_ns[rows[positions]]
    cut_of = np.searchsorted(begins, table.start_ns[mine], side="right").astype(np.int32) - 1
    phase_of = np.where(cut_of >= 0, 0, -1).astype(np.int32)
    cuts = [Cut([(STEP, {}, None)], RoundKind.STRETCH) for _ in positions]
    evidence = (
        f"no marks and no replays in turn; {table.names[name]!r} begins each of "
        f"{counted(len(positions), 'stretch', 'stretches')} of {counted(length, 'operation')}: "
        "steps, or layers of one"
    )
    return Cuts(cuts, evidence, Source.INFERRED, mine, cut_of, phase_of)


def anchor(name: Int32) -> tuple[int, Int64, int] | None:
    """Return the rarest name that recurs at even distances over most of a sequence: (name, positions, distance).

    Args:
        name: int32 [R], names in a stream's order.
    """
    if len(name) < 6:
        return None
    values, counts = np.unique(name, return_counts=True)
    for which in np.argsort(counts, kind="stable").tolist():
        if counts[which] < 3:
            continue
        positions = np.flatnonzero(name == values[which])
        distances = np.diff(positions)
        lengths, often = np.unique(distances, return_counts=True)
        length = int(lengths[often.argmax()])
        covered = length * (int(often.max()) + 1) / len(name)
        if length > 1 and often.max() >= _EVEN * len(distances) and covered >= _EVEN:
            return int(values[which]), positions.astype(np.int64), length
    return None


def whole(mine: Int32) -> Cuts:
    """Return one cut of everything."""
    zeros = np.zeros(len(mine), np.int32)
    return Cuts(
        [Cut([(STEP, {}, None)], RoundKind.WHOLE)],
        "no marks that a rule knows, no graphs replayed in turn, no kernel that recurs evenly",
        Source.INFERRED,
        mine,
        zeros,
        zeros.copy(),
    )

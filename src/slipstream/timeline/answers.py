"""The nine questions of a round, each answered, or "not in this trace, because ...".

1 draft: eager or replay, how many forwards        6 which branch a join waits for
2 draft: bucket and padding                        7 communication: total, covered, exposed
3 the seam between draft and verify                8 did one rank's route change the others'
4 verify: width, rows, padded rows, their cost     9 extend: eager or replay, what its graph saves
5 does the extend plan overlap verify and accept
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from slipstream.timeline import markers
from slipstream.timeline.breakdown import Join, short_name, waited_together
from slipstream.timeline.edge_types import Confidence
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.host import host_work, main_thread
from slipstream.timeline.overlap import Intervals, share, union
from slipstream.timeline.padding_answers import draft_padding, verify_rows
from slipstream.timeline.question import QUESTIONS, Across, Answer, Facts, Value
from slipstream.timeline.rounds import Phase, RoundKind, Route
from slipstream.timeline.table import Kind, Source
from slipstream.timeline.wording import counted, duration

EXTEND_PLANS = ("extend plan A", "extend plan B", markers.EXTEND_PLAN)


def answer_all(facts: Facts) -> tuple[Answer, ...]:
    """Return the nine answers for a round."""
    return tuple(ask(facts) for ask in (_q1, draft_padding, _q3, verify_rows, _q5, _q6, _q7, _q8, _q9))


def _q1(facts: Facts) -> Answer:
    phase = facts.item.phase(markers.DRAFT)
    if phase is None:
        return facts.without(1, "draft")
    forwards, source = phase.facts.get("forwards"), facts.source
    if forwards is None and len(phase.graphs) > 1:
        forwards = len(phase.graphs)
    if forwards is None:
        forwards, source = _forwards(facts.deps, phase), Source.INFERRED
    values: dict[str, Value] = {"route": phase.route.value, "replays": len(phase.graphs)}
    text = phase.route.value
    if forwards or "forwards" in phase.facts:  # ours with one draft has none: it is the extend's before
        values["forwards"] = forwards
        text += f", {counted(forwards, 'forward')}"
        if source is Source.INFERRED:
            text += " (inferred from kernels that recur)"
    return Answer(1, text, values, source)


def _forwards(deps: Dependencies, phase: Phase) -> int:
    """Return how often the kernels of a draft recur: what most of its time's names have in common; 0 unknown."""
    table = deps.timeline
    kernels = phase.rows[table.kind[phase.rows] == Kind.KERNEL]
    if not len(kernels):
        return 0
    names, counts = np.unique(table.name[kernels], return_counts=True)
    took = np.zeros(len(names), np.int64)
    np.add.at(took, np.searchsorted(names, table.name[kernels]), table.dur_ns[kernels])
    # A kernel outside the forwards (a copy in, a top-k of all) comes once; those of forwards n, 2n, ... times.
    often = counts > 1
    if took[often].sum() * 2 < took.sum():
        return 1
    return int(np.gcd.reduce(counts[often & (took * 20 >= took.sum())])) or 1


def _q3(facts: Facts) -> Answer:
    draft, verify = facts.item.phase(markers.DRAFT), facts.item.phase(markers.VERIFY)
    if draft is None:
        return facts.without(3, "draft")
    if verify is None:
        return facts.without(3, "verify")
    gap = verify.start_ns - draft.end_ns
    if gap < 0:
        text = f"none: verify begins {duration(-gap)} before the draft ends"
        return Answer(3, text, {"seam_ns": 0, "overlap_ns": -gap}, facts.source)
    table = facts.deps.timeline
    low, high = np.searchsorted(table.start_ns, [draft.end_ns - facts.deps.longest_ns, verify.start_ns])
    rows = np.arange(low, high)[table.is_work[low:high] & (table.rank[low:high] == facts.item.rank)]
    rows = rows[table.end_ns[rows] > draft.end_ns]
    clipped = union(
        np.maximum(table.start_ns[rows], draft.end_ns), np.minimum(table.end_ns[rows], verify.start_ns)
    )
    host = _host_between(facts, draft.end_ns, verify.start_ns)
    values: dict[str, Value] = {
        "seam_ns": gap,
        "device_ns": clipped.total_ns,
        "idle_ns": gap - clipped.total_ns,
    }
    text = f"{duration(gap)}, of which a device works {duration(clipped.total_ns)}"
    if host:
        values["host"] = [f"{name}: {duration(ns)}" for name, ns in host.most_common(5)]
        name, ns = host.most_common(1)[0]
        text += f"; the host is longest in {name} ({duration(ns)})"
    return Answer(3, text, values, facts.source)


def _host_between(facts: Facts, start_ns: int, end_ns: int) -> Counter[str]:
    """Return what the thread that launches did in a stretch."""
    thread = main_thread(facts.deps, facts.item.rank)
    if thread < 0:
        return Counter()
    return host_work(facts.deps, thread, Intervals(np.array([start_ns]), np.array([end_ns])))


def _q5(facts: Facts) -> Answer:
    plans = [phase for phase in facts.item.phases if phase.name in EXTEND_PLANS]
    if not plans:
        if facts.item.kind in (RoundKind.DECODE, RoundKind.PREFILL):
            return facts.without(5, "extend plan")
        return facts.missing(5, "no mark says which work plans the extend")
    table = facts.deps.timeline
    against = [phase for phase in facts.item.phases if phase.name in (markers.VERIFY, markers.ACCEPT)]
    if not against:
        return facts.without(5, "verify")
    rows = np.concatenate([phase.rows for phase in against])
    cover = union(table.start_ns[rows], table.end_ns[rows])
    values: dict[str, Value] = {}
    words: list[str] = []
    for phase in plans:
        part = share(phase.name, table.start_ns[phase.rows], table.end_ns[phase.rows], cover)
        key = phase.name.replace(" ", "_")
        values[f"{key}_ns"], values[f"{key}_covered_ns"] = part.total_ns, part.covered_ns
        words.append(f"{phase.name} {duration(part.total_ns)}, {duration(part.covered_ns)} of it covered")
    inside = np.concatenate([phase.rows for phase in plans])
    whole = share("extend plan", table.start_ns[inside], table.end_ns[inside], cover)
    values |= {"total_ns": whole.total_ns, "covered_ns": whole.covered_ns, "exposed_ns": whole.exposed_ns}
    verdict = "yes" if whole.covered_ns == whole.total_ns else "in part" if whole.covered_ns else "no"
    values["overlaps"] = verdict
    return Answer(5, f"{verdict}: {'; '.join(words)}", values, facts.source)


def _q6(facts: Facts) -> Answer:
    if not facts.joins:
        return facts.missing(
            6,
            "no operation of this round is known to wait for two streams (no events, no topology, one stream)",
        )
    deps = facts.deps
    table = deps.timeline
    beside = [join for join in facts.joins if join.side_by_side]
    mine = [join for join in beside if join.on_path]
    counts: dict[str, Value] = {"joins": len(facts.joins), "side_by_side": len(beside), "on_path": len(mine)}
    if not mine:
        text = (
            "no join of branches side by side is on the path "
            f"({len(beside)} beside it, {counted(len(facts.joins), 'join')} in all)"
        )
        return Answer(6, text, {**counts, "waited_ns": 0})
    by_branch: dict[tuple[str, str], list[Join]] = {}
    for join in mine:
        place = table.streams[deps.place[join.branch]].name
        by_branch.setdefault((short_name(table.name_of(join.branch)), place), []).append(join)
    guessed = any(join.confidence != Confidence.GIVEN for join in mine)
    # Joins may wait through the same stretch of time, for one branch or for several: it counts once.
    waited = [(*branch, len(its), waited_together(its, facts.item)) for branch, its in by_branch.items()]
    waited.sort(key=lambda branch: -branch[3])
    name, place, count, ns = waited[0]
    total = waited_together(mine, facts.item)
    values: dict[str, Value] = {
        **counts,
        "waited_ns": total,
        "branch": name,
        "branch_stream": place,
        "branch_waited_ns": ns,
        "branches": [f"{n} on {s}: {counted(c, 'join')}, {duration(w)}" for n, s, c, w in waited[:5]],
    }
    are, wait = ("is", "waits") if len(mine) == 1 else ("are", "wait")
    text = f"{counted(len(mine), 'join')} of branches side by side {are} on the path and {wait} {duration(total)}"
    if len(waited) == 1:
        text += f" for {name} on {place}"
    else:
        text += f", longest for {name} on {place}: {duration(ns)} in {count}"
    return Answer(6, text, values, Source.INFERRED if guessed else Source.GIVEN)


def _q7(facts: Facts) -> Answer:
    if not facts.comm:
        return facts.missing(7, "no operation of this round is known to be communication")
    whole = facts.comm[0]
    table = facts.deps.timeline
    rows = np.concatenate([phase.rows for phase in facts.item.phases])
    rows = rows[table.kind[rows] == Kind.COMM]
    source = Source(int(table.kind_source[rows].max(initial=0)))
    values: dict[str, Value] = {
        "total_ns": whole.total_ns,
        "covered_ns": whole.covered_ns,
        "exposed_ns": whole.exposed_ns,
        "count": whole.count,
        "families": [
            f"{part.what}: {duration(part.total_ns)}, exposed {duration(part.exposed_ns)}"
            for part in facts.comm[1:]
        ],
    }
    text = (
        f"{duration(whole.total_ns)}, covered {duration(whole.covered_ns)}, "
        f"exposed {duration(whole.exposed_ns)}"
    )
    return Answer(7, text, values, source)


def _q8(facts: Facts) -> Answer:
    peers = facts.across.peers.get(facts.item.number, ())
    if len(facts.rounds.of_rank) < 2:
        return facts.missing(8, "it holds one rank")
    if len(peers) < 2:
        return facts.missing(8, "no other rank has this round")
    routes: dict[str, dict[Route, list[int]]] = {}
    for peer in peers:
        for phase in peer.phases:
            routes.setdefault(phase.name, {}).setdefault(phase.route, []).append(peer.rank)
    apart = {name: by_route for name, by_route in routes.items() if len(by_route) > 1}
    values: dict[str, Value] = {"ranks": len(peers), "apart": sorted(apart)}
    late = {peer.rank: facts.across.late.get((peer.number, peer.rank), (0, 0)) for peer in peers}
    last, (caused, _) = max(late.items(), key=lambda item: item[1][0])
    values |= {"late_rank": last if caused else -1, "waited_for_it_ns": caused}
    if not apart:
        text = f"no: all {len(peers)} ranks took the same route in every phase"
    else:
        words = [
            f"{name} {' and '.join(f'{route.value} on {ranks}' for route, ranks in sorted(by_route.items()))}"
            for name, by_route in sorted(apart.items())
        ]
        text = f"the routes differ: {'; '.join(words)}"
    if caused:
        others = "the other rank" if len(peers) == 2 else f"the {len(peers) - 1} other ranks together"
        text += f"; {others} waited {duration(caused)} for rank {last} in collectives"
    if facts.deps.impossible_collectives:
        values["impossible_collectives"] = unclear = facts.deps.impossible_collectives
        text += f"; who came last is not sure: collectives left before all had come: {unclear}"
    return Answer(8, text, values, facts.source)


def _q9(facts: Facts) -> Answer:
    phase = facts.item.phase(markers.EXTEND)
    if phase is None:
        return facts.without(9, "extend")
    values: dict[str, Value] = {
        "route": phase.route.value,
        "span_ns": phase.span_ns,
        "busy_ns": phase.busy_ns,
    }
    eager = facts.across.routed.get((markers.EXTEND, Route.EAGER))
    replay = facts.across.routed.get((markers.EXTEND, Route.REPLAY))
    memory = "its memory is not in this trace, because profilers do not record graph pools"
    text = f"{phase.route.value}, {duration(phase.span_ns)}"
    if eager and replay:
        saved = eager[0] - replay[0]
        values["saved_ns"] = round(saved)
        text += (
            f"; a replay saves {duration(saved)} "
            f"(median of {counted(eager[1], 'eager round')} against {counted(replay[1], 'replayed one')})"
        )
    elif phase.route is Route.EAGER:
        holes = phase.span_ns - phase.busy_ns
        values["saved_at_most_ns"] = holes
        text += f"; a graph would save at most the {duration(holes)} in which it waits for launches"
    else:
        text += "; what its graph saves is not in this trace, because no round ran it eagerly"
    return Answer(9, f"{text}; {memory}", values, facts.source)


__all__ = ["QUESTIONS", "Across", "Answer", "Facts", "answer_all"]

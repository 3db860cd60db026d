"""Rounds from what the stack wrote: its marks, on the host's threads or mirrored to the device's streams."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slipstream.timeline import markers
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.host_marks import HostMarks
from slipstream.timeline.markers import Marker, read_marker
from slipstream.timeline.order import Rows
from slipstream.timeline.rounds import Cut, Cuts, HostMark, RoundKind, Rounds, Route, assemble_rounds
from slipstream.timeline.signatures import cut_by_graphs, cut_by_kernels, whole
from slipstream.timeline.table import Bool, Int32, Int64, Source, Timeline
from slipstream.timeline.wording import counted

#: Phases that follow a prefill as parts of it.
_AFTER_PREFILL = frozenset({markers.EXTEND, markers.ACCEPT, "postprocess", "bookkeep"})
#: Phases that only a new round can begin with, once a round has verified.
_FIRST = frozenset({markers.DRAFT, markers.VERIFY_PLAN, markers.PREPARE, "catch-up"})


@dataclass(frozen=True)
class _Marked:
    """A phase by its mark."""

    start_ns: int
    end_ns: int
    marker: Marker
    stream: int
    route: Route | None


def find_rounds(deps: Dependencies, width: int | None = None) -> Rounds:
    """Cut every rank into rounds: by marks, else by its graphs, else by its kernels, else not at all.

    Args:
        deps: rows and edges.
        width: rows that a request has in verify, where no mark says it.
    """
    rows = Rows.of(deps.timeline)
    by_rank: dict[int, Cuts] = {}
    for rank in deps.timeline.ranks:
        mine = np.flatnonzero(rows.queued & (deps.timeline.rank == rank)).astype(np.int32)
        if not len(mine):
            continue
        by_rank[rank] = (
            _cut_by_marks(deps, rows, rank, mine)
            or cut_by_graphs(deps, rank, mine)
            or cut_by_kernels(deps, rank, mine)
            or whole(mine)
        )
    return assemble_rounds(deps, by_rank, width)


def _cut_by_marks(deps: Dependencies, rows: Rows, rank: int, mine: Int32) -> Cuts | None:
    """Cut one rank by the marks that a rule knows, or return None if there are none."""
    marked, on_device = _marked(deps.timeline, rank)
    if not marked:
        return None
    steps = _steps(_outermost(marked))
    cuts = [_cut_of(step, on_device) for step in steps]
    if on_device:
        cut_of, phase_of = _by_device_time(deps, steps, cuts, mine)
    else:
        cut_of, phase_of = _by_issue(rows, steps, cuts, mine)
    routes = {
        (number, index): phase.route
        for number, step in enumerate(steps)
        for index, phase in enumerate(step.phases)
        if phase.route is not None
    }
    stacks = sorted({item.marker.stack for item in marked})
    if on_device and "Slipstream" in stacks:
        stacks = ["Slipstream"]  # "draft" and "verify" are its names too
    found = sorted({phase.marker.phase for step in steps for phase in step.phases} - {""})
    where = "the device's streams" if on_device else "the host's threads"
    evidence = f"{counted(len(marked), 'mark')} of {' and '.join(stacks)} on {where}: "
    evidence += ", ".join(found) or "whole steps"
    return Cuts(cuts, evidence, Source.GIVEN, mine, cut_of, phase_of, routes)


def _marked(timeline: Timeline, rank: int) -> tuple[list[_Marked], bool]:
    """Return the marks of a rank that a rule knows, the host's if there are any, and whether the device's."""
    marks = timeline.marks
    used = {int(name): read_marker(timeline.names[name]) for name in np.unique(marks.name)}
    known = {name: marker for name, marker in used.items() if marker is not None}
    of_rank = np.array([stream.rank == rank for stream in timeline.streams], np.bool_)
    wanted = np.isin(marks.name, np.array(list(known), np.int32)) & of_rank[marks.stream]
    host: list[_Marked] = []
    device: list[_Marked] = []
    for index in np.flatnonzero(wanted).tolist():
        stream = timeline.streams[marks.stream[index]]
        marker = known[int(marks.name[index])]
        args = marks.args.get(index, {})
        said = {key: value for key, value in args.items() if isinstance(value, int)}
        facts = {**marker.facts, **{key: said[key] for key in _FACTS if key in said}}
        if marker.phase == markers.DRAFT and "route" in args and "width" in facts:
            # Ours: the first draft of a request comes from the extend before, each other from a forward.
            facts["forwards"] = facts["width"] - 1
        route = Route(str(args["route"])) if args.get("route") in list(Route) else None
        item = _Marked(
            int(marks.start_ns[index]),
            int(marks.end_ns[index]),
            replace(marker, facts=facts),
            int(marks.stream[index]),
            route,
        )
        (host if stream.device is None else device).append(item)
    return (host, False) if host else (device, True)


_FACTS = ("requests", "bucket", "width", "rows", "padded_rows", "advanced", "forwards", "topk")


@dataclass
class _Step:
    start_ns: int
    facts: dict[str, int]
    phases: list[_Marked]


def _outermost(marked: list[_Marked]) -> list[_Marked]:
    """Take marks inside a phase into it: what they say of it, and how many forwards of a draft they are."""
    kept: list[_Marked] = []
    outer_of: dict[int, int] = {}  # stream -> the index of the phase that is open on it
    for item in marked:
        index = outer_of.get(item.stream, -1)
        outer = kept[index] if index >= 0 else None
        if not item.marker.phase or outer is None or item.start_ns >= outer.end_ns:
            if item.marker.phase:
                outer_of[item.stream] = len(kept)
            kept.append(item)
            continue
        facts = dict(outer.marker.facts)
        if item.marker.phase == outer.marker.phase:
            facts.update(item.marker.facts)
        elif (outer.marker.phase, item.marker.phase) == (markers.DRAFT, markers.DECODE):
            facts["forwards"] = facts.get("forwards", 0) + 1  # the draft model's own decoding steps
        kept[index] = replace(outer, marker=replace(outer.marker, facts=facts))
    return kept


def _steps(marked: list[_Marked]) -> list[_Step]:
    """Group phases into steps: by marks over whole steps where there are any, else by their order."""
    steps: list[_Step] = []
    until = -1  # the end of the mark over the present step
    for item in marked:
        if not item.marker.phase:
            steps.append(_Step(item.start_ns, dict(item.marker.facts), []))
            until = item.end_ns
        elif item.start_ns < until:
            steps[-1].phases.append(item)
        elif not steps or _begins_step(item.marker.phase, steps[-1], until >= 0):
            steps.append(_Step(item.start_ns, {}, [item]))
        else:
            steps[-1].phases.append(item)
    return steps


def _begins_step(phase: str, step: _Step, has_step_marks: bool) -> bool:
    present = {item.marker.phase for item in step.phases}
    if has_step_marks and phase not in present:
        return False  # vLLM drafts behind its step's mark
    if markers.PREFILL in present and present <= _AFTER_PREFILL | {markers.PREFILL}:
        return phase not in _AFTER_PREFILL or phase in present
    if phase in (markers.PREFILL, markers.DECODE) or markers.DECODE in present:
        return phase not in _AFTER_PREFILL
    return phase in present or (markers.VERIFY in present and phase in _FIRST)


def _cut_of(step: _Step, on_device: bool) -> Cut:
    """Name a step's phases and say what it is."""
    facts = step.facts
    names = [item.marker.phase for item in step.phases]
    drafts = markers.DRAFT in names or facts.get("rows", 0) > facts.get("requests", 0) > 0
    if facts.get("context"):
        forward = markers.PREFILL
    else:
        forward = markers.VERIFY if drafts else markers.DECODE
    phases: list[tuple[str, dict[str, int], HostMark | None]] = []
    for item in step.phases:
        name = forward if item.marker.phase == markers.FORWARD else item.marker.phase
        own = dict(item.marker.facts)
        if name in (markers.VERIFY, markers.DECODE):
            own = {**{key: facts[key] for key in ("requests", "rows", "width") if key in facts}, **own}
        phases.append((name, own, None if on_device else HostMark(item.start_ns, item.end_ns, item.stream)))
    if not phases:
        phases.append((forward, {key: value for key, value in facts.items() if key != "context"}, None))
    named = {name for name, _, _ in phases}
    if markers.PREFILL in named:
        kind = RoundKind.PREFILL
    elif named & markers.SPECULATIVE - {markers.ACCEPT}:
        kind = RoundKind.ROUND
    else:
        kind = RoundKind.DECODE
    return Cut(phases, kind, facts)


def _by_issue(rows: Rows, steps: list[_Step], cuts: list[Cut], mine: Int32) -> tuple[Int32, Int32]:
    """Assign rows by when the host issued them; those whose call is unknown as what is before them.

    A step that has no mark of a phase, or work outside them, gets a phase of its own for that work.
    """
    timeline = rows.timeline
    begins = np.array([step.start_ns for step in steps], np.int64)
    marks = HostMarks(
        (HostMark(item.start_ns, item.end_ns, item.stream), number, index)
        for number, step in enumerate(steps)
        for index, item in enumerate(step.phases)
    )
    issue = rows.issue_ns[mine]
    call = np.maximum(timeline.launch[mine], 0)
    thread = np.where(timeline.launch[mine] >= 0, timeline.stream[call], -1)
    number, phase_of = marks.at(issue, thread)
    cut_of = np.searchsorted(begins, issue, side="right").astype(np.int32) - 1
    cut_of = np.where(phase_of >= 0, number, cut_of)
    unknown = timeline.launch[mine] < 0
    if unknown.any():
        cut_of, phase_of = _carry(rows, mine, unknown, cut_of, phase_of)
    _put_aside(steps, cuts, cut_of, phase_of, timeline.is_work[mine])
    return cut_of, phase_of


def _carry(rows: Rows, mine: Int32, unknown: Bool, cut_of: Int32, phase_of: Int32) -> tuple[Int32, Int32]:
    """Give rows of unknown issue what the last known row before them on their stream has; the first ones none."""
    order = np.argsort(rows.place[mine], kind="stable")
    place = rows.place[mine][order]
    known = ~unknown[order]
    last = np.maximum.accumulate(np.where(known, np.arange(len(order)), -1))
    there = (last >= 0) & (place[last] == place)
    source = order[np.where(there, last, 0)]
    new_cut, new_phase = cut_of.copy(), phase_of.copy()
    new_cut[order] = np.where(there, cut_of[source], -1)
    new_phase[order] = np.where(there, phase_of[source], -1)
    return new_cut, new_phase


def _by_device_time(
    deps: Dependencies, steps: list[_Step], cuts: list[Cut], mine: Int32
) -> tuple[Int32, Int32]:
    """Assign rows by the marks on their own streams; what lies outside every mark, by time."""
    timeline = deps.timeline
    start: Int64 = timeline.start_ns[mine]
    stream = timeline.stream[mine]
    begins = np.array([step.start_ns for step in steps], np.int64)
    cut_of = np.searchsorted(begins, start, side="right").astype(np.int32) - 1
    phase_of = np.full(len(mine), -1, np.int32)
    for number, step in enumerate(steps):
        for index, item in enumerate(step.phases):
            low, high = np.searchsorted(start, [item.start_ns, max(item.end_ns, item.start_ns + 1)])
            inside = np.arange(low, high)[stream[low:high] == item.stream]
            cut_of[inside], phase_of[inside] = number, index
    _beside(deps, steps, mine, cut_of, phase_of)
    _put_aside(steps, cuts, cut_of, phase_of, timeline.is_work[mine])
    return cut_of, phase_of


def _beside(deps: Dependencies, steps: list[_Step], mine: Int32, cut_of: Int32, phase_of: Int32) -> None:
    """Give rows on streams without marks (branches, communication) the phase they begin in, plans aside."""
    timeline = deps.timeline
    marked = {item.stream for step in steps for item in step.phases}
    free = (phase_of < 0) & ~np.isin(timeline.stream[mine], np.array(sorted(marked), np.int32))
    for number, step in enumerate(steps):
        for index, item in enumerate(step.phases):
            if item.marker.phase in markers.PLANS:
                continue
            low, high = np.searchsorted(timeline.start_ns[mine], [item.start_ns, item.end_ns])
            inside = np.arange(low, high)[free[low:high]]
            cut_of[inside], phase_of[inside] = number, index


def _put_aside(steps: list[_Step], cuts: list[Cut], cut_of: Int32, phase_of: Int32, work: Bool) -> None:
    """Give a step's work outside its phases a phase of its own; where it has no phases, that one is all of it."""
    outside = (cut_of >= 0) & (phase_of < 0)
    for number in np.unique(cut_of[outside & work]).tolist():
        cut = cuts[number]
        if steps[number].phases:
            cut.phases.append((markers.OTHER, {}, None))
        phase_of[outside & (cut_of == number)] = len(cut.phases) - 1

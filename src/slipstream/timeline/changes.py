"""What a what-if changes: read from the command line, and put into a schedule's model.

--scale comm=0.5   --scale 'kernel~pattern=0.8'   --scale verify=0.9     durations of rows
--scale 'host~build_tree=0.5'                                          what threads do in an operation
--host 0                                                               threads' own work
--remove-wait main:plan                                                main no longer waits for plan
--bucket 8=6                                                           replays of bucket 8 with 6 slots
--extend-graph on                                                      an eager extend as one replay
--perfect-overlap                                                      communication hidden as far as it can be
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slipstream.errors import UnknownNameError, UsageError
from slipstream.timeline import markers
from slipstream.timeline.breakdown import short_name
from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.host_changes import host_names, own_edges, scale_time, time_of, working
from slipstream.timeline.overlap import Intervals, merge
from slipstream.timeline.reschedule import Model, delays
from slipstream.timeline.rounds import Phase, Rounds, Route
from slipstream.timeline.table import Bool, Int64, Kind
from slipstream.timeline.wording import counted

_KINDS = {
    "kernel": Kind.KERNEL,
    "copy": Kind.COPY,
    "set": Kind.SET,
    "comm": Kind.COMM,
    "communication": Kind.COMM,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """Rows take `factor` times as long: of a kind or a phase, all or those whose name a pattern finds."""

    what: str
    pattern: str
    factor: float


@dataclass(frozen=True, slots=True)
class Host:
    """Threads' own work takes `factor` times as long."""

    factor: float


@dataclass(frozen=True, slots=True)
class RemoveWait:
    """One stream no longer waits for another."""

    waiter: str
    waited: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """What was replayed with one bucket would have been with another."""

    old: int
    new: int


@dataclass(frozen=True, slots=True)
class ExtendGraph:
    """An eager extend would have been one replay."""


@dataclass(frozen=True, slots=True)
class PerfectOverlap:
    """Communication costs only what no computation could hide."""


Change = Scale | Host | RemoveWait | Bucket | ExtendGraph | PerfectOverlap


def parse_scale(text: str) -> Scale:
    """Read `comm=0.5` or `kernel~pattern=0.8`.

    Raises:
        UsageError: it is neither.
    """
    head, equals, number = text.rpartition("=")
    what, tilde, pattern = head.partition("~")
    if not equals or not what.strip() or (tilde and not pattern):
        raise UsageError(
            f"--scale {text!r} is not possible. Say what and how much: "
            "comm=0.5, verify=0.9 or 'kernel~pattern=0.8'."
        )
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--scale {text!r}: {pattern!r} is no regular expression: {error}.") from None
    return Scale(what.strip(), pattern, parse_factor(number, f"--scale {text!r}"))


def parse_factor(text: str, option: str) -> float:
    """Read a factor of 0 or more.

    Raises:
        UsageError: it is none.
    """
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= 1000:
        raise UsageError(
            f"{option}: {text!r} is not a factor. Give a number from 0 to 1000, as 0.5 for half as long."
        )
    return factor


def parse_remove_wait(text: str) -> RemoveWait:
    """Read `A:B`, stream A no longer waits for stream B.

    Raises:
        UsageError: it is not two names.
    """
    waiter, colon, waited = text.partition(":")
    if not colon or not waiter.strip() or not waited.strip():
        raise UsageError(f"--remove-wait {text!r} is not possible. Say who waits for whom: main:plan.")
    return RemoveWait(waiter.strip(), waited.strip())


def parse_bucket(text: str) -> Bucket:
    """Read `8=6`, what ran in bucket 8 would run in bucket 6.

    Raises:
        UsageError: it is not two sizes.
    """
    match = re.fullmatch(r"\s*(\d+)\s*=\s*(\d+)\s*", text)
    if not match or int(match[1]) == 0 or int(match[2]) == 0:
        raise UsageError(f"--bucket {text!r} is not possible. Say the bucket and the one instead of it: 8=6.")
    return Bucket(int(match[1]), int(match[2]))


@dataclass
class Inputs:
    """What a schedule is made of, once for the careful and once for the hopeful answer.

    Attributes:
        work_ns: int64 [N] of each.
        delay_ns: int64 [E of the model] of each.
        without: bool [E of the model].
        touched: bool [N], rows whose time or waits a change touches.
        host: by thread, the host's time that a change touches, as far as no row in `touched` is it.
        hide: whether communication is hidden as far as it can be.
        remarks: what a reader should know of how a change was put.
    """

    work_ns: dict[bool, Int64]
    delay_ns: dict[bool, Int64]
    without: Bool
    touched: Bool
    host: dict[int, Intervals]
    hide: bool
    remarks: list[str]


def apply(deps: Dependencies, rounds: Rounds, model: Model, changes: Iterable[Change]) -> Inputs:
    """Put changes into what a schedule is made of.

    Raises:
        UnknownNameError: a change names something that the trace does not have.
        UsageError: a change changes nothing here.
    """
    count = len(deps.timeline)
    work = model.work_ns[:count]
    inputs = Inputs(
        {True: work.copy(), False: work.copy()},
        {careful: delays(model, careful=careful) for careful in (True, False)},
        np.zeros(len(model.src), np.bool_),
        np.zeros(count, np.bool_),
        {},
        False,
        [],
    )
    for change in changes:
        if isinstance(change, Scale):
            _scale(deps, rounds, model, inputs, change)
        elif isinstance(change, Host):
            _host(deps, model, inputs, change.factor)
        elif isinstance(change, RemoveWait):
            _remove_wait(deps, model, inputs, change)
        elif isinstance(change, Bucket):
            _bucket(deps, rounds, inputs, change)
        elif isinstance(change, ExtendGraph):
            _extend_graph(deps, rounds, model, inputs)
        else:
            _hide(deps, inputs)
    return inputs


def _multiply(inputs: Inputs, rows: Bool, careful: float, hopeful: float) -> None:
    for which, factor in ((True, careful), (False, hopeful)):
        work = inputs.work_ns[which]
        work[rows] = np.rint(work[rows] * factor).astype(np.int64)
    inputs.touched |= rows


def _scale(deps: Dependencies, rounds: Rounds, model: Model, inputs: Inputs, change: Scale) -> None:
    table = deps.timeline
    if change.what == "host":
        if change.pattern:
            _host_by_name(deps, model, inputs, change)
        else:
            _host(deps, model, inputs, change.factor)
        return
    phases = {phase.name for items in rounds.of_rank.values() for item in items for phase in item.phases}
    if change.what in _KINDS:
        rows = table.is_work & (table.kind == _KINDS[change.what])
    elif change.what in phases:
        rows = _rows_of(deps, rounds, change.what)
    else:
        raise UnknownNameError("thing to scale", change.what, [*_KINDS, "host", *phases])
    if change.pattern:
        found = re.compile(change.pattern)
        names = np.array([found.search(name) is not None for name in table.names], np.bool_)
        if not (rows & names[table.name]).any():
            there = {short_name(table.names[name]).strip() for name in np.unique(table.name[rows])}
            raise UnknownNameError(
                f"{change.what} (by pattern)", change.pattern, _alike(change.pattern, there)
            )
        rows = rows & names[table.name]
    if not rows.any():
        raise UsageError(f"--scale {change.what}: this trace has no {change.what}, so nothing would change.")
    _multiply(inputs, rows, change.factor, change.factor)


def _alike(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that are most like a pattern: a trace may have thousands."""
    return difflib.get_close_matches(pattern, list(names), n=6, cutoff=0.0)


def _rows_of(deps: Dependencies, rounds: Rounds, *phases: str) -> Bool:
    rows = np.zeros(len(deps.timeline), np.bool_)
    for phase in _phases(rounds, *phases):
        rows[phase.rows] = True
    return rows


def _phases(rounds: Rounds, *names: str) -> list[Phase]:
    return [
        phase
        for items in rounds.of_rank.values()
        for item in items
        for phase in item.phases
        if phase.name in names
    ]


def _host_by_name(deps: Dependencies, model: Model, inputs: Inputs, change: Scale) -> None:
    when = time_of(deps, change.pattern)
    if not any(map(len, when.values())):
        there = {short_name(name).strip() for name in host_names(deps)}
        raise UnknownNameError("host (by pattern)", change.pattern, _alike(change.pattern, there))
    scale_time(deps, model, when, change.factor, inputs.work_ns, inputs.delay_ns)
    for thread, stretches in when.items():
        inputs.host[thread] = merge(inputs.host[thread], stretches) if thread in inputs.host else stretches


def _host(deps: Dependencies, model: Model, inputs: Inputs, factor: float) -> None:
    rows = working(deps)
    if not rows.any():
        raise UsageError("--host: this trace holds no host, so nothing would change.")
    _multiply(inputs, rows, factor, factor)
    own = own_edges(deps, model)
    for delay in inputs.delay_ns.values():
        delay[own] = np.rint(delay[own] * factor).astype(np.int64)


def _remove_wait(deps: Dependencies, model: Model, inputs: Inputs, change: RemoveWait) -> None:
    table, edges = deps.timeline, deps.edges
    waits = np.flatnonzero(np.isin(edges.kind, [EdgeKind.EVENT, EdgeKind.EVENT_INFERRED, EdgeKind.GRAPH]))
    src, dst = deps.place[edges.src[waits]], deps.place[edges.dst[waits]]
    names = np.array([stream.name for stream in table.streams])
    fit = (names[dst] == change.waiter) & (names[src] == change.waited) & (src != dst)
    if not fit.any():
        pairs = np.unique(np.stack((dst, src))[:, src != dst], axis=1).T.tolist()
        possible = sorted({f"{names[a]}:{names[b]}" for a, b in pairs})
        if not possible:
            raise UsageError("--remove-wait: no stream of this trace is known to wait for another.")
        raise UnknownNameError("wait", f"{change.waiter}:{change.waited}", possible)
    gone = waits[fit]
    inputs.without |= np.isin(model.edge, gone)
    inputs.touched[edges.dst[gone]] = True
    inputs.remarks.append(
        f"{counted(len(gone), 'wait')} removed; whether the result would still be right is not checked"
    )


def _bucket(deps: Dependencies, rounds: Rounds, inputs: Inputs, change: Bucket) -> None:
    old = [
        phase
        for items in rounds.of_rank.values()
        for item in items
        for phase in item.phases
        if phase.facts.get("bucket") == change.old
    ]
    if not old:
        known = {
            p.facts["bucket"]
            for i in rounds.of_rank.values()
            for r in i
            for p in r.phases
            if "bucket" in p.facts
        }
        if not known:
            raise UsageError("--bucket: no mark of this trace says a bucket.")
        raise UnknownNameError("bucket", str(change.old), map(str, known))
    over = [phase for phase in old if phase.facts.get("requests", 0) > change.new]
    if over:
        inputs.remarks.append(
            f"more than {counted(change.new, 'request')} in {len(over)} of {counted(len(old), 'phase')}: "
            "left as they are"
        )
    measured: set[str] = set()
    for name in {phase.name for phase in old}:
        mine = [phase for phase in old if phase.name == name and phase not in over]
        if not mine:
            continue
        rows = np.zeros(len(deps.timeline), np.bool_)
        for phase in mine:
            rows[phase.rows] = True
        rows &= deps.timeline.kind == Kind.KERNEL
        other = [phase.busy_ns for phase in _phases(rounds, name) if phase.facts.get("bucket") == change.new]
        if other:
            ratio = float(np.median(other)) / max(1.0, float(np.median([phase.busy_ns for phase in mine])))
            measured.add(name)
            _multiply(inputs, rows, ratio, ratio)
        else:
            _multiply(inputs, rows, 1.0, change.new / change.old)
    if not measured:
        inputs.remarks.append(
            f"no replay with bucket {change.new} is in the trace: from no gain (weights are read in any case) "
            "to a gain in proportion to the rows"
        )
    else:
        inputs.remarks.append(
            f"measured in this trace with bucket {change.new}: {', '.join(sorted(measured))}"
        )


def _extend_graph(deps: Dependencies, rounds: Rounds, model: Model, inputs: Inputs) -> None:
    table = deps.timeline
    extends = _phases(rounds, markers.EXTEND)
    eager = [phase for phase in extends if phase.route is not Route.REPLAY]
    if not extends:
        raise UsageError("--extend-graph: no work of this trace is known to be an extend.")
    if not eager:
        raise UsageError("--extend-graph: every extend of this trace is a replay already.")
    later = np.zeros(len(table), np.bool_)  # what would no longer be launched
    for phase in eager:
        work = phase.rows[table.kind[phase.rows] != Kind.COMM]
        later[work[1:]] = True
        if len(work) and phase.host is not None:
            _begin_at_once(deps, model, inputs, int(table.launch[work[0]]), phase.host.start_ns)
    calls = np.zeros(len(table), np.bool_)
    calls[table.launch[later & (table.launch >= 0)]] = True
    dst = np.minimum(model.dst, len(table) - 1)
    inputs.without |= (model.kind == EdgeKind.LAUNCH) & later[dst] & (model.dst < len(table))
    gap = _gap_in_replays(deps)
    behind = (model.kind == EdgeKind.STREAM) & later[dst]
    into_calls = own_edges(deps, model) & calls[dst]
    for careful, delay in inputs.delay_ns.items():
        delay[behind] = np.minimum(delay[behind], gap if careful else 0)
        delay[into_calls] = 0
        inputs.work_ns[careful][calls] = 0
    inputs.touched |= later
    inputs.remarks.append(
        f"{counted(len(eager), 'eager extend')} as one launch each, {gap:,} ns between their kernels, "
        "which take as long as they did"
    )


def _begin_at_once(deps: Dependencies, model: Model, inputs: Inputs, call: int, begin_ns: int) -> None:
    """Take away what a thread does from the begin of a phase to its first launch."""
    if call < 0:
        return
    into = np.flatnonzero(own_edges(deps, model) & (model.dst == call))
    before = np.maximum(begin_ns - deps.done_ns[model.src[into]], 0)
    for delay in inputs.delay_ns.values():
        delay[into] = np.minimum(delay[into], before)


def _gap_in_replays(deps: Dependencies) -> int:
    """Return the median gap between kernels of a replay in this trace, or 1 us where it has none."""
    table, edges = deps.timeline, deps.edges
    inside = (edges.kind == EdgeKind.STREAM) & (table.graph[edges.src] >= 0)
    inside &= (table.replay[edges.src] == table.replay[edges.dst]) & (
        table.graph[edges.src] == table.graph[edges.dst]
    )
    return max(0, int(np.median(deps.lag_ns[inside]))) if inside.any() else 1_000


def _hide(deps: Dependencies, inputs: Inputs) -> None:
    comm = deps.timeline.is_work & (deps.timeline.kind == Kind.COMM)
    if not comm.any():
        raise UsageError("--perfect-overlap: no operation of this trace is known to be communication.")
    _multiply(inputs, comm, 0.0, 0.0)
    inputs.hide = True
    inputs.remarks.append("a bound: no round can be shorter than its own communication")

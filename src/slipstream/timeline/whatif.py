"""What would change if: the trace's own operations rescheduled under its own dependencies.

Predicting no gain is an answer: work that the path does not run through may take any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.timeline.analysis import Analysis
from slipstream.timeline.changes import Bucket, Change, Host, Inputs, Scale, apply
from slipstream.timeline.edge_types import Confidence
from slipstream.timeline.overlap import covered_ns, union
from slipstream.timeline.path import Piece
from slipstream.timeline.reschedule import Model, Schedule, make_model, reschedule
from slipstream.timeline.rounds import Round
from slipstream.timeline.table import Kind
from slipstream.timeline.unexplained import relax, unexplained
from slipstream.timeline.wording import counted, duration

#: A change of less than this share is called none.
_NONE = 0.005


@dataclass(frozen=True)
class WhatIf:
    """The answer, over the rounds of a rank that count.

    Attributes:
        rank: whose.
        rounds: their numbers.
        before_ns: int64 [R], as recorded.
        careful_ns, hopeful_ns: int64 [R], as it would be: with the delays that edges of its kind have where
            they bind, and with the least.
        limit_ns: int64 [R], the least that any factor of this change could give, or None where there is none.
        touched_ns: the time of what was changed, all rounds.
        touched_on_path_ns: of it, the part on the recorded paths.
        inferred_share: the share of the recorded paths that rests on dependencies that were concluded.
        remarks: what a reader should know.
        text: the answer in words.
    """

    rank: int
    rounds: tuple[int, ...]
    before_ns: np.ndarray[tuple[int], np.dtype[np.int64]]
    careful_ns: np.ndarray[tuple[int], np.dtype[np.int64]]
    hopeful_ns: np.ndarray[tuple[int], np.dtype[np.int64]]
    limit_ns: np.ndarray[tuple[int], np.dtype[np.int64]] | None
    touched_ns: int
    touched_on_path_ns: int
    inferred_share: float
    remarks: tuple[str, ...]
    text: str

    @property
    def mean_gain_ns(self) -> tuple[float, float]:
        """(careful, hopeful) gain of a round on average; negative is a loss.

        Not the median: work that is no longer in the way of one round may move into another.
        """
        before = _mean(self.before_ns)
        return before - _mean(self.careful_ns), before - _mean(self.hopeful_ns)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    return float(values.mean()) if len(values) else 0.0


def what_if(analysis: Analysis, changes: Sequence[Change], *, rank: int | None = None) -> WhatIf:
    """Reschedule a timeline with changes.

    Args:
        analysis: of it.
        changes: all at once.
        rank: whose rounds to tell of; the first by default. All ranks are rescheduled together.

    Raises:
        UnknownNameError: a change names something that the trace does not have.
        UsageError: a change changes nothing here.
    """
    deps, rounds = analysis.deps, analysis.rounds
    rank = rank if rank is not None else min(rounds.of_rank, default=0)
    items = rounds.counted(rank) or rounds.of_rank.get(rank, ())
    model = make_model(deps)
    inputs = apply(deps, rounds, model, changes)
    moved = relax(deps, model, inputs.work_ns, inputs.delay_ns)
    careful_ns, hopeful_ns = (
        _rescheduled(analysis, items, model, inputs, careful) for careful in (True, False)
    )
    before = np.array([item.took_ns for item in items], np.int64)
    on_path = _on_path(analysis, rank, items, inputs)
    remarks = list(inputs.remarks)
    if model.broken:
        remarks.append(
            f"left out: {counted(model.broken, 'dependency that closes', 'dependencies that close')} a circle"
        )
    held = unexplained(model)
    if held.any():
        kept = "from unchanged to changed with what ran meanwhile" if moved else "kept"
        remarks.append(
            f"{counted(int(held.sum()), 'delay')} of more than 100 us that nothing in the trace explains "
            f"({duration(int(model.bound_ns[held].sum()))}): {kept}"
        )
    touched = inputs.touched & (deps.timeline.rank == rank)
    faster = all(not isinstance(change, Scale | Host) or change.factor <= 1 for change in changes)
    result = WhatIf(
        rank,
        tuple(item.number for item in items),
        before,
        careful_ns,
        hopeful_ns,
        _limit(analysis, items, model, changes),
        int(deps.timeline.dur_ns[touched].sum()) + _host_ns(analysis, rank, inputs),
        on_path,
        _inferred_share(analysis, rank, items),
        tuple(remarks),
        "",
    )
    return replace(result, text=_text(result, faster))


def _since(analysis: Analysis, items: Sequence[Round]) -> int | None:
    """Return when the rounds that are told of begin: what a change would have done before is no part of them."""
    return int(min(analysis.deps.release_ns[item.first] for item in items)) if items else None


def _rescheduled(
    analysis: Analysis, items: Sequence[Round], model: Model, inputs: Inputs, careful: bool
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how long each round would take with what a change makes of work and delays."""
    schedule = reschedule(
        model,
        len(analysis.timeline),
        work_ns=inputs.work_ns[careful],
        delay_ns=inputs.delay_ns[careful],
        without=inputs.without,
        since_ns=_since(analysis, items),
    )
    return _took(analysis, items, schedule, hide=inputs.hide)


def _took(
    analysis: Analysis, items: Sequence[Round], schedule: Schedule, *, hide: bool
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how long each round would take."""
    table = analysis.timeline
    found: list[int] = []
    for item in items:
        begin = int(schedule.release_ns[item.first])
        if item.following >= 0:
            end = int(schedule.release_ns[item.following])
        else:
            rows = np.concatenate([phase.rows for phase in item.phases])
            end = int(schedule.done_ns[rows].max())
        took = end - begin
        if hide:
            rows = np.concatenate([phase.rows for phase in item.phases])
            rows = rows[table.kind[rows] == Kind.COMM]
            # What a collective does once everybody has come; standing for others is no transfer.
            took = max(took, union(analysis.deps.release_ns[rows], table.end_ns[rows]).total_ns)
        found.append(took)
    return np.array(found, np.int64)


def _limit(
    analysis: Analysis, items: Sequence[Round], model: Model, changes: Sequence[Change]
) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Return what rounds would take if what is scaled took no time at all."""
    least: list[Change] = []
    for change in changes:
        if isinstance(change, Scale):
            least.append(Scale(change.what, change.pattern, 0.0))
        elif isinstance(change, Host):
            least.append(Host(0.0))
        elif isinstance(change, Bucket):
            return None
        else:
            least.append(change)
    if not any(isinstance(change, Scale | Host) and change.factor > 0 for change in changes):
        return None
    inputs = apply(analysis.deps, analysis.rounds, model, least)
    relax(analysis.deps, model, inputs.work_ns, inputs.delay_ns)
    return _rescheduled(analysis, items, model, inputs, careful=False)


def _host_ns(analysis: Analysis, rank: int, inputs: Inputs) -> int:
    streams = analysis.timeline.streams
    return sum(when.total_ns for thread, when in inputs.host.items() if streams[thread].rank == rank)


def _on_path(analysis: Analysis, rank: int, items: Sequence[Round], inputs: Inputs) -> int:
    touched, stream = inputs.touched, analysis.timeline.stream
    numbers = {item.number for item in items}
    total = 0
    for report in analysis.reports.get(rank, ()):
        if report.round.number not in numbers:
            continue
        path = report.path
        row = np.maximum(path.row, 0)
        mine = (path.row >= 0) & touched[row]
        total += int((path.ends_ns - path.starts_ns)[mine].sum())
        host = (path.row >= 0) & (path.piece == Piece.HOST) & ~mine
        for thread, when in inputs.host.items():
            own = host & (stream[row] == thread)
            total += int(covered_ns(path.starts_ns[own], path.ends_ns[own], when).sum())
    return total


def _inferred_share(analysis: Analysis, rank: int, items: Sequence[Round]) -> float:
    numbers = {item.number for item in items}
    total = inferred = 0
    for report in analysis.reports.get(rank, ()):
        if report.round.number in numbers:
            total += report.path.length_ns
            inferred += sum(ns for (_, sure), ns in report.rests_on.items() if sure != Confidence.GIVEN)
    return inferred / total if total else 0.0


def _text(result: WhatIf, faster: bool) -> str:
    """Put the answer into words; where nothing was made slower (`faster`), a loss is none that could be had."""
    before = _mean(result.before_ns)
    if not before:
        return "no round to tell of"
    low, high = sorted(result.mean_gain_ns)
    share = 100 * result.touched_on_path_ns / max(1, int(result.before_ns.sum()))
    if max(abs(low), abs(high)) < _NONE * before or (faster and high < _NONE * before):
        text = f"no gain: the path runs past it ({share:.1f} % of the path is what changes)"
        if share > 1:
            text = f"no gain: {share:.1f} % of the path is what changes, and other waits take its place"
    elif abs(high - low) < _NONE * before:
        text = f"{_signed(high)} of {duration(before)} a round ({_share(high / before)})"
    else:
        between = f"{_signed(low)} to {_signed(high)}"
        if low * high >= 0:
            between = f"{'costs' if low < 0 else 'saves'} {duration(abs(low))} to {duration(abs(high))}"
        text = f"{between} of {duration(before)} a round"
        text += f" ({_share(low / before)} to {_share(high / before)})"
    if result.limit_ns is not None:
        limit = before - _mean(result.limit_ns)
        # Work that is in the way of one round may move into another, so less can even look like more.
        more = limit > max(low, high) + _NONE * before
        text += f"; {_signed(limit)} if it took no time at all" if more else "; no factor would save more"
    return text


def _share(gain: float) -> str:
    """Return a gain as a change of the time: -4.8 % is shorter."""
    return f"{-100 * gain + 0.0:+.1f} %".replace("-0.0 %", "0 %").replace("+0.0 %", "0 %")


def _signed(gain_ns: float) -> str:
    return f"{'saves' if gain_ns >= 0 else 'costs'} {duration(abs(gain_ns))}"

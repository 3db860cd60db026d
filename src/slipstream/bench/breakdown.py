"""Where the rounds of an engine spend their time: its phases, the work between them, and what a forward reads.

round = draft + verify + extend             replays of graphs, or eager runs
      + plans + accept + the host's parts   what the recorder's slices name
      + rest                                dispatch, the loop itself
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from rich.table import Table

from slipstream.bench.bandwidth import ForwardBytes
from slipstream.bench.tables import kernel_ms, kernel_shares, phase_rows
from slipstream.engine.stats import EngineStats
from slipstream.trace import Event, NullRecorder, PartTimes, Recorder, names

#: What no slice names.
REST = "rest"


class PhaseClock(NullRecorder):
    """Adds up the time of each slice's name and keeps no events: half a microsecond a slice.

    Phases that graphs run are no slices here: `GraphStats` counts them anyway.

    Args:
        recorder: keeps the events as well, if it is one that records.

    Attributes:
        spent_ns: time by name.
        runs: slices by name.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        super().__init__()
        self._to = recorder or NullRecorder()
        self.enabled = self._to.enabled
        self.spent_ns: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        self._slices: dict[str, _Timed] = {}

    def slice(self, track: str, name: str, /, **args: int | float | str) -> AbstractContextManager[None]:
        timed = self._slices.get(name)
        if timed is None:
            timed = self._slices[name] = _Timed(self, name)
        return _Both(timed, self._to.slice(track, name, **args)) if self.enabled else timed

    def add(self, event: Event) -> None:
        self._to.add(event)

    def parts(self, track: str, phase: str, times: list[PartTimes]) -> None:
        self._to.parts(track, phase, times)

    def flow(self, name: str, from_track: str, from_ns: int, to_track: str, to_ns: int) -> None:
        self._to.flow(name, from_track, from_ns, to_track, to_ns)

    def mark(self, track: str, name: str, /, **args: int | float | str) -> None:
        self._to.mark(track, name, **args)

    def reset(self) -> None:
        """Begin to count anew."""
        self.spent_ns.clear()
        self.runs.clear()


class _Timed(AbstractContextManager[None]):
    """One name's slices. A name never holds itself, so one object serves them all."""

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name
        self._started = 0

    def __enter__(self) -> None:
        self._started = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        spent = perf_counter_ns() - self._started
        clock, name = self._clock, self._name
        clock.spent_ns[name] = clock.spent_ns.get(name, 0) + spent
        clock.runs[name] = clock.runs.get(name, 0) + 1


class _Both(AbstractContextManager[None]):
    """A slice that is timed and recorded."""

    def __init__(self, timed: _Timed, recorded: AbstractContextManager[None]) -> None:
        self._timed, self._recorded = timed, recorded

    def __enter__(self) -> None:
        self._timed.__enter__()
        self._recorded.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorded.__exit__(kind, value, trace)
        self._timed.__exit__(kind, value, trace)


def round_breakdown(
    stats: EngineStats, clock: PhaseClock, kernel_ns: dict[str, int], context: float, reads: ForwardBytes
) -> dict[str, Any]:
    """Return where the rounds' time went, as plain data. The parts' `ms` add up to `rounds` x `round_ms`.

    Args:
        stats: of the engine.
        clock: the engine's recorder.
        kernel_ns: time inside replays by native kernel.
        context: mean tokens of context of a round, those of all requests together.
        reads: what the target's forward reads.
    """
    rounds = stats.rounds
    parts = phase_rows(stats) + [_host_row(stats, name, clock) for name in clock.spent_ns]
    rest_ns = stats.round_ns - stats.graphs.phase_ns - sum(clock.spent_ns.values())
    parts.append(_part(stats, REST, rest_ns, rounds))
    parts.sort(key=lambda row: _place(row["phase"]))
    forwards = [counts for key, counts in stats.graphs.phases.items() if key.phase == names.VERIFY]
    runs, time_ns = sum(c.replays + c.eager for c in forwards), sum(c.time_ns for c in forwards)
    return {
        "rounds": rounds,
        "round_ms": stats.round_ns / rounds / 1e6 if rounds else 0.0,
        "host_share": stats.host_share,
        "parts": parts,
        "kernel_ms": kernel_ms(kernel_ns),
        "forward_ms": time_ns / runs / 1e6 if runs else 0.0,
        "context": context,
        "read_mb": reads.of(context) / 1e6,
        "gb_s": reads.of(context) * runs / time_ns if time_ns else 0.0,
    }


def _host_row(stats: EngineStats, name: str, clock: PhaseClock) -> dict[str, Any]:
    return _part(stats, name, clock.spent_ns[name], clock.runs[name])


def _part(stats: EngineStats, name: str, spent_ns: int, runs: int) -> dict[str, Any]:
    return {
        "phase": name,
        "route": "host",
        "reason": "not a graph",
        "bucket": 0,
        "width": 0,
        "runs": runs,
        "rows": 0,
        "padded_rows": 0,
        "ms_per_run": spent_ns / runs / 1e6 if runs else 0.0,
        "ms": spent_ns / 1e6,
        "share": spent_ns / stats.round_ns if stats.round_ns else 0.0,
    }


def breakdown_table(breakdowns: dict[str, dict[str, Any]]) -> Table:
    """Return one table of several engines' rounds, a line a part."""
    table = Table(title="Where a round's time went", title_justify="left")
    table.add_column("part")
    lines: dict[tuple[int, str], dict[str, dict[str, Any]]] = {}
    for engine, data in breakdowns.items():
        for name in ("runs", "ms/run", "share"):
            table.add_column(f"{engine}\n{name}", justify="right")
        for part in data["parts"]:
            lines.setdefault(_line(part), {})[engine] = part
    for (_, label), parts in sorted(lines.items()):
        cells = [_cells(parts.get(engine)) for engine in breakdowns]
        table.add_row(label, *(cell for three in cells for cell in three))
    table.add_section()
    totals = [(str(d["rounds"]), f"{d['round_ms']:.2f}", "100.0%") for d in breakdowns.values()]
    table.add_row("round", *(cell for three in totals for cell in three))
    return table


def _line(part: dict[str, Any]) -> tuple[int, str]:
    """Return a part's place and label: phases in their order, the rest last."""
    shape = f" {part['bucket']}x{part['width']}" if part["width"] else ""
    eager = " (eager)" if part["route"] in ("eager", "both") else ""
    return _place(part["phase"]), f"{part['phase']}{shape}{eager}"


def _place(name: str) -> int:
    """Return where a phase stands in the order of a round; the rest stands last."""
    return names.PHASES.index(name) if name in names.PHASES else len(names.PHASES) + (name == REST)


def _cells(part: dict[str, Any] | None) -> tuple[str, str, str]:
    if part is None:
        return "", "", ""
    return str(part["runs"]), f"{part['ms_per_run']:.3f}", f"{part['share']:.1%}"


def reading(data: dict[str, Any], read_gb_s: float) -> str:
    """Return what one engine's forwards read and how fast, and its dispatch share, for people."""
    line = (
        f"{data['forward_ms']:.2f} ms a forward that reads {data['read_mb']:.0f} MB: {data['gb_s']:.1f} GB/s, "
        f"{data['gb_s'] / read_gb_s:.0%} of what this machine reads; dispatch share {data['host_share']:.1%}"
    )
    if not data["kernel_ms"]:
        return line
    shares = kernel_shares({name: round(ms * 1e6) for name, ms in data["kernel_ms"].items()})
    return f"{line}\n    inside the replays: {shares}"

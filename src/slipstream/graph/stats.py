"""What graphs did: routes, rows and time by shape, and everything of each graph. Pure: no torch.

Counting a step is a look-up by the `Dispatch` itself and a few additions; tables and texts are made when somebody
asks (`graph.stats_text`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import MIXED, Dispatch
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.reasons import Reason

#: Of each graph, the times of so many replays are kept for percentiles: the newest.
KEPT_TIMES = 1024


@dataclass(slots=True)
class PhaseStats:
    """What one phase of one shape did so far. Times in nanoseconds."""

    replays: int = 0
    eager: int = 0
    requests: int = 0
    rows: int = 0
    padded_rows: int = 0
    time_ns: int = 0


@dataclass(slots=True)
class GraphRecord:
    """One graph since the engine was made; its runs since the last reset. Times in nanoseconds.

    Attributes:
        captures: how often it was captured; more than once after a sleep.
        capture_ns: what its captures took, warm-ups left out.
        pieces: graphs of the device that it is made of.
        memory_bytes: what it holds alone: results, and what crosses pieces.
        streams: streams that its work runs on; 0 where the device cannot tell.
        tasks: its updatable ops.
        update_ns, wait_ns: host time of refreshing these, and of waiting for the device to do so.
        replays: of the graph.
        raw_rows, padded_rows: rows of batches, and rows that belonged to no request.
        times: of the newest replays, as the host saw them: from launch to return.
    """

    captures: int = 0
    capture_ns: int = 0
    pieces: int = 0
    memory_bytes: int = 0
    streams: int = 0
    tasks: int = 0
    update_ns: int = 0
    wait_ns: int = 0
    replays: int = 0
    raw_rows: int = 0
    padded_rows: int = 0
    times: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))

    def percentile_ns(self, percent: float) -> int:
        """Return a percentile of the newest replays' times, by the nearest rank; 0 before the first replay."""
        if not self.times:
            return 0
        ordered = sorted(self.times)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


@dataclass(slots=True)
class _Runs:
    """Runs of one dispatch.

    Attributes:
        count: how many.
        phase: of its shape.
        graph: the graph that it replays, or None.
        label: why it is eager, with its phase.
    """

    phase: PhaseStats
    graph: GraphRecord | None
    label: str
    count: int = 0


@dataclass(slots=True)
class GraphStats:
    """Everything that graphs did so far.

    Attributes:
        phases: rounds' phases by shape.
        mixed: chunks of prompts by shape; no part of a round's time.
        eager_reasons: how often each reason sent a phase of a round to the eager route.
        graphs: every graph that was ever captured, by mode and key.
        captures: graphs captured.
        capture_ns: time that took.
    """

    phases: dict[BatchDescriptor, PhaseStats] = field(default_factory=dict)
    mixed: dict[BatchDescriptor, PhaseStats] = field(default_factory=dict)
    eager_reasons: Counter[str] = field(default_factory=Counter)
    graphs: dict[tuple[GraphMode, BatchDescriptor], GraphRecord] = field(default_factory=dict)
    captures: int = 0
    capture_ns: int = 0
    _runs: dict[Dispatch, _Runs] = field(default_factory=dict)

    def note_capture(
        self,
        mode: GraphMode,
        key: BatchDescriptor,
        capture_ns: int,
        *,
        pieces: int = 1,
        memory_bytes: int = 0,
        streams: int = 0,
        tasks: int = 0,
    ) -> None:
        """Note one graph's capture."""
        record = self.graphs.setdefault((mode, key), GraphRecord())
        record.captures += 1
        record.capture_ns += capture_ns
        record.pieces, record.memory_bytes = pieces, memory_bytes
        record.streams, record.tasks = streams, tasks
        self.captures += 1
        self.capture_ns += capture_ns

    def forget(self, phase: str) -> None:
        """Forget the graphs of a phase, which were dropped for good."""
        for graph in [graph for graph in self.graphs if graph[1].phase == phase]:
            del self.graphs[graph]

    def count(self, dispatch: Dispatch, time_ns: int) -> None:
        """Note one run of a phase."""
        runs = self._runs.get(dispatch)
        if runs is None:
            runs = self._first(dispatch)
        runs.count += 1
        phase, graph, padded = runs.phase, runs.graph, dispatch.shape.rows - dispatch.rows
        if graph is None:
            phase.eager += 1
            if runs.label:
                self.eager_reasons[runs.label] += 1
        else:
            phase.replays += 1
            graph.replays += 1
            graph.raw_rows += dispatch.rows
            graph.padded_rows += padded
            graph.times.append(time_ns)
        phase.requests += dispatch.num_reqs
        phase.rows += dispatch.rows + padded
        phase.padded_rows += padded
        phase.time_ns += time_ns

    def _first(self, dispatch: Dispatch) -> _Runs:
        shape, replay = dispatch.shape, dispatch.route is Route.REPLAY
        mixed = shape.phase in MIXED
        phase = (self.mixed if mixed else self.phases).setdefault(shape, PhaseStats())
        graph = self.graphs.setdefault((dispatch.mode, dispatch.key), GraphRecord()) if replay else None
        label = "" if mixed or replay else f"{shape.phase}: {dispatch.reason}"
        runs = self._runs[dispatch] = _Runs(phase, graph, label)
        return runs

    def reset(self) -> None:
        """Forget the runs; captures stay."""
        for forgotten in (self.phases, self.mixed, self.eager_reasons, self._runs):
            forgotten.clear()
        for graph in self.graphs.values():
            graph.replays = graph.raw_rows = graph.padded_rows = graph.update_ns = graph.wait_ns = 0
            graph.times.clear()

    def runs(self) -> Iterator[tuple[Dispatch, int]]:
        """Yield every decision that was taken, chunks of prompts included, with how often it was."""
        return ((dispatch, runs.count) for dispatch, runs in self._runs.items())

    def eager_kinds(self) -> Counter[tuple[str, Reason]]:
        """Return how often each phase ran eagerly for each kind of reason, chunks of prompts included."""
        kinds = Counter[tuple[str, Reason]]()
        for dispatch, count in self.runs():
            if dispatch.route is Route.EAGER:
                kinds[dispatch.shape.phase, dispatch.kind] += count
        return kinds

    def never_replayed(self) -> list[tuple[GraphMode, BatchDescriptor]]:
        """Return the graphs that were captured and not replayed since the last reset."""
        return [graph for graph, record in self.graphs.items() if record.captures and not record.replays]

    @property
    def replays(self) -> int:
        """Replays of all phases of rounds."""
        return sum(stats.replays for stats in self.phases.values())

    @property
    def eager(self) -> int:
        """Eager runs of all phases of rounds."""
        return sum(stats.eager for stats in self.phases.values())

    @property
    def padded_rows(self) -> int:
        """Padded rows of all phases of rounds."""
        return sum(stats.padded_rows for stats in self.phases.values())

    @property
    def phase_ns(self) -> int:
        """Time inside phases of rounds, replayed or eager, in nanoseconds."""
        return sum(stats.time_ns for stats in self.phases.values())

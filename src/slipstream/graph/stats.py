"""Counts of routes, rows and time by phase, and the reasons for every eager run. Pure: no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatch
from slipstream.graph.modes import Route


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
class GraphStats:
    """Everything that graphs did so far.

    Attributes:
        phases: by shape.
        eager_reasons: how often each reason sent a phase to the eager route.
        captures: graphs captured.
        capture_ns: time that took.
    """

    phases: dict[BatchDescriptor, PhaseStats] = field(default_factory=dict)
    eager_reasons: Counter[str] = field(default_factory=Counter)
    captures: int = 0
    capture_ns: int = 0

    def count(self, dispatch: Dispatch, num_requests: int, time_ns: int) -> None:
        """Note one run of a phase."""
        key = dispatch.key
        stats = self.phases.get(key)
        if stats is None:
            stats = self.phases[key] = PhaseStats()
        if dispatch.route is Route.REPLAY:
            stats.replays += 1
        else:
            stats.eager += 1
            self.eager_reasons[f"{key.phase}: {dispatch.reason}"] += 1
        stats.requests += num_requests
        stats.rows += key.rows
        stats.padded_rows += key.padded_rows(num_requests)
        stats.time_ns += time_ns

    def reset(self) -> None:
        """Forget the runs; captures stay."""
        self.phases.clear()
        self.eager_reasons.clear()

    @property
    def replays(self) -> int:
        """Replays of all phases."""
        return sum(stats.replays for stats in self.phases.values())

    @property
    def eager(self) -> int:
        """Eager runs of all phases."""
        return sum(stats.eager for stats in self.phases.values())

    @property
    def padded_rows(self) -> int:
        """Padded rows of all phases."""
        return sum(stats.padded_rows for stats in self.phases.values())

    @property
    def phase_ns(self) -> int:
        """Time inside phases, replayed or eager, in nanoseconds."""
        return sum(stats.time_ns for stats in self.phases.values())

"""Which route a phase takes, and why. Pure: no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.graph.buckets import pick_bucket
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.modes import GraphMode, Route


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One decision.

    Attributes:
        route: eager or replay.
        key: the shape to run in; eager shapes have no padding, unless a capture failed.
        reason: why this route, in words that a table can show.
    """

    route: Route
    key: BatchDescriptor
    reason: str


class Dispatcher:
    """Chooses among the graphs that were captured.

    Args:
        mode: what may be captured at all.
        buckets: request slots, ascending.
        failed: (phase, width) whose capture failed, with the reason.
    """

    def __init__(
        self, mode: GraphMode, buckets: Sequence[int], failed: Mapping[tuple[str, int], str] | None = None
    ) -> None:
        self.mode = mode
        self.buckets = tuple(buckets)
        self._failed = dict(failed or {})
        self._known: dict[tuple[str, int, int], Dispatch] = {}

    def fail(self, phase: str, width: int, reason: str) -> None:
        """Note that the graphs of a phase could not be captured."""
        self._failed[phase, width] = reason
        self._known.clear()

    def dispatch(self, phase: str, num_requests: int, width: int) -> Dispatch:
        """Return the route for `num_requests` requests of `width` rows in `phase`."""
        asked = (phase, num_requests, width)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._decide(phase, num_requests, width)
        return known

    def _decide(self, phase: str, num_requests: int, width: int) -> Dispatch:
        eager = BatchDescriptor(phase, num_requests, width)
        if self.mode is GraphMode.NONE:
            return Dispatch(Route.EAGER, eager, "graphs are off (--graph none)")
        bucket = pick_bucket(self.buckets, num_requests)
        if bucket is None:
            reason = f"{num_requests} requests exceed the largest bucket {self.buckets[-1]}"
            return Dispatch(Route.EAGER, eager, reason)
        key = BatchDescriptor(phase, bucket, width)
        if (phase, width) in self._failed:
            # The bucket stays: the round's other phases are padded to it, and rows have to match.
            return Dispatch(Route.EAGER, key, self._failed[phase, width])
        return Dispatch(Route.REPLAY, key, "captured")

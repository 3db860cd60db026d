"""Whether drafts pay for their rows: from measured times, for the batch at hand. No torch.

    plain round     B tokens            in t(B, 1)
    verify round    B + expected        in t(B, width)

Speculation pays where the second gives more tokens a second. The text is the same either way.
"""

from __future__ import annotations

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher

#: Without a measured time: what a verify of 4 rows over 1 row took on the machine of docs/log.md.
_UNMEASURED_RATIO = 1.5

#: How much a new time weighs against the running mean.
_WEIGHT = 0.05


class PhaseCosts:
    """Running mean of each shape's time, in nanoseconds; captures give the first value."""

    def __init__(self) -> None:
        self._mean_ns: dict[BatchDescriptor, float] = {}

    def observe(self, key: BatchDescriptor, time_ns: int) -> None:
        """Take in one measured time. A single slow one, as when the machine was busy, hardly counts."""
        mean = self._mean_ns.get(key)
        if mean is None:
            self._mean_ns[key] = float(time_ns)
        else:
            self._mean_ns[key] = mean + _WEIGHT * (min(time_ns, 2 * mean) - mean)

    def ratio(self, wide: BatchDescriptor, plain: BatchDescriptor) -> float:
        """Return how many times as long `wide` takes as `plain`."""
        wide_ns, plain_ns = self._mean_ns.get(wide), self._mean_ns.get(plain)
        return wide_ns / plain_ns if wide_ns and plain_ns else _UNMEASURED_RATIO


def drafts_pay(
    costs: PhaseCosts, dispatcher: Dispatcher, num_requests: int, width: int, expected: float
) -> bool:
    """Return whether verifying `width` rows a request beats a plain round.

    Args:
        costs: measured times.
        dispatcher: knows which shape a batch runs in.
        num_requests: requests of the batch, those without drafts included.
        width: rows a request of the verify round.
        expected: drafts that are likely to hold, over all requests.
    """
    wide = dispatcher.dispatch("verify", num_requests, width).key
    plain = dispatcher.dispatch("verify", num_requests, 1).key
    return (num_requests + expected) / num_requests > costs.ratio(wide, plain)

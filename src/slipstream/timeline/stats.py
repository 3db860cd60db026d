"""A number over rounds: median, 90th percentile, and which rounds stand out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Stats:
    """A number over rounds.

    Attributes:
        count: how many rounds have it.
        median, p90, low, high: of them.
        outliers: the rounds that have more than 1.5 times the median, at most ten, the largest first.
    """

    count: int
    median: float
    p90: float
    low: float
    high: float
    outliers: tuple[int, ...]


def stats_of(values: Mapping[int, float]) -> Stats:
    """Return the statistics of a number by round; `values` must not be empty."""
    numbers = np.array(list(values.values()), np.float64)
    median = float(np.median(numbers))
    far = sorted((n for n, value in values.items() if value > 1.5 * median), key=lambda n: -values[n])
    return Stats(
        len(numbers),
        median,
        float(np.percentile(numbers, 90)),
        float(numbers.min()),
        float(numbers.max()),
        tuple(far[:10]),
    )

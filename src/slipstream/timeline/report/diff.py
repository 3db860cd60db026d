"""Two runs side by side: rounds, phases, and what the difference went to.

Significance is a permutation test of the rank sum (Mann-Whitney's, ties at their mean rank), two-sided: how often
rounds dealt out at random to the two runs would have ranks as far apart. All deals are tried where there are few,
else 10,000 of them. Within one diff the p-values are corrected for their number (Holm). The interval is that of
the difference of medians, by 2,000 resamples of each run (95 %). Both take the rounds of a run as independent:
what a machine does for a while (its clock, its neighbours) they cannot tell from a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slipstream.timeline.report.ledger import Entry
from slipstream.timeline.report.overview import Overview

Floats = npt.NDArray[np.float64]

#: Deals that are all tried, and how many are drawn where there are more.
_ALL: Final = 20_000
_DRAWN: Final = 10_000
_RESAMPLES: Final = 2_000
#: Of more rounds than this so many are drawn for the resamples.
_MOST_ROUNDS: Final = 2_000
#: What is called significant.
ALPHA: Final = 0.05


@dataclass(frozen=True)
class Difference:
    """One number in two runs. Times in ns.

    Attributes:
        what: "round", "phase verify", "path draft → verify".
        counts: rounds that have it, of each run.
        medians: of each run; None where a run does not have it.
        low, high: the interval of b - a; None where there are too few rounds.
        p: of "no difference", corrected; None where there are too few rounds for any.
    """

    what: str
    counts: tuple[int, int]
    medians: tuple[float | None, float | None]
    low: float | None
    high: float | None
    p: float | None

    @property
    def change(self) -> float | None:
        """b by a, minus one."""
        a, b = self.medians
        return b / a - 1 if a and b is not None else None

    @property
    def significant(self) -> bool:
        """Whether chance is an unlikely reason."""
        return self.p is not None and self.p < ALPHA


@dataclass(frozen=True)
class Cause:
    """By what a name's time on the path of a mean round changed; together, by what the mean round changed."""

    entry: Entry
    name: str
    a_ns: float
    b_ns: float

    @property
    def change_ns(self) -> float:
        """b - a."""
        return self.b_ns - self.a_ns


@dataclass(frozen=True)
class Diff:
    """Two runs.

    Attributes:
        differences: the round first, then phases (spans on the device), then the paths' parts.
        causes: largest change first.
        means: of a round, ns.
        token_ns: cost of a token, where known.
        routes: phase -> routes, of those that differ.
    """

    differences: tuple[Difference, ...]
    causes: tuple[Cause, ...]
    means: tuple[float, float]
    token_ns: tuple[float | None, float | None]
    routes: dict[str, tuple[str, str]]


def diff(a: Overview, b: Overview) -> Diff:
    """Compare two ranks' rounds."""
    one, other = _numbers(a), _numbers(b)
    found = [compare(what, one.get(what, ()), other.get(what, ())) for what in dict.fromkeys([*one, *other])]
    before, after = a.ledger.per_round(), b.ledger.per_round()
    causes = [
        Cause(*key, before.get(key, 0.0), after.get(key, 0.0)) for key in dict.fromkeys([*before, *after])
    ]
    routes = {
        name: (_routes(a, name), _routes(b, name))
        for name in dict.fromkeys([*a.routes, *b.routes])
        if set(a.routes.get(name, ())) != set(b.routes.get(name, ()))
    }
    return Diff(
        tuple(holm(found)),
        tuple(sorted(causes, key=lambda cause: (-abs(cause.change_ns), cause.name))),
        (a.ledger.total_ns / len(a.reports), b.ledger.total_ns / len(b.reports)),
        (a.token_ns, b.token_ns),
        routes,
    )


def _routes(view: Overview, name: str) -> str:
    return ", ".join(f"{route.value} {count}" for route, count in view.routes.get(name, {}).items()) or "none"


def _numbers(view: Overview) -> dict[str, list[float]]:
    """Return rounds' numbers by what they are of."""
    found: dict[str, list[float]] = {"round": []}
    for report in view.reports:
        found["round"].append(report.round.took_ns)
        for phase in report.round.phases:
            found.setdefault(f"phase {phase.name}", []).append(phase.span_ns)
    for report in view.reports:
        for part in report.parts:
            found.setdefault(f"path {part.label}", []).append(part.took_ns)
    return found


def compare(what: str, a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare a number of two runs; its p-value is not corrected yet."""
    one, other = np.array(a, np.float64), np.array(b, np.float64)
    medians = (float(np.median(one)) if len(one) else None, float(np.median(other)) if len(other) else None)
    if min(len(one), len(other)) < 2:
        return Difference(what, (len(one), len(other)), medians, None, None, None)
    generator = np.random.default_rng(0)
    low, high = _interval(one, other, generator)
    return Difference(what, (len(one), len(other)), medians, low, high, p_value(one, other, generator))


def _interval(a: Floats, b: Floats, generator: np.random.Generator) -> tuple[float, float]:
    medians = []
    for values in (a, b):
        if len(values) > _MOST_ROUNDS:
            values = generator.choice(values, _MOST_ROUNDS, replace=False)
        medians.append(np.median(generator.choice(values, (_RESAMPLES, len(values))), axis=1))
    low, high = np.percentile(medians[1] - medians[0], [2.5, 97.5])
    return float(low), float(high)


def p_value(a: Floats, b: Floats, generator: np.random.Generator) -> float:
    """Return how often a deal of the numbers has rank sums at least as far apart as they are."""
    together = np.concatenate((a, b))
    ranks = mean_ranks(together)
    count, total = len(a), len(together)
    expected = ranks.mean() * count
    seen = abs(float(ranks[:count].sum()) - expected) - 1e-9
    if math.comb(total, count) <= _ALL:
        sums = ranks[_deals(total, count)].sum(axis=1)
        return float(np.mean(np.abs(sums - expected) >= seen))
    far = 0
    for _ in range(0, _DRAWN, 500):
        order = generator.random((500, total)).argpartition(count - 1, axis=1)[:, :count]
        far += int((np.abs(ranks[order].sum(axis=1) - expected) >= seen).sum())
    return (far + 1) / (_DRAWN + 1)


@cache
def _deals(total: int, count: int) -> npt.NDArray[np.int64]:
    """Return every way to choose some of all, int64 [ways, count]."""
    return np.array(list(combinations(range(total), count)), np.int64)


def mean_ranks(values: Floats) -> Floats:
    """Return the ranks of numbers from 1; equal ones have the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = ((last - counts + 1 + last) / 2.0)[which]
    return means


def holm(found: Sequence[Difference]) -> list[Difference]:
    """Correct p-values for how many they are."""
    tested = sorted((item.p, number) for number, item in enumerate(found) if item.p is not None)
    corrected = list(found)
    least = 0.0
    for place, (p, number) in enumerate(tested):
        least = max(least, min(1.0, p * (len(tested) - place)))
        corrected[number] = replace(found[number], p=least)
    return corrected


def diff_data(found: Diff) -> dict[str, Any]:
    """Return a difference as plain data."""
    return {
        "schema": 1,
        "test": "permutation of the rank sum, two-sided, Holm-corrected",
        "mean_round_ns": list(found.means),
        "token_ns": list(found.token_ns),
        "differences": [
            {
                "what": item.what,
                "rounds": list(item.counts),
                "median_ns": list(item.medians),
                "change": item.change,
                "low_ns": item.low,
                "high_ns": item.high,
                "p": item.p,
                "significant": item.significant,
            }
            for item in found.differences
        ],
        "causes": [
            {
                "what": cause.entry.value,
                "name": cause.name,
                "a_ns": cause.a_ns,
                "b_ns": cause.b_ns,
                "change_ns": cause.change_ns,
            }
            for cause in found.causes
        ],
        "routes": {name: list(routes) for name, routes in found.routes.items()},
    }

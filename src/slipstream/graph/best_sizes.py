"""The list of sizes that pads least: exact, by dynamic programming. Pure: no torch.

Of the batches in ascending order, those between two chosen sizes are padded to the upper one. So with W and S the
running sums of weight and of weight x rows,

    cost(j) = min over i < j of  cost(i) + size_j (W_j - W_i) - (S_j - S_i),

once more for every graph of the budget. For fixed j that is the least of lines in size_j with slopes -W_i; sizes
ascend and slopes fall, so a convex hull finds each minimum in constant time on average: budget x batches in all,
in whole numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from slipstream.errors import UsageError

#: More graphs than this nobody captures.
MAX_BUDGET = 512


@dataclass(frozen=True, slots=True)
class BestSizes:
    """A list that no other of at most as many sizes beats.

    Attributes:
        sizes: ascending.
        padded_rows: weight x padded rows over all batches.
    """

    sizes: tuple[int, ...]
    padded_rows: int


def best_sizes(weights: Mapping[int, int], budget: int, candidates: Sequence[int] | None = None) -> BestSizes:
    """Return the sizes that pad a histogram of batches least, and hold every batch of it.

    Where a shorter list is as good, it is the shorter one.

    Args:
        weights: how often each number of rows is seen; 0 asks for a graph without counting its padding.
        budget: graphs, 1 to 512.
        candidates: sizes that are possible, ascending; by default any.

    Raises:
        UsageError: the budget is not possible, there is no batch, or one is larger than every candidate.
    """
    if not 1 <= budget <= MAX_BUDGET:
        raise UsageError(f"a budget of {budget} graphs is not possible; it is 1 to {MAX_BUDGET}.")
    if not weights:
        raise UsageError("there is no batch to choose sizes for; the histogram is empty.")
    groups = _groups(weights, candidates)
    sizes = [size for size, _, _ in groups]
    weight_sums = [0, *accumulate(weight for _, weight, _ in groups)]
    row_sums = [0, *accumulate(rows for _, _, rows in groups)]
    # costs[j]: of the first j groups. Without a size only no group at all can be held.
    costs: list[int | None] = [0, *[None] * len(groups)]
    choices: list[list[int]] = []
    best: int | None = None
    for _ in range(min(budget, len(groups))):
        costs, choice = _one_more(costs, sizes, weight_sums, row_sums)
        if best is not None and costs[-1] == best:
            break
        choices.append(choice)
        best = costs[-1]
    assert best is not None
    return BestSizes(_walk_back(choices, sizes), best)


def padded_rows(weights: Mapping[int, int], sizes: Sequence[int]) -> tuple[int, int]:
    """Return (weight x padded rows, weight without a size): what a list costs on a histogram of rows."""
    padded = left_out = 0
    for rows, weight in weights.items():
        index = bisect_left(sizes, rows)
        if index == len(sizes):
            left_out += weight
        else:
            padded += weight * (sizes[index] - rows)
    return padded, left_out


def _groups(weights: Mapping[int, int], candidates: Sequence[int] | None) -> list[tuple[int, int, int]]:
    """Return (smallest size that holds it, weight, weight x rows) of the batches, those of one size together."""
    grouped: dict[int, tuple[int, int]] = {}
    for rows in sorted(weights):
        size = rows
        if candidates is not None:
            index = bisect_left(candidates, rows)
            if index == len(candidates):
                most = candidates[-1] if candidates else 0
                raise UsageError(
                    f"a batch of {rows} rows fits in no size that is possible; the largest is {most}."
                )
            size = candidates[index]
        weight, total = grouped.get(size, (0, 0))
        grouped[size] = (weight + weights[rows], total + weights[rows] * rows)
    return [(size, weight, total) for size, (weight, total) in grouped.items()]


def _one_more(
    costs: list[int | None], sizes: list[int], weight_sums: list[int], row_sums: list[int]
) -> tuple[list[int | None], list[int]]:
    """Return the costs with one size more, and for each place where the size before it stands."""
    hull: list[tuple[int, int, int]] = []  # (slope, value at 0, place) of lines, slopes falling
    new: list[int | None] = [None]
    choice = [0]
    first = 0
    for place, size in enumerate(sizes):
        before = costs[place]
        if before is not None:
            line = (-weight_sums[place], before + row_sums[place], place)
            # A batch without weight leaves the slope as it was: the lower of two parallel lines stays.
            if hull and hull[-1][0] == line[0]:
                if hull[-1][1] > line[1]:
                    hull.pop()
                else:
                    line = hull.pop()
            while len(hull) >= 2 and _hidden(hull[-2], hull[-1], line):
                hull.pop()
            hull.append(line)
        if not hull:
            new.append(None)
            choice.append(0)
            continue
        first = min(first, len(hull) - 1)
        while first + 1 < len(hull) and _at(hull[first + 1], size) <= _at(hull[first], size):
            first += 1
        new.append(_at(hull[first], size) + size * weight_sums[place + 1] - row_sums[place + 1])
        choice.append(hull[first][2])
    return new, choice


def _at(line: tuple[int, int, int], size: int) -> int:
    return line[0] * size + line[1]


def _hidden(low: tuple[int, int, int], middle: tuple[int, int, int], high: tuple[int, int, int]) -> bool:
    """Return whether the middle one of three lines is the least nowhere; slopes fall from low to high."""
    return (high[1] - low[1]) * (low[0] - middle[0]) <= (middle[1] - low[1]) * (low[0] - high[0])


def _walk_back(choices: list[list[int]], sizes: list[int]) -> tuple[int, ...]:
    chosen = []
    place = len(sizes)
    for choice in reversed(choices):
        chosen.append(sizes[place - 1])
        place = choice[place]
    return tuple(reversed(chosen))

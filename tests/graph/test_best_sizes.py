"""The best list of sizes: as good as trying every list, never worse than a default one, and quick."""

from __future__ import annotations

import random
import time
from itertools import combinations

import pytest

from slipstream.errors import UsageError
from slipstream.graph.best_sizes import MAX_BUDGET, best_sizes, padded_rows
from slipstream.graph.sizes import SizeSource, default_sizes, stride_sizes


def by_trying_all(weights: dict[int, int], budget: int, candidates: list[int]) -> int:
    """The least padding of any list of candidates that holds every batch."""
    found = []
    for number in range(1, min(budget, len(candidates)) + 1):
        for sizes in combinations(candidates, number):
            if sizes[-1] >= max(weights):
                found.append(padded_rows(weights, sizes)[0])
    return min(found)


def random_histogram(random_: random.Random, most: int) -> dict[int, int]:
    batches = random_.sample(range(1, most + 1), random_.randint(1, min(6, most)))
    return {batch: random_.randint(0, 20) for batch in batches}


def test_equal_to_brute_force_on_1000_random_histograms() -> None:
    random_ = random.Random(6)
    for _ in range(1000):
        weights = random_histogram(random_, 10)
        budget = random_.randint(1, 4)
        step = random_.choice((1, 1, 2, 3))
        candidates = list(range(step, 13, step))
        best = best_sizes(weights, budget, candidates)
        assert best.padded_rows == by_trying_all(weights, budget, candidates)
        assert len(best.sizes) <= budget
        assert set(best.sizes) <= set(candidates)
        assert padded_rows(weights, best.sizes) == (best.padded_rows, 0)


def test_never_worse_than_a_default_list_of_as_many() -> None:
    random_ = random.Random(7)
    for _ in range(100):
        most = random_.randint(1, 512)
        weights = {random_.randint(1, most): random_.randint(0, 50) for _ in range(random_.randint(1, 60))}
        for source in SizeSource:
            default = default_sizes(source, most, 1)
            padded, left_out = padded_rows(weights, default)
            if left_out or default[-1] < max(weights):
                continue
            assert best_sizes(weights, len(default)).padded_rows <= padded


def test_without_a_limit_of_candidates_every_batch_may_be_a_size() -> None:
    assert best_sizes({3: 5, 7: 1}, 2).sizes == (3, 7)
    assert best_sizes({3: 5, 7: 1}, 1) == best_sizes({3: 5, 7: 1}, 1, [7, 9])
    assert best_sizes({3: 5, 7: 1}, 1).padded_rows == 20


def test_no_more_graphs_than_help() -> None:
    assert best_sizes({3: 5, 7: 1}, 50).sizes == (3, 7)
    assert best_sizes({1: 1, 2: 1, 4: 3}, 9, [4, 8]).sizes == (4,)


def test_a_batch_without_weight_is_held_and_costs_nothing() -> None:
    best = best_sizes({2: 10, 20: 0}, 2)
    assert (best.sizes, best.padded_rows) == ((2, 20), 0)
    assert best_sizes({2: 10, 20: 0}, 1).padded_rows == 180


def test_512_sizes_and_a_budget_of_50_take_less_than_a_second() -> None:
    random_ = random.Random(8)
    weights = {batch: random_.randint(1, 1000) for batch in range(1, 513)}
    started = time.perf_counter()
    best = best_sizes(weights, 50)
    assert time.perf_counter() - started < 1
    assert len(best.sizes) == 50
    assert best.padded_rows < padded_rows(weights, stride_sizes(512))[0]


@pytest.mark.parametrize("budget", [0, -1, MAX_BUDGET + 1])
def test_a_budget_that_is_not_possible(budget: int) -> None:
    with pytest.raises(
        UsageError, match=rf"budget of {budget} graphs is not possible; it is 1 to {MAX_BUDGET}"
    ):
        best_sizes({1: 1}, budget)


def test_an_empty_histogram_and_a_batch_that_nothing_holds() -> None:
    with pytest.raises(UsageError, match="histogram is empty"):
        best_sizes({}, 1)
    with pytest.raises(
        UsageError, match="batch of 9 rows fits in no size that is possible; the largest is 8"
    ):
        best_sizes({9: 1}, 1, [4, 8])

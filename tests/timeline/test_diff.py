"""Significance, against counts that can be made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slipstream.timeline.report.diff import Difference, compare, holm, mean_ranks, p_value


def p(a: list[float], b: list[float]) -> float:
    return p_value(np.array(a, np.float64), np.array(b, np.float64), np.random.default_rng(0))


def test_ranks_of_equal_numbers_are_their_mean() -> None:
    assert mean_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_runs_that_do_not_overlap(count: int) -> None:
    """Of all deals only two are as far apart: this one and its mirror image."""
    a, b = [float(n) for n in range(count)], [100.0 + n for n in range(count)]
    assert p(a, b) == pytest.approx(2 / math.comb(2 * count, count))


def test_equal_runs() -> None:
    assert p([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1
    assert p([5.0] * 4, [5.0] * 6) == 1


def test_one_number_among_three() -> None:
    """a = {1}, b = {2, 3}: rank sums 1, 2, 3 are equally likely; 1 and 3 are as far from 2."""
    assert p([1.0], [2.0, 3.0]) == pytest.approx(2 / 3)


def test_many_rounds_are_drawn() -> None:
    generator = np.random.default_rng(1)
    a, b = generator.normal(100, 5, 300), generator.normal(100, 5, 300)
    assert not compare("x", a.tolist(), b.tolist()).significant
    moved = compare("x", a.tolist(), (b + 3).tolist())
    assert moved.significant
    assert 0 < (moved.low or 0) < 3 < (moved.high or 0)


def test_chance_is_called_chance_as_often_as_promised() -> None:
    """Of 200 pairs of runs from one distribution about 5 % look different at 0.05, ties included."""
    generator = np.random.default_rng(2)
    found = [p(*generator.integers(0, 30, (2, 8)).astype(float).tolist()) < 0.05 for _ in range(200)]
    assert 1 <= sum(found) <= 19


def test_holms_correction() -> None:
    made = [Difference(str(value), (9, 9), (1.0, 1.0), 0.0, 0.0, value) for value in (0.04, 0.01, 0.03)]
    made.append(Difference("none", (1, 9), (1.0, 1.0), None, None, None))
    assert [item.p for item in holm(made)] == pytest.approx([0.06, 0.03, 0.06, None])

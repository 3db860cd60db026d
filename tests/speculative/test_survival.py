"""How likely drafts are to hold, by position, learnt as they are tried."""

from __future__ import annotations

import pytest

from slipstream.speculative.survival import Survival


def test_before_anything_was_seen_the_prior_counts() -> None:
    made = Survival((0.5, 0.4), weight=4, memory=0.9)
    assert made.chances(3) == pytest.approx([0.5, 0.2, 0.08])


def test_follows_what_is_seen() -> None:
    made = Survival((0.5,), weight=4, memory=0.9)
    for _ in range(100):
        made.learn(3, 2)
    assert made.chances(3) == pytest.approx([1, 1, 0], abs=1e-3)
    for _ in range(100):
        made.learn(3, 0)
    assert made.chances(1) == pytest.approx([0], abs=1e-3)


def test_a_position_behind_a_draft_that_fell_was_not_seen() -> None:
    """The second draft holds whenever the first does: its chance behind the first stays one."""
    made = Survival((0.5,), weight=1, memory=0.95)
    for round_number in range(200):
        made.learn(2, 2 if round_number % 2 else 0)
    assert made.conditional[0] == pytest.approx(0.5, abs=0.05)
    assert made.conditional[1] == pytest.approx(1, abs=0.01)


def test_a_position_that_was_not_tried_is_believed_to_be_like_the_one_before() -> None:
    made = Survival((0.5,), weight=4, memory=0.9)
    for _ in range(50):
        made.learn(1, 1)
    assert made.conditional == pytest.approx([1, 1, 1, 1], abs=0.02)
    for _ in range(50):
        made.learn(2, 1)
    assert made.conditional == pytest.approx([1, 0, 0, 0], abs=0.03)


def test_far_positions_share_the_last_ones_chance() -> None:
    made = Survival((0.9, 0.8), weight=4, memory=0.9)
    assert made.chances(6) == pytest.approx([0.9 * 0.8**k for k in range(6)])
    made.learn(6, 6)
    assert made.chances(6)[-1] > 0.9 * 0.8**5

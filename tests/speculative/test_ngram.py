"""Prompt lookup: what followed the newest tokens the last time, and how much that was worth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.speculative.ngram import NgramDrafter


def drafter(tokens: list[int]) -> NgramDrafter:
    made = NgramDrafter()
    made.extend(tokens)
    return made


def test_a_text_without_repeats_gives_no_drafts() -> None:
    assert drafter(list(range(50))).propose(4).drafts == []
    assert drafter([1]).propose(4).drafts == []
    assert drafter([]).propose(4).drafts == []


def test_a_repeat_is_continued_as_it_was() -> None:
    assert drafter([1, 2, 3, 4, 5, 6, 7, 8, 1, 2]).propose(4).drafts == [3, 4, 5, 6]


def test_the_newest_of_several_repeats_counts() -> None:
    assert drafter([1, 2, 3, 0, 1, 2, 4, 0, 9, 1, 2]).propose(1).drafts == [4]


def test_the_longest_match_counts() -> None:
    """`8 1 2` stood before 5; `1 2` alone stood, later, before 6."""
    assert drafter([8, 1, 2, 5, 7, 1, 2, 6, 8, 1, 2]).propose(1).drafts == [5]


def test_past_the_end_the_continuation_repeats_with_its_period() -> None:
    assert drafter([1, 2, 3, 1, 2, 3, 1, 2]).propose(8).drafts == [3, 1, 2, 3, 1, 2, 3, 1]
    assert drafter([7, 7, 7]).propose(5).drafts == [7] * 5


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6), st.integers(0, 40))
def test_is_what_a_search_from_the_end_finds(tokens: list[int], steps: int, cut: int) -> None:
    """However the text came in pieces."""
    made = drafter(tokens[:cut])
    made.extend(tokens[cut:])
    assert made.propose(steps).drafts == search(tokens, steps)


def search(tokens: list[int], steps: int) -> list[int]:
    for length in (5, 4, 3, 2):
        newest = tokens[-length:]
        for end in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) > length and tokens[end - length : end] == newest:
                period = tokens[end:]
                return [period[step % len(period)] for step in range(steps)]
    return []


def expected_after(outcomes: list[int]) -> float:
    made = drafter([1, 2, 3, 4, 1, 2])
    for accepted in outcomes:
        made.propose(3)
        made.learn(accepted)
    return made.propose(3).expected


def test_learns_what_its_drafts_bring() -> None:
    assert expected_after([0] * 20) < 0.2
    assert expected_after([3] * 20) > 2.5
    assert expected_after([0]) < expected_after([]) < expected_after([3])


def test_newer_outcomes_weigh_more() -> None:
    assert expected_after([0] * 10 + [3] * 10) > expected_after([3] * 10 + [0] * 10)


def test_drafts_passed_over_are_tried_again_some_day() -> None:
    made = drafter([1, 2, 3, 4, 1, 2])
    before = made.propose(3).expected
    for _ in range(30):
        made.propose(3)
        made.learn(0)
    low = made.propose(3).expected
    for _ in range(300):
        made.propose(3)
        made.pass_over()
    assert low < 0.1 * before
    assert 0.9 * before < made.propose(3).expected <= before


def test_matches_of_other_lengths_learn_apart() -> None:
    made = drafter([9, 9, 1, 2, 3, 4, 5, 1, 2])
    for _ in range(20):
        made.propose(3)  # a match of 2
        made.learn(0)
    assert made.propose(3).expected < 0.2
    made.extend([3])
    assert made.propose(3).drafts == [4, 5, 1]  # a match of 3
    assert made.propose(3).expected == NgramDrafter()._worth[3].mean

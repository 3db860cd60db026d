"""Prompt lookup: what followed the newest tokens the last time, and how much that was worth."""

from __future__ import annotations

from collections.abc import Callable

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


def repeats(block: int) -> list[int]:
    return [3, 4, 5]


def novel(block: int) -> list[int]:
    return [2000 + 3 * block, 2001 + 3 * block, 2002 + 3 * block]


def expected_after(blocks: list[Callable[[int], list[int]]]) -> float:
    """What a match of `1 2` promises in a text where each of these went on behind it."""
    made = drafter([0, 1, 2, 3, 4, 5])
    for index, goes_on in enumerate(blocks):
        made.extend([1000 + index, 1, 2])
        made.propose(3)
        for token in goes_on(index):  # one by one or together: it makes no difference
            made.extend([token])
    made.extend([999, 1, 2])
    return made.propose(3).expected


def test_learns_from_the_text_what_its_drafts_brought_verified_or_not() -> None:
    assert expected_after([novel] * 20) < 0.2
    assert expected_after([repeats] * 20) > 2.5
    assert expected_after([novel]) < expected_after([]) < expected_after([repeats])


def test_newer_outcomes_weigh_more() -> None:
    assert expected_after([novel] * 10 + [repeats] * 10) > expected_after([repeats] * 10 + [novel] * 10)


def test_matches_of_other_lengths_learn_apart() -> None:
    made = drafter([0, 1, 2, 3, 4, 5])
    for index in range(20):
        made.extend([1000 + index, 1, 2])  # a match of 2
        made.propose(3)
        made.extend(novel(index))
    made.extend([0, 1, 2])  # a match of 3
    assert made.propose(3).drafts == [3, 4, 5]
    assert made.propose(3).expected == drafter([0, 1, 2, 3, 0, 1, 2]).propose(3).expected


def test_what_is_left_open_is_settled_once() -> None:
    """Drafts that hold so far wait for the text; those that fell do not."""
    made = drafter([1, 2, 3, 4, 5, 1, 2])
    made.propose(3)
    before = made._worth[2].conditional
    made.extend([3, 4])
    made._catch_up()
    assert made._worth[2].conditional == before
    assert len(made._open) == 1
    made.extend([9])
    made._catch_up()
    assert made._open == []
    after = made._worth[2].conditional
    assert (after[0] > before[0], after[1] > before[1], after[2] < before[2]) == (True, True, True)


def test_chances_fall_with_the_position() -> None:
    proposal = drafter([1, 2, 3, 4, 5, 6, 7, 8, 1, 2]).propose(6)
    assert len(proposal.drafts) == len(proposal.chances) == 6
    assert proposal.chances == sorted(proposal.chances, reverse=True)
    assert proposal.expected == sum(proposal.chances)

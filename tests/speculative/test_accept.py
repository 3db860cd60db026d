"""Accepting: the longest run of candidates that the target chose too, then the target's own next token."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.speculative.accept import Accepted, accept_greedy
from slipstream.speculative.state import RoundState


def accept(candidates_BS: torch.Tensor, target_BW: torch.Tensor) -> Accepted:
    """Accept for requests in pool rows 0, 1, ...; the state that follows must be what the lengths say."""
    count = target_BW.shape[0]
    state = RoundState.empty(count + 2, 4, torch.device("cpu"))
    slots_C = torch.arange(count)
    accepted, after = accept_greedy(state, slots_C, candidates_BS, target_BW)
    assert after.lengths_M.tolist() == [*accepted.advanced_B.tolist(), 0, 0, 0]
    assert after.bonus_M.tolist() == [*accepted.bonus_B.tolist(), 0, 0, 0]
    assert not state.lengths_M.any()
    return accepted


def naive(candidates: list[int], target: list[int]) -> list[int]:
    """Walk along the candidates as a reader of the paper would; return the tokens advanced to."""
    taken = []
    for candidate, choice in zip(candidates, target, strict=False):
        taken.append(choice)
        if candidate != choice:
            return taken
    return [*taken, target[len(candidates)]]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    steps, count = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    token = st.integers(0, 2)  # few tokens, so that long runs are common

    def rows(width: int, values: st.SearchStrategy[int]) -> list[list[int]]:
        return draw(
            st.lists(st.lists(values, min_size=width, max_size=width), min_size=count, max_size=count)
        )

    return rows(steps, token | st.just(-1)), rows(steps + 1, token)


@given(batches())
def test_is_what_a_naive_loop_accepts(batch: tuple[list[list[int]], list[list[int]]]) -> None:
    candidates, target = batch
    candidates_BS = torch.tensor(candidates, dtype=torch.int64).view(len(target), -1)
    accepted = accept(candidates_BS, torch.tensor(target))
    for row, (guesses, choices) in enumerate(zip(candidates, target, strict=True)):
        expected = naive(guesses, choices)
        advanced = int(accepted.advanced_B[row])
        assert accepted.tokens_BW[row, :advanced].tolist() == expected
        assert accepted.bonus_B[row] == expected[-1]


def test_a_missing_draft_never_holds() -> None:
    accepted = accept(torch.tensor([[-1, 7, 7]]), torch.tensor([[7, 7, 7, 7]]))
    assert accepted.advanced_B.tolist() == [1]


def test_plain_decoding_advances_one() -> None:
    accepted = accept(torch.empty(2, 0, dtype=torch.int64), torch.tensor([[5], [6]]))
    assert (accepted.advanced_B.tolist(), accepted.bonus_B.tolist()) == ([1, 1], [5, 6])

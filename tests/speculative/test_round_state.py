"""The state that crosses rounds: frozen, and its last row, which padding reads, is nobody's."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from slipstream.speculative.state import RoundState
from tests.engines import Fleet, greedy


def test_fields_cannot_be_set() -> None:
    state = RoundState.empty(2, 4, torch.device("cpu"))
    with pytest.raises(FrozenInstanceError):
        state.bonus_M = state.lengths_M  # type: ignore[misc]


def test_put_leaves_the_old_state_as_it_was() -> None:
    old = RoundState.empty(2, 4, torch.device("cpu"))
    new = old.put(torch.tensor([1]), bonus_M=torch.tensor([7]))
    assert old.bonus_M.tolist() == [0, 0, 0]
    assert new.bonus_M.tolist() == [0, 7, 0]
    assert new.lengths_M is old.lengths_M


@pytest.mark.parametrize("buckets", [(8,), (3,)], ids=str)
@pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
def test_nothing_writes_the_last_row(tiny: Fleet, draft: str, buckets: tuple[int, ...]) -> None:
    engine = tiny.engine(draft=draft, buckets=buckets, max_requests=4)
    for length, prompt in enumerate(tiny.prompts(), start=3):
        engine.add(prompt, greedy(length))
    while engine.busy:
        engine.step()
        for field in fields(RoundState):
            rows = getattr(engine._state, field.name)
            assert rows.shape[0] == 5
            assert not rows[-1].any()
    assert engine._state.lengths_M[:4].all()


def test_a_round_does_not_write_into_the_state_it_was_given(tiny: Fleet) -> None:
    engine = tiny.engine(draft="nextn")
    engine.add(tiny.prompts()[1], greedy(8))
    engine.step()
    before = engine._state
    kept = {field.name: getattr(before, field.name).clone() for field in fields(RoundState)}
    engine.step()
    assert engine._state is not before
    for name, rows in kept.items():
        assert getattr(before, name).equal(rows)

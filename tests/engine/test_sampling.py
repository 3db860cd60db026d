"""Drawing a token: the distribution is softmax(logits / T), cut by top-k and top-p."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from slipstream.config import SamplingParams
from slipstream.engine.sampling import request_generator, sample

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0])


def draws(count: int = 3000, **options: float) -> Counter[int]:
    params = SamplingParams(**({"temperature": 1.0} | options))
    generator = request_generator(0, 0)
    return Counter(sample(LOGITS, params, generator) for _ in range(count))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    found, expected = draws(temperature=temperature), (LOGITS / temperature).softmax(-1)
    for token, probability in enumerate(expected.tolist()):
        assert found[token] / 3000 == pytest.approx(probability, abs=0.03)


def test_top_k_keeps_the_k_likeliest_in_their_proportion() -> None:
    found = draws(top_k=2)
    assert set(found) == {1, 2}
    assert found[1] / found[2] == pytest.approx(2.718, rel=0.15)


def test_top_k_of_one_is_greedy() -> None:
    assert set(draws(100, top_k=1, temperature=50.0)) == {1}


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    assert len(draws(top_k=100, temperature=3.0)) == 5


@pytest.mark.parametrize(("top_p", "kept"), [(0.01, {1}), (0.6, {1}), (0.65, {1, 2}), (0.9, {1, 2, 0})])
def test_top_p_keeps_tokens_until_the_probability_is_reached(top_p: float, kept: set[int]) -> None:
    """Probabilities in order: 0.636 0.234 0.086 0.032 0.012; the likeliest always stays."""
    assert set(draws(400, top_p=top_p)) == kept


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 1e-320])
def test_a_temperature_near_zero_is_greedy_and_no_overflow(temperature: float) -> None:
    assert set(draws(20, temperature=temperature)) == {1}


def test_a_high_temperature_is_near_uniform() -> None:
    found = draws(temperature=1e6)
    assert all(abs(found[token] / 3000 - 0.2) < 0.03 for token in range(5))


def test_the_same_seed_and_request_draw_the_same() -> None:
    def text(seed: int, request_id: int) -> list[int]:
        generator = request_generator(seed, request_id)
        return [sample(LOGITS, SamplingParams(temperature=2.0), generator) for _ in range(30)]

    texts = [tuple(text(seed, request_id)) for seed in range(3) for request_id in range(3)]
    assert len(set(texts)) == 9
    assert text(1, 2) == text(1, 2)


def test_the_logits_are_not_changed() -> None:
    before = LOGITS.clone()
    draws(5, top_k=2, top_p=0.5)
    assert LOGITS.equal(before)

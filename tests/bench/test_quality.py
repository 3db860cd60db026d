"""Distances of two computations of a text; and the promise that q4 keeps on the real model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from slipstream.bench.quality import distance, perplexity, text_logits
from slipstream.engine.core import prefill_chunk
from tests.engines import Fleet

TEXTS = Path(__file__).parents[1] / "data" / "text"


def test_perplexity_of_known_distributions() -> None:
    # Behind each token the next one has probability 1/2, then 1/4: the last row predicts nothing.
    texts = [[0, 1, 2], [2, 1]]
    half, quarter = [0.25, 0.5, 0.25], [0.25, 0.5, 0.25]
    logits = [
        torch.tensor([half, quarter, [1.0, 0.0, 0.0]]).log(),
        torch.tensor([half, [0.0, 1.0, 0.0]]).log(),
    ]
    assert perplexity(texts, logits) == pytest.approx((2 * 4 * 2) ** (1 / 3))


def test_a_computation_is_at_no_distance_from_itself() -> None:
    logits = [torch.randn(300, 11, generator=torch.Generator().manual_seed(0))]
    found = distance([list(range(11)) * 27 + [0, 1, 2]], logits, logits)
    assert (found.positions, found.same_argmax, found.perplexity_ratio) == (299, 1, 0)
    assert (found.kl_max, found.log_prob_max, found.logits_mean) == (0, 0, 0)


def test_a_difference_is_found_wherever_it_is() -> None:
    """One logit of one row, in the first chunk, at its edges, in the last: same figures each time."""
    ids = [1] * 600
    exact = torch.zeros(600, 4)
    for row in (0, 255, 256, 598):
        other = exact.clone()
        other[row, 1] = 2.0
        found = distance([ids], [exact], [other])
        after = math.exp(2) / (math.exp(2) + 3)
        assert found.positions == 599
        assert found.log_prob_max == pytest.approx(math.log(after) - math.log(0.25), rel=1e-5)
        assert found.kl_max == pytest.approx(
            math.log(0.25) - (math.log(after) + 3 * math.log(after / math.exp(2))) / 4
        )
        assert found.kl_mean == pytest.approx(found.kl_max / 599)
        assert found.perplexity < 4
        assert found.perplexity_ratio == pytest.approx(found.perplexity / 4 - 1, rel=1e-4)
    behind = exact.clone()
    behind[599, 1] = 2.0  # nothing follows the last token
    assert distance([ids], [exact], [behind]).kl_max == 0


def test_logits_are_those_of_a_prefill(tiny: Fleet) -> None:
    """Longer than a chunk, so that the second one has to see the first one's keys."""
    ids = [index * 37 % 300 for index in range(300)]
    engine = tiny.engine(max_model_len=320)
    with torch.inference_mode():
        hidden = prefill_chunk(engine.core, ids, 0, list(range(1, 21)))
        expected = engine.core.target.logits(hidden)
    assert torch.allclose(
        text_logits(engine.core.target, ids, engine.core.plan.kv_dtype), expected, atol=1e-4
    )


@pytest.mark.slow
def test_native_q4_keeps_the_texts_perplexity(smollm2_path: Path) -> None:
    """Within 1 % of float activations on the same weights; the other bounds are what was measured, and a half."""
    fleet = Fleet(smollm2_path, threads=2, max_len=1024)
    if fleet.plan(dtype="q4").kernels != "native":
        pytest.skip("the native library is not built")
    tokenizer = fleet.loaded("q4").tokenizer
    texts = [tokenizer.encode(path.read_text()) for path in sorted(TEXTS.glob("*.txt"))]
    assert sum(map(len, texts)) > 2000
    found = distance(texts, *(_logits(fleet, texts, *way) for way in (("f32", "torch"), ("q4", "native"))))
    assert abs(found.perplexity_ratio) <= 0.01
    assert found.kl_mean <= 0.0041
    assert found.log_prob_mean <= 0.075
    assert found.log_prob_max <= 1.05
    assert found.same_argmax >= 0.95


def _logits(fleet: Fleet, texts: list[list[int]], dtype: str, kernels: str) -> list[torch.Tensor]:
    target = fleet.loaded(dtype, kernels).target
    plan = fleet.plan(dtype=dtype, kernels=kernels)
    fleet._use(plan)
    return [text_logits(target, ids, plan.kv_dtype) for ids in texts]

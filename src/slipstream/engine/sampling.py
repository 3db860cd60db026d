"""Choosing a token from logits at a temperature above 0. Legend of shapes: `slipstream.ops`."""

from __future__ import annotations

import torch

from slipstream.config import SamplingParams

#: Below this, every difference between two logits is -inf after the division, and zero must stay zero.
_COLDEST = 1e-30


def request_generator(seed: int, request_id: int) -> torch.Generator:
    """Return a request's own generator: its draws do not depend on which requests run beside it."""
    # A multiplier keeps (seed 0, request 1) apart from (seed 1, request 0).
    return torch.Generator().manual_seed(seed * 1_000_003 + request_id)


def sample(logits_V: torch.Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    """Return one token.

    Args:
        logits_V: float32 [V].
        params: temperature above 0, top_k, top_p.
        generator: the request's own, on the CPU.
    """
    logits_V = logits_V.detach().float().cpu()
    # Differences to the best: a tiny temperature makes them -inf, where the logits themselves would overflow.
    scores_V = (logits_V - logits_V.max()) / max(params.temperature, _COLDEST)
    if 0 < params.top_k < scores_V.numel():
        threshold = scores_V.topk(params.top_k).values[-1]
        scores_V = scores_V.masked_fill(scores_V < threshold, float("-inf"))
    probabilities_V = scores_V.softmax(-1)
    if params.top_p < 1:
        ordered, order = probabilities_V.sort(descending=True)
        # A token stays while those before it have not yet reached top_p: so the likeliest always stays.
        outside = ordered.cumsum(0) - ordered >= params.top_p
        probabilities_V[order[outside]] = 0
    return int(torch.multinomial(probabilities_V, 1, generator=generator))

"""How far one computation of a model is from another on the same text: perplexity, divergence, log-probabilities.

The text is given, token by token, and what the model expects behind each is compared: nothing is generated, so a
difference at one position does not change the positions behind it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from slipstream.kv.cache import DTYPES, KvCache
from slipstream.model.llama import Llama

_PAGE_SIZE = 64
#: Rows that are computed, and compared, at a time.
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one computation is from the exact one, over all positions of all texts.

    Attributes:
        positions: compared ones.
        perplexity: of the texts, by this computation.
        perplexity_ratio: over the exact one's, less 1.
        kl_mean, kl_max: divergence of this distribution from the exact one, in nats.
        log_prob_mean, log_prob_max: difference of the log-probability of the text's own next token, in nats.
        logits_mean: norm of the logits' difference over that of the logits.
        same_argmax: share of positions with the same likeliest token.
    """

    positions: int
    perplexity: float
    perplexity_ratio: float
    kl_mean: float
    kl_max: float
    log_prob_mean: float
    log_prob_max: float
    logits_mean: float
    same_argmax: float


@torch.inference_mode()
def text_logits(model: Llama, ids: Sequence[int], kv_dtype: str) -> torch.Tensor:
    """Return the logits behind every token of a text, float32 [len(ids), V], on the CPU.

    Args:
        model: loaded with room for as many positions (`max_model_len`), with its kernels in use.
        ids: the text's tokens.
        kv_dtype: as keys and values are kept, a plan's.
    """
    config, place = model.config, model.rope.device
    num_pages = -(-len(ids) // _PAGE_SIZE)
    shape = (num_pages, _PAGE_SIZE, config.num_kv_heads, config.head_dim)
    cache = KvCache.make(config.num_layers, *shape, place, DTYPES[kv_dtype])
    pages_BP = torch.arange(1, num_pages + 1, device=place)[None]
    found = torch.empty(len(ids), config.vocab_size)
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        positions_R = torch.arange(start, start + len(part), device=place)
        slots_R = positions_R + _PAGE_SIZE  # page 0 is scratch
        hidden_RH = model.forward(torch.tensor(part, device=place), positions_R, slots_R, pages_BP, cache)
        found[start : start + len(part)] = model.logits(hidden_RH)
    return found


def perplexity(texts: Sequence[Sequence[int]], logits: Sequence[torch.Tensor]) -> float:
    """Return the perplexity of texts, given the logits behind each of their tokens."""
    losses: list[float] = []
    for ids, logits_RV in zip(texts, logits, strict=True):
        for rows, next_R in _chunks(ids):
            losses += (-_log_probs(logits_RV[rows], next_R)).tolist()
    return math.exp(statistics.fmean(losses))


def distance(
    texts: Sequence[Sequence[int]], exact: Sequence[torch.Tensor], other: Sequence[torch.Tensor]
) -> Distance:
    """Compare two computations of the same texts.

    Args:
        texts: token ids.
        exact, other: for each text the logits behind each token, float32 [len, V].
    """
    divergence: list[float] = []
    log_prob: list[float] = []
    relative: list[float] = []
    same = 0
    for ids, exact_RV, other_RV in zip(texts, exact, other, strict=True):
        for rows, next_R in _chunks(ids):
            x_RV, y_RV = exact_RV[rows], other_RV[rows]
            log_p, log_q = x_RV.log_softmax(-1), y_RV.log_softmax(-1)
            divergence += (log_p.exp() * (log_p - log_q)).sum(-1).tolist()
            log_prob += (_log_probs(x_RV, next_R) - _log_probs(y_RV, next_R)).abs().tolist()
            relative += ((x_RV - y_RV).norm(dim=-1) / x_RV.norm(dim=-1)).tolist()
            same += int((x_RV.argmax(-1) == y_RV.argmax(-1)).sum())
    found = perplexity(texts, other)
    return Distance(
        positions=len(divergence),
        perplexity=found,
        perplexity_ratio=found / perplexity(texts, exact) - 1,
        kl_mean=statistics.fmean(divergence),
        kl_max=max(divergence),
        log_prob_mean=statistics.fmean(log_prob),
        log_prob_max=max(log_prob),
        logits_mean=statistics.fmean(relative),
        same_argmax=same / len(divergence),
    )


def _chunks(ids: Sequence[int]) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield rows, and the tokens behind them; behind the last token there is none."""
    for start in range(0, len(ids) - 1, _CHUNK):
        end = min(start + _CHUNK, len(ids) - 1)
        yield slice(start, end), torch.tensor(ids[start + 1 : end + 1])


def _log_probs(logits_RV: torch.Tensor, ids_R: torch.Tensor) -> torch.Tensor:
    """Return each row's log-probability of one token, [R]."""
    return logits_RV.log_softmax(-1).gather(1, ids_R[:, None])[:, 0]

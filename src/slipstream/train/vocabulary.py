"""The draft vocabulary: the tokens that answers are made of (Zhao et al., "FR-Spec", 2025)."""

from __future__ import annotations

import torch

from slipstream.model.llama import Llama
from slipstream.train.batches import Samples
from slipstream.train.loss import Vocabulary


def frequent_ids(samples: Samples, vocab_size: int, count: int) -> torch.Tensor:
    """Return the `count` tokens that answers hold most often, int64 ascending.

    Where answers hold fewer different ones, those of the prompts follow, then the lowest ids: a tokenizer's merges
    stand in the order of their frequency.
    """
    answers = torch.zeros(vocab_size, dtype=torch.int64)
    prompts = torch.zeros(vocab_size, dtype=torch.int64)
    for index, (_, prompt_length) in enumerate(samples.sizes):
        ids = samples.ids(index).long()
        answers += torch.bincount(ids[prompt_length:], minlength=vocab_size)
        prompts += torch.bincount(ids[:prompt_length], minlength=vocab_size)
    # A stable sort by the least important key first; ties fall to the lower id.
    order = torch.sort(prompts, descending=True, stable=True).indices
    order = order[torch.sort(answers[order], descending=True, stable=True).indices]
    return order[: min(count, vocab_size)].sort().values


def draft_vocabulary(target: Llama, ids: torch.Tensor) -> Vocabulary:
    """Return what the loss needs of these tokens, from the target."""
    return Vocabulary(ids, target.output.rows(ids), target.output_norm, target.config.rms_eps)

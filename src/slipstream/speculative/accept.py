"""Which drafts hold. One definition in plain tensor code, for every device."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a verify pass settled.

    Attributes:
        advanced_B: int64, accepted drafts + 1, the tokens that each request goes forward.
        tokens_BW: int64, the target's choices; the first `advanced` of a row are the new tokens.
        bonus_B: int64, the last of these.
    """

    advanced_B: torch.Tensor
    tokens_BW: torch.Tensor
    bonus_B: torch.Tensor


def accept_greedy(candidates_BS: torch.Tensor, target_BW: torch.Tensor) -> Accepted:
    """Accept the longest run of candidates that equal the target's own choices.

    Args:
        candidates_BS: int64 [B, num_steps], the drafts in order; -1 is no draft. May have no column.
        target_BW: int64 [B, num_steps + 1], the target's argmax behind the bonus token and each draft.

    Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, at temperature 0.
    """
    if candidates_BS.shape[1] == 0:
        return Accepted(torch.ones_like(target_BW[:, 0]), target_BW, target_BW[:, 0])
    held_BS = (candidates_BS == target_BW[:, :-1]).long().cumprod(1)
    accepted_B = held_BS.sum(1)
    bonus_B = target_BW.gather(1, accepted_B.unsqueeze(1)).squeeze(1)
    return Accepted(accepted_B + 1, target_BW, bonus_B)

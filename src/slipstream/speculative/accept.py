"""Which drafts hold. One definition in plain tensor code, for every device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream import ops


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
    """
    advanced_B, bonus_B = ops.accept_counts(candidates_BS, target_BW)
    return Accepted(advanced_B, target_BW, bonus_B)

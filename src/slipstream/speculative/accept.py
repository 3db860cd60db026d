"""Which drafts hold, and the state behind them. One definition in plain tensor code, for every device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from slipstream import ops
from slipstream.speculative.state import RoundState


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


def accept_greedy(
    state: RoundState, slots_C: torch.Tensor, candidates_BS: torch.Tensor, target_BW: torch.Tensor
) -> tuple[Accepted, RoundState]:
    """Accept the longest run of candidates that equal the target's own choices, and commit it.

    Args:
        state: before the round.
        slots_C: int64, pool rows of the real requests, the first of the batch.
        candidates_BS: int64 [B, num_steps], the drafts in order; -1 is no draft. May have no column.
        target_BW: int64 [B, num_steps + 1], the target's argmax behind the bonus token and each draft.
    """
    advanced_B, bonus_B, lengths_M, bonus_M = ops.accept_and_commit.direct(
        candidates_BS, target_BW, state.lengths_M, state.bonus_M, slots_C
    )
    return Accepted(advanced_B, target_BW, bonus_B), replace(state, lengths_M=lengths_M, bonus_M=bonus_M)

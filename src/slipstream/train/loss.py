"""What training lowers: the divergence of the head's drafts from the target's own distribution.

Shapes: S rows, H hidden, N tokens of the draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from slipstream.train.batches import Batch
from slipstream.train.head import Rollout, TrainableHead, rms_norm

#: Weight of each step's loss over the one before it: later drafts are reached less often.
STEP_DECAY = 0.8

#: Rows whose logits are in memory at once: 256 x 8,192 float32 are 8 MB, which stay in the cache.
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the head may draft, and the target's LM head over it.

    Attributes:
        ids: int64 [N], target ids in ascending order.
        output_NH: float32, the target's LM head rows of these tokens.
        norm: float32 [H], the target's final norm.
        eps: of the norm.
    """

    ids: torch.Tensor
    output_NH: torch.Tensor
    norm: torch.Tensor
    eps: float

    def target_probabilities(self, hidden_SH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the target's distribution over the draft vocabulary behind its own hidden rows, and its entropy.

        Returns:
            float32 [S, N], and in nats [S].
        """
        logits_SN = functional.linear(rms_norm(hidden_SH, self.norm, self.eps), self.output_NH)
        wanted_SN = logits_SN.softmax(-1)
        return wanted_SN, logits_SN.logsumexp(-1) - torch.linalg.vecdot(wanted_SN, logits_SN)


@dataclass(frozen=True, slots=True)
class StepLosses:
    """The loss of one batch.

    Attributes:
        total: to be lowered; scalar with a gradient.
        by_step: mean divergence (nats) of each step, 0 where no start came to it.
        accepted: how many starts would have each step's draft accepted: it held, and those before it.
        judged: starts that each step was computed for.
    """

    total: torch.Tensor
    by_step: list[float]
    accepted: list[int]
    judged: list[int]


def unrolled_loss(
    head: TrainableHead,
    vocabulary: Vocabulary,
    batch: Batch,
    embedded_TH: torch.Tensor,
    num_steps: int,
    hidden_weight: float = 0.0,
    reached_only: bool = True,
) -> StepLosses:
    """Unroll the head over a batch and compare each step with the target.

    Args:
        head: to train.
        vocabulary: the drafts.
        batch: packed sequences.
        embedded_TH: float32, the embedding of the token behind each row.
        num_steps: steps to unroll.
        hidden_weight: weight of the distance between the head's hidden row and the target's, both normalised.
        reached_only: a step is trained where decoding reaches it, behind drafts that held, and nowhere else; it
            costs half as much and learned more (docs/log.md).
    """
    judge_rows_S = batch.starts_S + 1
    with torch.no_grad():
        judge_hidden_SH = batch.hidden_TH[judge_rows_S]
        wanted_SN, entropy_S = vocabulary.target_probabilities(judge_hidden_SH)
        labels_S = batch.next_ids_T[judge_rows_S]
    rollout = Rollout(head, batch, embedded_TH)
    keep_S: torch.Tensor | None = None
    held_S = torch.ones_like(labels_S, dtype=torch.bool)
    total = torch.zeros(())
    losses = StepLosses(total, [0.0] * num_steps, [0] * num_steps, [0] * num_steps)
    for step in range(num_steps):
        hidden_SH = rollout.advance(keep_S)
        numbers_S = rollout.numbers_S
        judge_S = numbers_S + step
        count = len(numbers_S)
        cross, best_S = _SoftCrossEntropy.apply(  # type: ignore[no-untyped-call]
            head.normed(hidden_SH), vocabulary.output_NH, wanted_SN, judge_S
        )
        loss = cross - entropy_S[judge_S].sum()
        losses.by_step[step] = loss.item() / count
        if hidden_weight:
            loss = loss + hidden_weight * count * _distance(hidden_SH, judge_hidden_SH[judge_S])
        # Over all starts, not those of this step: a step counts as often as it is reached.
        total = total + STEP_DECAY**step * loss / len(labels_S)
        held_S = held_S & (vocabulary.ids[best_S] == labels_S[judge_S])
        losses.accepted[step] = int(held_S.sum())
        losses.judged[step] = count
        goes_on_S = batch.judged(numbers_S, step + 1)
        if reached_only:
            goes_on_S &= held_S
        keep_S = goes_on_S.nonzero().squeeze(1)
        held_S = held_S[keep_S]
        if not len(keep_S):
            break
    return replace(losses, total=total)


def _distance(hidden_SH: torch.Tensor, wanted_SH: torch.Tensor) -> torch.Tensor:
    """Return the mean smooth L1 distance of pairs of rows, each row scaled to a mean square of 1."""
    one = torch.ones(())
    pair = rms_norm(hidden_SH, one, 1e-6), rms_norm(wanted_SH, one, 1e-6)
    return functional.smooth_l1_loss(*pair)


class _SoftCrossEntropy(torch.autograd.Function):
    """Cross entropy of softmax(rows @ output.T) to the distributions `wanted[judge]`, summed; and the best tokens.

    The gradient is formed with the loss, a few rows at a time: logits of all rows are never kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows_SH: torch.Tensor,
        output_NH: torch.Tensor,
        wanted_SN: torch.Tensor,
        judge_S: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gradient_SH = torch.empty_like(rows_SH)
        best_S = torch.empty(len(rows_SH), dtype=torch.int64)
        total = torch.zeros(())
        for first in range(0, len(rows_SH), _CHUNK):
            rows = slice(first, first + _CHUNK)
            logits = functional.linear(rows_SH[rows], output_NH)
            best_S[rows] = logits.argmax(-1)
            logits -= logits.logsumexp(-1, keepdim=True)
            wanted = wanted_SN[judge_S[rows]]
            total -= torch.linalg.vecdot(wanted, logits).sum()
            torch.mm(logits.exp_().sub_(wanted), output_NH, out=gradient_SH[rows])
        ctx.save_for_backward(gradient_SH)
        ctx.mark_non_differentiable(best_S)
        return total, best_S

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient_SH,) = ctx.saved_tensors
        return gradient_SH * upstream[0], None, None, None

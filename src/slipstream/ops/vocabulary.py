"""From hidden rows to tokens: logits that are exact where it counts, and their argmax."""

from __future__ import annotations

import torch

from slipstream.native.node import Kernel
from slipstream.ops.matrix import Matrix
from slipstream.ops.registry import Native, Written, native_op, node, op
from slipstream.ops.rows import to_float

#: How many of a bfloat16 product's best candidates are scored again in float32.
_CANDIDATES = 16


def logits(hidden_RH: torch.Tensor, head: Matrix) -> torch.Tensor:
    """Return the logits as float32 [R, V].

    A bfloat16 product (PyTorch's quantised kernels) has 8 bits: near the top, neighbours tie. So the best 16 of a
    row are computed again from the exact weights in float32, and replaced. The native kernels give float32.

    Args:
        hidden_RH: float32 [R, H], after the final norm.
        head: the vocabulary's matrix.
    """
    scores_RV = to_float(head.product(hidden_RH))
    if head.activation_dtype != torch.float32:
        ids_RC = best_ids(scores_RV, min(_CANDIDATES, head.num_out))
        score_exactly(scores_RV, ids_RC, head.rows(ids_RC), hidden_RH)
    return scores_RV


@op
def best_ids(scores_RV: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of each row's `count` best scores, int64 [R, count]."""
    return scores_RV.topk(count, dim=-1).indices


@op
def score_exactly(
    scores_RV: Written, ids_RC: torch.Tensor, weights_RCH: torch.Tensor, hidden_RH: torch.Tensor
) -> None:
    """Replace the scores of the candidates `ids_RC` by the float32 products of their weights and hidden rows."""
    scores_RV.scatter_(1, ids_RC, (weights_RCH * hidden_RH.unsqueeze(1)).sum(-1))


@native_op
def argmax(native: Native, logits_RV: torch.Tensor) -> torch.Tensor:
    """Return the best token of each row, int64 [R]; the lowest id wins a tie."""
    if logits_RV.dim() == 2 and native.reads(torch.float32, logits_RV):
        out_R = torch.empty(logits_RV.shape[0], dtype=torch.int64)
        return native.fill(out_R, node(Kernel.ARGMAX, (logits_RV, out_R), logits_RV.shape))
    return logits_RV.argmax(-1)


@native_op
def top_share(native: Native, logits_RV: torch.Tensor) -> torch.Tensor:
    """Return the best token's share of the softmax of each row, float32 [R]."""
    if logits_RV.dim() == 2 and logits_RV.shape[1] and native.reads(torch.float32, logits_RV):
        out_R = torch.empty(logits_RV.shape[0])
        return native.fill(out_R, node(Kernel.TOP_SHARE, (logits_RV, out_R), logits_RV.shape))
    return torch.softmax(logits_RV, -1).amax(-1)


@native_op
def lookup(native: Native, table_N: torch.Tensor, ids_R: torch.Tensor) -> torch.Tensor:
    """Return `table_N[ids_R]`, int64 [R]: ids of a reduced vocabulary as those of the whole one."""
    if table_N.dim() == 1 and ids_R.dim() == 1 and native.reads(torch.int64, table_N, ids_R):
        out_R = torch.empty_like(ids_R)
        sizes = (ids_R.shape[0], table_N.element_size(), table_N.shape[0])
        return native.fill(out_R, node(Kernel.GATHER, (table_N, ids_R, out_R), sizes))
    return table_N.index_select(0, ids_R)

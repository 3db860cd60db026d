"""From hidden rows to tokens: logits that are exact where it counts, and their argmax."""

from __future__ import annotations

import torch

from slipstream.device.tape import Lowered
from slipstream.native.node import Kernel, make_node
from slipstream.ops.matrix import Matrix
from slipstream.ops.registry import float_row_major, op
from slipstream.ops.rows import linear

#: How many of a bfloat16 product's best candidates are scored again in float32.
_CANDIDATES = 16


@op
def logits(hidden_RH: torch.Tensor, head: Matrix) -> torch.Tensor:
    """Return the logits as float32 [R, V].

    A bfloat16 product (PyTorch's quantised kernels) has 8 bits: near the top, neighbours tie. So the best 16 of a
    row are computed again from the exact weights in float32, and replaced. The native kernels give float32.

    Args:
        hidden_RH: float32 [R, H], after the final norm.
        head: the vocabulary's matrix.
    """
    scores_RV = head.product(hidden_RH).float()
    if head.activation_dtype == torch.float32:
        return scores_RV
    ids_RC = scores_RV.topk(min(_CANDIDATES, head.num_out), dim=-1).indices
    exact_RC = (head.rows(ids_RC) * hidden_RH.unsqueeze(1)).sum(-1)
    return scores_RV.scatter_(1, ids_RC, exact_RC)


@logits.native
def _logits(hidden_RH: torch.Tensor, head: Matrix) -> Lowered | None:
    return linear.lower(hidden_RH, head)


@op
def argmax(logits_RV: torch.Tensor) -> torch.Tensor:
    """Return the best token of each row, int64 [R]; the lowest id wins a tie."""
    return logits_RV.argmax(-1)


@argmax.native
def _argmax(logits_RV: torch.Tensor) -> Lowered | None:
    if not float_row_major(logits_RV):
        return None
    out = torch.empty(logits_RV.shape[0], dtype=torch.int64)
    return Lowered(
        out, [make_node(Kernel.ARGMAX, (logits_RV.data_ptr(), out.data_ptr()), tuple(logits_RV.shape))]
    )

"""Attention of Ascend NPUs that takes the contexts' lengths from the host: npu_fused_infer_attention_score.

The op works out its tiling on the host from the lengths, so they are part of the command, and a captured graph
keeps those of the capture. By op-plugin's documentation it reads float16 and bfloat16, heads whose size is a
multiple of 16, and for more than one query row a request pages of 128, 256, 384 or 512 slots and the mask of
`causal_mask`. The layout is BSND, [B, W, Q, D]: what TND allows with pages differs from release to release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slipstream.device.api import HostOp, PagedQuery

#: Slots of a page that the op can read.
PAGE_SIZES = (128, 256, 384, 512)

#: Rows and columns of the mask that stands for a causal one of any size.
_MASK_SIZE = 2048

#: Of `sparse_mode`: all of the context, or for the last row all, and one less for each row before it.
_WHOLE, _CAUSAL_TO_THE_END = 0, 3


def causal_mask(device: torch.device) -> torch.Tensor:
    """Return the mask that causal attention is asked for with, int8 [2048, 2048]: 1 hides."""
    return torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.int8, device=device).triu_(1)


class FusedAttention(HostOp):
    """One call. Its numbers are the requests' contexts, the query's own rows included.

    Args:
        query: what it reads.
        mask: of `causal_mask`, where there is more than one query row a request.
    """

    def __init__(self, query: PagedQuery, mask: torch.Tensor | None) -> None:
        _, width, _, head_dim = query.query_BWQD.shape
        self._tensors = query.query_BWQD, query.keys_NLE, query.values_NLE
        self._longest = [query.longest] * query.table_BP.shape[0]
        self._options: dict[str, Any] = {
            "block_table": query.table_BP,
            "block_size": query.keys_NLE.shape[1],
            "num_heads": query.num_heads,
            "num_key_value_heads": query.num_kv_heads,
            "scale": head_dim**-0.5,
            "input_layout": "BSND",
            "sparse_mode": _WHOLE if width == 1 else _CAUSAL_TO_THE_END,
            "atten_mask": None if width == 1 else mask,
        }

    def run(self, values: Sequence[int]) -> torch.Tensor:
        out, _ = torch.ops.npu.npu_fused_infer_attention_score(
            *self._tensors, actual_seq_lengths_kv=list(values), **self._options
        )
        result: torch.Tensor = out
        return result

    def workspace(self) -> torch.Tensor:
        made: torch.Tensor = torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(
            *self._tensors, actual_seq_lengths_kv=self._longest, **self._options
        )
        return made

    def outputs(self) -> list[torch.Tensor]:
        query = self._tensors[0]
        # The second, the log-sum-exp, is not asked for, and has one element then.
        return [torch.empty_like(query), query.new_empty(1, dtype=torch.float32)]

    def issue(self, values: Sequence[int], workspace: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        torch.ops.npu.npu_fused_infer_attention_score.out(
            *self._tensors,
            actual_seq_lengths_kv=list(values),
            workspace=workspace,
            out=list(outputs),
            **self._options,
        )

"""Quantised matrices as PyTorch's kernels read them: bfloat16 activations, weights packed by PyTorch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from slipstream.ops.matrix import BLOCK, Matrix, with_sums
from slipstream.ops.registry import op

#: Added to an unsigned code's offset: PyTorch's int4 product computes (code - 8) * scale + offset.
_INT4_ZERO = 8.0


@op
def linear_int4pack(
    x_RI: torch.Tensor,
    packed: torch.Tensor,
    scales_and_offsets: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ops.linear` with a `Q4Matrix`, in bfloat16."""
    product_RO: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
        x_RI.bfloat16(), packed, BLOCK, scales_and_offsets
    )
    return with_sums(product_RO, bias_O, residual_RO)


@op
def linear_int8pack(
    x_RI: torch.Tensor,
    row_codes_OI: torch.Tensor,
    row_scale_O: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ops.linear` with the rows of a `Q8Matrix`, in bfloat16."""
    product_RO: torch.Tensor = torch.ops.aten._weight_int8pack_mm(x_RI.bfloat16(), row_codes_OI, row_scale_O)
    return with_sums(product_RO, bias_O, residual_RO)


@op
def embed_blocks(codes_OI: torch.Tensor, scale_ON: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows `ids` (int64, any shape) of the blocks of a `Q8Matrix`, exactly, as float32 [..., I]."""
    embedding = torch.nn.functional.embedding
    return dequantise(embedding(ids, codes_OI), embedding(ids, scale_ON))


def dequantise(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return codes [..., I] times the scales of their blocks [..., I / 32], float32."""
    blocks = codes.float().unflatten(-1, (-1, BLOCK)) * scale.unsqueeze(-1)
    flat: torch.Tensor = blocks.flatten(-2)
    return flat


class Q4Matrix(Matrix):
    """4-bit codes, weight = scale * code + minimum, in blocks of 32 inputs.

    Scales and offsets are kept in bfloat16, the dtype that PyTorch's int4 kernel computes in.

    Args:
        codes: uint8 [num_out, num_in], 0 to 15.
        scale: float32 [num_out, num_in / 32].
        minimum: float32 [num_out, num_in / 32].
    """

    activation_dtype = torch.bfloat16
    linear_op = linear_int4pack

    def __init__(
        self, codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32], minimum: npt.NDArray[np.float32]
    ) -> None:
        self.num_out, self.num_in = codes.shape
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            torch.from_numpy(codes).to(torch.int32), 1
        )
        # The kernel rounds (code - 8) * scale + offset; the offset is near zero where minimum is near
        # -8 * scale, so rounding it to bfloat16 costs little.
        scale_t = torch.from_numpy(scale).bfloat16()
        offset_t = (torch.from_numpy(minimum) + _INT4_ZERO * scale_t.float()).bfloat16()
        scales_and_offsets = torch.stack((scale_t, offset_t), dim=-1).transpose(0, 1).contiguous()
        self.weights = packed, scales_and_offsets


class Q8Matrix(Matrix):
    """8-bit codes for a vocabulary's matrix: exact rows by blocks, products by whole rows.

    PyTorch's int8 kernel takes one scale a row, Q8_0 has one a block of 32. So the product is computed on
    codes re-rounded to a row's scale (to find candidates), and `rows` gives the exact blocks (to embed, and to
    score the candidates: `ops.logits`).

    Args:
        codes: int8 [num_out, num_in].
        scale: float32 [num_out, num_in / 32].
    """

    activation_dtype = torch.bfloat16
    linear_op = linear_int8pack

    def __init__(self, codes: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]) -> None:
        self.num_out, self.num_in = codes.shape
        self.codes = torch.from_numpy(np.ascontiguousarray(codes))
        self.block_scale = torch.from_numpy(np.ascontiguousarray(scale))
        row_codes = torch.empty_like(self.codes)
        row_scales = torch.empty(self.num_out, dtype=torch.bfloat16)
        for start in range(0, self.num_out, 4096):  # in parts: the float copy of a whole vocabulary is large
            part = slice(start, start + 4096)
            weight = dequantise(self.codes[part], self.block_scale[part])
            row_scale = (weight.abs().amax(1) / 127).clamp_min(1e-12).bfloat16()
            row_codes[part] = (weight / row_scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
            row_scales[part] = row_scale
        self.weights = row_codes, row_scales

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return embed_blocks(self.codes, self.block_scale, ids)

    def take(self, ids_N: torch.Tensor) -> Q8Matrix:
        return Q8Matrix(self.codes[ids_N].numpy(), self.block_scale[ids_N].numpy())

    @property
    def nbytes(self) -> int:
        return self.product_bytes + self.codes.nbytes + self.block_scale.nbytes

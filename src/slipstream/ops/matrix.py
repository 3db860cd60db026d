"""Weight matrices in the formats that the kernels compute in.

    DenseMatrix   float32 or bfloat16
    Q4Matrix      4-bit codes in blocks of 32 inputs, each block with a scale and an offset (Q4_0, Q4_1)
    Q8Matrix      8-bit codes: the vocabulary's matrix, with exact block rows beside a fast product

These are for PyTorch's kernels, `ops.packed` has the two quantised ones for the native kernels.

A row of a product depends on that row of the input alone: the kernels below compute a row with the same
instructions however many rows there are (float32 from 4 rows on, hence `_FLOAT32_ROWS`). Tests hold them to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch

from slipstream.native import library
from slipstream.native.node import Kernel

#: Inputs that share a scale in Q4_0, Q4_1 and Q8_0.
BLOCK = 32

#: PyTorch's float32 product takes other kernels, which round otherwise, below this many rows.
_FLOAT32_ROWS = 4

#: Added to an unsigned code's offset: PyTorch's int4 product computes (code - 8) * scale + offset.
_INT4_ZERO = 8.0


class Matrix(ABC):
    """A weight matrix of `num_out` x `num_in`; float32 outside, anything inside.

    Attributes:
        activation_dtype: the dtype that its product wants its input in.
    """

    num_out: int
    num_in: int
    activation_dtype: torch.dtype

    @abstractmethod
    def product(self, x_RI: torch.Tensor) -> torch.Tensor:
        """Return x_RI @ weight.T, in `activation_dtype`. x_RI is [rows, num_in], any floating dtype."""

    @abstractmethod
    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the exact weight rows `ids` (int64, any shape) as float32 [..., num_in]."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory that the matrix holds."""

    def native_product(self) -> tuple[Kernel, int] | None:
        """Return the native kernel for `product` and the weights' address, or None where there is none."""
        return None

    def native_rows(self) -> tuple[Kernel, int] | None:
        """Return the native kernel for `rows` and the weights' address, or None where there is none."""
        return None


class DenseMatrix(Matrix):
    """float32 or bfloat16 weights.

    Args:
        weight_OI: [num_out, num_in], float32 or bfloat16.
    """

    def __init__(self, weight_OI: torch.Tensor) -> None:
        self.weight = weight_OI.contiguous()
        self.num_out, self.num_in = weight_OI.shape
        self.activation_dtype = torch.float32 if library.active() else weight_OI.dtype
        self._min_rows = _FLOAT32_ROWS if weight_OI.dtype == torch.float32 else 1

    def product(self, x_RI: torch.Tensor) -> torch.Tensor:
        x_RI = x_RI.to(self.weight.dtype)
        num_rows = x_RI.shape[0]
        if num_rows >= self._min_rows:
            return torch.nn.functional.linear(x_RI, self.weight)
        padded = torch.nn.functional.pad(x_RI, (0, 0, 0, self._min_rows - num_rows))
        return torch.nn.functional.linear(padded, self.weight)[:num_rows]

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].float()

    def native_product(self) -> tuple[Kernel, int] | None:
        kernel = Kernel.LINEAR_F32 if self.weight.dtype == torch.float32 else Kernel.LINEAR_BF16
        return kernel, self.weight.data_ptr()

    def native_rows(self) -> tuple[Kernel, int] | None:
        kernel = Kernel.GATHER if self.weight.dtype == torch.float32 else Kernel.EMBED_BF16
        return kernel, self.weight.data_ptr()

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class Q4Matrix(Matrix):
    """4-bit codes, weight = scale * code + minimum, in blocks of 32 inputs.

    Scales and offsets are kept in bfloat16, the dtype that PyTorch's int4 kernel computes in.

    Args:
        codes: uint8 [num_out, num_in], 0 to 15.
        scale: float32 [num_out, num_in / 32].
        minimum: float32 [num_out, num_in / 32].
    """

    def __init__(
        self, codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32], minimum: npt.NDArray[np.float32]
    ) -> None:
        self.num_out, self.num_in = codes.shape
        self.activation_dtype = torch.bfloat16
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            torch.from_numpy(codes).to(torch.int32), 1
        )
        # The kernel rounds (code - 8) * scale + offset; the offset is near zero where minimum is near
        # -8 * scale, so rounding it to bfloat16 costs little.
        scale_t = torch.from_numpy(scale).bfloat16()
        offset_t = (torch.from_numpy(minimum) + _INT4_ZERO * scale_t.float()).bfloat16()
        self.scales_and_offsets = torch.stack((scale_t, offset_t), dim=-1).transpose(0, 1).contiguous()

    def product(self, x_RI: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x_RI.bfloat16(), self.packed, BLOCK, self.scales_and_offsets
        )
        return result

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a Q4Matrix is only multiplied; the vocabulary's matrix is Q8 or dense")

    @property
    def nbytes(self) -> int:
        return int(self.packed.nbytes + self.scales_and_offsets.nbytes)


class Q8Matrix(Matrix):
    """8-bit codes for a vocabulary's matrix: exact rows by blocks, products by whole rows.

    PyTorch's int8 kernel takes one scale a row, Q8_0 has one a block of 32. So the product is computed on
    codes re-rounded to a row's scale (to find candidates), and `rows` gives the exact blocks (to embed, and to
    score the candidates: `ops.logits`).

    Args:
        codes: int8 [num_out, num_in].
        scale: float32 [num_out, num_in / 32].
    """

    def __init__(self, codes: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]) -> None:
        self.num_out, self.num_in = codes.shape
        self.activation_dtype = torch.bfloat16
        self.codes = torch.from_numpy(np.ascontiguousarray(codes))
        self.block_scale = torch.from_numpy(np.ascontiguousarray(scale))
        self.row_codes = torch.empty_like(self.codes)
        self.row_scale = torch.empty(self.num_out, dtype=torch.bfloat16)
        for start in range(0, self.num_out, 4096):  # in parts: the float copy of a whole vocabulary is large
            part = slice(start, start + 4096)
            weight = self._dequantise(self.codes[part], self.block_scale[part])
            row_scale = (weight.abs().amax(1) / 127).clamp_min(1e-12).bfloat16()
            self.row_codes[part] = (
                (weight / row_scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
            )
            self.row_scale[part] = row_scale

    @staticmethod
    def _dequantise(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        blocks = codes.float().unflatten(-1, (-1, BLOCK)) * scale.unsqueeze(-1)
        flat: torch.Tensor = blocks.flatten(-2)
        return flat

    def product(self, x_RI: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten._weight_int8pack_mm(
            x_RI.bfloat16(), self.row_codes, self.row_scale
        )
        return result

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._dequantise(self.codes[ids], self.block_scale[ids])

    @property
    def nbytes(self) -> int:
        parts = (self.codes, self.block_scale, self.row_codes, self.row_scale)
        return sum(part.nbytes for part in parts)

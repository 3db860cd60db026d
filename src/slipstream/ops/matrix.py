"""Weight matrices in the formats that the kernels compute in; here the interface, and float weights.

    DenseMatrix      float32 or bfloat16
    Q4Matrix         4-bit codes in blocks of 32 inputs, each block with a scale and an offset (Q4_0, Q4_1)
    Q8Matrix         8-bit codes: the vocabulary's matrix, with exact block rows beside a fast product

Each format's file holds its matrix and the ops on it. `ops.torch_packed` has the two quantised ones for PyTorch's
kernels, `ops.packed` those for the native kernels.

A row of a product depends on that row of the input alone: the kernels below compute a row with the same
instructions however many rows there are (float32 from 4 rows on, hence `_FLOAT32_ROWS`). Tests hold them to it.
"""

from __future__ import annotations

from typing import Any

import torch

from slipstream.native import library
from slipstream.native.node import Kernel
from slipstream.ops.registry import Native, Op, native_op, node

#: Inputs that share a scale in Q4_0, Q4_1 and Q8_0.
BLOCK = 32

#: PyTorch's float32 product takes other kernels, which round otherwise, below this many rows.
_FLOAT32_ROWS = 4


class Matrix:
    """A weight matrix of `num_out` x `num_in`; float32 outside, anything inside.

    Attributes:
        activation_dtype: the dtype that its product wants its input in, and that it answers in.
        linear_op: the op that multiplies by such a matrix: x, `weights`, then bias and residual or None.
        weights: what the op is given of the matrix.
    """

    num_out: int
    num_in: int
    activation_dtype: torch.dtype
    linear_op: Op[..., torch.Tensor]
    weights: tuple[Any, ...]

    def product(
        self,
        x_RI: torch.Tensor,
        bias_O: torch.Tensor | None = None,
        residual_RO: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return x_RI @ weight.T (+ bias) (+ residual); see `ops.linear`."""
        return self.linear_op(x_RI, *self.weights, bias_O, residual_RO)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the exact weight rows `ids` (int64, any shape) as float32 [..., num_in]."""
        raise NotImplementedError(
            f"a {type(self).__name__} is only multiplied; the vocabulary's matrix is Q8 or dense"
        )

    def take(self, ids_N: torch.Tensor) -> Matrix:
        """Return a matrix of the rows `ids_N` (int64 [N]) alone, in the same format and with the same values."""
        raise NotImplementedError(f"rows of a {type(self).__name__} are not taken; only a vocabulary's are")

    @property
    def product_bytes(self) -> int:
        """Bytes that a product reads of the matrix."""
        return sum(part.nbytes for part in self.weights if isinstance(part, torch.Tensor))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the matrix holds."""
        return self.product_bytes


def native_product(
    native: Native,
    kernel: Kernel,
    weight: torch.Tensor,
    shape: tuple[int, int],
    x_RI: torch.Tensor,
    bias_O: torch.Tensor | None,
    residual_RO: torch.Tensor | None,
) -> torch.Tensor | None:
    """Return what all native products share: float32 [R, O], or None where the kernel cannot read the arguments.

    Args:
        native: of the op.
        kernel: that multiplies by such weights.
        weight: in the kernel's layout.
        shape: the matrix's (O, I).
        x_RI, bias_O, residual_RO: as for `ops.linear`.
    """
    rows, (num_out, num_in) = x_RI.shape[0], shape
    if not native.reads(torch.float32, x_RI, bias_O, residual_RO) or not native.reads(weight.dtype, weight):
        return None
    bias_fits = bias_O is None or bias_O.shape == (num_out,)
    residual_fits = residual_RO is None or residual_RO.shape == (rows, num_out)
    if x_RI.shape != (rows, num_in) or not bias_fits or not residual_fits:
        return None  # the definition says what is wrong
    out_RO = torch.empty(rows, num_out)
    tensors = (x_RI, weight, out_RO, bias_O, residual_RO)
    return native.fill(out_RO, node(kernel, tensors, (rows, num_in, num_out)))


def with_sums(
    product_RO: torch.Tensor, bias_O: torch.Tensor | None, residual_RO: torch.Tensor | None
) -> torch.Tensor:
    """Add bias and residual to a product, which may be overwritten."""
    if bias_O is not None:
        product_RO = product_RO.add_(bias_O)
    return product_RO if residual_RO is None else residual_RO + product_RO


@native_op
def linear_dense(
    native: Native,
    x_RI: torch.Tensor,
    weight_OI: torch.Tensor,
    dtype: torch.dtype,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ops.linear` with float32 or bfloat16 weights, computed in `dtype`."""
    if dtype == torch.float32:
        kernel = Kernel.LINEAR_F32 if weight_OI.dtype == torch.float32 else Kernel.LINEAR_BF16
        shape = weight_OI.shape[0], weight_OI.shape[1]
        out_RO = native_product(native, kernel, weight_OI, shape, x_RI, bias_O, residual_RO)
        if out_RO is not None:
            return out_RO
    num_rows = x_RI.shape[0]
    missing = _FLOAT32_ROWS - num_rows if dtype == torch.float32 else 0
    x_RI = x_RI.to(dtype)
    if missing > 0:
        x_RI = torch.nn.functional.pad(x_RI, (0, 0, 0, missing))
    product_RO = torch.nn.functional.linear(x_RI, weight_OI.to(dtype))
    return with_sums(product_RO[:num_rows], bias_O, residual_RO)


@native_op
def embed_dense(native: Native, weight_OI: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows `ids` (int64, any shape) of float32 or bfloat16 weights as float32 [..., I]."""
    if native.reads(weight_OI.dtype, weight_OI) and native.reads(torch.int64, ids):
        num_out, num_in = weight_OI.shape
        out = torch.empty(*ids.shape, num_in)
        whole = weight_OI.dtype == torch.float32
        kernel, row = (Kernel.GATHER, num_in * 4) if whole else (Kernel.EMBED_BF16, num_in)
        return native.fill(out, node(kernel, (weight_OI, ids, out), (ids.numel(), row, num_out)))
    return torch.nn.functional.embedding(ids, weight_OI).float()


class DenseMatrix(Matrix):
    """float32 or bfloat16 weights.

    Args:
        weight_OI: [num_out, num_in], float32 or bfloat16.
    """

    linear_op = linear_dense

    def __init__(self, weight_OI: torch.Tensor) -> None:
        self.weight = weight_OI.contiguous()
        self.num_out, self.num_in = weight_OI.shape
        self.activation_dtype = torch.float32 if library.active() else weight_OI.dtype
        self.weights = self.weight, self.activation_dtype

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return embed_dense(self.weight, ids)

    def take(self, ids_N: torch.Tensor) -> DenseMatrix:
        return DenseMatrix(self.weight[ids_N])

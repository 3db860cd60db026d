"""Operations on rows: embedding, norm, product, gate. Legend of shapes: `slipstream.ops`."""

from __future__ import annotations

import torch

from slipstream.device.tape import Lowered
from slipstream.native.node import Kernel, Node, make_node
from slipstream.ops.matrix import Matrix
from slipstream.ops.registry import float_row_major, op


@op
def embedding(table: Matrix, ids_R: torch.Tensor) -> torch.Tensor:
    """Return the table's rows `ids_R` (int64) as float32 [R, H]."""
    return table.rows(ids_R)


@embedding.native
def _embedding(table: Matrix, ids_R: torch.Tensor) -> Lowered | None:
    native = table.native_rows()
    if native is None or not ids_R.is_contiguous():
        return None
    kernel, address = native
    out = torch.empty(ids_R.shape[0], table.num_in)
    row = table.num_in * 4 if kernel is Kernel.GATHER else table.num_in
    pointers = (address, ids_R.data_ptr(), out.data_ptr())
    return Lowered(out, [make_node(kernel, pointers, (ids_R.shape[0], row, table.num_out))])


@op
def rms_norm(x_RH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, as `dtype` [R, H]. x_RH and weight_H are float32.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    # One norm and one fused scale: torch's own rms_norm is a composite that takes twice as long.
    mean_square_R1 = torch.linalg.vector_norm(x_RH, dim=-1, keepdim=True).square_().div_(x_RH.shape[-1])
    normed: torch.Tensor = (x_RH * mean_square_R1.add_(eps).rsqrt_()).mul_(weight_H)
    return normed.to(dtype)


@rms_norm.native
def _rms_norm(x_RH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype) -> Lowered | None:
    if dtype != torch.float32 or not float_row_major(x_RH, weight_H):
        return None
    out = torch.empty_like(x_RH)
    pointers = (x_RH.data_ptr(), weight_H.data_ptr(), out.data_ptr())
    return Lowered(out, [make_node(Kernel.RMS_NORM, pointers, tuple(x_RH.shape), eps)])


@op
def linear(
    x_RI: torch.Tensor,
    matrix: Matrix,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ matrix.T (+ bias) (+ residual), [R, O].

    The result is in the matrix's activation dtype, or float32 where a residual (float32) is added.
    """
    product = matrix.product(x_RI)
    if bias_O is not None:
        product = product.add_(bias_O)
    return product if residual_RO is None else residual_RO + product


@linear.native
def _linear(
    x_RI: torch.Tensor,
    matrix: Matrix,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> Lowered | None:
    native = matrix.native_product()
    extra = [t for t in (bias_O, residual_RO) if t is not None]
    if native is None or not float_row_major(x_RI, *extra):
        return None
    kernel, address = native
    out = torch.empty(x_RI.shape[0], matrix.num_out)
    bias, residual = (t.data_ptr() if t is not None else 0 for t in (bias_O, residual_RO))
    pointers = (x_RI.data_ptr(), address, out.data_ptr(), bias, residual)
    return Lowered(out, [make_node(kernel, pointers, (x_RI.shape[0], matrix.num_in, matrix.num_out))])


@op
def gated_silu(gate_and_up_RF: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, [R, F], from their concatenation [R, 2 F]; dtype kept."""
    half = gate_and_up_RF.shape[-1] // 2
    gate = torch.nn.functional.silu(gate_and_up_RF.narrow(-1, 0, half))
    return gate.mul_(gate_and_up_RF.narrow(-1, half, half))


@gated_silu.native
def _gated_silu(gate_and_up_RF: torch.Tensor) -> Lowered | None:
    if not float_row_major(gate_and_up_RF):
        return None
    rows, both = gate_and_up_RF.shape
    out = torch.empty(rows, both // 2)
    pointers = (gate_and_up_RF.data_ptr(), out.data_ptr())
    return Lowered(out, [make_node(Kernel.GATED_SILU, pointers, (rows, both // 2))])


@op
def concat_rows(left_RH: torch.Tensor, right_RH: torch.Tensor) -> torch.Tensor:
    """Return the two side by side, [R, 2 H]."""
    return torch.cat((left_RH, right_RH), dim=-1)


@concat_rows.native
def _concat_rows(left_RH: torch.Tensor, right_RH: torch.Tensor) -> Lowered | None:
    if not float_row_major(left_RH, right_RH):
        return None
    out = torch.empty(left_RH.shape[0], left_RH.shape[1] + right_RH.shape[1])
    right_out = out[:, left_RH.shape[1] :]
    return Lowered(out, [_copy_node(left_RH, out), _copy_node(right_RH, right_out)])


@op
def select_rows(x_RH: torch.Tensor, rows_B: torch.Tensor) -> torch.Tensor:
    """Return the rows `rows_B` (int64) of x, [B, H]."""
    return x_RH.index_select(0, rows_B)


@select_rows.native
def _select_rows(x_RH: torch.Tensor, rows_B: torch.Tensor) -> Lowered | None:
    if not float_row_major(x_RH) or not rows_B.is_contiguous():
        return None
    out = torch.empty(rows_B.shape[0], x_RH.shape[1])
    pointers = (x_RH.data_ptr(), rows_B.data_ptr(), out.data_ptr())
    sizes = (rows_B.shape[0], x_RH.shape[1] * 4, x_RH.shape[0])
    return Lowered(out, [make_node(Kernel.GATHER, pointers, sizes)])


@op
def to_float(x_RH: torch.Tensor) -> torch.Tensor:
    """Return x as float32, [R, H]."""
    return x_RH.float()


@to_float.native
def _to_float(x_RH: torch.Tensor) -> Lowered | None:
    return Lowered(x_RH, []) if x_RH.dtype == torch.float32 else None


@op
def stack_columns(columns_B: list[torch.Tensor]) -> torch.Tensor:
    """Return vectors [B] side by side, [B, number of vectors]."""
    return torch.stack(columns_B, dim=1)


@stack_columns.native
def _stack_columns(columns_B: list[torch.Tensor]) -> Lowered | None:
    if not all(column.is_contiguous() and column.dtype == torch.int64 for column in columns_B):
        return None
    out = torch.empty(columns_B[0].shape[0], len(columns_B), dtype=torch.int64)
    nodes = [_copy_node(column.unsqueeze(1), out[:, at:]) for at, column in enumerate(columns_B)]
    return Lowered(out, nodes)


def _copy_node(source: torch.Tensor, target: torch.Tensor) -> Node:
    """Copy the rows of `source` [R, N] to the first N columns of `target`."""
    size = source.element_size()
    sizes = (source.shape[0], source.shape[1] * size, source.stride(0) * size, target.stride(0) * size)
    return make_node(Kernel.COPY, (source.data_ptr(), target.data_ptr()), sizes)

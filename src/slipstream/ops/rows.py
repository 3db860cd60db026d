"""Operations on rows: embedding, norm, product, gate. Legend of shapes: `slipstream.ops`."""

from __future__ import annotations

import torch

from slipstream.native.node import Kernel, Node
from slipstream.ops.matrix import Matrix
from slipstream.ops.registry import Native, native_op, node, op


def embedding(table: Matrix, ids_R: torch.Tensor) -> torch.Tensor:
    """Return the table's rows `ids_R` (int64) as float32 [R, H]: the op of the table's format."""
    return table.rows(ids_R)


def linear(
    x_RI: torch.Tensor,
    matrix: Matrix,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x @ matrix.T (+ bias) (+ residual), [R, O]: the op of the matrix's format.

    The result is in the matrix's activation dtype, or float32 where a residual (float32) is added.
    """
    return matrix.product(x_RI, bias_O, residual_RO)


@native_op
def rms_norm(
    native: Native, x_RH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, as `dtype` [R, H]. x_RH and weight_H are float32.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    fits = dtype == torch.float32 and x_RH.shape[1:] == weight_H.shape
    if fits and native.reads(torch.float32, x_RH, weight_H):
        out_RH = torch.empty_like(x_RH)
        return native.fill(out_RH, node(Kernel.RMS_NORM, (x_RH, weight_H, out_RH), x_RH.shape, eps))
    # One norm and one fused scale: torch's own rms_norm is a composite that takes twice as long.
    mean_square_R1 = torch.linalg.vector_norm(x_RH, dim=-1, keepdim=True).square_().div_(x_RH.shape[-1])
    normed: torch.Tensor = (x_RH * mean_square_R1.add_(eps).rsqrt_()).mul_(weight_H)
    return normed.to(dtype)


@native_op
def gated_silu(native: Native, gate_and_up_RF: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, [R, F], from their concatenation [R, 2 F]; dtype kept."""
    rows, both = gate_and_up_RF.shape
    if both % 2 == 0 and native.reads(torch.float32, gate_and_up_RF):
        out_RF = torch.empty(rows, both // 2)
        return native.fill(out_RF, node(Kernel.GATED_SILU, (gate_and_up_RF, out_RF), (rows, both // 2)))
    gate = torch.nn.functional.silu(gate_and_up_RF.narrow(-1, 0, both // 2))
    return gate.mul_(gate_and_up_RF.narrow(-1, both // 2, both // 2))


@native_op
def concat_rows(native: Native, left_RH: torch.Tensor, right_RH: torch.Tensor) -> torch.Tensor:
    """Return the two side by side, [R, 2 H]."""
    if native.reads(torch.float32, left_RH, right_RH) and left_RH.shape[0] == right_RH.shape[0]:
        rows, split = left_RH.shape
        out = torch.empty(rows, split + right_RH.shape[1])
        return native.fill(out, _copy_node(left_RH, out), _copy_node(right_RH, out[:, split:]))
    return torch.cat((left_RH, right_RH), dim=-1)


@native_op
def select_rows(native: Native, x_RH: torch.Tensor, rows_B: torch.Tensor) -> torch.Tensor:
    """Return the rows `rows_B` (int64) of x, [B, H]."""
    if native.reads(torch.float32, x_RH) and native.reads(torch.int64, rows_B):
        count, (rows, width) = rows_B.shape[0], x_RH.shape
        out_BH = torch.empty(count, width)
        return native.fill(out_BH, node(Kernel.GATHER, (x_RH, rows_B, out_BH), (count, width * 4, rows)))
    return x_RH.index_select(0, rows_B)


@native_op
def stack_columns(native: Native, columns_B: list[torch.Tensor]) -> torch.Tensor:
    """Return vectors [B] side by side, [B, number of vectors]."""
    even = all(column.shape == columns_B[0].shape[:1] for column in columns_B)
    if even and native.reads(torch.int64, *columns_B):
        out = torch.empty(columns_B[0].shape[0], len(columns_B), dtype=torch.int64)
        copies = (_copy_node(column.unsqueeze(1), out[:, at:]) for at, column in enumerate(columns_B))
        return native.fill(out, *copies)
    return torch.stack(columns_B, dim=1)


def to_float(x_RH: torch.Tensor) -> torch.Tensor:
    """Return x as float32, [R, H]; x itself where it is that already."""
    return x_RH if x_RH.dtype == torch.float32 else widen(x_RH)


@op
def widen(x: torch.Tensor) -> torch.Tensor:
    """Return a float32 copy."""
    return x.to(torch.float32, copy=True)


def _copy_node(source: torch.Tensor, target: torch.Tensor) -> Node:
    """Copy the rows of `source` [R, N] to the first N columns of `target`."""
    size = source.element_size()
    sizes = (source.shape[0], source.shape[1] * size, source.stride(0) * size, target.stride(0) * size)
    return node(Kernel.COPY, (source, target), sizes)

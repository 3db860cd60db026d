"""Operations on rows: embedding, norm, product, gate, residual. Legend of shapes: `slipstream.ops`."""

from __future__ import annotations

import torch

from slipstream.ops.matrix import Matrix
from slipstream.ops.registry import op


@op
def embedding(table: Matrix, ids_R: torch.Tensor) -> torch.Tensor:
    """Return the table's rows `ids_R` (int64) as float32 [R, H]."""
    return table.rows(ids_R)


@op
def rms_norm(x_RH: torch.Tensor, weight_H: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, as `dtype` [R, H]. x_RH and weight_H are float32.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    # One norm and one fused scale: torch's own rms_norm is a composite that takes three times as long.
    mean_square_R1 = torch.linalg.vector_norm(x_RH, dim=-1, keepdim=True).square_().div_(x_RH.shape[-1])
    normed = (x_RH * mean_square_R1.add_(eps).rsqrt_()).mul_(weight_H)
    return normed.to(dtype)


@op
def linear(x_RI: torch.Tensor, matrix: Matrix, bias_O: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ matrix.T (+ bias), in the matrix's activation dtype [R, O]."""
    product = matrix.product(x_RI)
    return product if bias_O is None else product.add_(bias_O)


@op
def gated_silu(gate_and_up_RF: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up, [R, F], from their concatenation [R, 2 F]; dtype kept."""
    half = gate_and_up_RF.shape[-1] // 2
    gate = torch.nn.functional.silu(gate_and_up_RF.narrow(-1, 0, half))
    return gate.mul_(gate_and_up_RF.narrow(-1, half, half))


@op
def add(residual_RH: torch.Tensor, x_RH: torch.Tensor) -> torch.Tensor:
    """Return residual + x in float32, [R, H]. The residual is not overwritten."""
    return residual_RH + x_RH


@op
def concat_rows(left_RH: torch.Tensor, right_RH: torch.Tensor) -> torch.Tensor:
    """Return the two side by side, [R, 2 H]."""
    return torch.cat((left_RH, right_RH), dim=-1)


@op
def select_rows(x_RH: torch.Tensor, rows_B: torch.Tensor) -> torch.Tensor:
    """Return the rows `rows_B` (int64) of x, [B, H]."""
    return x_RH.index_select(0, rows_B)


@op
def to_float(x_RH: torch.Tensor) -> torch.Tensor:
    """Return x as float32, [R, H]."""
    return x_RH.float()


@op
def stack_columns(columns_B: list[torch.Tensor]) -> torch.Tensor:
    """Return vectors [B] side by side, [B, number of vectors]."""
    return torch.stack(columns_B, dim=1)

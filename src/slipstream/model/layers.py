"""The decoder layer that Llama-like models and NextN heads share. Legend of shapes: `slipstream.ops`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from slipstream import ops
from slipstream.model.model_config import ModelConfig


class ForwardAttention(Protocol):
    """Attention of one forward that takes the contexts' lengths from the host; called once a layer."""

    def attend(
        self,
        query_RQD: torch.Tensor,
        keys_SKD: torch.Tensor,
        values_SKD: torch.Tensor,
        pages_BP: torch.Tensor,
        page_size: int,
    ) -> torch.Tensor:
        """Return what `ops.paged_attention` does, float32 [R, Q D]."""


@dataclass(frozen=True, slots=True)
class ForwardRows:
    """What every layer of one forward reads about its rows.

    Attributes:
        factors: rotary factors of the rows, [R, 1, 2 D].
        positions_R: int64, each row's position.
        slots_R: int64, where each row's key and value go.
        pages_BP: int64, the requests' pages.
        page_size: slots a page.
        context: what PyTorch's attention reads, nothing for the native kernel.
        attention: takes lengths from the host, over a cache with keys and values apart; None for
            `ops.paged_attention`.
    """

    factors: torch.Tensor
    positions_R: torch.Tensor
    slots_R: torch.Tensor
    pages_BP: torch.Tensor
    page_size: int
    context: ops.Context
    attention: ForwardAttention | None = None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer: attention and gated feed-forward, each behind a norm and added to the residual.

    Attributes:
        attn_norm, ffn_norm: float32 [H].
        attn_qkv: [(Q + 2 K) D, H], queries, keys and values in one matrix.
        qkv_bias: float [(Q + 2 K) D] or None.
        attn_output: [H, Q D].
        ffn_gate_up: [2 F, H].
        ffn_down: [H, F].
    """

    config: ModelConfig
    attn_norm: torch.Tensor
    attn_qkv: ops.Matrix
    qkv_bias: torch.Tensor | None
    attn_output: ops.Matrix
    ffn_norm: torch.Tensor
    ffn_gate_up: ops.Matrix
    ffn_down: ops.Matrix

    @property
    def matrices(self) -> tuple[ops.Matrix, ...]:
        """Its matrices, in the order in which a forward reads them."""
        return self.attn_qkv, self.attn_output, self.ffn_gate_up, self.ffn_down

    def forward(self, residual_RH: torch.Tensor, rows: ForwardRows, cache: torch.Tensor) -> torch.Tensor:
        """Return the residual after this layer, float32 [R, H]; writes the rows' keys and values to `cache`."""
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        with ops.node_group("attention"):
            normed = ops.rms_norm(residual_RH, self.attn_norm, config.rms_eps, self.attn_qkv.activation_dtype)
            qkv = ops.linear(normed, self.attn_qkv, self.qkv_bias)
            if rows.attention is None:
                query = ops.rope_and_store(qkv, rows.factors, rows.slots_R, cache, heads, kv_heads)
                attended = ops.paged_attention(
                    query, cache, rows.pages_BP, rows.positions_R, rows.page_size, *rows.context
                )
            else:
                apart = cache[0], cache[1]
                query = ops.rope_and_store_apart(qkv, rows.factors, rows.slots_R, *apart, heads, kv_heads)
                attended = rows.attention.attend(query, *apart, rows.pages_BP, rows.page_size)
            residual_RH = ops.linear(attended, self.attn_output, None, residual_RH)
        with ops.node_group("feed-forward"):
            normed = ops.rms_norm(
                residual_RH, self.ffn_norm, config.rms_eps, self.ffn_gate_up.activation_dtype
            )
            gated = ops.gated_silu(ops.linear(normed, self.ffn_gate_up))
            return ops.linear(gated, self.ffn_down, None, residual_RH)


def rope_table(config: ModelConfig, num_positions: int, device: torch.device) -> torch.Tensor:
    """Return the rotary table, float32 [num_positions, 2 D]: cosines, then sines, the first half's negated.

    With the sign in the table, rotating is x * cos + roll(x, D/2) * sin.
    """
    half = config.head_dim // 2
    exponent = torch.arange(half, dtype=torch.float64) / half
    frequency = config.rope_theta**-exponent
    if config.rope_factors is not None:
        frequency /= torch.tensor(config.rope_factors, dtype=torch.float64)
    # The products are formed in float32, as transformers does: at long positions the rounding shows.
    angle = torch.arange(num_positions).float()[:, None] * frequency.float()
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat((cosine, cosine, -sine, sine), dim=-1).to(device)

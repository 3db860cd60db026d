"""The Llama family: Llama, SmolLM2, and Qwen2 with its biases. Legend of shapes: `slipstream.ops`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream import ops
from slipstream.kv.cache import KvCache
from slipstream.model.layers import DecoderLayer, ForwardAttention, ForwardRows
from slipstream.model.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Llama:
    """A decoder-only transformer.

    Attributes:
        dtype: how its matrices are kept: "f32", "bf16" or "q4".
        token_embd: [V, H].
        output: [V, H], the same object where the model ties them.
        output_norm: float32 [H].
        rope: rotary table, float32 [positions, 2 D].
    """

    config: ModelConfig
    dtype: str
    token_embd: ops.Matrix
    layers: Sequence[DecoderLayer]
    output_norm: torch.Tensor
    output: ops.Matrix
    rope: torch.Tensor

    def forward(
        self,
        ids_R: torch.Tensor,
        positions_R: torch.Tensor,
        slots_R: torch.Tensor,
        pages_BP: torch.Tensor,
        cache: KvCache,
        attention: ForwardAttention | None = None,
    ) -> torch.Tensor:
        """Return the rows' hidden states before the final norm, float32 [R, H].

        Args:
            ids_R: int64 token ids; R = B x width, a request's rows side by side.
            positions_R: int64 positions in their requests.
            slots_R: int64 KV slots that the rows write.
            pages_BP: int64 pages of each request.
            cache: keys and values, written in place.
            attention: for a cache with keys and values apart.
        """
        with ops.node_group("embedding"):
            rows = forward_rows(
                self.config, self.rope, positions_R, slots_R, pages_BP, cache.page_size, attention
            )
            residual_RH = ops.embedding(self.token_embd, ids_R)
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache.layers, strict=True)):
            with ops.node_group(f"layer {index}"):
                residual_RH = layer.forward(residual_RH, rows, layer_cache)
        return residual_RH

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """Return logits of hidden rows before the final norm, float32 [R, V]."""
        with ops.node_group("LM head"):
            normed = ops.rms_norm(hidden_RH, self.output_norm, self.config.rms_eps, torch.float32)
            return ops.logits(normed, self.output)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices."""
        layers = sum(matrix.nbytes for layer in self.layers for matrix in layer.matrices)
        return layers + sum({id(m): m.nbytes for m in (self.token_embd, self.output)}.values())


def forward_rows(
    config: ModelConfig,
    rope: torch.Tensor,
    positions_R: torch.Tensor,
    slots_R: torch.Tensor,
    pages_BP: torch.Tensor,
    page_size: int,
    attention: ForwardAttention | None = None,
) -> ForwardRows:
    """Return what all layers of a forward share."""
    group = config.num_heads // config.num_kv_heads
    context = ops.Context()
    if attention is None:
        context = ops.attention_context(pages_BP, positions_R, page_size, group, config.head_dim)
    factors = ops.rope_rows(rope, positions_R)
    return ForwardRows(factors, positions_R, slots_R, pages_BP, page_size, context, attention)

"""The NextN head (EAGLE, multi-token prediction): one decoder layer that guesses the token after the next.

    embedding of token t+1 ── enorm ─┐
                                     ├─ concat ─ eh_proj ─ decoder layer ─ output norm ─ LM head (shared)
    hidden state at t ────── hnorm ──┘                        │
                                                              └─ hidden state for the head's next step

DeepSeek-V3 technical report, section 2.2, for the layout; the tensors' names are GGUF's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream import ops
from slipstream.kv.cache import KvCache
from slipstream.model.layers import DecoderLayer
from slipstream.model.llama import Llama, forward_rows


@dataclass(frozen=True, slots=True)
class NextnHead:
    """A draft head on a target model, which lends it embedding, LM head and rotary table.

    Attributes:
        target: the model that it drafts for.
        enorm, hnorm: float32 [H], norms of embedding and hidden state.
        eh_proj: [H, 2 H].
        layer: one decoder layer of the target's kind.
        output_norm: float32 [H], before the shared LM head.
    """

    target: Llama
    enorm: torch.Tensor
    hnorm: torch.Tensor
    eh_proj: ops.Matrix
    layer: DecoderLayer
    output_norm: torch.Tensor

    def forward(
        self,
        ids_R: torch.Tensor,
        hidden_RH: torch.Tensor,
        positions_R: torch.Tensor,
        slots_R: torch.Tensor,
        pages_BP: torch.Tensor,
        cache: KvCache,
    ) -> torch.Tensor:
        """Return the head's hidden rows, float32 [R, H].

        Args:
            ids_R: int64, the token that follows each row's position.
            hidden_RH: float32, hidden state at the row's position: the target's, or the head's own.
            positions_R, slots_R, pages_BP: as for `Llama.forward`.
            cache: the head's own keys and values, one layer.
        """
        config = self.target.config
        dtype = self.eh_proj.activation_dtype
        with ops.node_group("head"):
            with ops.node_group("input"):
                embedded = ops.embedding(self.target.token_embd, ids_R)
                both = ops.concat_rows(
                    ops.rms_norm(embedded, self.enorm, config.rms_eps, dtype),
                    ops.rms_norm(hidden_RH, self.hnorm, config.rms_eps, dtype),
                )
                rows = forward_rows(config, self.target.rope, positions_R, slots_R, pages_BP, cache.page_size)
                residual_RH = ops.to_float(ops.linear(both, self.eh_proj))
            return self.layer.forward(residual_RH, rows, cache.layers[0])

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """Return draft logits of the head's hidden rows, float32 [R, V]."""
        with ops.node_group("LM head"):
            normed = ops.rms_norm(hidden_RH, self.output_norm, self.target.config.rms_eps, torch.float32)
            return ops.logits(normed, self.target.output)


def random_head(target: Llama, seed: int) -> NextnHead:
    """Return an untrained head: right in shape, wrong in nearly every guess."""
    config = target.config
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim

    def dense(rows: int, columns: int) -> ops.DenseMatrix:
        weight = torch.randn(rows, columns, generator=generator) * columns**-0.5
        return ops.DenseMatrix(weight.to(target.rope.device))

    def ones() -> torch.Tensor:
        return torch.ones(hidden, device=target.rope.device)

    layer = DecoderLayer(
        config=config,
        attn_norm=ones(),
        attn_qkv=dense(qkv, hidden),
        qkv_bias=None,
        attn_output=dense(hidden, config.num_heads * config.head_dim),
        ffn_norm=ones(),
        ffn_gate_up=dense(2 * inner, hidden),
        ffn_down=dense(hidden, inner),
    )
    return NextnHead(target, ones(), ones(), dense(hidden, 2 * hidden), layer, ones())

"""The NextN head (EAGLE, multi-token prediction): one decoder layer that guesses the token after the next.

    embedding of token t+1 ── enorm ─┐
                                     ├─ concat ─ eh_proj ─ decoder layer ─ output norm ─ LM head
    hidden state at t ────── hnorm ──┘                        │
                                                              └─ hidden state for the head's next step

DeepSeek-V3 technical report, section 2.2, for the layout; the tensors' names are GGUF's. The LM head is the
target's, or some of its rows: a draft vocabulary of the tokens that are frequent, since of a small model's draft
step the LM head is the most (Zhao et al., "FR-Spec", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream import ops
from slipstream.kv.cache import KvCache
from slipstream.model.layers import DecoderLayer, ForwardAttention
from slipstream.model.llama import Llama, forward_rows


@dataclass(frozen=True, slots=True)
class NextnHead:
    """A draft head on a target model, which lends it embedding, LM head and rotary table.

    N is the size of the draft vocabulary, V where that is the whole one.

    Attributes:
        target: the model that it drafts for.
        enorm, hnorm: float32 [H], norms of embedding and hidden state.
        eh_proj: [H, 2 H].
        layer: one decoder layer of the target's kind.
        output_norm: float32 [H], before the LM head.
        output: [N, H], the LM head: the target's own matrix, or its rows `draft_ids`.
        draft_ids: int64 [N], the target's token of each draft token, ascending; None where all are drafted.
    """

    target: Llama
    enorm: torch.Tensor
    hnorm: torch.Tensor
    eh_proj: ops.Matrix
    layer: DecoderLayer
    output_norm: torch.Tensor
    output: ops.Matrix
    draft_ids: torch.Tensor | None = None

    def forward(
        self,
        ids_R: torch.Tensor,
        hidden_RH: torch.Tensor,
        positions_R: torch.Tensor,
        slots_R: torch.Tensor,
        pages_BP: torch.Tensor,
        cache: KvCache,
        attention: ForwardAttention | None = None,
    ) -> torch.Tensor:
        """Return the head's hidden rows, float32 [R, H].

        Args:
            ids_R: int64, the token that follows each row's position.
            hidden_RH: float32, hidden state at the row's position: the target's, or the head's own.
            positions_R, slots_R, pages_BP, attention: as for `Llama.forward`.
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
                rows = forward_rows(
                    config, self.target.rope, positions_R, slots_R, pages_BP, cache.page_size, attention
                )
                residual_RH = ops.to_float(ops.linear(both, self.eh_proj))
            return self.layer.forward(residual_RH, rows, cache.layers[0])

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """Return draft logits of the head's hidden rows, float32 [R, N]."""
        with ops.node_group("LM head"):
            normed = ops.rms_norm(hidden_RH, self.output_norm, self.target.config.rms_eps, torch.float32)
            return ops.logits(normed, self.output)

    def tokens(self, logits_RN: torch.Tensor) -> torch.Tensor:
        """Return the target's token of the best of each row of draft logits, int64 [R]."""
        best_R = ops.argmax(logits_RN)
        return best_R if self.draft_ids is None else ops.lookup(self.draft_ids, best_R)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its own matrices: without the target's LM head, with rows taken from it."""
        own = sum(matrix.nbytes for matrix in (self.eh_proj, *self.layer.matrices))
        return own + (0 if self.draft_ids is None else self.output.nbytes)

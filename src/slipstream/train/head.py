"""The NextN head in plain torch, float32 and differentiable: the arithmetic of `model.nextn`, unrolled.

A round drafts from one start t, the newest position whose hidden row the target has given. Step 1 reads the
target's rows up to t; step k > 1 reads these as well, and besides them only what the head itself made for this
start, at positions t + 1 .. t + k - 1:

                 keys of the target's rows          keys of the head's own rows
    step 1       0 .. t
    step 2       0 .. t                             t + 1
    step 3       0 .. t                             t + 1, t + 2

All starts of a batch are computed at once: the keys of the target's rows are shared, causal; own keys meet only
the query of their own start (Li et al., "EAGLE-3", 2025, training-time test).

Shapes: T rows of packed sequences, S starts, H hidden, Q query heads, K key heads, D head dimension, G = Q / K.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from slipstream.errors import ModelFormatError
from slipstream.model.checkpoint import Checkpoint, dequantise
from slipstream.model.model_config import ModelConfig
from slipstream.train.batches import Batch


class TrainableHead(nn.Module):
    """A head whose weights are parameters.

    Args:
        config: the target's.
        rope: the target's rotary table, float32 [positions, 2 D].
        tensors: weights by the names of head files, as "eh_proj.weight"; copied to float32.

    Raises:
        ModelFormatError: a tensor is missing or has another shape than the target needs.
    """

    def __init__(self, config: ModelConfig, rope: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.config = config
        self.rope = rope

        def weight(name: str, *shape: int) -> nn.Parameter:
            given = tensors.get(f"{name}.weight")
            if given is None or tuple(given.shape) != shape:
                what = "is missing" if given is None else f"is {tuple(given.shape)}"
                raise ModelFormatError(f"{name}.weight {what}; a head for {config.name} has {shape}.")
            return nn.Parameter(given.detach().to(torch.float32, copy=True).contiguous())

        hidden, inner = config.hidden_size, config.intermediate_size
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.enorm = weight("enorm", hidden)
        self.hnorm = weight("hnorm", hidden)
        self.eh_proj = weight("eh_proj", hidden, 2 * hidden)
        self.attn_norm = weight("attn_norm", hidden)
        self.attn_qkv = weight("attn_qkv", query + 2 * kv, hidden)
        self.attn_output = weight("attn_output", hidden, query)
        self.ffn_norm = weight("ffn_norm", hidden)
        self.ffn_gate_up = weight("ffn_gate_up", 2 * inner, hidden)
        self.ffn_down = weight("ffn_down", hidden, inner)
        self.output_norm = weight("output_norm", hidden)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of the weights by the names of head files."""
        return {f"{name}.weight": value.detach().clone() for name, value in self.named_parameters()}

    def normed(self, hidden_SH: torch.Tensor) -> torch.Tensor:
        """Return what the LM head multiplies, [S, H]."""
        return self._norm(hidden_SH, self.output_norm)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self.config.rms_eps)

    def input_rows(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the layer is given, [.., H]."""
        both = torch.cat((self._norm(embedded, self.enorm), self._norm(hidden, self.hnorm)), dim=-1)
        return functional.linear(both, self.eh_proj)

    def queries(self, residual: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return rotated queries, [.., Q, D]."""
        rows = self.config.num_heads * self.config.head_dim
        query = functional.linear(self._norm(residual, self.attn_norm), self.attn_qkv[:rows])
        return self._rotated(query.unflatten(-1, (self.config.num_heads, -1)), positions)

    def keys_values(
        self, residual: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotated keys and values, [.., K, D] each."""
        skip = self.config.num_heads * self.config.head_dim
        both = functional.linear(self._norm(residual, self.attn_norm), self.attn_qkv[skip:])
        keys, values = both.unflatten(-1, (2 * self.config.num_kv_heads, -1)).chunk(2, dim=1)
        return self._rotated(keys, positions), values

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.rope[positions].unsqueeze(1).chunk(2, dim=-1)
        return x * cosine + torch.roll(x, self.config.head_dim // 2, -1) * sine

    def attend(
        self,
        query_SQD: torch.Tensor,
        rows_S: torch.Tensor,
        keys_TKD: torch.Tensor,
        values_TKD: torch.Tensor,
        own: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Return the attention of one sequence's starts, [S, Q D].

        Args:
            query_SQD: of the starts.
            rows_S: int64, the row of each start: it sees keys up to this one.
            keys_TKD, values_TKD: of the target's rows.
            own: keys and values [S, K, D] of what each start drafted so far; it sees its own.
        """
        count, length = query_SQD.shape[0], keys_TKD.shape[0]
        group = self.config.num_heads // self.config.num_kv_heads
        query = (
            query_SQD.unflatten(1, (-1, group)).permute(1, 2, 0, 3) * self.config.head_dim**-0.5
        )  # K G S D
        scores = torch.matmul(query.flatten(1, 2), keys_TKD.permute(1, 2, 0)).unflatten(1, (group, count))
        later = torch.arange(length) > rows_S.unsqueeze(1)
        scores = scores.masked_fill(later, float("-inf"))  # K G S T
        extra = [(query * _by_head(keys)).sum(-1, keepdim=True) for keys, _ in own]
        shares = torch.cat((scores, *extra), dim=-1).softmax(-1)
        context = shares[..., :length].flatten(1, 2)
        out: torch.Tensor = torch.matmul(context, values_TKD.permute(1, 0, 2))
        out = out.unflatten(1, (group, count))
        for at, (_, values) in enumerate(own, length):
            out = out + shares[..., at : at + 1] * _by_head(values)
        return out.permute(2, 0, 1, 3).flatten(1)

    def behind_attention(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, [.., H]."""
        residual = residual + functional.linear(attended, self.attn_output)
        gate, up = functional.linear(self._norm(residual, self.ffn_norm), self.ffn_gate_up).chunk(2, dim=-1)
        return residual + functional.linear(functional.silu(gate) * up, self.ffn_down)


class Rollout:
    """The drafts of all starts of a batch, step by step.

    Args:
        head: drafts.
        batch: packed sequences.
        embedded_TH: float32, the embedding of the token behind each row.

    Attributes:
        numbers_S: int64, which of the batch's starts are still drafted, ascending.
        hidden_SH: the head's hidden rows of the latest step.
    """

    def __init__(self, head: TrainableHead, batch: Batch, embedded_TH: torch.Tensor) -> None:
        self.numbers_S = torch.arange(len(batch.starts_S))
        self.hidden_SH = torch.empty(0)
        self._head, self._batch, self._embedded_TH = head, batch, embedded_TH
        self._residual_TH = head.input_rows(embedded_TH, batch.hidden_TH)
        self._keys_TKD, self._values_TKD = head.keys_values(self._residual_TH, batch.positions_T)
        self._own: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._step = 0

    def advance(self, keep_S: torch.Tensor | None = None) -> torch.Tensor:
        """Draft one more step and return its hidden rows.

        Args:
            keep_S: int64, which of the latest step's rows go on; None keeps all.
        """
        head, batch = self._head, self._batch
        if keep_S is not None:
            self.numbers_S = self.numbers_S[keep_S]
            self.hidden_SH = self.hidden_SH[keep_S]
            self._own = [(keys[keep_S], values[keep_S]) for keys, values in self._own]
        rows_S = batch.starts_S[self.numbers_S]
        positions_S = batch.positions_T[rows_S] + self._step
        if self._step:
            # A start that nothing judges any more may ask for a row behind its sequence.
            embedded = self._embedded_TH[(rows_S + self._step).clamp(max=len(self._embedded_TH) - 1)]
            residual_SH = head.input_rows(embedded, self.hidden_SH)
            self._own.append(head.keys_values(residual_SH, positions_S))
        else:
            residual_SH = self._residual_TH[rows_S]
        attended = self._attend(head.queries(residual_SH, positions_S), rows_S)
        self.hidden_SH = head.behind_attention(residual_SH, attended)
        self._step += 1
        return self.hidden_SH

    def _attend(self, query_SQD: torch.Tensor, rows_S: torch.Tensor) -> torch.Tensor:
        parts = []
        for rows, starts in self._batch.spans:
            first, end = torch.searchsorted(
                self.numbers_S, torch.tensor([starts.start, starts.stop])
            ).tolist()
            if first == end:
                continue
            mine = slice(first, end)
            own = [(keys[mine], values[mine]) for keys, values in self._own]
            keys_TKD, values_TKD = self._keys_TKD[rows], self._values_TKD[rows]
            parts.append(
                self._head.attend(query_SQD[mine], rows_S[mine] - rows.start, keys_TKD, values_TKD, own)
            )
        return torch.cat(parts)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension, as `ops.rms_norm` but differentiable."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def initial_tensors(checkpoint: Checkpoint, hidden_rms: float) -> dict[str, torch.Tensor]:
    """Return a head to begin with: the target's last layer behind a projection that lets the hidden row through.

    Its residual path is the hidden row, brought to the size that the layer was trained on; of the embedding it
    takes nothing yet. That one has the same size, so that what is learned of it soon counts: AdamW moves all
    weights by about as much, and with rows of size 1 the projection would have to grow for long.

    Args:
        checkpoint: the target.
        hidden_rms: typical root mean square of the target's hidden rows.
    """
    config = checkpoint.config
    layer = f"blk.{config.num_layers - 1}"

    def stacked(*names: str) -> torch.Tensor:
        return torch.cat([torch.from_numpy(dequantise(checkpoint.tensor(name)).copy()) for name in names])

    hidden = config.hidden_size
    return {
        "enorm.weight": torch.full((hidden,), hidden_rms),
        "hnorm.weight": torch.full((hidden,), hidden_rms),
        "eh_proj.weight": torch.cat((torch.zeros(hidden, hidden), torch.eye(hidden)), dim=1),
        "attn_norm.weight": stacked(f"{layer}.attn_norm.weight"),
        "attn_qkv.weight": stacked(*(f"{layer}.attn_{part}.weight" for part in "qkv")),
        "attn_output.weight": stacked(f"{layer}.attn_output.weight"),
        "ffn_norm.weight": stacked(f"{layer}.ffn_norm.weight"),
        "ffn_gate_up.weight": stacked(f"{layer}.ffn_gate.weight", f"{layer}.ffn_up.weight"),
        "ffn_down.weight": stacked(f"{layer}.ffn_down.weight"),
        "output_norm.weight": stacked("output_norm.weight"),
    }


def _by_head(rows_SKD: torch.Tensor) -> torch.Tensor:
    """Return [K, 1, S, D]: what all query heads of a key head meet."""
    return rows_SKD.permute(1, 0, 2).unsqueeze(1)

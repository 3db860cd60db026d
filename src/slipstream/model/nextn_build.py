"""From a head's float weights to a head that computes in the target's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from slipstream import ops
from slipstream.model.layers import DecoderLayer
from slipstream.model.llama import Llama
from slipstream.model.load import matrix_in
from slipstream.model.model_config import ModelConfig
from slipstream.model.nextn import NextnHead
from slipstream.native import library


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A head as it is trained and stored.

    Attributes:
        tensors: by the names and in the shapes of `head_shapes`, any float dtype.
        draft_ids: int64 [N], the target's token of each draft token, ascending; None where all are drafted.
        facts: what is known of it, text by name: "target_hash" (`model.target_hash`), "command", "tokens",
            figures.
    """

    tensors: Mapping[str, torch.Tensor]
    draft_ids: torch.Tensor | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def head_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of a head's tensors on a target of this configuration."""
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return {
        "enorm.weight": (hidden,),
        "hnorm.weight": (hidden,),
        "eh_proj.weight": (hidden, 2 * hidden),
        "attn_norm.weight": (hidden,),
        "attn_qkv.weight": (qkv, hidden),
        "attn_output.weight": (hidden, config.num_heads * config.head_dim),
        "ffn_norm.weight": (hidden,),
        "ffn_gate_up.weight": (2 * inner, hidden),
        "ffn_down.weight": (hidden, inner),
        "output_norm.weight": (hidden,),
    }


def head_dtype(target: Llama) -> str:
    """Return the format that a head's matrices take beside this target: its own where that is cheap.

    PyTorch's 4-bit product rounds more than it saves on one layer, so there a q4 target's head stays float32.
    """
    return "f32" if target.dtype == "q4" and not library.active() else target.dtype


def build_head(target: Llama, weights: HeadWeights, dtype: str | None = None) -> NextnHead:
    """Return the head on `target`.

    Args:
        target: lends embedding, LM head and rotary table.
        weights: checked against `head_shapes`.
        dtype: of the matrices: "q4", "q8", "bf16" or "f32"; None takes `head_dtype`. The LM head keeps the
            target's.
    """
    place, dtype = target.rope.device, dtype or head_dtype(target)

    def vector(name: str) -> torch.Tensor:
        return weights.tensors[f"{name}.weight"].float().to(place)

    def matrix(name: str) -> ops.Matrix:
        return matrix_in(weights.tensors[f"{name}.weight"].float().cpu().numpy(), dtype, place)

    layer = DecoderLayer(
        config=target.config,
        attn_norm=vector("attn_norm"),
        attn_qkv=matrix("attn_qkv"),
        qkv_bias=None,
        attn_output=matrix("attn_output"),
        ffn_norm=vector("ffn_norm"),
        ffn_gate_up=matrix("ffn_gate_up"),
        ffn_down=matrix("ffn_down"),
    )
    draft_ids = None if weights.draft_ids is None else weights.draft_ids.to(place)
    return NextnHead(
        target=target,
        enorm=vector("enorm"),
        hnorm=vector("hnorm"),
        eh_proj=matrix("eh_proj"),
        layer=layer,
        output_norm=vector("output_norm"),
        output=target.output if draft_ids is None else target.output.take(draft_ids),
        draft_ids=draft_ids,
    )


def random_weights(config: ModelConfig, seed: int) -> HeadWeights:
    """Return an untrained head's weights: norms of one, matrices that keep a row's size."""
    generator = torch.Generator().manual_seed(seed)
    return HeadWeights(
        {
            name: torch.randn(*shape, generator=generator) * shape[1] ** -0.5
            if len(shape) == 2
            else torch.ones(shape)
            for name, shape in head_shapes(config).items()
        }
    )


def random_head(target: Llama, seed: int) -> NextnHead:
    """Return an untrained head: right in shape, wrong in nearly every guess."""
    return build_head(target, random_weights(target.config, seed))

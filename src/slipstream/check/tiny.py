"""A tiny model and a head for it, drawn at random: what `slipstream check --round` decodes with.

Both are made so that a round has something to lose. Layers add little to the residual, so the next token follows
mostly, but not only, from the last one; the head's projection hands its token's embedding on, so its drafts hold
about half of the time. A wrong draft, row or key then shows in what a round settles.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

from slipstream.model.checkpoint import Checkpoint
from slipstream.model.model_config import ModelConfig
from slipstream.model.names import expected_shapes
from slipstream.model.nextn_build import HeadWeights, head_shapes
from slipstream.model.tensors import RawTensor

#: How much of a layer's output reaches the residual, as a share of what keeps its size.
_LAYER_SHARE, _HEAD_SHARE = 0.8, 0.1

TINY = ModelConfig(
    architecture="llama",
    name="tiny",
    vocab_size=48,
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=64,
    context_length=64,
    rope_theta=10000.0,
    rms_eps=1e-5,
    tie_embeddings=False,
    qkv_bias=False,
    bos_token_id=None,
    eos_token_ids=(),
)


@cache
def tiny_checkpoint(seed: int) -> Checkpoint:
    """Return the target's weights, in memory."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_shapes(TINY).items():
        drawn = rng.standard_normal(shape) * _scale(name, shape) + ("norm" in name)
        tensors[name] = RawTensor(name, "F32", shape, drawn.astype(np.float32))
    return Checkpoint(Path(f"tiny-{seed}"), "hf", TINY, {}, tensors, False)


@cache
def tiny_head(seed: int) -> HeadWeights:
    """Return the head's weights."""
    rng = np.random.default_rng(seed + 1)
    tensors = {}
    for name, shape in head_shapes(TINY).items():
        drawn = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) * shape[1] ** -0.5
        if name in ("attn_output.weight", "ffn_down.weight"):
            drawn *= _HEAD_SHARE
        if name == "eh_proj.weight":  # [H, 2 H]: the embedding as it is, and a little of the hidden row
            drawn *= _HEAD_SHARE
            drawn[:, : shape[0]] = np.eye(shape[0])
        tensors[name] = torch.from_numpy(drawn.astype(np.float32))
    return HeadWeights(tensors)


def _scale(name: str, shape: tuple[int, ...]) -> float:
    if "norm" in name:
        return 0.05
    if name == "token_embd.weight":
        return 1.0
    share = _LAYER_SHARE if "attn_output" in name or "ffn_down" in name else 1.0
    return float(share * shape[1] ** -0.5)

"""What a model is: sizes and constants, read from a file. No weights, no torch, nothing that a user chooses.

What a user chooses is `slipstream.config`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slipstream.errors import ModelFormatError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a Llama-like decoder.

    Attributes:
        architecture: "llama" or "qwen2".
        name: what the file calls the model, for people.
        vocab_size: rows of the embedding; a tokenizer may know fewer tokens.
        hidden_size: width of the residual stream.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides num_heads.
        head_dim: width of one head, even.
        intermediate_size: width of the gated MLP.
        context_length: positions that the model was trained for.
        rope_theta: base of the rotary frequencies.
        rms_eps: added to the mean square in every RMS norm.
        tie_embeddings: the embedding is the output matrix too; there is no "output.weight".
        qkv_bias: the query, key and value projections have biases.
        bos_token_id: begin-of-text token, if the model has one.
        eos_token_ids: tokens that end an answer.
        rope_factors: divisor of each of the head_dim / 2 rotary frequencies, or None for all ones.
    """

    architecture: str
    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    context_length: int
    rope_theta: float
    rms_eps: float
    tie_embeddings: bool
    qkv_bias: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    rope_factors: tuple[float, ...] | None = None


def check_config(config: ModelConfig) -> None:
    """Check the sizes against each other.

    Raises:
        ModelFormatError: a size is not positive, or two do not fit together.
    """
    for field in (
        "vocab_size",
        "hidden_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "intermediate_size",
        "context_length",
        "rope_theta",
        "rms_eps",
    ):
        value = getattr(config, field)
        if not value > 0 or math.isinf(value):
            raise ModelFormatError(f"the model says {field} = {value}; it has to be a number above 0.")
    if config.num_heads % config.num_kv_heads:
        raise ModelFormatError(
            f"the model has {config.num_heads} query heads for {config.num_kv_heads} key heads; "
            "the second has to divide the first."
        )
    if config.head_dim % 2:
        raise ModelFormatError(f"the model says head_dim = {config.head_dim}; rotary heads are even.")
    if config.rope_factors is not None and len(config.rope_factors) != config.head_dim // 2:
        raise ModelFormatError(
            f"the model has {len(config.rope_factors)} rotary factors for heads of {config.head_dim}; "
            f"it needs {config.head_dim // 2}."
        )


def llama3_rope_factors(
    head_dim: int,
    rope_theta: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context: int,
) -> tuple[float, ...]:
    """Return what Llama 3.1 divides each rotary frequency by.

    Frequencies that turn often within the original context stay, those that hardly turn are slowed by
    `factor`, and between the two the change is linear in turns. Formula: transformers,
    `modeling_rope_utils._compute_llama3_parameters`.

    Returns:
        head_dim / 2 divisors, each from 1 to `factor`.
    """
    factors = []
    for pair in range(head_dim // 2):
        turns = original_context * rope_theta ** (-2 * pair / head_dim) / (2 * math.pi)
        keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        keep = min(1.0, max(0.0, keep))
        factors.append(1 / ((1 - keep) / factor + keep))
    return tuple(factors)

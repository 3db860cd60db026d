"""A model's configuration from a Hugging Face config.json, as transformers 4 and 5 write it."""

from __future__ import annotations

from typing import Any

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.model.hf_folder import HfFolder
from slipstream.model.model_config import ModelConfig, llama3_rope_factors

#: model_type to the architecture that computes it.
HF_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2"}

_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_RMS_EPS = 1e-6


def config_from_hf(folder: HfFolder) -> ModelConfig:
    """Read the configuration of a Hugging Face model.

    Raises:
        UnsupportedModelError: a model type, a rope scaling or a variant that is not implemented.
        ModelFormatError: config.json lacks a size, or has it in the wrong type.
    """
    config = _Config(folder)
    model_type = str(folder.config.get("model_type"))
    if model_type not in HF_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{folder.path} is a {model_type!r} model, which is not implemented. "
            f"Supported model types: {', '.join(HF_ARCHITECTURES)}."
        )
    _check_variant(folder, config)
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", hidden // heads if heads else 0)
    theta, factors = _rope(folder, config, head_dim)
    tied = folder.config.get("tie_word_embeddings", "output.weight" not in folder.slots)
    if tied:
        # Some folders store the tied matrix a second time.
        folder.slots.pop("output.weight", None)
    return ModelConfig(
        architecture=HF_ARCHITECTURES[model_type],
        name=str(folder.config.get("_name_or_path") or folder.path.name),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        context_length=config.integer("max_position_embeddings"),
        rope_theta=theta,
        rms_eps=config.real("rms_norm_eps", _DEFAULT_RMS_EPS),
        tie_embeddings=bool(tied),
        qkv_bias="blk.0.attn_q.bias" in folder.slots,
        bos_token_id=folder.config.get("bos_token_id"),
        eos_token_ids=_eos_tokens(folder),
        rope_factors=factors,
    )


class _Config:
    """Typed reads of config.json, with the folder's name in every error."""

    def __init__(self, folder: HfFolder, values: dict[str, Any] | None = None) -> None:
        self.path = folder.path
        self.values = folder.config if values is None else values

    def real(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelFormatError(f"{self.path}/config.json has no {key!r}, which a model needs.")
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ModelFormatError(f"{self.path}/config.json says {key} = {value!r}, which is not a number.")
        return float(value)

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.real(key, default))


def _check_variant(folder: HfFolder, config: _Config) -> None:
    found = folder.config
    reasons = []
    if found.get("hidden_act", "silu") != "silu":
        reasons.append(f"hidden_act = {found['hidden_act']!r} (supported: silu)")
    if found.get("quantization_config"):
        method = found["quantization_config"].get("quant_method")
        reasons.append(f"quantization {method!r} (supported: F32, F16 and BF16 weights, or a GGUF file)")
    window = found.get("sliding_window") if found.get("use_sliding_window", True) else None
    if window is not None and window < config.integer("max_position_embeddings"):
        reasons.append(f"a sliding window of {window} tokens (supported: full attention)")
    if reasons:
        raise UnsupportedModelError(f"{folder.path} uses {'; '.join(reasons)}.")


def _rope(folder: HfFolder, config: _Config, head_dim: int) -> tuple[float, tuple[float, ...] | None]:
    """Base and divisors of the rotary frequencies.

    transformers 5 writes `rope_parameters`; 4 writes `rope_theta` and, for scaled ones, `rope_scaling`.
    """
    found = folder.config.get("rope_parameters") or folder.config.get("rope_scaling") or {}
    rope = _Config(folder, found)
    theta = rope.real("rope_theta", config.real("rope_theta", _DEFAULT_ROPE_THETA))
    kind = found.get("rope_type", found.get("type", "default"))
    if (
        found.get("partial_rotary_factor", 1.0) != 1.0
        or folder.config.get("partial_rotary_factor", 1.0) != 1.0
    ):
        raise UnsupportedModelError(f"{folder.path} rotates only a part of each head. Supported: all of it.")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModelError(f"{folder.path} uses rope type {kind!r}. Supported: default, llama3.")
    original = rope.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
    return theta, llama3_rope_factors(
        head_dim,
        theta,
        factor=rope.real("factor"),
        low_freq_factor=rope.real("low_freq_factor"),
        high_freq_factor=rope.real("high_freq_factor"),
        original_context=original,
    )


def _eos_tokens(folder: HfFolder) -> tuple[int, ...]:
    found = folder.generation.get("eos_token_id", folder.config.get("eos_token_id"))
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)

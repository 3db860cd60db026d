"""A model's configuration from GGUF metadata. Key names: docs/gguf.md of ggml and gguf's constants.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.model.gguf_file import GgufFile
from slipstream.model.model_config import ModelConfig
from slipstream.model.names import ROPE_FACTORS
from slipstream.model.tensors import dequantise

#: Architecture to whether its converter interleaves the rows of Q and K, see `checkpoint`.
GGUF_ARCHITECTURES = {"llama": True, "qwen2": False}

_DEFAULT_ROPE_THETA = 10000.0

#: Keys, behind the architecture's prefix, that change the computation when they are set.
_UNSUPPORTED_WHEN_SET = ("expert_count", "attention.sliding_window")


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Read the configuration of a GGUF model.

    Raises:
        UnsupportedModelError: an architecture, a rope scaling or a variant that is not implemented.
        ModelFormatError: a key or tensor that says a size is missing or of the wrong type.
    """
    meta = _Metadata(file)
    arch = meta.text("general.architecture")
    if arch not in GGUF_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} is a {arch!r} model, which is not implemented. "
            f"Supported GGUF architectures: {', '.join(GGUF_ARCHITECTURES)}."
        )
    _check_variant(meta, arch)
    hidden = meta.integer(f"{arch}.embedding_length")
    heads = meta.integer(f"{arch}.attention.head_count")
    config = ModelConfig(
        architecture=arch,
        name=str(file.metadata.get("general.name") or file.path.stem),
        vocab_size=_vocab_size(file),
        hidden_size=hidden,
        num_layers=meta.integer(f"{arch}.block_count"),
        num_heads=heads,
        num_kv_heads=meta.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=meta.integer(f"{arch}.attention.key_length", hidden // heads if heads else 0),
        intermediate_size=meta.integer(f"{arch}.feed_forward_length"),
        context_length=meta.integer(f"{arch}.context_length"),
        rope_theta=meta.real(f"{arch}.rope.freq_base", _DEFAULT_ROPE_THETA),
        rms_eps=meta.real(f"{arch}.attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in file.slots,
        qkv_bias="blk.0.attn_q.bias" in file.slots,
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos_tokens(file.metadata),
        rope_factors=_rope_factors(file),
    )
    _check_heads(meta, arch, config)
    return config


class _Metadata:
    """Typed reads of the metadata, with the file's name in every error."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def get(self, key: str, kind: type | tuple[type, ...], default: object = None) -> Any:
        value = self.file.metadata.get(key, default)
        if value is None:
            raise ModelFormatError(f"{self.file.path} has no {key!r}, which a model needs. Convert it again.")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ModelFormatError(
                f"{self.file.path} says {key} = {value!r}, which is not of the right type."
            )
        return value

    def text(self, key: str) -> str:
        return str(self.get(key, str))

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.get(key, int, default))

    def real(self, key: str, default: float | None = None) -> float:
        # Stored in single precision: 9.9999997e-06 is the 1e-05 that the model's author wrote.
        return float(str(np.float32(self.get(key, (int, float), default))))


def _check_variant(meta: _Metadata, arch: str) -> None:
    found = meta.file.metadata
    scaling = found.get(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError(
            f"{meta.file.path} uses rope scaling {scaling!r}. Supported: none, and llama3's {ROPE_FACTORS}."
        )
    for key in _UNSUPPORTED_WHEN_SET:
        if found.get(f"{arch}.{key}"):
            raise UnsupportedModelError(
                f"{meta.file.path} sets {arch}.{key} = {found[f'{arch}.{key}']}, which is not implemented. "
                "Supported: dense models with full attention."
            )
    if found.get("split.count", 1) > 1:
        raise UnsupportedModelError(
            f"{meta.file.path} is one of {found['split.count']} parts. Join them first: "
            "llama-gguf-split --merge FIRST OUT."
        )


def _check_heads(meta: _Metadata, arch: str, config: ModelConfig) -> None:
    for key, what in (
        ("attention.value_length", "value heads"),
        ("rope.dimension_count", "rotary dimensions"),
    ):
        value = meta.integer(f"{arch}.{key}", config.head_dim)
        if value != config.head_dim:
            raise UnsupportedModelError(
                f"{meta.file.path} has {what} of {value} in heads of {config.head_dim}; "
                "only models where both are equal are implemented."
            )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.slots.get("token_embd.weight")
    if embedding is None:
        raise ModelFormatError(f"{file.path} has no tensor 'token_embd.weight'. Download it again.")
    return embedding.shape[0] if embedding.shape else 0


def _eos_tokens(metadata: dict[str, Any]) -> tuple[int, ...]:
    found = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
    return tuple(dict.fromkeys(token for token in found if token is not None))


def _rope_factors(file: GgufFile) -> tuple[float, ...] | None:
    slot = file.slots.get(ROPE_FACTORS)
    return None if slot is None else tuple(dequantise(slot.read()).ravel().tolist())

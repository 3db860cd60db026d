"""What make_golden.py (in transformers' environment) and test_oracle.py (in ours) share. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.model.tiny import tiny_model, write_tiny_gguf, write_tiny_hf

GOLDEN = Path(__file__).parent / "golden"
PROMPTS = Path(__file__).parents[2] / "src/slipstream/bench/prompts/decode-8.json"

#: Rope scaling of Llama 3.1, with an original context so short that all three of its ranges have frequencies.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

#: Options of `tiny_model`, by name. "llama": grouped heads, tied, 4-bit blocks with interleaved Q and K,
#: scaled rope. "qwen2": biases, one key head, an output matrix of its own.
TINY: dict[str, dict[str, Any]] = {
    "llama": {"arch": "llama", "weight_type": "Q4_1", "seed": 11, "tie": True},
    "qwen2": {
        "arch": "qwen2",
        "weight_type": "F32",
        "seed": 12,
        "tie": False,
        "kv_heads": 1,
        "num_layers": 3,
    },
}


def spread_ids(vocab_size: int, count: int = 64) -> list[int]:
    """Ids from the whole vocabulary, first and last included."""
    return [index * (vocab_size - 1) // (count - 1) for index in range(count)]


def tiny_ids() -> list[int]:
    """A prompt for the tiny models: long enough for scaled frequencies to matter."""
    return np.random.default_rng(5).integers(3, 320, 150).tolist()


def write_variant_hf(folder: Path, name: str) -> Path:
    """The Hugging Face folder of a tiny model."""
    write_tiny_hf(folder, **TINY[name])
    if name == "llama":
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_parameters": LLAMA3_ROPE}))
    return folder


def write_variant_gguf(path: Path, name: str) -> Path:
    """The same model as a GGUF file: there, the scaling is a tensor of divisors."""
    extra = {"rope_freqs.weight": _llama3_divisors(name)} if name == "llama" else None
    return write_tiny_gguf(path, extra_tensors=extra, **TINY[name])


def _llama3_divisors(name: str) -> np.ndarray:
    """As llama.cpp's converter computes them (convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors)."""
    model = tiny_model(**TINY[name])
    head_dim = model.hidden // model.heads
    original = LLAMA3_ROPE["original_max_position_embeddings"]
    low, high = LLAMA3_ROPE["low_freq_factor"], LLAMA3_ROPE["high_freq_factor"]
    divisors = []
    for frequency in LLAMA3_ROPE["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(LLAMA3_ROPE["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / LLAMA3_ROPE["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)

"""Tiny complete models, written on the fly: one GGUF file, or one Hugging Face folder, of the same model.

    write_tiny_gguf(path)       weights, byte-level tokenizer, chat template
    write_tiny_hf(folder)       the same model, when it is given the same arguments

Both are deterministic by seed. The weights are random, so the text is noise, but any text can be a prompt:
the vocabulary has every byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS, EOS = 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROPE_THETA, RMS_EPS = 10000.0, 1e-5

_WORDS = (
    "the and that for with this from have which their would there about other when what time people some "
    "could into then them only also been more very after words should because through"
)
_HF_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True)
class TinyVocab:
    """A byte-level BPE vocabulary.

    tokens: written in the byte alphabet, special ones as they are; merges: pairs; types: GGUF's token types.
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    types: tuple[int, ...]


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


def tiny_vocab(size: int = 320) -> TinyVocab:
    """Three special tokens, 256 bytes, and as many merges of English words as `size` leaves room for."""
    letters = byte_alphabet()
    merges: dict[tuple[str, str], str] = {}
    for word in _WORDS.split():
        left = letters[32]
        for letter in word:
            merges.setdefault((left, letter), left + letter)
            left += letter
    room = size - len(SPECIALS) - len(letters)
    if not 0 <= room <= len(merges):
        raise ValueError(f"size has to be from {size - room} to {size - room + len(merges)}")
    chosen = list(merges)[:room]
    tokens = (*SPECIALS, *letters, *(merges[pair] for pair in chosen))
    types = tuple(3 if token in SPECIALS else 1 for token in tokens)
    return TinyVocab(tokens, tuple(chosen), types)


@dataclass(frozen=True)
class TinyModel:
    """Everything that both writers need. Weights are float32 in Hugging Face's order of rows."""

    arch: str
    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    context: int
    vocab: TinyVocab
    weight_type: str
    weights: dict[str, NDArray[np.float32]] = field(repr=False)

    @property
    def tied(self) -> bool:
        return "output.weight" not in self.weights


def tiny_model(
    *,
    weight_type: str = "Q4_1",
    seed: int = 0,
    num_layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 128,
    vocab: TinyVocab | None = None,
    context: int = 256,
    arch: str = "llama",
    tie: bool = True,
) -> TinyModel:
    """Draw a model. `weight_type` is ggml's; the weights are already rounded to what it can hold."""
    vocab = vocab or tiny_vocab()
    rng = np.random.default_rng(seed)
    head_dim = hidden // heads
    rows_q, rows_k = heads * head_dim, kv_heads * head_dim
    weights: dict[str, NDArray[np.float32]] = {}

    def matrix(name: str, rows: int, cols: int) -> None:
        drawn = (rng.standard_normal((rows, cols)) * cols**-0.5).astype(np.float32)
        kind = _encoding(weight_type, name)
        weights[name] = gguf.quants.dequantize(gguf.quants.quantize(drawn, kind), kind).astype(np.float32)

    def vector(name: str, size: int, centre: float) -> None:
        weights[name] = (centre + 0.1 * rng.standard_normal(size)).astype(np.float32)

    matrix("token_embd.weight", len(vocab.tokens), hidden)
    for layer in range(num_layers):
        vector(f"blk.{layer}.attn_norm.weight", hidden, 1.0)
        for part, rows in (("attn_q", rows_q), ("attn_k", rows_k), ("attn_v", rows_k)):
            matrix(f"blk.{layer}.{part}.weight", rows, hidden)
            if arch == "qwen2":
                vector(f"blk.{layer}.{part}.bias", rows, 0.0)
        matrix(f"blk.{layer}.attn_output.weight", hidden, rows_q)
        vector(f"blk.{layer}.ffn_norm.weight", hidden, 1.0)
        matrix(f"blk.{layer}.ffn_gate.weight", intermediate, hidden)
        matrix(f"blk.{layer}.ffn_up.weight", intermediate, hidden)
        matrix(f"blk.{layer}.ffn_down.weight", hidden, intermediate)
    vector("output_norm.weight", hidden, 1.0)
    if not tie:
        matrix("output.weight", len(vocab.tokens), hidden)
    return TinyModel(
        arch, num_layers, hidden, heads, kv_heads, intermediate, context, vocab, weight_type, weights
    )


def write_tiny_gguf(
    path: str | Path, *, extra_tensors: dict[str, NDArray[np.float32]] | None = None, **options: Any
) -> Path:
    """Write a GGUF file with tokenizer and chat template; see `tiny_model` for the options."""
    path = Path(path)
    model = tiny_model(**options)
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_name("tiny")
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.hidden)
    writer.add_block_count(model.num_layers)
    writer.add_feed_forward_length(model.intermediate)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_rope_dimension_count(model.hidden // model.heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(model.vocab.tokens)
    writer.add_token_types(model.vocab.types)
    writer.add_token_merges([" ".join(pair) for pair in model.vocab.merges])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in model.weights.items():
        if model.arch == "llama" and ".attn_q." in name:
            weight = interleave(weight, model.heads)
        elif model.arch == "llama" and ".attn_k." in name:
            weight = interleave(weight, model.kv_heads)
        kind = _encoding(model.weight_type, name) if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    for name, extra in (extra_tensors or {}).items():
        writer.add_tensor(name, extra)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_hf(folder: str | Path, **options: Any) -> Path:
    """Write config.json, model.safetensors, tokenizer.json, tokenizer_config.json and generation_config.json.

    The same options as `tiny_model`. Block encodings are written as the float32 numbers that they hold.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(**options)
    (folder / "config.json").write_text(json.dumps(hf_config(model), indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": BOS, "eos_token_id": [EOS]}))
    _save_weights(folder / "model.safetensors", model)
    hf_tokenizer(model.vocab).save(str(folder / "tokenizer.json"))
    named = {"bos_token": SPECIALS[BOS], "eos_token": SPECIALS[EOS], "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | {"add_bos_token": False}, indent=1))
    return folder


def hf_config(model: TinyModel) -> dict[str, Any]:
    """config.json as transformers 5 writes it."""
    return {
        "architectures": ["LlamaForCausalLM" if model.arch == "llama" else "Qwen2ForCausalLM"],
        "model_type": model.arch,
        "vocab_size": len(model.vocab.tokens),
        "hidden_size": model.hidden,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "intermediate_size": model.intermediate,
        "max_position_embeddings": model.context,
        "rms_norm_eps": RMS_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "tie_word_embeddings": model.tied,
        "hidden_act": "silu",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "dtype": "float32",
    }


def hf_tokenizer(vocab: TinyVocab) -> Tokenizer:
    """The vocabulary as the `tokenizers` library has it, with SmolLM's pre-tokenizer."""
    ids = {token: index for index, token in enumerate(vocab.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocab.merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def hf_name(name: str) -> str:
    """Hugging Face's name of a tensor."""
    if name in _HF_TOP:
        return _HF_TOP[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_HF_PARTS[part]}.{kind}"


def interleave(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The order that llama.cpp's converter gives Q and K rows: [heads, 2, pair] becomes [heads, pair, 2]."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _encoding(weight_type: str, name: str) -> gguf.GGMLQuantizationType:
    # As in real 4-bit files, the embedding has 8 bits.
    four_bits = weight_type in ("Q4_0", "Q4_1")
    outer = name in ("token_embd.weight", "output.weight")
    return gguf.GGMLQuantizationType["Q8_0" if four_bits and outer else weight_type]


def _save_weights(path: Path, model: TinyModel) -> None:
    named = {hf_name(name): weight for name, weight in model.weights.items()}
    if model.weight_type == "BF16":
        import torch  # numpy has no bfloat16
        from safetensors.torch import save_file

        tensors = {name: torch.from_numpy(weight) for name, weight in named.items()}
        save_file({name: t.bfloat16() if t.ndim == 2 else t for name, t in tensors.items()}, path)
        return
    half = model.weight_type == "F16"
    safetensors.numpy.save_file(
        {name: w.astype(np.float16) if half and w.ndim == 2 else w for name, w in named.items()}, path
    )

"""A transformers LlamaForCausalLM (transformers 4 or 5) on the dequantised weights of a GGUF file.

Neither transformers' GGUF loader nor Slipstream's is used: the first marks the model as quantised, and an
oracle shares no code with what it judges. `gguf` reads and dequantises; the rest is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

_PARTS = {
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
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def load_transformers(
    path: str | Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa"
) -> LlamaForCausalLM:
    """Return the model of a GGUF file of the llama architecture.

    Raises:
        ValueError: another architecture, or a rope scaling.
    """
    reader = gguf.GGUFReader(path)
    config = _config(reader)
    state = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name:
            weight = _half_split(weight, config.num_attention_heads)
        elif ".attn_k." in tensor.name:
            weight = _half_split(weight, config.num_key_value_heads)
        state[_hf_name(tensor.name)] = torch.from_numpy(np.ascontiguousarray(weight)).to(dtype)
    config.tie_word_embeddings = "lm_head.weight" not in state
    config._attn_implementation = attention
    # On no device first: drawing random weights, only to overwrite them, takes longer than all the rest.
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    found = model.load_state_dict(state, strict=False, assign=True)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # its table is no weight, and is still on no device
    allowed = ["lm_head.weight"] if config.tie_word_embeddings else []
    if found.unexpected_keys or [name for name in found.missing_keys if name not in allowed]:
        raise ValueError(f"{path}: {found}")
    model.tie_weights()
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError(f"{path} lacks weights that transformers' model has")
    return model.eval()


def _config(reader: gguf.GGUFReader) -> LlamaConfig:
    def value(key: str) -> Any:
        return reader.fields[key].contents()

    if value("general.architecture") != "llama" or "llama.rope.scaling.type" in reader.fields:
        raise ValueError("only plain llama models can be built here")
    return LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=value("llama.embedding_length"),
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=value("llama.attention.head_count"),
        num_key_value_heads=value("llama.attention.head_count_kv"),
        max_position_embeddings=value("llama.context_length"),
        # Stored in single precision: 9.9999997e-06 stands for 1e-05.
        rms_norm_eps=float(str(np.float32(value("llama.attention.layer_norm_rms_epsilon")))),
        **_rope(float(value("llama.rope.freq_base"))),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _rope(theta: float) -> dict[str, Any]:
    """The base of the rotary embedding, where this transformers looks: 4 would silently take its default."""
    if int(transformers.__version__.partition(".")[0]) < 5:
        return {"rope_theta": theta}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _hf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_PARTS[part]}.{kind}"


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo what llama.cpp's converter does to Q and K: rows [heads, pair, 2] become [heads, 2, pair]."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)

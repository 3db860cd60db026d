"""The names and shapes of a model's tensors. GGUF's names are Slipstream's; Hugging Face's are translated.

Legend of shapes: V vocabulary, D hidden, Q heads x head_dim, K kv heads x head_dim, F intermediate.
A matrix is (out, in), as numpy and torch order it.
"""

from __future__ import annotations

import re

from slipstream.model.model_config import ModelConfig

_HF_LAYER_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_HF_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")

#: Tensors that old exports store although they follow from the configuration.
_HF_DERIVED = re.compile(r".*rotary_emb\.inv_freq")

#: GGUF's divisors of the rotary frequencies. Read into `ModelConfig.rope_factors`, not a weight.
ROPE_FACTORS = "rope_freqs.weight"


def from_hf(name: str) -> str | None:
    """Return the canonical name of a Hugging Face tensor.

    A name that has no translation is returned as it is, so that the check of names can report it.
    None stands for a tensor that is derived and can be left out.
    """
    if name in _HF_TOP:
        return _HF_TOP[name]
    if _HF_DERIVED.fullmatch(name):
        return None
    match = _HF_LAYER.fullmatch(name)
    if match and match[2] in _HF_LAYER_PARTS:
        return f"blk.{match[1]}.{_HF_LAYER_PARTS[match[2]]}.{match[3]}"
    return name


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the canonical name and shape of every tensor that the model has, in file order."""
    wide_q = config.num_heads * config.head_dim
    wide_k = config.num_kv_heads * config.head_dim
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (wide_q, hidden),
        "attn_k.weight": (wide_k, hidden),
        "attn_v.weight": (wide_k, hidden),
        "attn_output.weight": (hidden, wide_q),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if config.qkv_bias:
        layer |= {"attn_q.bias": (wide_q,), "attn_k.bias": (wide_k,), "attn_v.bias": (wide_k,)}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"blk.{index}.{part}": shape for part, shape in layer.items()}
    shapes["output_norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        shapes["output.weight"] = (vocab, hidden)
    return shapes

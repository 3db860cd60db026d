"""NextN heads as safetensors files: the tensors of `NextnHead`, float32, by GGUF's names."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slipstream import ops
from slipstream.errors import ModelFormatError, ModelNotFoundError
from slipstream.model.layers import DecoderLayer
from slipstream.model.llama import Llama
from slipstream.model.model_config import ModelConfig
from slipstream.model.nextn import NextnHead


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
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


def load_head(path: str | Path, target: Llama) -> NextnHead:
    """Return the head in `path` on `target`.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFormatError: it is not a head, or one of another model's width.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelNotFoundError(f"there is no head at {path}; give a safetensors file, or leave --head out.")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelFormatError(f"{path} is not a readable safetensors file: {error}.") from error
    for name, shape in _shapes(target.config).items():
        if name not in tensors:
            raise ModelFormatError(f"{path} is no NextN head: it has no tensor {name!r}.")
        if tuple(tensors[name].shape) != shape:
            raise ModelFormatError(
                f"{path} belongs to another model: {name} is {tuple(tensors[name].shape)}, "
                f"and {target.config.name} needs {shape}."
            )
    place = target.rope.device

    def vector(name: str) -> torch.Tensor:
        return tensors[f"{name}.weight"].float().to(place)

    def matrix(name: str) -> ops.DenseMatrix:
        return ops.DenseMatrix(vector(name))

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
    return NextnHead(
        target, vector("enorm"), vector("hnorm"), matrix("eh_proj"), layer, vector("output_norm")
    )


def save_head(head: NextnHead, path: str | Path) -> None:
    """Write a head whose matrices are dense; a failure leaves no file.

    Raises:
        ModelFormatError: a matrix is not dense, so its float weights are gone.
    """
    layer = head.layer
    matrices = {
        "eh_proj": head.eh_proj,
        "attn_qkv": layer.attn_qkv,
        "attn_output": layer.attn_output,
        "ffn_gate_up": layer.ffn_gate_up,
        "ffn_down": layer.ffn_down,
    }
    tensors = {
        "enorm": head.enorm,
        "hnorm": head.hnorm,
        "attn_norm": layer.attn_norm,
        "ffn_norm": layer.ffn_norm,
        "output_norm": head.output_norm,
    }
    for name, matrix in matrices.items():
        if not isinstance(matrix, ops.DenseMatrix):
            raise ModelFormatError(f"the head's {name} is not dense; only float heads can be written.")
        tensors[name] = matrix.weight
    path = Path(path)
    part = path.with_suffix(path.suffix + ".part")
    try:
        save_file({f"{name}.weight": tensor.contiguous() for name, tensor in tensors.items()}, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)

"""From a checkpoint to a model: matrices in the format that was asked for, QKV and gate-up fused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from slipstream import ops
from slipstream.errors import UnsupportedModelError
from slipstream.model.checkpoint import Checkpoint
from slipstream.model.layers import DecoderLayer, rope_table
from slipstream.model.llama import Llama
from slipstream.model.tensors import RawTensor, dequantise, unpack_q4, unpack_q8
from slipstream.native import library

_Q4_TYPES = ("Q4_0", "Q4_1")


def load_llama(
    checkpoint: Checkpoint,
    dtype: str,
    num_positions: int,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> Llama:
    """Return the checkpoint's model.

    Args:
        checkpoint: an open file or folder.
        dtype: "f32", "bf16" or "q4"; q4 keeps Q4_0 and Q4_1 blocks exactly as codes and rounds any other
            type to Q4_1 blocks.
        num_positions: rotary positions to prepare.
        device: where the weights go.
        progress: called with (layers done, layers in all).

    Raises:
        UnsupportedModelError: q4 was asked for and a matrix does not divide into blocks of 32.
    """
    config = checkpoint.config

    def vector(name: str) -> torch.Tensor:
        # A copy: float32 comes as a view of the file, which is mapped read-only, and torch warns of that.
        return torch.from_numpy(dequantise(checkpoint.tensor(name)).copy()).to(device)

    def matrix(*names: str) -> ops.Matrix:
        return _matrix([checkpoint.tensor(name) for name in names], dtype, device)

    layers = []
    for index in range(config.num_layers):
        blk = f"blk.{index}."
        qkv = [f"{blk}attn_{part}" for part in "qkv"]
        layer = DecoderLayer(
            config=config,
            attn_norm=vector(blk + "attn_norm.weight"),
            attn_qkv=matrix(*(f"{part}.weight" for part in qkv)),
            qkv_bias=torch.cat([vector(f"{part}.bias") for part in qkv]) if config.qkv_bias else None,
            attn_output=matrix(blk + "attn_output.weight"),
            ffn_norm=vector(blk + "ffn_norm.weight"),
            ffn_gate_up=matrix(blk + "ffn_gate.weight", blk + "ffn_up.weight"),
            ffn_down=matrix(blk + "ffn_down.weight"),
        )
        layers.append(layer)
        if progress is not None:
            progress(index + 1, config.num_layers)
    token_embd = _vocabulary(checkpoint.tensor("token_embd.weight"), dtype, device)
    tied = config.tie_embeddings
    return Llama(
        config=config,
        dtype=dtype,
        token_embd=token_embd,
        layers=layers,
        output_norm=vector("output_norm.weight"),
        output=token_embd if tied else _vocabulary(checkpoint.tensor("output.weight"), dtype, device),
        rope=rope_table(config, num_positions, device),
    )


def _matrix(parts: list[RawTensor], dtype: str, device: torch.device) -> ops.Matrix:
    """Return the parts, stacked by output rows, in `dtype`."""
    native = library.active()
    if dtype == "q4":
        blocks = [_as_q4(part) for part in parts]
        codes, scale, minimum = (np.concatenate(column) for column in zip(*blocks, strict=True))
        return (
            ops.PackedQ4Matrix.pack(codes, scale, minimum) if native else ops.Q4Matrix(codes, scale, minimum)
        )
    weight = torch.from_numpy(np.concatenate([dequantise(part) for part in parts])).to(device)
    return ops.DenseMatrix(weight.bfloat16() if dtype == "bf16" else weight)


def _vocabulary(raw: RawTensor, dtype: str, device: torch.device) -> ops.Matrix:
    """Return an embedding or LM head: in q4 models it keeps 8 bits, as GGUF files of that kind do."""
    native = library.active()
    if dtype == "q4":
        if raw.type != "Q8_0":
            _check_blocks(raw)
        codes, scale = unpack_q8(raw) if raw.type == "Q8_0" else _quantise_q8(dequantise(raw))
        return ops.PackedQ8Matrix.pack(codes, scale) if native else ops.Q8Matrix(codes, scale)
    return _matrix([raw], dtype, device)


def matrix_in(weight: np.ndarray, dtype: str, device: torch.device) -> ops.Matrix:
    """Return float32 weights [O, I] as a matrix of "f32", "bf16", "q4" or "q8", rounded to what that holds."""
    raw = RawTensor("weights", "F32", weight.shape, weight)
    return _vocabulary(raw, "q4", device) if dtype == "q8" else _matrix([raw], dtype, device)


def _check_blocks(raw: RawTensor) -> None:
    if raw.shape[1] % ops.BLOCK:
        raise UnsupportedModelError(
            f"{raw.name} has {raw.shape[1]} columns, not a multiple of {ops.BLOCK}, so it cannot be kept in "
            "blocks of 4 or 8 bits; use --dtype f32 or bf16."
        )


def _as_q4(raw: RawTensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if raw.type in _Q4_TYPES:
        return unpack_q4(raw)
    _check_blocks(raw)
    return _quantise_q4(dequantise(raw))


def _quantise_q4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round float32 [O, I] to Q4_1 blocks: scale = (max - min) / 15, as ggml's reference does."""
    blocks = weight.reshape(weight.shape[0], -1, ops.BLOCK)
    # Scales and minima are kept in half precision, so the codes are fitted to the rounded ones.
    minimum = _half(blocks.min(-1))
    scale = _half((blocks.max(-1) - minimum) / 15)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.clip(np.rint((blocks - minimum[..., None]) * inverse[..., None]), 0, 15).astype(np.uint8)
    return codes.reshape(weight.shape), scale, minimum


def _quantise_q8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round float32 [O, I] to Q8_0 blocks: scale = max(abs) / 127."""
    blocks = weight.reshape(weight.shape[0], -1, ops.BLOCK)
    scale = _half(np.abs(blocks).max(-1) / 127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.clip(np.rint(blocks * inverse[..., None]), -127, 127).astype(np.int8)
    return codes.reshape(weight.shape), scale.astype(np.float32)


def _half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)

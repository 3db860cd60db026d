"""Quantised matrices as the native kernels read them: tiles of 16 outputs, blocks of 32 inputs.

Codes, scales and minima are those of the file, bit for bit (half precision, as GGUF stores them); only their order
changes. The layout of a block is drawn in slipstream_native.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream.native import memory
from slipstream.native.node import Kernel
from slipstream.ops.matrix import BLOCK, Matrix, native_product, with_sums
from slipstream.ops.registry import Native, native_op, node

#: Outputs a tile.
TILE = 16

#: Bytes of a block's codes, 16 outputs x 32 inputs; half-precision scales follow, then in Q4 the minima.
_Q4_CODES, _Q8_CODES = TILE * BLOCK // 2, TILE * BLOCK
_Q4_BYTES, _Q8_BYTES = _Q4_CODES + 4 * TILE, _Q8_CODES + 2 * TILE


@native_op
def linear_q4(
    native: Native,
    x_RI: torch.Tensor,
    tiles: torch.Tensor,
    num_out: int,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ops.linear` with a `PackedQ4Matrix` of `num_out` outputs, float32."""
    native = native if _holds(tiles, num_out, _Q4_BYTES) else Native()
    return _product(native, Kernel.LINEAR_Q4, _q4_weight, x_RI, tiles, num_out, bias_O, residual_RO)


@native_op
def linear_q8(
    native: Native,
    x_RI: torch.Tensor,
    tiles: torch.Tensor,
    num_out: int,
    bias_O: torch.Tensor | None = None,
    residual_RO: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ops.linear` with a `PackedQ8Matrix` of `num_out` outputs, float32."""
    native = native if _holds(tiles, num_out, _Q8_BYTES) else Native()
    return _product(native, Kernel.LINEAR_Q8, _q8_weight, x_RI, tiles, num_out, bias_O, residual_RO)


@native_op
def embed_q8(native: Native, tiles: torch.Tensor, num_out: int, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows `ids` (int64, any shape) of a `PackedQ8Matrix` of `num_out` rows as float32 [..., I]."""
    num_in = tiles.shape[1] * BLOCK
    holds = _holds(tiles, num_out, _Q8_BYTES)
    if holds and native.reads(torch.uint8, tiles) and native.reads(torch.int64, ids):
        out = torch.empty(*ids.shape, num_in)
        return native.fill(out, node(Kernel.EMBED_Q8, (tiles, ids, out), (ids.numel(), num_in, num_out)))
    return torch.nn.functional.embedding(ids, _q8_weight(tiles).narrow(0, 0, num_out))


def _product(
    native: Native,
    kernel: Kernel,
    unpack: Callable[[torch.Tensor], torch.Tensor],
    x_RI: torch.Tensor,
    tiles: torch.Tensor,
    num_out: int,
    bias_O: torch.Tensor | None,
    residual_RO: torch.Tensor | None,
) -> torch.Tensor:
    """Return the product with the first `num_out` outputs of tiles, which `unpack` makes floats of."""
    shape = num_out, tiles.shape[1] * BLOCK
    out_RO = native_product(native, kernel, tiles, shape, x_RI, bias_O, residual_RO)
    if out_RO is not None:
        return out_RO
    weight_OI = unpack(tiles).narrow(0, 0, num_out)
    return with_sums(_in_8_bits(x_RI) @ weight_OI.T, bias_O, residual_RO)


def _holds(tiles: torch.Tensor, num_out: int, block_bytes: int) -> bool:
    """Return whether these are tiles of such blocks, enough for `num_out` outputs; else the definition fails."""
    return num_out <= tiles.shape[0] * TILE and tiles.shape[2] == block_bytes


class PackedMatrix(Matrix):
    """Weights in tiles. Products quantise their input to 8 bits by blocks of 32, as llama.cpp does.

    Args:
        num_out, num_in: the matrix's shape.
        tiles: uint8 [num_out / 16 rounded up, num_in / 32, bytes a block].
    """

    activation_dtype = torch.float32

    def __init__(self, num_out: int, num_in: int, tiles: npt.NDArray[np.uint8]) -> None:
        self.num_out, self.num_in = num_out, num_in
        place = memory.weights.take(tiles.nbytes).reshape(tiles.shape)
        place[...] = tiles
        self.tiles = torch.from_numpy(place)
        self.weights = self.tiles, num_out


class PackedQ4Matrix(PackedMatrix):
    """4-bit codes, weight = scale * code + minimum."""

    linear_op = linear_q4

    @classmethod
    def pack(
        cls, codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32], minimum: npt.NDArray[np.float32]
    ) -> PackedQ4Matrix:
        """Pack codes [num_out, num_in] of 0 to 15 with float32 scales and minima [num_out, num_in / 32]."""
        num_out, num_in = codes.shape
        by_output = _tiled(codes)  # [tiles, 16, blocks, 32]
        halves = by_output[..., :16] | (by_output[..., 16:] << 4)
        parts = (_by_four(halves), _half_bytes(scale), _half_bytes(minimum))
        return cls(num_out, num_in, np.concatenate(parts, axis=-1))


class PackedQ8Matrix(PackedMatrix):
    """8-bit codes, weight = scale * code."""

    linear_op = linear_q8

    @classmethod
    def pack(cls, codes: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]) -> PackedQ8Matrix:
        """Pack codes [num_out, num_in] with float32 scales [num_out, num_in / 32]."""
        num_out, num_in = codes.shape
        parts = (_by_four(_tiled(codes.view(np.uint8))), _half_bytes(scale))
        return cls(num_out, num_in, np.concatenate(parts, axis=-1))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return embed_q8(self.tiles, self.num_out, ids)

    def take(self, ids_N: torch.Tensor) -> PackedQ8Matrix:
        # In parts: a row is cut out of its whole tile.
        parts = [_q8_rows(self.tiles, part) for part in ids_N.split(1024)]
        codes, scale = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
        return PackedQ8Matrix.pack(codes, scale)


def _tiled(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return codes as [tiles, 16, blocks, 32], missing outputs as zeros."""
    num_out, num_in = codes.shape
    padded = np.pad(codes, ((0, -num_out % TILE), (0, 0)))
    return padded.reshape(-1, TILE, num_in // BLOCK, BLOCK)


def _by_four(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return [tiles, 16, blocks, n] as [tiles, blocks, n / 4 x 16 x 4]: four inputs of each output together."""
    tiles, outputs, blocks, count = codes.shape
    grouped = codes.reshape(tiles, outputs, blocks, count // 4, 4).transpose(0, 2, 3, 1, 4)
    return grouped.reshape(tiles, blocks, count * outputs)


def _half_bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return float32 [outputs, blocks] as half precision bytes [tiles, blocks, 2 x 16]."""
    num_out, blocks = values.shape
    padded = np.pad(values.astype(np.float16), ((0, -num_out % TILE), (0, 0)))
    ordered = np.ascontiguousarray(padded.reshape(-1, TILE, blocks).transpose(0, 2, 1))
    return ordered.view(np.uint8)


def _q4_weight(tiles: torch.Tensor) -> torch.Tensor:
    """Return the weights of Q4 tiles, float32 [16 x tiles, num_in]."""
    halves = _by_output(tiles[..., :_Q4_CODES])
    codes = torch.cat((halves & 15, halves >> 4), dim=-1)
    scale, minimum = _by_output_halves(tiles[..., _Q4_CODES:]).unsqueeze(-1).unbind(-2)
    return _as_rows(codes * scale + minimum)


def _q8_weight(tiles: torch.Tensor) -> torch.Tensor:
    """Return the weights of Q8 tiles, float32 [16 x tiles, num_in]."""
    codes = _by_output(tiles[..., :_Q8_CODES]).view(torch.int8)
    return _as_rows(codes * _by_output_halves(tiles[..., _Q8_CODES:]))


def _as_rows(blocks: torch.Tensor) -> torch.Tensor:
    """Return [tiles, 16, blocks, 32] as [16 x tiles, num_in]."""
    tiles, outputs, count, width = blocks.shape
    return blocks.reshape(tiles * outputs, count * width)


def _by_output(codes: torch.Tensor) -> torch.Tensor:
    """Undo `_by_four`: [tiles, blocks, 16 n] to [tiles, 16, blocks, n]."""
    tiles, blocks, count = codes.shape
    grouped = codes.view(tiles, blocks, -1, TILE, 4).permute(0, 3, 1, 2, 4)
    return grouped.reshape(tiles, TILE, blocks, count // TILE)


def _by_output_halves(values: torch.Tensor) -> torch.Tensor:
    """Undo `_half_bytes` of k scales: [tiles, blocks, k x 32 bytes] to float32 [tiles, 16, blocks, k]."""
    tiles, blocks, _ = values.shape
    halves = values.contiguous().view(torch.float16).float()
    return halves.view(tiles, blocks, -1, TILE).permute(0, 3, 1, 2)


def _in_8_bits(x_RI: torch.Tensor) -> torch.Tensor:
    """Return x as the native products take it: 8-bit codes by blocks of 32, float32 [R, I]."""
    blocks = x_RI.reshape(x_RI.shape[0], -1, BLOCK)
    top = blocks.abs().amax(-1, keepdim=True)
    codes = torch.where(top > 0, blocks * (127 / top), torch.zeros_like(blocks)).round()
    return (codes * top / 127).reshape(x_RI.shape)


def _q8_rows(tiles: torch.Tensor, ids_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes int8 [N, num_in] and scales float32 [N, num_in / 32] of some rows of Q8 tiles."""
    whole, lanes = tiles[ids_N // TILE], ids_N % TILE
    each = torch.arange(ids_N.shape[0])
    codes = _by_output(whole[..., :_Q8_CODES])[each, lanes].view(torch.int8)
    scale = _by_output_halves(whole[..., _Q8_CODES:])[each, lanes].squeeze(-1)
    return codes.reshape(ids_N.shape[0], -1), scale

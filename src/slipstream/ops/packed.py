"""Quantised matrices as the native kernels read them: tiles of 16 outputs, blocks of 32 inputs.

Codes, scales and minima are those of the file, bit for bit (half precision, as GGUF stores them); only their order
changes. The layout of a block is drawn in slipstream_native.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream.native import memory
from slipstream.native.node import Kernel
from slipstream.ops.matrix import BLOCK, Matrix

TILE = 16


class PackedMatrix(Matrix):
    """Weights in tiles. Products quantise their input to 8 bits by blocks of 32, as llama.cpp does.

    Args:
        num_out, num_in: the matrix's shape.
        tiles: uint8 [num_out / 16 rounded up, num_in / 32, bytes a block].
    """

    product_kernel: Kernel

    def __init__(self, num_out: int, num_in: int, tiles: npt.NDArray[np.uint8]) -> None:
        self.num_out, self.num_in = num_out, num_in
        self.activation_dtype = torch.float32
        place = memory.weights.take(tiles.nbytes).reshape(tiles.shape)
        place[...] = tiles
        self.tiles = torch.from_numpy(place)

    def product(self, x_RI: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a packed matrix is multiplied by native kernels; see ops.linear")

    def native_product(self) -> tuple[Kernel, int] | None:
        return self.product_kernel, self.tiles.data_ptr()

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a packed matrix is read by native kernels; see ops.embedding")

    @property
    def nbytes(self) -> int:
        return self.tiles.nbytes


class PackedQ4Matrix(PackedMatrix):
    """4-bit codes, weight = scale * code + minimum."""

    product_kernel = Kernel.LINEAR_Q4

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

    product_kernel = Kernel.LINEAR_Q8

    @classmethod
    def pack(cls, codes: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]) -> PackedQ8Matrix:
        """Pack codes [num_out, num_in] with float32 scales [num_out, num_in / 32]."""
        num_out, num_in = codes.shape
        parts = (_by_four(_tiled(codes.view(np.uint8))), _half_bytes(scale))
        return cls(num_out, num_in, np.concatenate(parts, axis=-1))

    def native_rows(self) -> tuple[Kernel, int] | None:
        return Kernel.EMBED_Q8, self.tiles.data_ptr()


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

"""Stored tensors and their encodings: plain floats, and ggml's blocks of 32 values. numpy only.

    Q8_0   f16 scale                 32 x int8          weight = scale * q
    Q4_0   f16 scale                 16 x two codes     weight = scale * (code - 8)
    Q4_1   f16 scale, f16 minimum    16 x two codes     weight = scale * code + minimum

Byte i of a block's codes holds value i in its low half and value i + 16 in its high half. Source:
ggml-common.h and `dequantize_row_*` in ggml-quants.c. What a kernel does with them is `slipstream.ops`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFormatError, UnsupportedModelError

#: Values a block.
BLOCK = 32

#: Bytes a block, for the encodings that have blocks.
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}

#: numpy's type for the encodings that have none; numpy has no bfloat16, so its 16 bits are kept raw.
PLAIN_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

SUPPORTED_TYPES = (*PLAIN_DTYPES, *BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor as the file stores it.

    Attributes:
        name: canonical name, as "blk.0.attn_q.weight".
        type: encoding, one of SUPPORTED_TYPES.
        shape: logical shape, (out, in) for a matrix and (n,) for a vector.
        data: F32 as float32 and F16 as float16 of `shape`; BF16 as its bits, uint16 of `shape`;
            block encodings as uint8 (out, bytes a row). Read-only where it maps the file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where a file says that a tensor is. Nothing is checked yet, so nothing may be read yet.

    Attributes:
        name: canonical name.
        type: encoding as the file names it, supported or not.
        shape: logical shape in numpy's order.
        offset: first byte in `buffer`.
        nbytes: bytes that the file gives it, or None where the format does not say.
        buffer: the whole mapped file, uint8.
        path: the file, for messages.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int | None
    buffer: NDArray[np.uint8]
    path: Path

    def read(self) -> RawTensor:
        """Return the tensor as a view of the mapped file.

        Raises:
            UnsupportedModelError: the encoding is not implemented.
            ModelFormatError: the file is truncated, or the shape does not fit the encoding or the bytes.
        """
        if self.type not in SUPPORTED_TYPES:
            raise UnsupportedModelError(
                f"tensor {self.name!r} in {self.path} is stored as {self.type}, which is not supported. "
                f"Supported: {', '.join(SUPPORTED_TYPES)}."
            )
        try:
            dtype, shape = stored_layout(self.type, self.shape)
        except ValueError as error:
            raise ModelFormatError(f"tensor {self.name!r} in {self.path}: {error}.") from None
        nbytes = math.prod(shape) * dtype.itemsize
        if self.nbytes not in (None, nbytes):
            raise ModelFormatError(
                f"tensor {self.name!r} in {self.path} has {self.nbytes} bytes, but {self.type} of shape "
                f"{self.shape} has {nbytes}; the file is inconsistent, download it again."
            )
        end = self.offset + nbytes
        if end > self.buffer.size:
            raise ModelFormatError(
                f"{self.path} is truncated: tensor {self.name!r} ends at byte {end}, but the file has "
                f"{self.buffer.size} bytes. Download it again."
            )
        data = self.buffer[self.offset : end].view(dtype) if self._aligned(dtype) else self._copy(end, dtype)
        return RawTensor(self.name, self.type, self.shape, data.reshape(shape))

    def _aligned(self, dtype: np.dtype[Any]) -> bool:
        return (self.buffer.ctypes.data + self.offset) % dtype.alignment == 0

    def _copy(self, end: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        # safetensors does not promise alignment, and kernels may not read unaligned floats.
        return np.frombuffer(self.buffer[self.offset : end].tobytes(), dtype)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map a file for reading, as uint8 [bytes].

    Raises:
        ModelFormatError: it is empty or cannot be read.
    """
    try:
        if not path.stat().st_size:
            raise ModelFormatError(f"{path} is empty. Download it again.")
        return np.asarray(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read: {error.strerror or error}.") from error


def stored_layout(type_name: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return numpy's dtype and shape for the stored bytes of a tensor.

    Raises:
        ValueError: a row does not divide into blocks.
    """
    if type_name in PLAIN_DTYPES:
        return PLAIN_DTYPES[type_name], shape
    if len(shape) != 2 or shape[1] % BLOCK:
        raise ValueError(f"shape {shape} does not divide into rows of {type_name} blocks of {BLOCK}")
    return np.dtype(np.uint8), (shape[0], shape[1] // BLOCK * BLOCK_BYTES[type_name])


def dequantise(raw: RawTensor) -> NDArray[np.float32]:
    """Return the tensor's values, exactly those that ggml computes, as float32 of `raw.shape`.

    F32 is returned without a copy, so it may be read-only.

    Raises:
        UnsupportedModelError: an encoding outside SUPPORTED_TYPES.
    """
    if raw.type == "F32":
        return raw.data.view(np.float32)
    if raw.type == "F16":
        return raw.data.astype(np.float32)
    if raw.type == "BF16":
        return (raw.data.astype(np.uint32) << 16).view(np.float32)
    if raw.type == "Q8_0":
        quants, scale = unpack_q8(raw)
        return _scaled(quants, scale)
    codes, scale, minimum = unpack_q4(raw)
    values = _scaled(codes, scale).reshape(*scale.shape, BLOCK)
    values += minimum[..., None]
    return values.reshape(raw.shape)


def unpack_q4(raw: RawTensor) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Take a Q4_0 or Q4_1 matrix apart, so that weight = scale * code + minimum.

    Returns:
        codes uint8 [rows, cols] in 0..15, scale float32 [rows, cols / 32], minimum float32 [rows, cols / 32].

    Raises:
        UnsupportedModelError: another encoding.
    """
    if raw.type not in ("Q4_0", "Q4_1"):
        raise UnsupportedModelError(f"tensor {raw.name!r} is {raw.type}; 4-bit codes need Q4_0 or Q4_1.")
    blocks = _blocks(raw)
    packed = blocks[..., BLOCK_BYTES[raw.type] - BLOCK // 2 :]
    codes = np.empty((*blocks.shape[:2], BLOCK), np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[..., : BLOCK // 2])
    np.right_shift(packed, 4, out=codes[..., BLOCK // 2 :])
    scale = _half(blocks, 0)
    # Exact: a half-precision number times eight needs no more bits than it has.
    minimum = scale * np.float32(-8) if raw.type == "Q4_0" else _half(blocks, 2)
    return codes.reshape(raw.shape), scale, minimum


def unpack_q8(raw: RawTensor) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Take a Q8_0 matrix apart, so that weight = scale * quant.

    Returns:
        quants int8 [rows, cols], scale float32 [rows, cols / 32].

    Raises:
        UnsupportedModelError: another encoding.
    """
    if raw.type != "Q8_0":
        raise UnsupportedModelError(f"tensor {raw.name!r} is {raw.type}; 8-bit quants need Q8_0.")
    blocks = _blocks(raw)
    quants = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return quants.reshape(raw.shape), _half(blocks, 0)


def _blocks(raw: RawTensor) -> NDArray[np.uint8]:
    """uint8 [rows, blocks a row, bytes a block]"""
    return np.ascontiguousarray(raw.data).reshape(raw.shape[0], -1, BLOCK_BYTES[raw.type])


def _half(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """Two bytes of every block as float32 [rows, blocks a row]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _scaled(quants: NDArray[Any], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [rows, cols]"""
    values = quants.reshape(*scale.shape, BLOCK).astype(np.float32)
    values *= scale[..., None]
    return values.reshape(quants.shape)

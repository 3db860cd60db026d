"""The GGUF container: metadata and where the tensors are. Knows no architecture.

The `gguf` library's reader makes a numpy array of every token of the vocabulary, which takes seconds; this
one takes a tenth of one. Format: docs/gguf.md of ggml, versions 2 and 3, little-endian.

    magic "GGUF" | version u32 | tensors u64 | pairs u64
    pairs   x    key string | type u32 | value
    tensors x    name string | dims u32 | dims x u64, fastest first | type u32 | offset u64
    padding to general.alignment | data
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.model.tensors import TensorSlot, map_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{7: "<?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
_SCALAR_DTYPES = {code: np.dtype(name) for code, name in _SCALARS.items()}

#: ggml's numbers for its encodings, for messages too: the supported ones are `tensors.SUPPORTED_TYPES`.
_TENSOR_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"},
    **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
    **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S"},
    **{23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16"},
    **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file's header says.

    Attributes:
        path: the file.
        metadata: key to bool, int, float, str, or a list of those.
        slots: tensor name to where it is.
    """

    path: Path
    metadata: dict[str, Any]
    slots: dict[str, TensorSlot]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file and map the rest.

    Raises:
        ModelFormatError: it is not GGUF, is truncated within the header, or the header makes no sense.
        UnsupportedModelError: a version or byte order that is not read.
    """
    buffer = map_file(path)
    if bytes(buffer[:4]) != _MAGIC:
        raise ModelFormatError(
            f"{path} is not a GGUF file (it begins with {bytes(buffer[:4])!r}). "
            "Give a .gguf file, or a Hugging Face folder with config.json and *.safetensors."
        )
    try:
        return _read(path, buffer)
    except (struct.error, EOFError):
        raise ModelFormatError(
            f"{path} is truncated: its header does not end within the file's {buffer.size} bytes. "
            "Download it again."
        ) from None
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path} is damaged: a name in its header is not UTF-8 ({error}).") from None


def _read(path: Path, buffer: NDArray[np.uint8]) -> GgufFile:
    header = _Header(path, buffer)
    version = header.number("<I")
    if version not in _VERSIONS:
        raise UnsupportedModelError(
            f"{path} is GGUF version {version if version < 2**16 else 'of a big-endian machine'}; "
            f"versions {_VERSIONS[0]} and {_VERSIONS[1]} (little-endian) are supported. Convert it again."
        )
    num_tensors, num_pairs = header.number("<Q"), header.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = header.string()
        metadata[key] = header.value(header.number("<I"))
    found = [header.tensor() for _ in range(num_tensors)]

    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelFormatError(f"{path} says general.alignment = {alignment!r}; it is damaged.")
    start = -(-header.at // alignment) * alignment
    slots = {
        name: TensorSlot(name, kind, shape, start + offset, None, buffer, path)
        for name, kind, shape, offset in found
    }
    return GgufFile(path, metadata, slots)


class _Header:
    """A cursor over the header. Every read beyond the file's end raises EOFError or struct.error."""

    def __init__(self, path: Path, buffer: NDArray[np.uint8]) -> None:
        self.path = path
        self.at = len(_MAGIC)
        self._bytes = buffer.data

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(code, self._bytes, self.at)
        self.at += struct.calcsize(code)
        return int(value)

    def string(self) -> str:
        start = self.at + 8
        end = start + self.number("<Q")
        self._need(end)
        self.at = end
        return str(self._bytes[start:end], "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.number("<I"), self.number("<Q")
            return self._strings(count) if item == _STRING else self._scalars(item, count).tolist()
        return self._scalars(kind, 1).tolist()[0]

    def tensor(self) -> tuple[str, str, tuple[int, ...], int]:
        name = self.string()
        dims = self.number("<I")
        if dims > _MAX_DIMS:
            raise ModelFormatError(f"{self.path} is damaged: tensor {name!r} has {dims} dimensions.")
        shape = tuple(self.number("<Q") for _ in range(dims))[::-1]
        kind = self.number("<I")
        return name, _TENSOR_TYPES.get(kind, f"type {kind}"), shape, self.number("<Q")

    def _need(self, end: int) -> None:
        if end > len(self._bytes):
            raise EOFError

    def _scalars(self, kind: int, count: int) -> NDArray[Any]:
        if kind not in _SCALAR_DTYPES:
            raise ModelFormatError(f"{self.path} is damaged: its header has a value of unknown type {kind}.")
        dtype = _SCALAR_DTYPES[kind]
        start, end = self.at, self.at + count * dtype.itemsize
        self._need(end)
        self.at = end
        return np.frombuffer(self._bytes[start:end], dtype)

    def _strings(self, count: int) -> list[str]:
        # Vocabulary and merges have 100,000 strings: this loop is the time that opening a file takes.
        self._need(self.at + 8 * count)
        data, at, size = self._bytes, self.at, len(self._bytes)
        length_at = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0]
            if at > size:
                raise EOFError
            strings.append(str(data[start:at], "utf-8"))
        self.at = at
        return strings

"""A Hugging Face folder: config.json, and safetensors with or without an index. Knows no architecture.

The safetensors header is read here, not by its library, whose numpy reader has no bfloat16 and whose torch
reader needs torch. Format: the README of safetensors.

    u64 n | n bytes of JSON {name: {dtype, shape, data_offsets: [from, to]}} | data
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import ModelFormatError, UnsupportedModelError
from slipstream.model.names import from_hf
from slipstream.model.tensors import TensorSlot, map_file

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_GENERATION = "generation_config.json"


@dataclass(frozen=True, slots=True)
class HfFolder:
    """What a Hugging Face folder holds.

    Attributes:
        path: the folder.
        config: config.json.
        generation: generation_config.json, empty where there is none.
        slots: canonical tensor name to where it is.
    """

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    slots: dict[str, TensorSlot]


def read_hf_folder(folder: Path) -> HfFolder:
    """Read the JSON files and the tensor headers of a folder, and map its tensors.

    Raises:
        ModelFormatError: a file is missing, damaged or truncated.
        UnsupportedModelError: the weights are there, but not as safetensors.
    """
    if not (folder / "config.json").is_file():
        raise ModelFormatError(
            f"{folder} has no config.json, so it is not a Hugging Face model.{_hint(folder)}"
        )
    config = read_json(folder / "config.json")
    generation = read_json(folder / _GENERATION) if (folder / _GENERATION).is_file() else {}
    slots: dict[str, TensorSlot] = {}
    for file in _tensor_files(folder):
        slots |= _read_safetensors(file)
    return HfFolder(folder, config, generation, slots)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelFormatError: the file cannot be read or does not hold a JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelFormatError(f"{path} is not JSON ({error}). Download it again.") from None
    if not isinstance(found, dict):
        raise ModelFormatError(f"{path} should hold a JSON object. Download it again.")
    return found


def _hint(folder: Path) -> str:
    files = sorted(folder.glob("*.gguf"))
    return f" Did you mean the file {files[0]}?" if files else " Give such a folder, or a .gguf file."


def _tensor_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        shards = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelFormatError(f"{folder / _INDEX} has no weight_map. Download it again.")
        files = [folder / str(name) for name in sorted(set(shards.values()))]
    elif (folder / _SINGLE).is_file():
        files = [folder / _SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files and any(folder.glob("*.bin")):
        raise UnsupportedModelError(f"{folder} has its weights as *.bin. Convert them to safetensors first.")
    if not files:
        raise ModelFormatError(f"{folder} has no *.safetensors file. Download it again.")
    for file in files:
        if not file.is_file():
            raise ModelFormatError(f"{file} is missing, but the index names it. Download the folder again.")
    return files


def _read_safetensors(path: Path) -> dict[str, TensorSlot]:
    buffer = map_file(path)
    try:
        (length,) = struct.unpack_from("<Q", buffer.data)
        start = 8 + length
        if start > buffer.size:
            raise ModelFormatError(
                f"{path} is truncated or not safetensors: its header would end at byte {start}, "
                f"but the file has {buffer.size} bytes. Download it again."
            )
        header = json.loads(buffer[8:start].tobytes())
        header.pop("__metadata__", None)
        slots = {}
        for stored, entry in header.items():
            first, last = (int(offset) for offset in entry["data_offsets"])
            shape = tuple(int(size) for size in entry["shape"])
            name = from_hf(stored)
            if name is not None:
                kind = str(entry["dtype"])
                slots[name] = TensorSlot(name, kind, shape, start + first, last - first, buffer, path)
        return slots
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFormatError(f"{path} is not a safetensors file ({error}). Download it again.") from None

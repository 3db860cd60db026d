"""A model file, opened: its configuration and its tensors under one set of names and one order of rows.

Opening maps the file and checks everything that can be wrong with it; weights are read when they are touched.
What the weights are used for is `slipstream.model.llama`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from slipstream.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from slipstream.model.gguf_config import GGUF_ARCHITECTURES, config_from_gguf
from slipstream.model.gguf_file import read_gguf
from slipstream.model.hf_config import config_from_hf
from slipstream.model.hf_folder import read_hf_folder
from slipstream.model.model_config import ModelConfig, check_config
from slipstream.model.names import ROPE_FACTORS, expected_shapes
from slipstream.model.tensors import RawTensor, TensorSlot, dequantise, unpack_q4, unpack_q8

__all__ = ["Checkpoint", "RawTensor", "dequantise", "open_checkpoint", "unpack_q4", "unpack_q8"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model.

    Attributes:
        path: the GGUF file or the Hugging Face folder.
        format: "gguf" or "hf".
        config: sizes and constants.
        metadata: GGUF's metadata, empty for a folder.
    """

    path: Path
    format: Literal["gguf", "hf"]
    config: ModelConfig
    metadata: dict[str, Any]
    _tensors: dict[str, RawTensor]
    _interleaved: bool

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Canonical names of all tensors, embedding first, layer by layer."""
        return tuple(self._tensors)

    @property
    def quant_types(self) -> Counter[str]:
        """How many matrices are stored in each encoding."""
        return Counter(raw.type for raw in self._tensors.values() if len(raw.shape) == 2)

    def has(self, name: str) -> bool:
        """Say whether the model has a tensor of this name."""
        return name in self._tensors

    def tensor(self, name: str) -> RawTensor:
        """Return one tensor, in the encoding of the file.

        Rows of query and key projections are in half-split order: pair i of a head is its rows i and
        i + head_dim / 2, as transformers has it.

        Raises:
            ModelFormatError: the model has no such tensor.
        """
        if name not in self._tensors:
            raise ModelFormatError(f"{self.path} has no tensor {name!r}.")
        raw = self._tensors[name]
        part = name.split(".")[-2]
        if not self._interleaved or part not in ("attn_q", "attn_k"):
            return raw
        heads = self.config.num_heads if part == "attn_q" else self.config.num_kv_heads
        return replace(raw, data=_half_split(raw.data, heads))


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file, or a Hugging Face folder with config.json and *.safetensors.

    Raises:
        ModelNotFoundError: nothing is at `path`.
        ModelFormatError: the file is of another format, truncated, incomplete or inconsistent.
        UnsupportedModelError: an architecture or tensor encoding that is not implemented.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelNotFoundError(
            f"no model at {path}. "
            "Give a .gguf file, or a Hugging Face folder with config.json and *.safetensors."
        )
    if path.is_dir():
        folder = read_hf_folder(path)
        return _checked(path, "hf", config_from_hf(folder), {}, folder.slots)
    file = read_gguf(path)
    return _checked(path, "gguf", config_from_gguf(file), file.metadata, file.slots)


def _checked(
    path: Path,
    kind: Literal["gguf", "hf"],
    config: ModelConfig,
    metadata: dict[str, Any],
    slots: dict[str, TensorSlot],
) -> Checkpoint:
    check_config(config)
    if config.num_layers > len(slots):
        raise ModelFormatError(f"{path} says {config.num_layers} layers, but has {len(slots)} tensors.")
    expected = expected_shapes(config)
    # Encodings before names: of an unusual file, the encoding is what its owner can change.
    tensors = {name: slot.read() for name, slot in slots.items()}
    missing = [name for name in expected if name not in slots]
    if missing:
        raise ModelFormatError(
            f"{path} lacks {len(missing)} of {len(expected)} tensors, the first is {missing[0]!r}; "
            "it is incomplete, download or convert it again."
        )
    unknown = [name for name in slots if name not in expected and name != ROPE_FACTORS]
    if unknown:
        raise UnsupportedModelError(
            f"{path} has a tensor {unknown[0]!r} that a {config.architecture} model as implemented does not "
            f"use ({len(unknown)} such); answers without it would be wrong."
        )
    for name, shape in expected.items():
        if slots[name].shape != shape:
            raise ModelFormatError(
                f"{path} is inconsistent: tensor {name!r} has shape {slots[name].shape}, "
                f"but the configuration makes it {shape}. Download or convert it again."
            )
    interleaved = kind == "gguf" and GGUF_ARCHITECTURES[config.architecture]
    return Checkpoint(path, kind, config, metadata, {name: tensors[name] for name in expected}, interleaved)


def _half_split(data: NDArray[Any], heads: int) -> NDArray[Any]:
    """Bring rows from ggml's interleaved order of rotary pairs to the half-split order.

    Whole rows move, so it holds for every encoding: [heads, pair, 2, ...] becomes [heads, 2, pair, ...].
    """
    pairs = data.shape[0] // heads // 2
    split = data.reshape(heads, pairs, 2, -1).swapaxes(1, 2)
    return split.reshape(data.shape)

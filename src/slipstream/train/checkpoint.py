"""The files that training writes, each whole or not at all: its state, the head, the log, the plot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from slipstream.errors import TrainingError
from slipstream.model.nextn_build import HeadWeights
from slipstream.model.nextn_file import save_head


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write a training state: tensors and plain values.

    Raises:
        TrainingError: the disk is full or not writable; an earlier state at `path` is untouched.
    """
    _write(path, lambda part: torch.save(state, part))


def load_state(path: Path) -> dict[str, Any]:
    """Return what `save_state` wrote.

    Raises:
        TrainingError: the file is damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:  # whatever torch's zip reader and unpickler raise
        raise TrainingError(
            f"{path} is not a readable training state: {error}. Delete it to start again."
        ) from error
    return state


def write_head(weights: HeadWeights, path: Path) -> None:
    """Write a head: matrices in bfloat16, norms in float32.

    Raises:
        TrainingError: as `save_state`.
    """
    tensors = {
        name: tensor.bfloat16() if tensor.dim() == 2 else tensor.float()
        for name, tensor in weights.tensors.items()
    }
    _write(path, lambda part: save_head(HeadWeights(tensors, weights.draft_ids, weights.facts), part))


def write_bytes(data: bytes, path: Path) -> None:
    """Write a log or a plot.

    Raises:
        TrainingError: as `save_state`.
    """
    _write(path, lambda part: part.write_bytes(data))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise TrainingError(f"{path} cannot be written: {error}. What was there before is whole.") from error
    finally:
        if part.is_file():
            part.unlink()

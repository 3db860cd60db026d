"""NextN heads as safetensors files.

    enorm.weight, eh_proj.weight ...     the tensors of `nextn_build.head_shapes`; float32, float16 or bfloat16
    draft_ids                            int64 [N], optional: the target's token of each draft token, ascending
    metadata                             "format", "target_hash" and what else is known, text by name

A head is of use to one target only: its hash says which (`model.target_hash`), and another one is refused. Files
without a hash are held to the shapes alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from slipstream.errors import ModelFormatError, ModelNotFoundError
from slipstream.model.checkpoint import Checkpoint
from slipstream.model.llama import Llama
from slipstream.model.model_config import ModelConfig
from slipstream.model.nextn import NextnHead
from slipstream.model.nextn_build import HeadWeights, build_head, head_shapes
from slipstream.model.target_hash import target_hash as target_hash_of

FORMAT = "slipstream-nextn-1"

#: Heads that ship with the package; each is found by its target's hash.
HEADS = Path(__file__).parent / "heads"

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def read_head(path: str | Path, config: ModelConfig, target_hash: str | None = None) -> HeadWeights:
    """Return the head in `path`, checked against its target.

    Args:
        path: a safetensors file.
        config: the target's.
        target_hash: the target's; None leaves that check out.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFormatError: it is not a head, or one of another model.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelNotFoundError(f"there is no head at {path}; give a safetensors file, or leave --head out.")
    try:
        with safe_open(path, framework="pt") as file:
            facts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelFormatError(f"{path} is not a readable safetensors file: {error}.") from error
    form = facts.pop("format", FORMAT)
    if form not in (FORMAT, "pt"):  # "pt" is what PyTorch's own writer notes
        raise ModelFormatError(
            f"{path} has format {form!r}, and this version reads {FORMAT!r}; update Slipstream."
        )
    _check_shapes(path, tensors, config)
    named = facts.get("target_hash")
    if named and target_hash and named != target_hash:
        raise ModelFormatError(
            f"{path} was trained for another model: its target's hash begins with {named[:12]}, and that of "
            f"{config.name} with {target_hash[:12]}. Train one for this model, or leave --head out."
        )
    draft_ids = tensors.pop("draft_ids", None)
    if draft_ids is not None:
        _check_draft_ids(path, draft_ids, config.vocab_size)
    return HeadWeights(tensors, draft_ids, facts)


def load_head(path: str | Path, target: Llama, target_hash: str | None = None) -> NextnHead:
    """Return the head in `path` on `target`; arguments and errors as for `read_head`."""
    return build_head(target, read_head(path, target.config, target_hash))


def save_head(weights: HeadWeights, path: str | Path) -> None:
    """Write a head; a failure leaves what was there."""
    path = Path(path)
    part = path.with_suffix(path.suffix + ".part")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.tensors.items()}
    if weights.draft_ids is not None:
        tensors["draft_ids"] = weights.draft_ids.cpu().contiguous()
    try:
        save_file(tensors, part, metadata={**weights.facts, "format": FORMAT})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def head_facts(path: str | Path) -> dict[str, str]:
    """Return the metadata of a head file, or nothing where it cannot be read; reads no tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):
        return {}


def shipped_head(checkpoint: Checkpoint) -> str | None:
    """Return the file of the head that ships for this model, or None."""
    files = sorted(HEADS.glob("*.safetensors"))
    wanted = target_hash_of(checkpoint) if files else ""
    return next((str(file) for file in files if head_facts(file).get("target_hash") == wanted), None)


def _check_shapes(path: Path, tensors: dict[str, torch.Tensor], config: ModelConfig) -> None:
    for name, shape in head_shapes(config).items():
        if name not in tensors:
            raise ModelFormatError(f"{path} is no NextN head: it has no tensor {name!r}.")
        if tuple(tensors[name].shape) != shape:
            raise ModelFormatError(
                f"{path} belongs to another model: {name} is {tuple(tensors[name].shape)}, "
                f"and {config.name} needs {shape}."
            )
        if tensors[name].dtype not in _FLOATS:
            raise ModelFormatError(
                f"{path}: {name} is {tensors[name].dtype}; a head holds float32, float16 or bfloat16."
            )
        if not tensors[name].isfinite().all():
            raise ModelFormatError(f"{path}: {name} has values that are not finite; train or fetch it again.")


def _check_draft_ids(path: Path, draft_ids: torch.Tensor, vocab_size: int) -> None:
    if draft_ids.dtype != torch.int64 or draft_ids.dim() != 1 or not draft_ids.numel():
        raise ModelFormatError(f"{path}: draft_ids have to be a list of int64, the target's tokens.")
    if draft_ids[0] < 0 or draft_ids[-1] >= vocab_size or (draft_ids.diff() <= 0).any():
        raise ModelFormatError(
            f"{path}: draft_ids have to ascend within the target's vocabulary of {vocab_size} tokens; "
            "the head belongs to a model of another vocabulary, or is damaged."
        )

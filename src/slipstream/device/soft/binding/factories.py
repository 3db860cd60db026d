"""Tensors without values yet: memory, and no command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slipstream.device.soft.binding.dispatch import special
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.binding.tensor import SoftTensor, make

_aten = torch.ops.aten


@special(_aten.empty.memory_format)
def empty(size: Sequence[int], **options: Any) -> torch.Tensor:
    """Return a tensor of a size, contiguous or in a memory format."""
    return _like_meta(torch.empty(tuple(size), device="meta", **_kept(options, "memory_format")), options)


@special(_aten.empty_strided.default)
def empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> torch.Tensor:
    """Return a tensor of a size and strides."""
    return _like_meta(
        torch.empty_strided(tuple(size), tuple(stride), device="meta", **_kept(options)), options
    )


@special(_aten.empty_like.default)
def empty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return a tensor that looks like another."""
    meta = torch.empty_like(_meta(tensor), **_kept(options, "memory_format"))
    return _like_meta(meta, options, tensor)


@special(_aten.new_empty.default)
def new_empty(tensor: torch.Tensor, size: Sequence[int], **options: Any) -> torch.Tensor:
    """Return a tensor of a size, of another's dtype and device."""
    return _like_meta(_meta(tensor).new_empty(tuple(size), **_kept(options)), options, tensor)


@special(_aten.new_empty_strided.default)
def new_empty_strided(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], **options: Any
) -> torch.Tensor:
    """Return a tensor of a size and strides, of another's dtype and device."""
    return _like_meta(
        _meta(tensor).new_empty_strided(tuple(size), tuple(stride), **_kept(options)), options, tensor
    )


def _kept(options: dict[str, Any], *more: str) -> dict[str, Any]:
    return {name: options[name] for name in ("dtype", *more) if options.get(name) is not None}


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _like_meta(
    meta: torch.Tensor, options: dict[str, Any], source: torch.Tensor | None = None
) -> torch.Tensor:
    device = options.get("device")
    if device is not None and device.type != "npu":
        return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device=device)
    if device is not None and device.index is not None:
        index = device.index
    else:
        index = source.device_index if isinstance(source, SoftTensor) else active().device
    return make(meta.shape, meta.stride(), meta.dtype, meta.untyped_storage().nbytes(), index, "empty")

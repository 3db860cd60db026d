"""Views: other shapes over the same bytes. Nothing runs on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from slipstream.device.soft.binding.calls import launch, raw_of, tensors_in
from slipstream.device.soft.binding.tensor import SoftTensor, make

_aten = torch.ops.aten


def view(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the view, or the views, that an op gives."""
    base = next(t for t in tensors_in(args, kwargs) if isinstance(t, SoftTensor))
    if op is _aten.as_strided.default:
        args = _from_segment_start(base, args)
    result = op(*[raw_of(a) for a in args], **{name: raw_of(v) for name, v in kwargs.items()})
    if isinstance(result, torch.Tensor):
        return SoftTensor(result, base.allocation, base.device_index)
    return [SoftTensor(one, base.allocation, base.device_index) for one in result]


def view_in_place(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> SoftTensor:
    """Change a tensor's own shape, or what bytes it lies over."""
    target = args[0]
    if op is _aten.resize_.default:
        return resize(target, args[1])
    if op is _aten.set_.source_Tensor:
        target.raw, target.allocation = args[1].raw, args[1].allocation
        return _show(target)
    moved = _from_segment_start(target, args) if op is _aten.as_strided_.default else args
    op(*[raw_of(a) for a in moved], **kwargs)
    return _show(target)


def resize(target: SoftTensor, size: Sequence[int]) -> SoftTensor:
    """Give a tensor another size, and other memory where it does not fit into its own."""
    wanted = torch.empty(tuple(size), dtype=target.dtype, device="meta")
    if wanted.nbytes <= target.allocation.num_bytes:
        target.raw = target.raw.as_strided(wanted.shape, wanted.stride())
        return _show(target)
    index = target.device_index
    made = make(wanted.shape, wanted.stride(), target.dtype, wanted.nbytes, index, "resize_")
    old, new, count = target.raw.reshape(-1), made.raw.reshape(-1), target.raw.numel()
    if count:
        launch("resize", target.regions(), made.regions(), lambda: new[:count].copy_(old), index)
    target.raw, target.allocation = made.raw, made.allocation
    return _show(target)


def _show(target: SoftTensor) -> SoftTensor:
    """Let a tensor show the shape that its bytes have got."""
    target.forget_regions()
    offset = int(target.raw.storage_offset()) - target.allocation.block.offset // target.raw.itemsize
    with no_dispatch():
        _aten.as_strided_.default(target, target.raw.shape, target.raw.stride(), offset)
    return target


def _from_segment_start(base: SoftTensor, args: Sequence[Any]) -> list[Any]:
    """Return as_strided's arguments with its offset counted from the segment's first byte."""
    before = base.allocation.block.offset // base.raw.itemsize
    offset = args[3] if len(args) > 3 and args[3] is not None else base.storage_offset()
    return [args[0], args[1], args[2], offset + before]

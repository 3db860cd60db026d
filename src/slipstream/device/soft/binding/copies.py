"""Copies between host and device, and the host's looks at device values.

Only a non-blocking copy from or to pinned memory leaves the host free. Every other one makes it wait for the
stream, also a non-blocking one of pageable memory: torch_npu copies that synchronously.
"""

from __future__ import annotations

from typing import Any

import torch

from slipstream.device.soft.binding.calls import (
    host_value,
    launch,
    raw_of,
    regions_of,
    synchronize,
    wait_for_host,
)
from slipstream.device.soft.binding.dispatch import dispatch, kernel, special
from slipstream.device.soft.binding.pinned import PinnedTensor, pin
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.binding.schema import facts
from slipstream.device.soft.binding.shapes import result_shapes
from slipstream.device.soft.binding.tensor import SoftTensor, make

_aten = torch.ops.aten


@special(_aten.copy_.default)
def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy into `target`, wherever the two lie."""
    if isinstance(target, SoftTensor):
        if isinstance(source, SoftTensor):
            return _between(target, source)
        return _to_device(target, source, non_blocking)
    assert isinstance(source, SoftTensor)
    return _to_host(target, source, non_blocking)


@special(_aten._to_copy.default)
def to_copy(source: torch.Tensor, **options: Any) -> torch.Tensor:
    """Copy into a new tensor, of another dtype or on another device."""
    device = options.get("device")
    device = source.device if device is None else device
    non_blocking = options.pop("non_blocking", False)
    op = _aten._to_copy.default
    if isinstance(source, SoftTensor) and device.type == "npu":
        index = source.device_index if device.index is None else device.index
        if index == source.device_index:
            copy: torch.Tensor = kernel(op, facts(op), (source,), options)
            return copy
    plain_options = {name: value for name, value in options.items() if name not in ("device", "pin_memory")}
    shape = result_shapes(op, (raw_of(source),), plain_options)[0]
    assert shape is not None
    if device.type == "npu":
        index = active().device if device.index is None else device.index
        made = make(shape.size, shape.stride, shape.dtype, shape.num_bytes, index, "a copy")
        return copy_(made, source, non_blocking)
    host = torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device="cpu")
    if non_blocking or options.get("pin_memory"):
        host = pin(host)
    return copy_(host, source, non_blocking)


@special(_aten._local_scalar_dense.default)
def item(source: SoftTensor) -> Any:
    """Return the one value of a tensor."""
    return host_value(source, "aten::_local_scalar_dense").item()


@special(_aten.record_stream.default)
def record_stream(tensor: SoftTensor, stream: torch.Stream) -> None:
    """Say that a stream uses a tensor's memory."""
    tensor.record_stream(stream)


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy as `copy_`, with the arguments the way PyTorch's backends have them."""
    dispatch(_aten.copy_.default, (target, source, non_blocking), {})
    return target


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copy into a tensor that takes the source's size."""
    if target.shape != source.shape:
        target.resize_(source.shape)
    return copy_from(source, target)


def _to_device(target: SoftTensor, source: torch.Tensor, non_blocking: bool) -> SoftTensor:
    _across(target, source, source, "copy {} to device", target.device_index, non_blocking)
    return target


def _to_host(target: torch.Tensor, source: SoftTensor, non_blocking: bool) -> torch.Tensor:
    _across(target, source, target, "copy device to {}", source.device_index, non_blocking)
    return target


def _across(
    target: torch.Tensor, source: torch.Tensor, host: torch.Tensor, name: str, index: int, non_blocking: bool
) -> None:
    """Copy between device `index` and `host`, one of the two; the host goes on at once only if it is pinned."""
    pinned = isinstance(host, PinnedTensor)
    blocking = not (non_blocking and pinned)
    name = name.format("host" if pinned else "pageable host")
    if blocking:
        wait_for_host(name, index)
    values, out = _plain(source), _plain(target)
    launch(name, regions_of(source), regions_of(target), lambda: out.copy_(values), index)
    if blocking:
        synchronize(index)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.raw if isinstance(tensor, (SoftTensor, PinnedTensor)) else tensor.detach()


def _between(target: SoftTensor, source: SoftTensor) -> SoftTensor:
    op = _aten.copy_.default
    if target.device_index == source.device_index:
        kernel(op, facts(op), (target, source), {})
        return target
    # On the source's stream, and both streams wait for each other before and after, as PyTorch does it.
    runtime = active()
    ours, theirs = runtime.current_stream(source.device_index), runtime.current_stream(target.device_index)
    out, raw = target.raw, source.raw
    _wait_stream(ours, theirs)
    launch(
        "copy between devices",
        source.regions(),
        target.regions(),
        lambda: out.copy_(raw),
        source.device_index,
    )
    _wait_stream(theirs, ours)
    return target


def _wait_stream(stream: int, other: int) -> None:
    machine = active().machine
    event = machine.event("copy between devices")
    machine.record(other, event)
    machine.wait(stream, event)

"""Pinned host memory: host and device both work on it, so what the host does to it is told to the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from slipstream.device.soft.binding.host_array import HostArray, touch
from slipstream.device.soft.binding.naming import named
from slipstream.device.soft.binding.regions import spans
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.binding.schema import Kind, facts
from slipstream.device.soft.binding.tensor import SoftTensor
from slipstream.device.soft.machine import Buffer, Region


class PinnedTensor(torch.Tensor):
    """A tensor in pinned host memory.

    Attributes:
        raw: the same bytes as a plain tensor.
        buffer: the machine's name of the memory.
    """

    raw: torch.Tensor
    buffer: Buffer

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: torch.Tensor, buffer: Buffer) -> PinnedTensor:
        made: PinnedTensor = torch.Tensor._make_subclass(cls, raw)
        made.raw, made.buffer = raw, buffer
        return made

    def __init__(self, *_: object) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _host_op(op, args, kwargs or {})

    def regions(self) -> list[Region]:
        """Return the bytes that it covers."""
        item = self.raw.itemsize
        found = spans(int(self.raw.storage_offset()) * item, self.raw.shape, self.raw.stride(), item)
        return [Region(self.buffer, *span) for span in found]

    def read(self, what: str) -> torch.Tensor:
        """Tell the machine that the host reads it, and return it as a plain tensor."""
        touch(self.regions(), (), what)
        return self.raw

    def is_pinned(self, device: Any = None) -> bool:
        """Return True."""
        return True

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        """Return itself."""
        return self

    def numpy(self, *, force: bool = False) -> HostArray:
        """Return the same bytes as an array; what is done to them is told to the machine too."""
        array = self.raw.numpy(force=force).view(HostArray)
        array.buffer, array.base_address = self.buffer, self.raw.untyped_storage().data_ptr()
        return array

    def __array__(self, dtype: Any = None) -> Any:
        return np.asarray(self.read("numpy").numpy(), dtype=dtype)

    def tolist(self) -> Any:
        """Return its values."""
        return self.read("tolist").tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.read("repr"))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = copy = pin(self.read("deepcopy").clone())
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.read("pickle").__reduce_ex__(protocol)


def pin(tensor: torch.Tensor) -> PinnedTensor:
    """Return a copy of a host tensor in pinned memory."""
    if isinstance(tensor, PinnedTensor):
        return tensor
    raw = tensor.detach().clone(memory_format=torch.preserve_format)
    buffer = active().machine.buffer(named("pinned tensor"), raw.untyped_storage().nbytes(), where="host")
    return PinnedTensor(raw, buffer)


def _host_op(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an op of the host on pinned memory."""
    device = kwargs.get("device")
    values = [*args, *kwargs.values()]
    flat = [one for v in values for one in (v if isinstance(v, (list, tuple)) else (v,))]
    if any(isinstance(v, SoftTensor) for v in flat) or (device is not None and device.type == "npu"):
        return SoftTensor.__torch_dispatch__(op, (), args, kwargs)
    known = facts(op)
    if known.kind is Kind.COMPOSITE:
        return op.decompose(*args, **kwargs)
    raw_args = [_raw(v) for v in args]
    raw_kwargs = {name: _raw(v) for name, v in kwargs.items()}
    base = next(v for v in flat if isinstance(v, PinnedTensor))
    if known.kind is Kind.VIEW:
        result = op(*raw_args, **raw_kwargs)
        if isinstance(result, torch.Tensor):
            return PinnedTensor(result, base.buffer)
        return [PinnedTensor(one, base.buffer) for one in result]
    given = dict(zip(known.names, args, strict=False)) | kwargs
    reads = [r for name, v in given.items() if name not in known.written for r in _pinned_regions(v)]
    writes = [r for name, v in given.items() if name in known.written for r in _pinned_regions(v)]
    touch(reads, writes, known.name)
    result = op(*raw_args, **raw_kwargs)
    owners = {id(v.raw): v for v in flat if isinstance(v, PinnedTensor)}
    return owners.get(id(result), result)


def _raw(value: Any) -> Any:
    if isinstance(value, PinnedTensor):
        return value.raw
    return [_raw(one) for one in value] if isinstance(value, (list, tuple)) else value


def _pinned_regions(value: Any) -> list[Region]:
    if isinstance(value, PinnedTensor):
        return value.regions()
    if isinstance(value, (list, tuple)):
        return [region for one in value for region in _pinned_regions(one)]
    return []

"""A tensor on the software NPU: it looks like one on "npu", and its bytes lie in host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from slipstream.device.soft.binding.memory import Allocation, place
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.machine import Region
from slipstream.device.soft.machine.places import Place, here

#: What the wrapper claims its storage holds, so that a resize may change its sizes.
_ANY_BYTES = 1 << 45

#: Set by `dispatch`: what becomes of an op on these tensors.
on_op: Callable[[Any, Sequence[Any], dict[str, Any]], Any] | None = None

_plain_data: Any = torch.Tensor.data


class SoftTensor(torch.Tensor):
    """A tensor on the software NPU.

    Attributes:
        raw: its bytes, as a plain CPU tensor. What stands there is what the commands run so far have written.
        allocation: the memory that it, and every view of it, lives in.
        device_index: the number of its device.
    """

    raw: torch.Tensor
    allocation: Allocation
    device_index: int
    _covered: tuple[torch.Tensor, list[Region]] | None = None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: torch.Tensor, allocation: Allocation, index: int) -> SoftTensor:
        made: SoftTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset() - allocation.block.offset // raw.itemsize,
            dtype=raw.dtype,
            device=_device(index),
            storage_size=_ANY_BYTES,
        )
        made.raw, made.allocation, made.device_index = raw, allocation, index
        return made

    def __init__(self, *_: object) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert on_op is not None
        return on_op(op, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its history."""
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        _plain_data.__set__(self, other)
        if isinstance(other, SoftTensor):
            self.raw, self.allocation, self.device_index = other.raw, other.allocation, other.device_index

    def regions(self) -> list[Region]:
        """Return the bytes that it covers in device memory."""
        covered = self._covered
        if covered is None or covered[0] is not self.raw:
            covered = self._covered = self.raw, self.allocation.regions(self.raw)
        return covered[1]

    def forget_regions(self) -> None:
        """Find out again what it covers: its bytes are others now."""
        self._covered = None

    def data_ptr(self) -> int:
        """Return where its first element lies. A block that is used again has its old address."""
        return self.raw.data_ptr()

    def untyped_storage(self) -> Any:
        """Return what lies under it and all its views."""
        return SoftStorage(self.allocation, self.device)

    def record_stream(self, stream: Any) -> None:
        """Say that `stream` uses this memory: its block is not used again before that work is done."""
        if stream.stream_id != self.allocation.stream:
            self.allocation.streams.add(stream.stream_id)

    def tolist(self) -> Any:
        """Return its values, after the current stream's work is done."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as every tensor off the host does, unless forced."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
            "host memory first."
        )

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def is_pinned(self, device: Any = None) -> bool:
        """Return False: pinned memory is the host's."""
        return False

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        """Refuse: only host tensors can be pinned."""
        raise RuntimeError(
            f"cannot pin 'torch.npu.{type(self).__name__}' only dense CPU tensors can be pinned"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shown = repr(self.detach().cpu())
        grad = ", requires_grad=True" if self.requires_grad and self.is_leaf else ""
        return f"{shown[:-1]}, device='{self.device}'{grad})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        copy = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=self.requires_grad)
        else:
            copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_rebuilt, (self.detach().cpu(), str(self.device), self.requires_grad))


def make(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, num_bytes: int, index: int, origin: str
) -> SoftTensor:
    """Return a new tensor with memory for the current stream.

    Args:
        size, stride: in elements.
        dtype: of an element.
        num_bytes: from its first byte to its last.
        index: the device.
        origin: the op that makes it; findings name it with the line of the program.

    Raises:
        RuntimeError: there is no such device.
        torch.OutOfMemoryError: it has not that much memory left.
    """
    runtime = active()
    if not 0 <= index < runtime.num_devices:
        raise RuntimeError(
            f"Invalid device: npu:{index}. The software NPU has {runtime.num_devices} device(s)."
        )
    stream = runtime.current_stream(index)
    label = f"{_DTYPES[dtype]}{list(size)} of {origin}"
    if runtime.machine.stacks:
        label = f"{label} at {_where(here())}"
    allocation = runtime.memories[index].allocate(num_bytes, stream, runtime.pool_for(stream), label)
    return SoftTensor(place(allocation, size, stride, dtype), allocation, index)


def weak_reference(tensor: SoftTensor) -> SoftTensor:
    """Return a tensor over the same bytes that does not keep them: its block may be another's any time."""
    weak = SoftTensor(tensor.raw, tensor.allocation, tensor.device_index)
    weak.allocation = _Lent(tensor.allocation)  # type: ignore[assignment]
    return weak


class SoftStorage:
    """The memory of a tensor and its views, for programs that ask whether two tensors share theirs."""

    def __init__(self, allocation: Allocation, device: torch.device) -> None:
        self._allocation, self.device = allocation, device

    def data_ptr(self) -> int:
        """Return where it begins."""
        return self._allocation.block.segment.address + self._allocation.block.offset

    def nbytes(self) -> int:
        """Return its size in bytes."""
        return self._allocation.num_bytes

    size = __len__ = nbytes

    @property
    def _cdata(self) -> int:
        return self._allocation.owner


class _Lent:
    """An allocation as seen by a tensor that does not keep it."""

    def __init__(self, kept: Allocation) -> None:
        self.block, self.owner, self.label = kept.block, kept.owner, kept.label
        self.num_bytes, self.pool, self.stream = kept.num_bytes, kept.pool, kept.stream
        self.streams: set[int] = set()
        self.storage = kept.storage

    def regions(self, data: torch.Tensor) -> Any:
        return Allocation.regions(self, data)  # type: ignore[arg-type]


def _rebuilt(host: torch.Tensor, device: str, requires_grad: bool) -> torch.Tensor:
    return host.to(device).requires_grad_(requires_grad)


@cache
def _where(place: Place) -> str:
    return place.where


class _Names(dict[torch.dtype, str]):
    def __missing__(self, dtype: torch.dtype) -> str:
        name = self[dtype] = str(dtype).removeprefix("torch.")
        return name


_DTYPES = _Names()
_devices: dict[int, torch.device] = {}


def _device(index: int) -> torch.device:
    found = _devices.get(index)
    if found is None:
        found = _devices[index] = torch.device("npu", index)
    return found

"""A numpy array over pinned memory. What is done to its values is told to the machine, as for a pinned tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.device.soft.binding.regions import spans
from slipstream.device.soft.binding.runtime import active, is_active
from slipstream.device.soft.machine import Buffer, Region


class HostArray(np.ndarray[Any, Any]):
    """A numpy array over pinned memory.

    Attributes:
        buffer: the machine's name of the memory, None for an array elsewhere.
        base_address: where that memory begins.
    """

    buffer: Buffer | None = None
    base_address = 0

    def __array_finalize__(self, other: Any) -> None:
        # A result of arithmetic lies elsewhere; only a view of the memory stays watched.
        if isinstance(other, HostArray) and other.buffer is not None and self._lies_in(other):
            self.buffer, self.base_address = other.buffer, other.base_address

    def _lies_in(self, other: HostArray) -> bool:
        assert other.buffer is not None
        offset = self.ctypes.data - other.base_address
        return 0 <= offset < max(other.buffer.num_bytes, 1)

    def regions(self) -> list[Region]:
        """Return the bytes that it covers in pinned memory."""
        if self.buffer is None or not self.size:
            return []
        item = self.itemsize
        strides = [abs(stride) // item for stride in self.strides]
        low = min(
            0, sum(stride * (n - 1) for stride, n in zip(self.strides, self.shape, strict=True) if stride < 0)
        )
        found = spans(self.ctypes.data + low - self.base_address, self.shape, strides, item)
        return [Region(self.buffer, *span) for span in found]

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not (isinstance(found, HostArray) and found.buffer is not None):
            touch(self._at(key).regions(), (), "numpy read")
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        touch(value.regions() if isinstance(value, HostArray) else (), self._at(key).regions(), "numpy write")
        super().__setitem__(key, value)

    def _at(self, key: Any) -> HostArray:
        """Return the part under a key as a view; all of it where the key is an array."""
        keys = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(one, (int, np.integer, slice, type(None), type(Ellipsis))) for one in keys):
            return self
        # An Ellipsis at the end makes a view also where every index is a number.
        found = np.ndarray.__getitem__(self, keys if Ellipsis in keys else (*keys, Ellipsis))
        assert isinstance(found, HostArray)
        return found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        reads = [r for one in inputs if isinstance(one, HostArray) for r in one.regions()]
        writes = [r for one in out or () if isinstance(one, HostArray) for r in one.regions()]
        touch(reads, writes, f"numpy {ufunc.__name__}")
        plain = [_unwatched(one) for one in inputs]
        if out is not None:
            kwargs["out"] = tuple(_unwatched(one) for one in out)
        result = getattr(ufunc, method)(*plain, **kwargs)
        return out[0] if out is not None and len(out) == 1 else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.copyto:
            writes, reads = _regions(args[:1]), _regions(args[1:])
        else:
            writes, reads = [], _regions((*args, *kwargs.values()))
        touch(reads, writes, f"numpy {func.__name__}")
        return func(*_all_unwatched(args), **{name: _unwatched(v) for name, v in kwargs.items()})

    def fill(self, value: Any) -> None:
        """Write `value` everywhere."""
        self[...] = value

    def tolist(self) -> Any:
        """Return its values."""
        touch(self.regions(), (), "numpy tolist")
        return super().tolist()

    def item(self, *args: Any) -> Any:
        """Return one value."""
        touch(self.regions(), (), "numpy item")
        return super().item(*args)

    def copy(self, order: Any = "C") -> Any:
        """Return a copy elsewhere."""
        touch(self.regions(), (), "numpy copy")
        return _unwatched(self).copy(order)


def touch(reads: Sequence[Region], writes: Sequence[Region], what: str) -> None:
    """Tell the machine that the host reads and writes pinned memory."""
    if (reads or writes) and is_active():
        active().machine.host_access(tuple(reads), tuple(writes), what)


def _regions(values: Any) -> list[Region]:
    found = []
    for value in values:
        if isinstance(value, HostArray):
            found += value.regions()
        elif isinstance(value, (list, tuple)):
            found += _regions(value)
    return found


def _unwatched(value: Any) -> Any:
    if isinstance(value, HostArray):
        return value.view(np.ndarray)
    return _all_unwatched(value) if isinstance(value, (list, tuple)) else value


def _all_unwatched(values: Any) -> Any:
    return type(values)(_unwatched(value) for value in values)

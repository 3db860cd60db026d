"""Memory for weights: zeroed, aligned, and on huge pages where the system gives them.

A forward reads every weight once, so with pages of 4 KiB it misses the address cache tens of thousands of times;
with huge pages one-row products ran 15 to 25 % faster (docs/log.md).
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

_HUGE = 2 << 20
_CHUNK = 16 << 20
_ALIGNMENT = 64


class WeightMemory:
    """Hands out pieces of large blocks; a block lives as long as one of its pieces."""

    def __init__(self) -> None:
        self._block: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return `nbytes` zeroed bytes that begin at a multiple of 64.

        Raises:
            MemoryError: the system has no more.
        """
        if self._used + nbytes > self._block.nbytes:
            self._block, self._used = _block(max(nbytes, _CHUNK)), 0
        piece = self._block[self._used : self._used + nbytes]
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return piece


def _block(nbytes: int) -> npt.NDArray[np.uint8]:
    size = -(-nbytes // _HUGE) * _HUGE
    if not hasattr(mmap, "MAP_PRIVATE"):  # not a POSIX system
        return np.zeros(size, dtype=np.uint8)
    try:
        mapped = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes for weights") from error
    whole = np.frombuffer(mapped, dtype=np.uint8)
    start = -whole.ctypes.data % _HUGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE, start, size)
    return whole[start : start + size]


#: Weights of every model of this process.
weights = WeightMemory()

"""What a forward reads, and how fast this machine can read at all.

At one row a forward is as fast as its weights come from memory: bytes read over time, held against a plain
read of a buffer that no cache holds, says how much is left to gain.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.model.llama import Llama
from slipstream.native.memory import WeightMemory

_MIB = 1 << 20
#: The buffer is twice the last-level cache, within these bounds: larger ones take long to fill.
_LEAST_BYTES, _MOST_BYTES = 256 * _MIB, 1024 * _MIB
#: How long the reads go on; at least two are made.
_READ_S = 0.3


@dataclass(frozen=True, slots=True)
class ForwardBytes:
    """Bytes that a forward reads.

    Attributes:
        weights: of all matrices that it multiplies by.
        slot: keys and values of one token of context.
    """

    weights: int
    slot: int

    def of(self, tokens: float) -> float:
        """Return the bytes of a forward over `tokens` tokens of context, those of all requests together."""
        return self.weights + self.slot * tokens


def forward_bytes(target: Llama, slot_bytes: int) -> ForwardBytes:
    """Return what a forward of `target` reads; of the embedding it reads a row a token, which is not counted."""
    matrices = [matrix for layer in target.layers for matrix in layer.matrices]
    return ForwardBytes(sum(matrix.product_bytes for matrix in (*matrices, target.output)), slot_bytes)


def read_gb_s(threads: int) -> float:
    """Return how fast `threads` threads read memory that no cache holds, in GB/s: the best of some sums.

    Takes about half a second. The memory is what weights get, on huge pages where the system gives them. Of what
    was tried (float32, float64 and int64 sums, dot products, the native float32 product) a sum of float64 is among
    the fastest.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        buffer = torch.from_numpy(WeightMemory().take(_buffer_bytes())).view(torch.float64)
        buffer.fill_(1.0)  # pages that were never written are all one page of zeros
        best, reads, started = float("inf"), 0, time.perf_counter()
        while reads < 2 or time.perf_counter() - started < _READ_S:
            began = time.perf_counter()
            buffer.sum()
            best = min(best, time.perf_counter() - began)
            reads += 1
        return buffer.nbytes / best / 1e9
    finally:
        torch.set_num_threads(before)


def _buffer_bytes() -> int:
    return min(max(2 * last_level_cache_bytes(), _LEAST_BYTES), _MOST_BYTES)


def last_level_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the largest cache of the first core, 0 where the system does not say."""
    sizes = [0]
    for path in folder.glob("index*/size"):
        try:
            found = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
        except OSError:
            continue
        if found:
            sizes.append(int(found[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[found[2]])
    return int(max(sizes))

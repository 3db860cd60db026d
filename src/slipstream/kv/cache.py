"""The tensors behind the pages, float32 or float16: one a layer, [S, 2 K, D] (keys, then values).

Where attention wants keys and values apart: [2, S, K, D].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slipstream.errors import UsageError

#: What a plan's `kv_dtype` names.
DTYPES = {"f32": torch.float32, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values of one model.

    Attributes:
        layers: for each layer float32 or float16 [slots, 2 x kv heads, head dim], or apart
            [2, slots, kv heads, head dim].
        page_size: slots a page.
    """

    layers: Sequence[torch.Tensor]
    page_size: int

    @classmethod
    def make(
        cls,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        apart: bool = False,
    ) -> KvCache:
        """Make room for `num_pages` pages and the scratch page; on a CPU a page costs memory once written.

        `apart` says whether keys and values are.

        Raises:
            UsageError: the machine does not have so much.
        """
        slots = (num_pages + 1) * page_size
        shape = (2, slots, num_kv_heads, head_dim) if apart else (slots, 2 * num_kv_heads, head_dim)
        try:
            return cls([_zeros(shape, device, dtype) for _ in range(num_layers)], page_size)
        except (MemoryError, ValueError, RuntimeError) as error:  # numpy has the first two, torch the last
            gigabytes = num_layers * math.prod(shape) * dtype.itemsize / 1e9
            raise UsageError(
                f"{num_pages} pages of {page_size} tokens are {gigabytes:.1f} GB of keys and values, which this "
                "machine cannot reserve. Lower --num-pages, --max-model-len or --max-requests."
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.nbytes for layer in self.layers)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    # numpy takes zeroed memory from the system untouched, torch.zeros writes all of it.
    return torch.from_numpy(np.zeros(shape, dtype=np.float16 if dtype == torch.float16 else np.float32))

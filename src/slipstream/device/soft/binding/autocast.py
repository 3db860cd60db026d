"""torch.autocast("npu"): products in the lower precision, everything else as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

#: What autocast computes in the lower precision.
LOWER = (
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "linear",
    "conv1d",
    "conv2d",
    "scaled_dot_product_attention",
)

_KEY = "AutocastPrivateUse1"


def register() -> list[torch.library.Library]:
    """Register autocast's kernels for "npu", and return what keeps them."""
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, _KEY)
    aten = torch.library.Library("aten", "IMPL")
    for name in LOWER:
        packet = getattr(torch.ops.aten, name)
        aten.impl(name, _lowered(packet.default), _KEY)
    return [every, aten]


def _lowered(op: Any) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("npu")

        def lower(value: Any) -> Any:
            plain = isinstance(value, torch.Tensor) and value.dtype == torch.float32
            return value.to(dtype) if plain else value

        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*tree_map(lower, args), **tree_map(lower, kwargs))

    return run

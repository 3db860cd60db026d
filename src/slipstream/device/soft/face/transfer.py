"""`from torch_npu.contrib import transfer_to_npu`: from then on, what says "cuda" means "npu".

Devices in calls of PyTorch's functions and methods, and the names of torch.cuda that torch.npu has too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from slipstream.device.soft.binding.patches import Patches

#: Names of torch.cuda, and what they are there.
_OTHER_NAMES = {"CUDAGraph": "NPUGraph"}

_IS_CUDA: Any = torch.Tensor.is_cuda


class _CudaIsNpu(TorchFunctionMode):
    """Takes "cuda" for "npu" in what is called."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return _to_npu(*args, **kwargs)
        if func == _IS_CUDA.__get__:  # made anew at each look
            return args[0].device.type == "npu"
        return func(*tree_map(_renamed, args), **tree_map(_renamed, kwargs))


_mode: _CudaIsNpu | None = None


def begin(npu: Any, patches: Patches) -> None:
    """Take "cuda" for "npu" until `end`; what is patched, `patches` undoes."""
    global _mode
    if _mode is not None:
        return
    _mode = _CudaIsNpu()
    _mode.__enter__()  # type: ignore[no-untyped-call]
    for name in vars(npu):
        if not name.startswith("_") and callable(vars(npu)[name]) and hasattr(torch.cuda, name):
            patches.set(torch.cuda, name, vars(npu)[name])
    for name, ours in _OTHER_NAMES.items():
        patches.set(torch.cuda, name, vars(npu)[ours])


def end() -> None:
    """Let "cuda" be "cuda" again."""
    global _mode
    if _mode is not None:
        _mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        _mode = None


def _to_npu(
    tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any
) -> torch.Tensor:
    place = torch.device("npu", device) if isinstance(device, int) else _renamed(device or "npu")
    return tensor.to(place, non_blocking=non_blocking, **kwargs)


def _renamed(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu") if value.index is None else torch.device("npu", value.index)
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return value.replace("cuda", "npu")
    return value

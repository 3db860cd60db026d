"""Makes "npu" a device of this PyTorch: the renamed PrivateUse1 backend, with Python kernels for everything.

PyTorch knows no way to take that back, so it is done once in a process; without a Runtime in use every tensor on
"npu" is an error that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._C import Generator
from torch.utils import backend_registration
from torch.utils._device import _device_constructors

from slipstream.device.soft.binding import (
    autocast,
    copies,
    factories,  # noqa: F401 - it registers what becomes of factories
)
from slipstream.device.soft.binding.dispatch import dispatch
from slipstream.device.soft.binding.patches import Patches, StandIn
from slipstream.device.soft.binding.pinned import pin
from slipstream.device.soft.binding.runtime import is_active
from slipstream.device.soft.binding.tensor import SoftTensor
from slipstream.errors import DeviceError

#: Functions that take `pin_memory=`.
_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "range",
    "tensor",
    "zeros",
    "zeros_like",
)

_libraries: list[torch.library.Library] = []


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return is_active()

    def has_primary_context(self, dev_id: int) -> bool:
        return is_active()

    def is_built(self) -> bool:
        return True


def register(module: ModuleType) -> None:
    """Make "npu" a device, with `module` as its torch.npu. Later calls change nothing.

    Raises:
        DeviceError: this process has another backend in PrivateUse1's place, the real torch_npu for instance.
    """
    if _libraries:
        return
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone" or hasattr(torch, "npu"):
        raise DeviceError(
            f"PyTorch's place for a further device is taken by {name!r} in this process. The software NPU cannot "
            "stand beside the real torch_npu; do not import that one."
        )
    backend_registration._setup_privateuseone_for_python_backend("npu", backend_module=module, hook=_Hook())
    every = torch.library.Library("_", "IMPL")
    every.fallback(_fallback, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    # Inside C++ these two are called where Python's hooks are off, and the fallback is out of reach.
    aten.impl("_copy_from", copies.copy_from, "PrivateUse1")
    aten.impl("_copy_from_and_resize", copies.copy_from_and_resize, "PrivateUse1")
    _libraries.extend((every, aten, *autocast.register()))


def patch(patches: Patches) -> None:
    """Give PyTorch what its Python backends cannot say: pinned memory and generators."""
    patches.set(torch.Tensor, "pin_memory", _pin_memory)
    patches.set(torch, "Generator", StandIn(Generator, _generator))
    # A compiler would only see our wrappers. What it leaves as it is gives the same values.
    patches.set(torch, "compile", _leave)
    # PyTorch remembers which functions `with torch.device(...)` is for; that must be the real ones.
    _device_constructors()
    for name in _FACTORIES:
        patches.set(torch, name, _pinning(getattr(torch, name)))


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    return dispatch(op, args, kwargs)


def _leave(model: Any = None, **_: Any) -> Any:
    """Stand in for torch.compile: return the function as it is."""
    return model if model is not None else lambda function: function


def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    return pin(tensor)


def _pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = factory(*args, **kwargs)
        if pin_memory and not isinstance(made, SoftTensor):
            return pin(made).requires_grad_(made.requires_grad)
        return made

    return make


def _generator(device: Any = "cpu") -> Generator:
    """Return a generator; one for "npu" is on the host, where its numbers are drawn."""
    return Generator(torch.device("cpu") if torch.device(device).type == "npu" else torch.device(device))

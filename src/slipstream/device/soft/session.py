"""Puts the software NPU into this process, and takes it out again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from slipstream.device.soft.binding import backend, runtime
from slipstream.device.soft.binding.locked import LockedMachine
from slipstream.device.soft.binding.patches import Patches
from slipstream.device.soft.binding.runtime import Runtime
from slipstream.device.soft.binding.tensor import SoftTensor
from slipstream.device.soft.face import (
    accelerator,
    attention,
    builtin_handlers,  # noqa: F401 - it registers handlers
    modules,
    registry,
    transfer,
)
from slipstream.device.soft.face.graphs import graph
from slipstream.device.soft.machine import Limits, Machine, Scheduler, places
from slipstream.errors import DeviceError, UsageError

# Every op of Slipstream's own is called from one line there; the line that called it says more.
places.skip(os.path.join("slipstream", "ops", "registry.py"))

_patches = Patches()
_missing = modules.MissingModules(
    {"torch_npu.contrib.transfer_to_npu": lambda: transfer.begin(sys.modules["torch_npu.npu"], _patches)}
)
_modules: dict[str, ModuleType] = {}
_added: dict[str, Callable[..., Any]] = {}


def install(
    scheduler: Scheduler | None,
    devices: int,
    memory_bytes: int,
    limits: Limits | None,
    stacks: bool,
    keep: bool,
    ranks: int,
) -> Machine:
    """See `slipstream.device.soft.install`."""
    if runtime.is_active():
        raise DeviceError(
            "the software NPU is installed already; call slipstream.device.soft.uninstall() first"
        )
    if devices < 1 or memory_bytes < 1:
        raise UsageError(f"devices and memory_bytes are at least 1, not {devices} and {memory_bytes}")
    real = sys.modules.get("torch_npu")
    if real is not None and not isinstance(real, modules.FaceModule):
        raise DeviceError(
            "the real torch_npu is imported in this process; the software NPU cannot stand beside it"
        )
    attention.register()
    machine = LockedMachine(scheduler, limits, stacks=stacks, keep=keep, ranks=ranks)
    try:
        _put_in(Runtime(machine, devices, memory_bytes))
    except BaseException:
        uninstall()
        raise
    return machine


def _put_in(made: Runtime) -> None:
    npu, _, named = modules.build()
    for name, function in _added.items():
        setattr(npu, name, function)
    backend.register(npu)
    runtime.activate(made)
    torch.npu = npu  # type: ignore[attr-defined]
    sys.modules.update(named)
    _modules.update(named)
    sys.meta_path.insert(0, _missing)
    # PyTorch asks for torch.npu once; after that a tensor on "npu" always comes by our own error.
    torch.empty(0, device="npu")
    backend.patch(_patches)
    accelerator.patch(_patches)


def uninstall() -> None:
    """See `slipstream.device.soft.uninstall`."""
    if not runtime.is_active():
        return
    transfer.end()
    _patches.undo()
    for name in (*_modules, "torch_npu.contrib.transfer_to_npu"):
        sys.modules.pop(name, None)
    _modules.clear()
    if _missing in sys.meta_path:
        sys.meta_path.remove(_missing)
    torch.npu = _no_npu()  # type: ignore[attr-defined]
    graph.default_capture_stream = None
    runtime.activate(None)


def _no_npu() -> ModuleType:
    """Return what stands for torch.npu from now on.

    PyTorch cannot forget that PrivateUse1 is called "npu", and asks its module whether there is one: an optimizer
    does in every step, and `torch.manual_seed` seeds it.
    """
    module = ModuleType("torch.npu")
    module.is_available = lambda: False  # type: ignore[attr-defined]
    module.is_initialized = lambda: False  # type: ignore[attr-defined]
    module.device_count = lambda: 0  # type: ignore[attr-defined]
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
    return module


def note_inputs(graph: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """See `slipstream.device.soft.note_inputs`."""
    named = {f"args[{index}]": value for index, value in enumerate(args)} | kwargs
    found: dict[str, Any] = {}
    for name, value in named.items():
        leaves, _ = tree_flatten_with_path(value)
        for path, leaf in leaves:
            regions = leaf.regions() if isinstance(leaf, SoftTensor) else []
            found.update({f"{name}{keystr(path)}": region for region in regions[:1]})
    graph._note_inputs(found)


def register(name: str, function: Callable[..., Any]) -> None:
    """See `slipstream.device.soft.register`."""
    _added[name] = function
    if runtime.is_active():
        setattr(torch.npu, name, function)  # type: ignore[attr-defined]


def register_op(schema: str, function: Callable[..., Any], writes: tuple[str, ...], namespace: str) -> Any:
    """See `slipstream.device.soft.register_op`."""
    made = registry.register_op(schema, function, writes, namespace)
    if runtime.is_active():
        setattr(sys.modules["torch_npu"], schema.split("(", 1)[0].split(".", 1)[0].strip(), made)
    return made

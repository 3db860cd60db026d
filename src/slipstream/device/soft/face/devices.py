"""torch.npu's questions about devices."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.device.soft.binding.runtime import active, is_active

#: What the software NPU calls itself; a program may look for "Ascend".
DEVICE_NAME = "Ascend (software NPU)"


@dataclass(frozen=True)
class DeviceProperties:
    """What get_device_properties returns.

    Attributes:
        total_memory: bytes.
    """

    name: str
    total_memory: int
    cube_core_num: int = 1
    vector_core_num: int = 1
    L2_cache_size: int = 0


class device:
    """Makes a device the current one for a while; None and negative numbers change nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = active().device
            active().device = self.idx

    def __exit__(self, *args: Any) -> None:
        if self.idx >= 0:
            active().device = self.prev_idx


class device_of(device):
    """Makes the device of a tensor the current one for a while."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_npu else -1)


def index_of(given: Any) -> int:
    """Return the number of a device: of an int, a string, a torch.device, or the current one for None.

    Raises:
        ValueError: it is no NPU.
    """
    if given is None:
        return active().device
    if isinstance(given, int):
        return given
    if isinstance(given, device):
        return given.idx
    found = torch.device(given)
    if found.type != "npu":
        raise ValueError(f"Expected a npu device, but got: {found}")
    return active().device if found.index is None else found.index


def is_available() -> bool:
    """Return whether there is an NPU."""
    return is_active()


def device_count() -> int:
    """Return how many NPUs there are."""
    return active().num_devices if is_active() else 0


def current_device() -> int:
    """Return the number of the current device."""
    return active().device


def set_device(device: Any) -> None:
    """Make a device the current one."""
    index = index_of(device)
    if index >= 0:
        active().device = index


def get_device_name(device_name: Any = None) -> str:
    """Return what a device is called."""
    _checked(device_name)
    return DEVICE_NAME


def get_device_properties(device_name: Any = None) -> DeviceProperties:
    """Return what a device has."""
    return DeviceProperties(DEVICE_NAME, active().memories[_checked(device_name)].total_bytes)


def get_device_capability(device: Any = None) -> tuple[int, int] | None:
    """Return what TORCH_NPU_DEVICE_CAPABILITY says, as (major, minor), or None."""
    index_of(device)
    given = os.getenv("TORCH_NPU_DEVICE_CAPABILITY", "")
    found = re.fullmatch(r"(\d+)\.(\d+)", given)
    if found is None:
        warnings.warn(
            "torch.npu.get_device_capability returns what TORCH_NPU_DEVICE_CAPABILITY says, as '8.0', and it "
            f"{'is not set' if not given else f'says {given!r}'}.",
            stacklevel=2,
        )
        return None
    return int(found[1]), int(found[2])


def can_device_access_peer(device_id: Any, peer_device_id: Any) -> bool:
    """Return whether one device can read another's memory: all can."""
    return _checked(device_id) != _checked(peer_device_id)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free, total) bytes of a device."""
    memory = active().memories[_checked(device)]
    return memory.total_bytes - memory.figures.reserved, memory.total_bytes


def is_initialized() -> bool:
    """Return whether the software NPU is installed."""
    return is_active()


def init() -> None:
    """Check that the software NPU is installed."""
    active()


def is_bf16_supported(including_emulation: bool = False) -> bool:
    """Return True."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast may choose."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    active()


def _checked(given: Any) -> int:
    index = index_of(given)
    if not 0 <= index < active().num_devices:
        raise AssertionError("Invalid device id")
    return index

"""torch.accelerator's questions, answered by the software NPU."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.device.soft.binding.backend import Patches
from slipstream.device.soft.face import devices, figures, streams


def patch(patches: Patches) -> None:
    """Let torch.accelerator ask the software NPU where PyTorch's Python backends cannot answer."""
    for name, function in {
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "synchronize": streams.synchronize,
        "device_count": devices.device_count,
        "current_device_index": devices.current_device,
        "current_device_idx": devices.current_device,
        "set_device_index": devices.set_device,
        "set_device_idx": devices.set_device,
        "is_available": devices.is_available,
        "empty_cache": figures.empty_cache,
        "empty_host_cache": figures.host_empty_cache,
        "memory_stats": figures.memory_stats,
        "memory_allocated": figures.memory_allocated,
        "max_memory_allocated": figures.max_memory_allocated,
        "memory_reserved": figures.memory_reserved,
        "max_memory_reserved": figures.max_memory_reserved,
        "reset_peak_memory_stats": figures.reset_peak_memory_stats,
        "reset_accumulated_memory_stats": figures.reset_accumulated_memory_stats,
        "get_memory_info": devices.mem_get_info,
        "current_accelerator": _current_accelerator,
    }.items():
        if hasattr(torch.accelerator, name):
            patches.set(torch.accelerator, name, function)


def _current_accelerator(check_available: bool = False) -> Any:
    return torch.device("npu")

"""torch.npu's memory figures and its cache, over the model's memory."""

from __future__ import annotations

from typing import Any

from slipstream.device.soft.binding.memory import Figures, Memory
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.face.devices import index_of


def empty_cache() -> None:
    """Give unused memory back to the device."""
    for memory in active().memories:
        memory.empty_cache()


def host_empty_cache() -> None:
    """Do nothing: pinned memory is the host's own here."""


def memory_allocated(device: Any = None) -> int:
    """Return the bytes that tensors hold now."""
    return _figures(device).allocated


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes that tensors held."""
    return _figures(device).max_allocated


def memory_reserved(device: Any = None) -> int:
    """Return the bytes taken from the device."""
    return _figures(device).reserved


def max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes taken from the device."""
    return _figures(device).max_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the highest figures begin again from now."""
    _memory(device).reset_peaks()


def reset_max_memory_allocated(device: Any = None) -> None:
    """Let the highest figures begin again from now."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let the counts begin again from zero."""
    figures = _figures(device)
    figures.allocations = figures.retries = figures.ooms = 0


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the figures by the names that torch_npu has for them."""
    figures = _figures(device)
    return {
        "allocated_bytes.all.current": figures.allocated,
        "allocated_bytes.all.peak": figures.max_allocated,
        "reserved_bytes.all.current": figures.reserved,
        "reserved_bytes.all.peak": figures.max_reserved,
        "allocation.all.allocated": figures.allocations,
        "segment.all.current": figures.segments,
        "num_alloc_retries": figures.retries,
        "num_ooms": figures.ooms,
    }


def memory_snapshot(mempool_id: Any = None) -> list[dict[str, Any]]:
    """Return the segments: address, size, stream, private pool."""
    return [
        {
            "device": index,
            "address": segment.address,
            "total_size": segment.num_bytes,
            "stream": stream,
            "segment_pool_id": pool,
        }
        for index, memory in enumerate(active().memories)
        for pool, stream, segment in memory.segments()
        if mempool_id is None or tuple(mempool_id) == pool
    ]


def _memory(device: Any) -> Memory:
    memory = active().memories[index_of(device)]
    memory.collect()
    return memory


def _figures(device: Any) -> Figures:
    return _memory(device).figures

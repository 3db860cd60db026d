"""PyTorch's own names for streams, events and graphs of any accelerator, answered by the software NPU."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.device.soft.binding.patches import Patches, StandIn
from slipstream.device.soft.face import devices, figures, streams
from slipstream.device.soft.face.graphs import NPUGraph

_RealStream, _RealEvent = torch.Stream, torch.Event


class Graph:
    """torch.accelerator.Graph: a graph for any accelerator. It knows no task updates."""

    def __init__(
        self, keep_graph: bool = False, *, pool: Any = None, capture_error_mode: str = "default"
    ) -> None:
        self.graph_pool, self.capture_error_mode = pool, capture_error_mode
        self._graph = NPUGraph()

    def capture_begin(self) -> None:
        """Begin to capture what the current stream is given."""
        mode = "global" if self.capture_error_mode == "default" else self.capture_error_mode
        self._graph.capture_begin(pool=self.graph_pool, capture_error_mode=mode)

    def capture_end(self) -> None:
        """End the capture."""
        self._graph.capture_end()

    def instantiate(self) -> None:
        """Do nothing: a captured graph can be replayed."""

    def replay(self) -> None:
        """Run the captured work on the current stream."""
        self._graph.replay()

    def reset(self) -> None:
        """Let go of the captured work."""
        self._graph.reset()

    def pool(self) -> tuple[int, int]:
        """Return the memory pool."""
        return self._graph.pool()

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        self.capture_begin()

    def __exit__(self, *_: object) -> None:
        self.capture_end()


def patch(patches: Patches) -> None:
    """Let PyTorch's general functions ask the software NPU where its Python backends cannot answer."""
    for name, function in {
        "Graph": Graph,
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
    patches.set(torch, "Stream", StandIn(_RealStream, _stream))
    patches.set(torch, "Event", StandIn(_RealEvent, _event))


def _current_accelerator(check_available: bool = False) -> torch.device:
    return torch.device("npu")


def _stream(device: Any = None, **options: Any) -> Any:
    if device is None and "stream_id" not in options:
        device = "npu"
    if device is not None and torch.device(device).type == "npu":
        return streams.Stream(torch.device(device), **options)
    return _RealStream(device, **options) if device is not None else _RealStream(**options)


def _event(device: Any = None, **options: Any) -> Any:
    if device is None or torch.device(device).type == "npu":
        return streams.Event(**options)
    return _RealEvent(device, **options)

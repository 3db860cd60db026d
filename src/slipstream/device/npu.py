"""Ascend NPUs, over `torch.npu`.

Run in full by our tests on the software NPU (`slipstream.device.soft`), which answers as `torch.npu`. Untested on
a real NPU. What `torch.npu` does not tell (a graph's nodes, times inside a replay) is empty.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

import torch

from slipstream.config import GRAPH_MODES
from slipstream.device.api import Gate, Stream
from slipstream.device.caps import Caps
from slipstream.device.torch_streams import TorchDevice, TorchStream, raw_of
from slipstream.errors import DeviceError


class NpuGate(Gate):
    """An ExternalEvent: the device itself holds the stream, so nothing here can tell that it never opens."""

    def __init__(self, device: NpuDevice) -> None:
        self._raw = device.module.ExternalEvent()

    def open(self, stream: Stream) -> None:
        self._raw.record(raw_of(stream))

    def wait(self, stream: Stream) -> None:
        self._raw.wait(raw_of(stream))
        # A wait closes the gate by itself only where the runtime can wait for a value; elsewhere this does.
        self._raw.reset(raw_of(stream))


class NpuDevice(TorchDevice):
    """The current NPU.

    Raises:
        DeviceError: there is no torch_npu, or it sees no device.
    """

    name = "npu"

    def __init__(self) -> None:
        self.module = _torch_npu()
        self.torch_device = torch.device("npu", self.module.current_device())
        self.caps = Caps(
            device="npu",
            # 4-bit products are made for CPUs here.
            dtypes=("f32", "bf16"),
            graph_modes=GRAPH_MODES,
            parallel_streams=True,
            # Nobody has measured it; the CPU's kernels under the software NPU say nothing of a real one's.
            row_invariant=(),
            # The host only launches.
            default_threads=1,
        )
        self.entered: list[TorchStream] = []

    def gate(self) -> Gate:
        return NpuGate(self)

    def new_graph(self, name: str) -> Any:
        return self.module.NPUGraph()

    def capturing(self, raw: Any, stream: Stream, pool: Any = None) -> AbstractContextManager[Any]:
        captured: AbstractContextManager[Any] = self.module.graph(raw, pool=pool, stream=raw_of(stream))
        return captured


def _torch_npu() -> Any:
    """Return `torch.npu`, of torch_npu or of the software NPU."""
    try:
        importlib.import_module("torch_npu")
    except ImportError as error:
        raise DeviceError(
            "device 'npu' needs torch_npu, which cannot be imported here "
            f"({error}). Install it beside its CANN, or run on the software NPU: `slipstream check`, or "
            "slipstream.device.soft.install() first."
        ) from error
    module: Any = torch.npu  # type: ignore[attr-defined]
    if not module.is_available():
        raise DeviceError(
            "torch_npu is there, but sees no NPU; look at `npu-smi info` and ASCEND_RT_VISIBLE_DEVICES."
        )
    return module

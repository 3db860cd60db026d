"""CUDA GPUs, over `torch.cuda`. Untested on a real GPU so far: tests marked `cuda` run where there is one.

What it shares with Ascend NPUs (`torch_streams`) is run in full on the software NPU. What `torch.cuda` does not
tell (a graph's nodes, times inside a replay) is empty.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from slipstream.config import GRAPH_MODES
from slipstream.device.api import Gate, Stream
from slipstream.device.caps import Caps
from slipstream.device.torch_streams import TorchDevice, raw_of
from slipstream.errors import DeviceError

#: CU_STREAM_WAIT_VALUE_EQ and CU_STREAM_WRITE_VALUE_DEFAULT of the driver's header.
_EQUAL, _DEFAULT = 1, 0


class CudaGate(Gate):
    """A word of device memory that streams wait for and write, by the driver's stream memory operations.

    PyTorch's own events don't do: a wait for one that was never recorded does not block, and recording replaces.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._driver = _driver()
        self._word = torch.zeros(1, dtype=torch.int32, device=device.torch_device)
        # Another stream may get to its wait before the zero is there.
        device.synchronize()

    def open(self, stream: Stream) -> None:
        self._do("cuStreamWriteValue32_v2", stream, 1, _DEFAULT)

    def wait(self, stream: Stream) -> None:
        self._do("cuStreamWaitValue32_v2", stream, 1, _EQUAL)
        self._do("cuStreamWriteValue32_v2", stream, 0, _DEFAULT)

    def _do(self, name: str, stream: Stream, value: int, flags: int) -> None:
        handle = ctypes.c_void_p(raw_of(stream).cuda_stream)
        address = ctypes.c_uint64(self._word.data_ptr())
        code = getattr(self._driver, name)(handle, address, ctypes.c_uint32(value), ctypes.c_uint(flags))
        if code != 0:
            raise DeviceError(
                f"the CUDA driver refused a gate ({name} gave {code}). It needs a GPU and a driver with stream "
                "memory operations: CUDA 12 or newer."
            )


class CudaDevice(TorchDevice):
    """The current GPU.

    Raises:
        DeviceError: PyTorch was built without CUDA, or sees no GPU.
    """

    name = "cuda"

    def __init__(self) -> None:
        super().__init__(_torch_cuda())
        self.caps = Caps(
            device="cuda",
            # 4-bit products are made for CPUs here.
            dtypes=("f32", "bf16"),
            graph_modes=GRAPH_MODES,
            parallel_streams=True,
            # Matrix products choose their kernels by the number of rows.
            row_invariant=(),
            # The host only launches.
            default_threads=1,
        )

    def gate(self) -> Gate:
        return CudaGate(self)

    def new_graph(self, name: str) -> Any:
        return self.module.CUDAGraph()


def _torch_cuda() -> Any:
    """Return `torch.cuda`."""
    if not torch.cuda.is_available():
        built = torch.version.cuda
        blind = f"was built for CUDA {built}, but sees no GPU; look at `nvidia-smi`"
        raise DeviceError(
            f"device 'cuda' is not possible here: this PyTorch {blind if built else 'has no CUDA in it'}. "
            "Use --device cpu, or install a PyTorch build with CUDA on a machine with an NVIDIA GPU."
        )
    return torch.cuda


@cache
def _driver() -> ctypes.CDLL:
    """Return the CUDA driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"gates need the CUDA driver, which cannot be loaded here ({error}).") from error

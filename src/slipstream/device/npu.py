"""Ascend NPUs, over `torch.npu`.

Run in full by our tests on the software NPU (`slipstream.device.soft`), which answers as `torch.npu`. Untested on
a real NPU. What `torch.npu` does not tell (a graph's nodes, times inside a replay) is empty.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch

from slipstream.config import GRAPH_MODES
from slipstream.device.api import Gate, HostOp, PagedQuery, Stream, Task
from slipstream.device.caps import Caps
from slipstream.device.npu_attention import FusedAttention, causal_mask
from slipstream.device.torch_streams import TorchDevice, TorchGraph, raw_of
from slipstream.errors import CaptureError, DeviceError, ReplayError

#: Arguments that are numbers of the host: a graph keeps those of the capture.
_HOST_NUMBERS = frozenset(
    ("actual_seq_lengths", "actual_seq_lengths_kv", "actual_seq_qlen", "actual_seq_kvlen", "context_lens")
)


class NpuGate(Gate):
    """An ExternalEvent: the device itself holds the stream, so nothing here can tell that it never opens."""

    def __init__(self, device: NpuDevice) -> None:
        self._raw = device.module.ExternalEvent()

    def open(self, stream: Stream) -> None:
        self._raw.record(raw_of(stream))
        self.openings += 1

    def wait(self, stream: Stream) -> None:
        self._raw.wait(raw_of(stream))
        # A wait closes the gate by itself only where the runtime can wait for a value; elsewhere this does.
        self._raw.reset(raw_of(stream))


class NpuTask(Task):
    """A task group of a captured graph."""

    def __init__(self, module: Any, name: str, handle: Any) -> None:
        self._module, self._name, self._handle = module, name, handle

    def update(self, issue: Callable[[], None], stream: Stream) -> None:
        raw = raw_of(stream)
        try:
            self._module.graph_task_update_begin(raw, self._handle)
            try:
                issue()
            except BaseException:
                # Left open, it would take in whatever the stream is given next.
                with suppress(RuntimeError):
                    self._module.graph_task_update_end(raw)
                raise
            self._module.graph_task_update_end(raw)
        except RuntimeError as error:
            raise ReplayError(f"{self._name} could not be updated: {error}") from error
        self.updates += 1


class NpuGraph(TorchGraph):
    """An NPUGraph and its task groups."""

    def __init__(self, device: NpuDevice, name: str) -> None:
        super().__init__(device, name)
        self._module = device.module
        self._tasks: list[NpuTask] | None = None  # those of the capture in progress
        self._in_task = False

    def capture(self, function: Callable[[], Any], stream: Stream) -> Any:
        tasks: list[NpuTask] = []
        self._tasks = tasks
        try:
            result = super().capture(function, stream)
        finally:
            self._tasks, self._in_task = None, False
        self.num_tasks = len(tasks)
        return result

    def task(self, issue: Callable[[], None], stream: Stream) -> Task:
        if self._tasks is None:
            raise CaptureError(f"graph {self.name!r} is not being captured, so it takes no task.")
        raw = raw_of(stream)
        self._module.graph_task_group_begin(raw)
        self._in_task = True
        issue()
        self._in_task = False
        handle = self._module.graph_task_group_end(raw)
        made = NpuTask(self._module, f"task {len(self._tasks) + 1} of graph {self.name!r}", handle)
        self._tasks.append(made)
        return made

    def _look_at(self, op: Any) -> None:
        if not self._in_task and _takes_host_numbers(op):
            raise CaptureError(
                f"graph {self.name!r}: {op} takes numbers from the host, and every replay would use those of the "
                "capture. Capture it as a task (graph.tasks.TaskBook.call), or leave it out of the graph."
            )


@cache
def _takes_host_numbers(op: Any) -> bool:
    return any(argument.name in _HOST_NUMBERS for argument in op._schema.arguments)


class NpuDevice(TorchDevice):
    """The current NPU.

    Raises:
        DeviceError: there is no torch_npu, or it sees no device.
    """

    name = "npu"

    def __init__(self) -> None:
        super().__init__(_torch_npu())
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
            attentions=("paged", "fia"),
        )
        self._mask: torch.Tensor | None = None

    def gate(self) -> Gate:
        return NpuGate(self)

    def graph(self, name: str) -> NpuGraph:
        return NpuGraph(self, name)

    def paged_attention(self, query: PagedQuery) -> HostOp:
        if query.query_BWQD.shape[1] > 1 and self._mask is None:
            self._mask = causal_mask(self.torch_device)
        return FusedAttention(query, self._mask)

    def new_graph(self, name: str) -> Any:
        return self.module.NPUGraph()


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

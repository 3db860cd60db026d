"""A call of an op with its arguments as a command takes them, and the ways to the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from slipstream.device.soft.binding.pinned import PinnedTensor
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.binding.schema import OpFacts
from slipstream.device.soft.binding.tensor import SoftTensor
from slipstream.device.soft.machine import Region

_CPU = torch.device("cpu")

#: Ops that may stand in a task group begin so; the device updates attention with host lists, nothing else.
UPDATABLE = ("npu::", "atb::")


class Call:
    """One call's arguments.

    Attributes:
        args, kwargs: with plain CPU tensors for those of the device; values of host tensors as they are now.
        reads, writes: what the command touches.
        index: the device, that of the first tensor there, or the one that the call names, or the current one.
    """

    __slots__ = ("args", "index", "known", "kwargs", "reads", "writes")

    def __init__(self, known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.known = known
        self.reads: list[Region] = []
        self.writes: list[Region] = []
        self.index = -1
        written = known.written
        if written:
            self.args = [self._bind(v, name in written) for name, v in zip(known.names, args, strict=False)]
            self.kwargs = {name: self._bind(v, name in written) for name, v in kwargs.items()}
        else:
            self.args = [self._bind(v, False) for v in args]
            self.kwargs = {name: self._bind(v, False) for name, v in kwargs.items()} if kwargs else {}
        if self.index < 0:
            device = kwargs.get("device")
            self.index = active().device if device is None or device.index is None else device.index

    def _bind(self, value: Any, written: bool) -> Any:
        if isinstance(value, torch.Tensor):
            if type(value) is SoftTensor or isinstance(value, SoftTensor):
                if self.index < 0:
                    self.index = value.device_index
                (self.writes if written else self.reads).extend(value.regions())
                return value.raw
            return self._host(value)
        if isinstance(value, (list, tuple)):
            return [self._bind(one, written) for one in value]
        return _CPU if isinstance(value, torch.device) else value

    def _host(self, value: torch.Tensor) -> torch.Tensor:
        """Return a host tensor's values as they are now: they become part of the command.

        Raises:
            RuntimeError: it is more than a number, and the op takes device tensors only.
        """
        if value.dim() and not self.known.takes_host_tensors:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"npu:{active().device} and cpu! (when checking arguments of {self.known.name})"
            )
        host = value.read(self.known.name) if isinstance(value, PinnedTensor) else value
        return host.detach().clone()


def launch(
    name: str, reads: Sequence[Region], writes: Sequence[Region], run: Callable[[], Any], index: int
) -> None:
    """Give a command to the current stream of device `index`."""
    runtime = active()
    runtime.memories[index].collect()
    stream = runtime.current_stream(index)
    runtime.machine.kernel(stream, name, tuple(reads), tuple(writes), run, name.startswith(UPDATABLE))


def host_value(tensor: SoftTensor, what: str) -> torch.Tensor:
    """Return a tensor's values in host memory, after the current stream has come so far.

    Raises:
        SoftError: a capture forbids it (107030).
    """
    box: list[torch.Tensor] = []
    raw = tensor.raw
    wait_for_host(what, tensor.device_index)
    launch(what, tensor.regions(), (), lambda: box.append(raw.clone()), tensor.device_index)
    synchronize(tensor.device_index)
    return box[0]


def wait_for_host(what: str, index: int) -> None:
    """Check that the host may wait for the device now."""
    runtime = active()
    runtime.machine.sync_copy(runtime.current_stream(index), what)


def synchronize(index: int) -> None:
    """Let the host wait for the current stream."""
    runtime = active()
    runtime.machine.synchronize(runtime.current_stream(index))


def regions_of(tensor: torch.Tensor) -> list[Region]:
    """Return the bytes that a tensor covers, in device memory or in pinned host memory."""
    return tensor.regions() if isinstance(tensor, (SoftTensor, PinnedTensor)) else []


def raw_of(value: Any) -> Any:
    """Return what a command computes with: plain CPU tensors for device tensors, the CPU for the device."""
    if isinstance(value, (SoftTensor, PinnedTensor)):
        return value.raw
    if isinstance(value, (list, tuple)):
        return [raw_of(one) for one in value]
    return _CPU if isinstance(value, torch.device) else value


def tensors_in(args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among the arguments, those in lists too."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(one for one in value if isinstance(one, torch.Tensor))
    return found

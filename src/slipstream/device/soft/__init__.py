"""The software NPU: a model of Ascend's streams, gates and graphs that runs on a CPU.

    machine = soft.install(Seeded(7))       # now device="npu", torch.npu and torch_npu are there
    run_program()
    print(machine.finish())                 # races, hangs and what else was found
    soft.uninstall()

Importing this imports no torch; `install` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.device.soft.machine import Limits, Machine, Scheduler

__all__ = ["install", "installed", "note_inputs", "register", "register_op", "uninstall"]


def install(
    scheduler: Scheduler | None = None,
    *,
    devices: int = 1,
    memory_bytes: int = 64 << 30,
    limits: Limits | None = None,
    stacks: bool = True,
    keep: bool = False,
    ranks: int = 1,
) -> Machine:
    """Make "npu" a device of this process, with torch.npu and an importable torch_npu.

    Args:
        scheduler: which of the legal orders is run; program order if None.
        devices: how many NPUs there are.
        memory_bytes: memory of each.
        limits: streams that the device has.
        stacks: whether findings say where in the program each command was made.
        keep: whether the machine keeps every command, to try other orders of them.
        ranks: how many simulated ranks.

    Returns:
        The machine; its `finish()` gives what was found.

    Raises:
        DeviceError: it is installed already, or the real torch_npu is imported.
        UsageError: a number that makes no sense.
    """
    from slipstream.device.soft import session

    return session.install(scheduler, devices, memory_bytes, limits, stacks, keep, ranks)


def uninstall() -> None:
    """Take torch.npu and torch_npu out of this process. Tensors on "npu" cannot be used any more."""
    from slipstream.device.soft import session

    session.uninstall()


@contextmanager
def installed(scheduler: Scheduler | None = None, **options: Any) -> Iterator[Machine]:
    """Have the software NPU inside the block; `options` are those of `install`."""
    machine = install(scheduler, **options)
    try:
        yield machine
    finally:
        uninstall()


def note_inputs(graph: Any, *args: Any, **kwargs: Any) -> None:
    """Say what a captured function was called with, or is called with before a replay.

    The first call is that of the capture. A graph reads what lay there then; where a later call's tensor lies
    elsewhere, the next replay is a finding of kind "stale-address" that names the argument.

    Args:
        graph: an NPUGraph.
        args, kwargs: the function's arguments; tensors inside lists and dicts count.
    """
    from slipstream.device.soft import session

    session.note_inputs(graph, args, kwargs)


def register(name: str, function: Callable[..., Any]) -> None:
    """Give torch.npu a function that the model lacks, now and after each later `install`."""
    from slipstream.device.soft import session

    session.register(name, function)


def register_op(
    schema: str, function: Callable[..., Any], writes: Sequence[str] = (), namespace: str = "npu"
) -> Any:
    """Give torch_npu an op that the model lacks.

    Args:
        schema: as torch_npu has it: "npu_swiglu(Tensor self, int dim=-1) -> Tensor".
        function: what it computes, in plain torch; it gets CPU tensors.
        writes: arguments that it writes although the schema doesn't say so.
        namespace: of the op in torch.ops.

    Returns:
        The op, as torch_npu.NAME will be.

    Raises:
        UsageError: the schema cannot be read, or the op exists with another function.
    """
    from slipstream.device.soft import session

    return session.register_op(schema, function, tuple(writes), namespace)

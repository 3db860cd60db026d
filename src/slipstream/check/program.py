"""A program under one schedule of the software NPU: what it found, and why it stopped if it did."""

from __future__ import annotations

import importlib.metadata
import linecache
import os
import random
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.check.outcome import Orders, Outcome, Problem
from slipstream.check.request import CheckRequest, read_source
from slipstream.device import soft
from slipstream.device.soft.face.modules import MissingNameError
from slipstream.device.soft.machine import Finding, Machine, ProgramOrder, Report, Scheduler, Seeded, explore, places
from slipstream.device.soft.machine.errors import EventSyncTimeout, SoftError, StreamSyncTimeout
from slipstream.errors import SlipstreamError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_SEED = 0


def scheduler_of(seed: int | None) -> Scheduler:
    """Return the scheduler of a seed; program order for None."""
    return ProgramOrder() if seed is None else Seeded(seed)


def run_schedule(request: CheckRequest, seed: int | None) -> Outcome:
    """Run the program once, in this process. It leaves traces: call it in a fork.

    Args:
        request: the program.
        seed: of the schedule; program order if None.
    """
    machine = _install(scheduler_of(seed))
    stop = _attempt(lambda: _main(request.path, request.arguments), machine)
    commands = 0
    if stop is None:
        reports: list[Report] = []
        stop = _attempt(lambda: reports.append(machine.finish()), machine)
        commands = reports[0].commands if reports else 0
    findings = _plain(machine.findings, request.path)
    problem = None
    if isinstance(stop, Problem):
        problem = stop
    elif stop is not None and stop.is_new:
        findings.append(stop.finding)
    return Outcome(seed, commands, findings, problem, notes=_notes() if seed is None else [])


def run_orders(request: CheckRequest) -> Outcome:
    """Run the program in program order, keep its commands, and try their orders. Call it in a fork."""
    machine = _install(ProgramOrder(), keep=True)
    stop = _attempt(lambda: _main(request.path, request.arguments), machine)
    if isinstance(stop, Problem):
        return Outcome(None, problem=stop)
    found = explore(machine.program(), request.exhaustive)
    findings = _plain(found.findings, request.path)
    return Outcome(None, 0, findings, orders=Orders(found.orders, found.complete))


def _plain(findings: Sequence[Finding], path: str) -> list[dict[str, Any]]:
    """Return findings as plain data, their stacks cut below the program."""
    plain = [finding.as_dict() for finding in findings]
    for finding in plain:
        finding["stacks"] = [_cut(stack, path) for stack in finding["stacks"]]
    return plain


def _cut(stack: list[str], path: str) -> list[str]:
    tops = [n for n, line in enumerate(stack) if line.startswith(f"{path}:") and " in <module>" in line]
    return stack[: tops[-1] + 1] if tops else stack


def _install(scheduler: Scheduler, keep: bool = False) -> Machine:
    for part in (_OWN, "<frozen ", "<string>"):
        places.skip(part)
    torch.set_num_threads(1)
    random.seed(_SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(_SEED)
    torch.manual_seed(_SEED)
    return soft.install(scheduler, keep=keep)


def _main(path: str, arguments: Sequence[str]) -> None:
    """Run a file as `python FILE ARGUMENTS` would, and wait for its threads."""
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    exec(compile(read_source(path), path, "exec", dont_inherit=True), module.__dict__)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


@dataclass(frozen=True)
class _Refusal:
    """What the device refused. `is_new` is False for a wait without an end, whose hang is a finding already."""

    finding: dict[str, Any]
    is_new: bool


def _attempt(function: Callable[[], object], machine: Machine) -> Problem | _Refusal | None:
    """Call a function; return why it did not come to its end, or None."""
    try:
        function()
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        frame = _frame(error)
        return Problem("raised", f"the program exited with {error.code!r}" + (f"\n  at {frame}" if frame else ""))
    except MissingNameError as error:
        return Problem("lacks", _told(error))
    except BaseException as error:
        first = _first(error)
        if isinstance(first, SoftError):
            hangs = isinstance(first, StreamSyncTimeout | EventSyncTimeout)
            return _Refusal(_refusal(first), not (hangs and machine.findings))
        return Problem("lacks" if isinstance(first, SlipstreamError) else "raised", _told(first))
    return None


def _first(error: BaseException) -> BaseException:
    """Return what went wrong first: the end of a capture that broke refuses too, and hides why it broke."""
    while isinstance(error, SoftError) and error.__context__ is not None:
        error = error.__context__
    return error


def _refusal(error: SoftError) -> dict[str, Any]:
    """Return what the device refuses, as a finding."""
    frames = _frames(error)
    return {
        "kind": "refused",
        "title": f"the device refuses this with {error.ascend}: {error.sentence}",
        "streams": [],
        "ops": ["the call"],
        "buffer": None,
        "stacks": [frames[:8]],
        "missing": "",
        "order": [],
        "code": error.code,
    }


def _told(error: BaseException) -> str:
    """Return an exception in two lines: what it says, and the program's innermost frame."""
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    # The module path of an exception class says nothing to the reader.
    name = type(error).__name__
    said = said.removeprefix(f"{type(error).__module__}.")
    if isinstance(error, MissingNameError):
        said = said.removeprefix(f"{name}: ")
    frame = _frame(error)
    return f"{said}\n  at {frame}" if frame else said


def _frame(error: BaseException) -> str:
    return next(iter(_frames(error)), "")


def _frames(error: BaseException) -> list[str]:
    """Return the program's frames of an exception, innermost first, as findings write theirs."""
    lines = []
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_program(code.co_filename):
            source = linecache.getline(code.co_filename, number).strip()
            lines.append(f"{code.co_filename}:{number} in {code.co_name}" + (f": {source}" if source else ""))
    return lines[::-1]


def is_program(path: str) -> bool:
    """Return whether a file is the program's own: not ours, not torch's, not the standard library's."""
    apart = f"{os.sep}site-packages{os.sep}" in path or path.startswith((_PACKAGE, "<frozen"))
    return not apart and not path.startswith(_LIBRARY)


def _notes() -> list[str]:
    try:
        version = importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [f"torch_npu {version} is installed here; the program got the software NPU in its place."]

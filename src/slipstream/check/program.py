"""A program of the user's under one schedule: what it found, and why it stopped if it did."""

from __future__ import annotations

import importlib.metadata
import os
import random
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

import torch

from slipstream.check.attempts import attempt
from slipstream.check.outcome import Orders, Outcome, Problem
from slipstream.check.request import read_source
from slipstream.device import soft
from slipstream.device.soft.machine import (
    Finding,
    Machine,
    ProgramOrder,
    Report,
    Scheduler,
    Seeded,
    explore,
    places,
)

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SEED = 0


def scheduler_of(seed: int | None) -> Scheduler:
    """Return the scheduler of a seed; program order for None."""
    return ProgramOrder() if seed is None else Seeded(seed)


class Script:
    """A file that is run as `python FILE ARGUMENTS` would run it.

    A run leaves traces in its process (modules, random states): each wants a fork of its own.
    """

    def __init__(self, path: str, arguments: Sequence[str]) -> None:
        self._path, self._arguments = path, arguments

    def schedule(self, seed: int | None) -> Outcome:
        """Run it under one schedule, program order if None."""
        machine = _install(scheduler_of(seed))
        reports: list[Report] = []
        stop = attempt(self._main, machine) or attempt(lambda: reports.append(machine.finish()), machine)
        findings = self._plain(machine.findings)
        if stop is not None and not isinstance(stop, Problem):
            if stop.is_new:
                findings.append(stop.finding)
            # For the count of commands alone: what stands still is a finding already.
            attempt(lambda: reports.append(machine.finish()), machine)
        return Outcome(
            seed,
            reports[0].commands if reports else 0,
            findings,
            stop if isinstance(stop, Problem) else None,
            notes=_notes() if seed is None else [],
        )

    def orders(self, bound: int) -> Outcome:
        """Run it in program order, keep its commands, and try `bound` orders of them at most."""
        machine = _install(ProgramOrder(), keep=True)
        stop = attempt(self._main, machine)
        if isinstance(stop, Problem):
            return Outcome(None, problem=stop, orders=Orders(0, False))
        found = explore(machine.program(), bound)
        return Outcome(None, 0, self._plain(found.findings), orders=Orders(found.orders, found.complete))

    def _main(self) -> None:
        module = types.ModuleType("__main__")
        module.__file__ = self._path
        sys.modules["__main__"] = module
        sys.argv = [self._path, *self._arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(self._path)))
        exec(compile(read_source(self._path), self._path, "exec", dont_inherit=True), module.__dict__)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()

    def _plain(self, findings: Sequence[Finding]) -> list[dict[str, Any]]:
        """Return findings as plain data, their stacks cut below the program."""
        plain = [finding.as_dict() for finding in findings]
        for finding in plain:
            finding["stacks"] = [self._cut(stack) for stack in finding["stacks"]]
        return plain

    def _cut(self, stack: list[str]) -> list[str]:
        tops = [
            n for n, line in enumerate(stack) if line.startswith(f"{self._path}:") and " in <module>" in line
        ]
        return stack[: tops[-1] + 1] if tops else stack


def _install(scheduler: Scheduler, keep: bool = False) -> Machine:
    """Install the software NPU in a process whose random states are always the same."""
    for part in (_OWN, "<frozen ", "<string>"):
        places.skip(part)
    torch.set_num_threads(1)
    random.seed(_SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(_SEED)
    torch.manual_seed(_SEED)
    return soft.install(scheduler, keep=keep)


def _notes() -> list[str]:
    try:
        version = importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [f"torch_npu {version} is installed here; the program got the software NPU in its place."]

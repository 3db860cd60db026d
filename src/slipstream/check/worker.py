"""The process that runs the schedules, started by `command`.

It imports torch once, warms it up, and runs each schedule in a fork of itself. The request comes in on standard
input; what each schedule showed goes out on the file descriptor named by the first argument, one pickle after
another.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from slipstream.check import forks
from slipstream.check.attempts import is_program
from slipstream.check.outcome import Orders, Outcome, Problem
from slipstream.check.program import Script
from slipstream.check.request import CheckRequest
from slipstream.device import soft

#: What a program printed is shown up to this many bytes.
_MOST_OUTPUT = 1 << 20


def warm_up() -> None:
    """Do what the first op of a process has to do once, so that no schedule has to: here it is 2 s of imports."""
    with soft.installed():
        x = torch.ones(2, 2, device="npu")
        (x @ x + 1).sum().item()


class Subject(Protocol):
    """What is checked."""

    def schedule(self, seed: int | None) -> Outcome:
        """Run it under one schedule, program order if None."""

    def orders(self, bound: int) -> Outcome:
        """Record it, and try `bound` orders at most."""


def _subject(request: CheckRequest) -> Subject:
    if request.path is not None:
        return Script(request.path, request.arguments)
    from slipstream.check.own_round import OwnRound

    return OwnRound()


def outcomes(request: CheckRequest) -> Iterator[Outcome]:
    """Run every schedule of a request, each in a fork; stop after the first that has a problem.

    What the program raises under a seed after something was found is what that led to: the next seeds are run.
    """
    subject = _subject(request)
    found = False
    for seed in (None, *request.seeds):
        outcome = _guarded(partial(subject.schedule, seed), request, Outcome(seed))
        found = found or bool(outcome.findings)
        yield outcome
        led_to = (
            found and seed is not None and outcome.problem is not None and outcome.problem.kind == "raised"
        )
        if outcome.problem is not None and not led_to:
            return
    if request.exhaustive:
        empty = Outcome(None, orders=Orders(0, False))
        yield _guarded(partial(subject.orders, request.exhaustive), request, empty)


def _guarded(function: Callable[[], Outcome], request: CheckRequest, empty: Outcome) -> Outcome:
    with tempfile.TemporaryFile() as printed:
        try:
            outcome: Outcome = forks.run(function, request.timeout, printed.fileno())
        except forks.Stopped as stopped:
            outcome = replace(empty, problem=Problem("timeout", _stood(stopped, request)))
        except forks.Died as died:
            outcome = replace(empty, problem=Problem("died", f"{request.name}: {died}."))
        if empty.seed is not None or empty.orders is not None:
            return outcome
        printed.seek(0)
        return replace(outcome, output=printed.read(_MOST_OUTPUT).decode(errors="replace"))


def _stood(stopped: forks.Stopped, request: CheckRequest) -> str:
    text = f"it did not end within {request.timeout:g} s and was stopped; --timeout gives it longer"
    for path, number, function in stopped.stack:
        if is_program(path):
            return f"{text}\n  it stood at {path}:{number} in {function}"
    return text


def main(arguments: list[str]) -> int:
    """Serve one request."""
    request: CheckRequest = pickle.loads(sys.stdin.buffer.read())
    # Ctrl-C goes to the command, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    with os.fdopen(int(arguments[0]), "wb") as out:
        torch.set_num_threads(1)  # no thread may run when the process is copied
        warm_up()
        _send(out, None)
        for outcome in outcomes(request):
            _send(out, outcome)
    return 0


def _send(out: Any, what: Outcome | None) -> None:
    pickle.dump(what, out)
    out.flush()


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Raised where the worker stands, so that the schedule in progress is stopped on the way out.
    raise SystemExit(1)

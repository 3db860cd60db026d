"""The process that runs the schedules, started by `command`.

It imports torch once, warms it up, and runs each schedule in a fork of itself. The request comes in on standard
input; what each schedule showed goes out on the file descriptor named by the first argument, one pickle after
another.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator
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


#: As many schedules are run at a time.
_CORES = len(os.sched_getaffinity(0))

#: What is known of an outcome before, and what gives it.
Call = tuple[Outcome, Callable[[], Outcome]]


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

    Program order is run alone; what it has to say of a bad program need not be waited for. What the program raises
    under a seed after something was found is what that led to: the next seeds are run.
    """
    subject = _subject(request)
    found = False
    first = [(Outcome(None), partial(subject.schedule, None))]
    seeded = ((Outcome(seed), partial(subject.schedule, seed)) for seed in request.seeds)
    empty = Outcome(None, orders=Orders(0, False))
    orders = [(empty, partial(subject.orders, request.exhaustive))] if request.exhaustive else []
    for calls in (first, seeded, orders):
        with contextlib.closing(_run(iter(calls), request)) as results:
            for outcome in results:
                found = found or bool(outcome.findings)
                yield outcome
                problem = outcome.problem
                led_to = (
                    found and outcome.seed is not None and problem is not None and problem.kind == "raised"
                )
                if problem is not None and not led_to:
                    return


def _run(calls: Iterator[Call], request: CheckRequest) -> Generator[Outcome]:
    """Run calls in forks, as many at a time as there are cores, and yield what they give in their order."""
    running: deque[_Running] = deque()
    try:
        while True:
            while len(running) < _CORES and (call := next(calls, None)) is not None:
                running.append(_Running(*call, request))
            if not running:
                return
            while not running[0].fork.over:
                forks.wait([one.fork for one in running if not one.fork.over])
            yield running.popleft().outcome()
    finally:
        for one in running:
            one.close()


class _Running:
    """A schedule that runs in a fork.

    Args:
        empty: what is known of its outcome before.
        function: gives the outcome.
        request: whose schedule it is.
    """

    def __init__(self, empty: Outcome, function: Callable[[], Outcome], request: CheckRequest) -> None:
        self._empty, self._request = empty, request
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `outcome` and `close`)
        self.fork = forks.Fork(function, request.timeout, self._printed.fileno())

    def outcome(self) -> Outcome:
        """Return the outcome of a schedule that is over; the output is program order's alone."""
        try:
            outcome: Outcome = self.fork.result()
        except forks.Stopped as stopped:
            outcome = replace(self._empty, problem=Problem("timeout", _stood(stopped, self._request)))
        except forks.Died as died:
            outcome = replace(self._empty, problem=Problem("died", f"{self._request.name}: {died}."))
        with self._printed as printed:
            if self._empty.seed is not None or self._empty.orders is not None:
                return outcome
            printed.seek(0)
            return replace(outcome, output=printed.read(_MOST_OUTPUT).decode(errors="replace"))

    def close(self) -> None:
        """Stop the schedule; nobody wants its outcome."""
        self.fork.close()
        self._printed.close()


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

"""`slipstream check`: starts the worker, shows how far it is, and collects what it says."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import slipstream
from slipstream.check.outcome import Outcome
from slipstream.check.report import CheckReport, collect
from slipstream.check.request import CheckRequest
from slipstream.errors import UsageError

#: Seconds that the worker gets to stop the program that it runs.
_GRACE = 5.0

#: Not -m, which would let a file of the current folder take the place of a module that the worker imports.
_START = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from slipstream.check.worker import main; sys.exit(main(sys.argv[1:]))"
)

Show = Callable[[Outcome], None]


def run_check(request: CheckRequest) -> CheckReport:
    """Run a program under its schedules.

    What the program prints in program order, and a bar on a terminal, go to standard error.

    Args:
        request: the program and the schedules.

    Raises:
        UsageError: a value is not possible, or the program is not one.
    """
    request.validate()
    outcomes: list[Outcome] = []
    with _bar(request) as show:
        for outcome in _outcomes(request):
            outcomes.append(outcome)
            show(outcome)
    return collect(request, outcomes)


def refusal(report: CheckReport) -> UsageError | None:
    """Return why a program could not be checked, as the error that the command ends with; None if it could."""
    name = report.request.name
    if report.problem is not None:
        schedule, problem = report.problem
        words = {"raised": f"{name} raised under {schedule}: ", "timeout": f"{name} under {schedule}: "}
        return UsageError(words.get(problem.kind, "") + problem.text)
    if not report.commands and not report.findings:
        return UsageError(
            f"{name} ran to its end and gave the NPU nothing to do, so there is nothing to check. "
            'Tensors on device="npu" make commands; torch.npu and torch_npu are there without an installation.'
        )
    return None


def _outcomes(request: CheckRequest) -> Iterator[Outcome]:
    """Start the worker, and yield what each schedule showed."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START, str(Path(slipstream.__file__).parents[1]), str(writing)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(writing,),
        env=_environment(),
    )
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as results:
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(pickle.dumps(request))
            while True:
                try:
                    outcome: Outcome | None = pickle.load(results)
                except EOFError:
                    break
                if outcome is not None:
                    yield outcome
        if process.wait() != 0:
            raise UsageError(
                f"the process that runs the schedules ended with exit code {process.returncode}; what it said "
                "is above. Give it more memory, or fewer cores, if the system ended it."
            )
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    """Return the worker's environment: the real torch_npu does not load itself, sets have one order."""
    return {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONHASHSEED": "0"}


@contextmanager
def _bar(request: CheckRequest) -> Iterator[Show]:
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        total = 1 + request.schedules + bool(request.exhaustive)
        task = bar.add_task("schedules", total=total, text="starting")
        found = 0

        def show(outcome: Outcome) -> None:
            nonlocal found
            if outcome.output:
                console.out(outcome.output, end="", highlight=False)
            found += len(outcome.findings)
            text = "nothing found yet" if not found else "something is found"
            bar.update(task, advance=1, text=f"{outcome.label} done, {text}")

        yield show

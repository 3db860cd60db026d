"""`slipstream trace record -- COMMAND`: runs it so that its engines record, and says what came of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from slipstream.errors import SlipstreamError, UsageError
from slipstream.trace.ambient import VARIABLE, numbered


@dataclass(frozen=True)
class Recorded:
    """What a command left.

    Attributes:
        code: its exit code.
        traces: the files, an engine each, in the order in which the engines were built.
    """

    code: int
    traces: tuple[Path, ...]


def record(command: tuple[str, ...], trace: Path) -> Recorded:
    """Run a command with the variable set under which engines record.

    Args:
        command: and its arguments; `slipstream` is this installation's.
        trace: where the first engine's trace goes.

    Raises:
        UsageError: there is no command, or it cannot be run.
        SlipstreamError: it ran and recorded nothing.
    """
    if not command:
        raise UsageError(
            "name the command behind --, as in `slipstream trace record -- slipstream run smollm2 --prompt hi`."
        )
    if not trace.absolute().parent.is_dir():
        raise UsageError(f"--trace {trace}: the folder {trace.absolute().parent} does not exist.")
    said = shlex.join(command)
    first, *rest = command
    words = [sys.executable, "-m", "slipstream.cli", *rest] if first == "slipstream" else list(command)
    for old in existing(trace):
        old.unlink()
    try:
        process = subprocess.Popen(words, env={**os.environ, VARIABLE: str(trace.absolute())})
    except OSError as error:
        raise UsageError(f"cannot run {first!r}: {error.strerror or error}.") from error
    code = _wait(process)
    found = tuple(existing(trace))
    if not found:
        raise SlipstreamError(
            f"`{said}` ended with exit code {code} and recorded nothing: no Slipstream engine of it ran a step. "
            "`slipstream run`, `slipstream bench decode` and programs that use slipstream.LLM are recorded; "
            "for anything else give a profiler's trace to `slipstream trace analyse`."
        )
    return Recorded(code, found)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait; Ctrl-C reaches the command as well, which then writes what it has."""
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue
        return code if code >= 0 else 128 - code


def existing(trace: Path) -> list[Path]:
    """Return the traces of a recording: the first engine's, the second one's, as long as there are any."""
    found: list[Path] = []
    for number in count(1):
        path = numbered(trace, number)
        if not path.exists():
            return found
        found.append(path)
    raise AssertionError  # the loop ends above

"""Calls a function, and turns what it raises into what the report can say."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipstream.check.outcome import Problem
from slipstream.device.soft.face.modules import MissingNameError
from slipstream.device.soft.machine import Machine
from slipstream.device.soft.machine.errors import EventSyncTimeout, SoftError, StreamSyncTimeout
from slipstream.errors import SlipstreamError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_DEPTH = 8


@dataclass(frozen=True)
class Refusal:
    """What the device refused. `is_new` is False for a wait without an end, whose hang is a finding already."""

    finding: dict[str, Any]
    is_new: bool


def attempt(function: Callable[[], object], machine: Machine) -> Problem | Refusal | None:
    """Call a function; return why it did not come to its end, or None."""
    try:
        function()
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        frame = _frame(error)
        return Problem(
            "raised", f"the program exited with {error.code!r}" + (f"\n  at {frame}" if frame else "")
        )
    except MissingNameError as error:
        return Problem("lacks", _told(error))
    except BaseException as error:
        first = _first(error)
        if isinstance(first, SoftError):
            hangs = isinstance(first, StreamSyncTimeout | EventSyncTimeout)
            return Refusal(_finding(first), not (hangs and machine.findings))
        return Problem("lacks" if isinstance(first, SlipstreamError) else "raised", _told(first))
    return None


def _first(error: BaseException) -> BaseException:
    """Return what went wrong first: the end of a capture that broke refuses too, and hides why it broke."""
    while isinstance(error, SoftError) and error.__context__ is not None:
        error = error.__context__
    return error


def _finding(error: SoftError) -> dict[str, Any]:
    """Return what the device refuses, as a finding."""
    frames = _frames(error)
    return {
        "kind": "refused",
        "title": f"the device refuses this with {error.ascend}: {error.sentence}",
        "streams": [],
        "ops": ["the call"],
        "buffer": None,
        "stacks": [frames[:_DEPTH]],
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

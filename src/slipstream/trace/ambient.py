"""Recording without being asked for it in code: an environment variable names the file.

    SLIPSTREAM_TRACE=trace.json.gz python serve.py

Every engine of the process that was given no recorder gets one of its own. When the process ends, the first
one's events are in trace.json.gz, the second one's in trace.2.json.gz, and so on. An engine that did nothing
leaves no file.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slipstream.errors import SlipstreamError
from slipstream.trace.chrome import write_chrome
from slipstream.trace.recorder import NullRecorder, Recorder

#: Names the file.
VARIABLE: Final = "SLIPSTREAM_TRACE"

#: What was said about each engine's run, and its events, in the order in which the engines were built.
_Kept = list[tuple[Recorder, Mapping[str, int | float | str]]]
_kept: _Kept = []


def ambient_recorder(about: Mapping[str, int | float | str] | None = None) -> Recorder:
    """Return a recorder whose events are written when the process ends, or one that records nothing.

    Args:
        about: what the file should say of the run.
    """
    if not os.environ.get(VARIABLE):
        return NullRecorder()
    if not _kept:
        atexit.register(write_kept)
    recorder = Recorder()
    _kept.append((recorder, dict(about or {})))
    return recorder


def numbered(path: Path, number: int) -> Path:
    """Return the file of the how-manieth engine.

    >>> numbered(Path("out/trace.json.gz"), 2)
    PosixPath('out/trace.2.json.gz')
    """
    if number == 1:
        return path
    stem, dot, ending = path.name.partition(".")
    return path.with_name(f"{stem}.{number}{dot}{ending}")


def write_kept() -> list[Path]:
    """Write what was recorded so far, and forget it; return the files."""
    kept, _kept[:] = list(_kept), []
    target = os.environ.get(VARIABLE)
    written: list[Path] = []
    if not target:
        return written
    for recorder, about in kept:
        events = recorder.events()
        if not events:
            continue
        path = numbered(Path(target), len(written) + 1)
        try:
            write_chrome(path, events, metadata={**about, "dropped": recorder.dropped})
        except SlipstreamError as error:
            print(f"error: {error}", file=sys.stderr)
        else:
            written.append(path)
    return written

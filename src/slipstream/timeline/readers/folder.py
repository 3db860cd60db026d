"""What of a path is a trace, and of which kind."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.errors import TraceError
from slipstream.timeline.readers.database import is_database

_OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
#: Files that make a folder an Ascend profile, best first.
_ASCEND: Final = ("trace_view.json", "kernel_details.csv", "communication.json", "step_trace_time.csv")
_DATABASES: Final = ("ascend_pytorch_profiler*.db", "msprof_*.db")
#: How far below a folder traces are looked for.
_DEPTH: Final = 4
_SNIFF: Final = 1 << 16
_TEXT_TIME: Final = re.compile(rb'"ts"\s*:\s*"\d')
_OURS: Final = re.compile(rb'^\s*\{[^\[]*"slipstream"\s*:\s*\{\s*"schema"')


@dataclass(frozen=True, slots=True)
class Found:
    """One rank's trace.

    Attributes:
        kind: "kineto", "slipstream", "ascend text", "ascend db", or "ascend folder" for what has no timeline.
        path: the file, or the folder of "ascend folder".
        folder: the Ascend profile that the file is in, or None.
    """

    kind: str
    path: Path
    folder: Path | None = None


def find_traces(path: Path) -> list[Found]:
    """Return the traces at a path: a file's, an Ascend profile's, or of every rank below a folder.

    Raises:
        TraceError: there is none.
    """
    if not path.exists():
        raise TraceError(f"there is nothing at {path}. A trace is a profiler's file, or a folder of them.")
    if path.is_file():
        return [_file(path)]
    found = sorted(_walk(path, _DEPTH), key=lambda each: str(each.path))
    if not found:
        raise TraceError(
            f"no trace is in {path}. Looked for: PyTorch's *.json and *.json.gz, Ascend's {_OUTPUT} with "
            "trace_view.json, kernel_details.csv or a database, msprof_*.db."
        )
    return found


def _file(path: Path) -> Found:
    if is_database(path):
        return Found("ascend db", path, path.parent)
    if path.name == "kernel_details.csv":
        return Found("ascend folder", path.parent, path.parent)
    start = _start(path)
    if _is_dump(start):
        raise TraceError(
            f"{path} is the dump of a graph, not a trace: give it beside a trace of its replays."
        )
    # Ascend's are bare arrays; a name decides only where the times, which are text there, do not.
    named = path.name == "trace_view.json" or path.name.startswith("msprof_")
    if start.lstrip()[:1] == b"[" and (named or _TEXT_TIME.search(start)):
        return Found("ascend text", path, path.parent)
    return Found("slipstream" if _OURS.match(start) else "kineto", path)


def _walk(folder: Path, depth: int) -> Iterator[Found]:
    profile = _ascend(folder)
    if profile is not None:
        yield profile
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"cannot read the folder {folder}: {error.strerror or error}") from error
    for entry in entries:
        if entry.is_dir():
            if depth and not entry.name.startswith("."):
                yield from _walk(entry, depth - 1)
        elif entry.name.endswith((".json", ".json.gz")) and _looks_like_events(entry):
            yield _file(entry)


def _ascend(folder: Path) -> Found | None:
    """The Ascend profile of a folder. Its database holds more, and exactly; then the timeline, then tables."""
    output = folder / _OUTPUT
    place = output if output.is_dir() else folder
    for pattern in _DATABASES:
        for path in sorted(place.glob(pattern)):
            return Found("ascend db", path, place)
    if (place / _ASCEND[0]).is_file():
        return Found("ascend text", place / _ASCEND[0], place)
    if any((place / name).is_file() for name in _ASCEND) or (
        place is output and (place / "analysis.db").is_file()
    ):
        return Found("ascend folder", place, place)
    return None


def _looks_like_events(path: Path) -> bool:
    start = _start(path)
    return not _is_dump(start) and (
        b'"traceEvents"' in start
        or b'"ph"' in start
        or b"deviceProperties" in start
        or b"schemaVersion" in start
    )


def _is_dump(start: bytes) -> bool:
    """Whether it is what NPUGraph.debug_dump or CUDAGraph.get_graph_data wrote."""
    return b' aclGraph"' in start or (b'"exec_graph_id"' in start and b'"dependents"' in start)


def _start(path: Path) -> bytes:
    """The first bytes of a file, decompressed."""
    try:
        with path.open("rb") as file:
            data = file.read(_SNIFF)
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}") from error
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return zlib.decompressobj(31).decompress(data, _SNIFF)
    except zlib.error:
        return b""

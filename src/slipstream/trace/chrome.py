"""Chrome's trace JSON, as Perfetto and chrome://tracing open it: written from events, and read back.

One thread a track, no overlapping slices, `ts` and `dur` in microseconds with three decimals, so exact to the
nanosecond, relative to the first event. Waits between tracks are flow events.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from slipstream.errors import SlipstreamError
from slipstream.trace.arrows import Arrows
from slipstream.trace.events import Args, Event, Flow, Mark, Slice
from slipstream.trace.files import replace_file
from slipstream.trace.flatten import check_no_overlap, flatten
from slipstream.trace.names import TRACKS

#: Raised when a reader of an older file would misread a newer one.
SCHEMA: Final = 1

_PID: Final = 1
# Perfetto reads a trace whole and gains little from a better ratio; level 6 would take twice the time.
_GZIP_LEVEL: Final = 4

_Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class ChromeTrace:
    """What a Chrome file of ours holds.

    Attributes:
        process_name: whose trace it is.
        metadata: what the writer said about the run.
        origin_ns: the clock at the file's time 0; add it to times of `events` to get the recorder's times.
        events: slices without overlap, then flows, then marks, with times from the file's time 0.
    """

    process_name: str
    metadata: Args
    origin_ns: int
    events: list[Event]


def write_chrome(
    path: str | Path,
    events: Iterable[Event],
    *,
    process_name: str = "slipstream",
    metadata: Mapping[str, int | float | str] | None = None,
) -> Path:
    """Write events as Chrome trace JSON, all or nothing; gzip where the name ends in ".gz".

    Args:
        path: the file; it is replaced if it exists.
        events: what a recorder recorded. Slices may nest; they are written flat (see `flatten`).
        process_name: the name above the tracks.
        metadata: anything worth knowing about the run, as the model and the device.

    Returns:
        The path.

    Raises:
        SlipstreamError: the file could not be written; nothing is left of it and an older one is untouched.
        ValueError: two slices of one track overlap and neither encloses the other.
    """
    path = Path(path)
    data = encode_chrome(events, process_name=process_name, metadata=metadata)
    if path.name.endswith(".gz"):
        # mtime=0: the same events make the same file.
        data = gzip.compress(data, compresslevel=_GZIP_LEVEL, mtime=0)
    replace_file(path, data, "trace")
    return path


def encode_chrome(
    events: Iterable[Event], *, process_name: str, metadata: Mapping[str, int | float | str] | None = None
) -> bytes:
    """Return events as the bytes of a Chrome trace, one event a line; see `write_chrome`."""
    events = list(events)
    slices = flatten(events)
    check_no_overlap(slices)
    flows = [event for event in events if isinstance(event, Flow)]
    marks = [event for event in events if isinstance(event, Mark)]
    origin_ns = min(_first_times(events), default=0)
    tids = {track: tid for tid, track in enumerate(_tracks(slices, flows, marks), start=1)}
    arrows = Arrows(slices)

    lines = _name_lines(process_name, tids)
    lines += [_slice_line(item, tids, origin_ns) for item in slices]
    lines += [
        line
        for number, flow in enumerate(flows, 1)
        for line in _flow_lines(number, flow, arrows, tids, origin_ns)
    ]
    lines += [_mark_line(mark, tids, origin_ns) for mark in marks]
    head = {
        "displayTimeUnit": "ns",
        "slipstream": {"schema": SCHEMA, "origin_ns": origin_ns},
        "otherData": _json_args(metadata or {}),
    }
    body = b",\n".join(msgspec.json.encode(line) for line in lines)
    return msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n' + body + b"\n]}\n"


def read_chrome(path: str | Path) -> ChromeTrace:
    """Read a file that `write_chrome` wrote. Traces of other programs are for `slipstream.timeline`.

    Raises:
        SlipstreamError: the file cannot be read, or it is not such a trace.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return _decode(_DECODER.decode(data))
    except (gzip.BadGzipFile, zlib.error, EOFError, msgspec.DecodeError, KeyError, ValueError) as error:
        raise SlipstreamError(f"{path} is not a trace that Slipstream wrote: {error}") from error
    except OSError as error:
        raise SlipstreamError(f"cannot read the trace {path}: {error.strerror or error}") from error


# Writing.


def _tracks(slices: list[Slice], flows: list[Flow], marks: list[Mark]) -> list[str]:
    """Every track once: the known ones first, in their order, then the others by name."""
    found = {item.track for item in slices} | {mark.track for mark in marks}
    found |= {track for flow in flows for track in (flow.from_track, flow.to_track)}
    return [track for track in TRACKS if track in found] + sorted(found - set(TRACKS))


def _first_times(events: list[Event]) -> Iterable[int]:
    for event in events:
        match event:
            case Slice():
                yield event.start_ns
            case Flow():
                yield min(event.from_ns, event.to_ns)
            case Mark():
                yield event.at_ns


def _name_lines(process_name: str, tids: dict[str, int]) -> list[_Json]:
    lines: list[_Json] = [{"ph": "M", "name": "process_name", "pid": _PID, "args": {"name": process_name}}]
    for track, tid in tids.items():
        about: _Json = {"ph": "M", "pid": _PID, "tid": tid}
        lines.append(about | {"name": "thread_name", "args": {"name": track}})
        lines.append(about | {"name": "thread_sort_index", "args": {"sort_index": tid}})
    return lines


def _slice_line(item: Slice, tids: dict[str, int], origin_ns: int) -> _Json:
    return {
        "ph": "X",
        "name": item.name,
        "pid": _PID,
        "tid": tids[item.track],
        "ts": _microseconds(item.start_ns - origin_ns),
        "dur": _microseconds(item.dur_ns),
        "args": _json_args(item.args),
    }


def _flow_lines(number: int, flow: Flow, arrows: Arrows, tids: dict[str, int], origin_ns: int) -> list[_Json]:
    """The two ends of an arrow. Viewers want each inside a slice, so the true times go into `args`."""
    common: _Json = {"name": flow.name, "cat": "wait", "id": number, "pid": _PID}
    tail_ns, head_ns = arrows.ends(flow)
    tail: _Json = {"ph": "s", "tid": tids[flow.from_track], "ts": _microseconds(tail_ns - origin_ns)}
    head: _Json = {"ph": "f", "bp": "e", "tid": tids[flow.to_track], "ts": _microseconds(head_ns - origin_ns)}
    return [
        common | tail | {"args": {"at_ns": flow.from_ns - origin_ns}},
        common | head | {"args": {"at_ns": flow.to_ns - origin_ns}},
    ]


def _mark_line(mark: Mark, tids: dict[str, int], origin_ns: int) -> _Json:
    return {
        "ph": "i",
        "s": "t",
        "name": mark.name,
        "pid": _PID,
        "tid": tids[mark.track],
        "ts": _microseconds(mark.at_ns - origin_ns),
        "args": _json_args(mark.args),
    }


def _microseconds(time_ns: int) -> msgspec.Raw:
    """A JSON number that no float has rounded; `time_ns` is 0 or more."""
    return msgspec.Raw(b"%d.%03d" % divmod(time_ns, 1000))


def _json_args(args: Mapping[str, int | float | str]) -> Args:
    # JSON has no NaN and no infinity.
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in args.items()
    }


# Reading.


class _Header(msgspec.Struct, frozen=True):
    schema: int
    origin_ns: int


class _Line(msgspec.Struct, frozen=True):
    ph: str
    name: str
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    id: int = 0
    args: dict[str, bool | int | float | str] = {}


class _Document(msgspec.Struct, frozen=True):
    header: _Header = msgspec.field(name="slipstream")
    lines: list[_Line] = msgspec.field(name="traceEvents")
    metadata: dict[str, bool | int | float | str] = msgspec.field(name="otherData")


_DECODER: Final = msgspec.json.Decoder(_Document)


def _decode(document: _Document) -> ChromeTrace:
    if document.header.schema != SCHEMA:
        raise ValueError(f"its schema is {document.header.schema}, and this version reads {SCHEMA}")
    lines = document.lines
    process_name = next((str(line.args["name"]) for line in lines if line.name == "process_name"), "")
    tracks = {
        line.tid: str(line.args["name"]) for line in lines if line.ph == "M" and line.name == "thread_name"
    }
    tails = {line.id: line for line in lines if line.ph == "s"}
    events: list[Event] = []
    for line in lines:
        track = tracks.get(line.tid, "")
        if line.ph == "X":
            events.append(Slice(track, line.name, _nanoseconds(line.ts), _nanoseconds(line.dur), line.args))
        elif line.ph == "i":
            events.append(Mark(track, line.name, _nanoseconds(line.ts), line.args))
        elif line.ph == "f":
            tail = tails[line.id]
            from_ns, to_ns = int(tail.args["at_ns"]), int(line.args["at_ns"])
            events.append(Flow(line.name, tracks[tail.tid], from_ns, track, to_ns))
    return ChromeTrace(process_name, document.metadata, document.header.origin_ns, events)


def _nanoseconds(time_us: float) -> int:
    # Exact while a trace is shorter than 52 days: a float holds 2**52 ns to within half of one.
    return round(time_us * 1000)

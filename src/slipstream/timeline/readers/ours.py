"""Slipstream's own traces, as `trace.write_chrome` writes them.

slice on a stream          an operation, and a mark: its name is the phase's
slice below a stream       ("main graph": parts of a replay) a part of the phase that encloses it
   of a kind               an operation that its device timed itself; the phase above is a mark alone
slice of the host          a call of the host; "publish" says how many tokens the round before it gave
flow between streams       a record where it begins, a wait where it ends
   from the host           the launch of what begins where it ends
   to the host             a record, and the host standing until where it ends
mark                       a mark
"rank", "world_size"       in what is said of the run: whose it is

A phase that was replayed names its graph: phase, bucket and width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.part import Part, check_times, nanoseconds
from slipstream.timeline.readers.events import Scalar
from slipstream.timeline.readers.own_rows import OwnRows, Placed, phases_of, replays_of, stream_of
from slipstream.timeline.readers.pieces import Pieces, Watch
from slipstream.timeline.table import Advanced, Args, Kind, Marks
from slipstream.trace import names as tracks
from slipstream.trace.chrome import SCHEMA
from slipstream.trace.events import KIND


class _Event(msgspec.Struct, gc=False):
    ph: Scalar = None
    name: Scalar = ""
    tid: Scalar = 0
    ts: int | float | str | None = 0
    dur: int | float | str | None = 0
    id: Scalar = None
    args: dict[str, Any] = {}


_DECODE: Final = msgspec.json.Decoder(list[_Event]).decode


def read_ours(path: Path, watch: Watch = None) -> Part:
    """Read a trace that Slipstream wrote.

    Args:
        path: the file.
        watch: is told of bytes read.

    Raises:
        TraceError: the file cannot be read, or a newer version wrote it.
    """
    pieces = Pieces(path, _DECODE, watch)
    events = [event for piece in pieces for event in piece]
    part = Part(str(path), "slipstream")
    part.read = len(events)
    header = _header(path, pieces.head)
    part.offset_ns = header
    part.notes += pieces.notes(None)
    about = _about(pieces.head)
    part.rank, part.run = _number(about, "rank"), _number(about, "world_size")
    lost = _number(about, "dropped")
    if lost:
        part.note("dropped", lost, "events that the recorder no longer had room for: the oldest ones")
    timed = _Reader(part, events).fill()
    device = about.get("device", "cpu")
    if device != "cpu" and not timed:
        why = f"times of the {device} device: phases are as long as the host took to issue them"
        part.note("missing", 1, why)
    return part


def _header(path: Path, head: dict[str, msgspec.Raw]) -> int:
    try:
        header = msgspec.json.decode(head["slipstream"], type=dict[str, Any])
        schema, origin_ns = int(header["schema"]), int(header["origin_ns"])
    except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise TraceError(
            f"{path} says that Slipstream wrote it, but its header is broken: {error}"
        ) from error
    if schema != SCHEMA:
        raise TraceError(f"{path} has schema {schema}; this version of Slipstream reads {SCHEMA}.")
    return origin_ns if abs(origin_ns) < 1 << 61 else 0


def _about(head: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """Return what the file says of its run."""
    try:
        return msgspec.json.decode(head["otherData"], type=dict[str, Any])
    except (KeyError, msgspec.DecodeError):
        return {}


def _number(about: dict[str, Any], key: str) -> int | None:
    value = about.get(key)
    return value if type(value) is int and 0 <= value < 1 << 31 else None


class _Reader:
    """Rows and marks of one file."""

    def __init__(self, part: Part, events: list[_Event]) -> None:
        self.part, self.events = part, events
        self.rows = OwnRows(part)
        self.marks: list[tuple[int, int, int, int]] = []
        self.mark_args: dict[int, Args] = {}

    def fill(self) -> bool:
        """Read all events; return whether devices timed any operation themselves."""
        part, events = self.part, self.events
        tracks_by_id = {
            event.tid: str(event.args.get("name"))
            for event in events
            if event.ph == "M" and event.name == "thread_name"
        }
        starts, bad = nanoseconds([event.ts for event in events])
        durs, bad_dur = nanoseconds([event.dur for event in events])
        beginnings = [
            event for event, lost in zip(events, bad | bad_dur, strict=True) if event.ph == "s" and not lost
        ]
        tails = {event.id: event for event in beginnings}
        part.drop("arrow without an end", len(beginnings) - len(tails))
        slices: list[Placed] = []
        arrows: list[tuple[_Event, str, _Event, str]] = []
        for number, event in enumerate(events):
            track = tracks_by_id.get(event.tid, f"track {event.tid}")
            if event.ph == "M":
                part.drop("metadata")
            elif bad[number] or bad_dur[number]:
                part.drop("time")
            elif event.ph == "X":
                start_ns = int(starts[number])
                slices.append(
                    Placed(str(event.name), track, start_ns, start_ns + int(durs[number]), event.args)
                )
            elif event.ph == "i":
                self._mark(
                    Placed(str(event.name), track, int(starts[number]), int(starts[number]), event.args)
                )
            elif event.ph == "f" and event.id in tails:
                tail = tails.pop(event.id)
                arrows.append((tail, tracks_by_id.get(tail.tid, f"track {tail.tid}"), event, track))
            elif event.ph != "s":
                part.drop("arrow without a beginning" if event.ph == "f" else f"phase {event.ph}")
        part.drop("arrow without an end", len(tails))
        self._slices(slices)
        for arrow in arrows:
            self._arrow(*arrow)
        self._finish()
        return any(KIND in item.args for item in slices)

    def _slices(self, slices: list[Placed]) -> None:
        part, rows = self.part, self.rows
        held = phases_of(slices)
        phases = set(held.values())
        replays = replays_of(slices)
        for number, item in enumerate(slices):
            if item.is_phase:
                # A mark, so that phases are found as in any other trace.
                self._mark(item)
            if number in phases:
                continue
            kind = item.kind
            row = rows.add(item.name, item.stream, kind, item.start_ns, item.end_ns)
            if item.is_phase:
                part.read += 1  # row and mark of one event
            if item.args:
                part.details[row] = dict(item.args)
            if kind is Kind.HOST:
                gave = item.args.get("advanced")
                if item.name == tracks.PUBLISH and isinstance(gave, int):
                    part.advanced.append(Advanced(-1, (gave,), item.start_ns))
            elif kind is not Kind.SUBTASK:
                rows.of_device(row, item.args, replays.get(held.get(number, number)))

    def _mark(self, item: Placed) -> None:
        if item.args:
            self.mark_args[len(self.marks)] = dict(item.args)
        names, streams = self.rows.names, self.rows.streams
        self.marks.append((item.start_ns, item.end_ns, names[item.name], streams[item.track]))

    def _arrow(self, tail: _Event, from_track: str, head: _Event, to_track: str) -> None:
        began, ended = tail.args.get("at_ns"), head.args.get("at_ns")
        if not (isinstance(began, int) and isinstance(ended, int) and max(abs(began), abs(ended)) < 1 << 61):
            self.part.drop("arrow without times", 2)
            return
        made = self.rows.link(str(head.name), stream_of(from_track), began, stream_of(to_track), ended)
        self.part.drop("arrow between operations", 2 - made)

    def _finish(self) -> None:
        part = self.part
        self.rows.finish()
        marks = np.array(self.marks, np.int64).reshape(-1, 4)
        part.marks = Marks(
            marks[:, 0],
            marks[:, 1],
            marks[:, 2].astype(np.int32),
            marks[:, 3].astype(np.int32),
            self.mark_args,
        )
        rows_before = len(part)
        check_times(part)
        if len(part) != rows_before:
            # Rows moved: what pointed at them is unknown now.
            for key in ("record", "launch"):
                part.column(key)[:] = -1
        self._parents()

    def _parents(self) -> None:
        """A part of a replay belongs to the phase of its stream that encloses it."""
        columns = self.part.columns
        kind, stream, start_ns, end_ns = (columns[key] for key in ("kind", "stream", "start_ns", "end_ns"))
        for number in range(len(self.part.streams)):
            phases = np.flatnonzero((stream == number) & (kind == Kind.KERNEL))
            parts = np.flatnonzero((stream == number) & (kind == Kind.SUBTASK))
            if not len(phases) or not len(parts):
                continue
            phases = phases[np.argsort(start_ns[phases], kind="stable")]
            before = np.searchsorted(start_ns[phases], start_ns[parts], side="right") - 1
            inside = (before >= 0) & (start_ns[parts] < end_ns[phases[before]])
            columns["parent"][parts] = np.where(inside, phases[before], -1)

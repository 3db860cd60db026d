"""Slipstream's own traces, as `trace.write_chrome` writes them.

slice on a stream          an operation, and a mark: its name is the phase's
slice below a stream       ("main graph": parts of a replay) a part of the phase that encloses it
slice of the host          a call of the host; "publish" says how many tokens the round before it gave
flow                       a record where it begins, a wait where it ends
mark                       a mark
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.part import Part, Pool, check_times, nanoseconds
from slipstream.timeline.readers.events import Scalar
from slipstream.timeline.readers.pieces import Pieces, Watch
from slipstream.timeline.table import Advanced, Args, Kind, Marks, Role, Source, Stream
from slipstream.trace import names as tracks
from slipstream.trace.chrome import SCHEMA

_BELOW: Final = tracks.graph_track("")


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
    lost = _dropped(pieces.head)
    if lost:
        part.note("dropped", lost, "events that the recorder no longer had room for: the oldest ones")
    _Reader(part, events).fill()
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


def _dropped(head: dict[str, msgspec.Raw]) -> int:
    """Return how many events the recorder dropped, as the file says."""
    try:
        return int(msgspec.json.decode(head["otherData"], type=dict[str, Any])["dropped"])
    except (KeyError, TypeError, ValueError, msgspec.DecodeError):
        return 0


class _Reader:
    """Rows and marks of one file."""

    def __init__(self, part: Part, events: list[_Event]) -> None:
        self.part, self.events = part, events
        self.names, self.streams = Pool(), Pool()
        self.rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self.marks: list[tuple[int, int, int, int]] = []
        self.mark_args: dict[int, Args] = {}

    def fill(self) -> None:
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
        for number, event in enumerate(events):
            track = tracks_by_id.get(event.tid, f"track {event.tid}")
            if event.ph == "M":
                part.drop("metadata")
            elif bad[number] or bad_dur[number]:
                part.drop("time")
            elif event.ph == "X":
                self._slice(event, track, int(starts[number]), int(durs[number]))
            elif event.ph == "i":
                self._mark(event, track, int(starts[number]), 0)
            elif event.ph == "f" and event.id in tails:
                tail = tails.pop(event.id)
                self._flow(event, track, tail, tracks_by_id.get(tail.tid, f"track {tail.tid}"))
            elif event.ph != "s":
                part.drop("arrow without a beginning" if event.ph == "f" else f"phase {event.ph}")
        part.drop("arrow without an end", len(tails))
        self._finish()

    def _slice(self, event: _Event, track: str, start_ns: int, dur_ns: int) -> None:
        args = event.args
        below = track.endswith(_BELOW) and track != _BELOW
        stream = track.removesuffix(_BELOW) if below else track
        kind = Kind.HOST if stream == tracks.HOST else Kind.SUBTASK if below else Kind.KERNEL
        row = len(self.rows)
        self._row(event.name, stream, kind, start_ns, start_ns + dur_ns)
        if args:
            self.part.details[row] = dict(args)
        if kind is Kind.HOST and event.name == tracks.PUBLISH and isinstance(args.get("advanced"), int):
            self.part.advanced.append(Advanced(-1, (args["advanced"],), start_ns))
        if kind is Kind.KERNEL:
            # A mark as well, so that phases are found as in any other trace; not counted, it is no other event.
            self._mark(event, track, start_ns, dur_ns)
            self.part.read += 1

    def _row(
        self,
        name: Any,
        stream: str,
        kind: Kind,
        start_ns: int,
        end_ns: int,
        record: int = -1,
        waited: int = -1,
    ) -> int:
        self.rows.append(
            (start_ns, end_ns, self.names[str(name)], self.streams[stream], kind, record, waited, -1)
        )
        return len(self.rows) - 1

    def _mark(self, event: _Event, track: str, start_ns: int, dur_ns: int) -> None:
        if event.args:
            self.mark_args[len(self.marks)] = dict(event.args)
        self.marks.append((start_ns, start_ns + dur_ns, self.names[str(event.name)], self.streams[track]))

    def _flow(self, head: _Event, track: str, tail: _Event, from_track: str) -> None:
        began, ended = tail.args.get("at_ns"), head.args.get("at_ns")
        if not (isinstance(began, int) and isinstance(ended, int) and max(abs(began), abs(ended)) < 1 << 61):
            self.part.drop("arrow without times", 2)
            return
        record = self._row(head.name, from_track, Kind.RECORD, began, began)
        self._row(head.name, track, Kind.WAIT, ended, ended, record, self.streams[from_track])

    def _finish(self) -> None:
        part = self.part
        table = np.array(self.rows, np.int64).reshape(-1, 8)
        keys = ("start_ns", "end_ns", "name", "stream", "kind", "record", "waited", "parent")
        part.columns = {key: table[:, place].copy() for place, key in enumerate(keys)}
        part.names = [str(name) for name in self.names]
        part.streams = [
            Stream(0, None, track, number, Role.HOST)
            if track == tracks.HOST
            else Stream(0, 0, track, number, Role.COMPUTE, Source.GIVEN)
            for track, number in self.streams.items()
        ]
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
            part.column("record")[:] = -1
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

"""PyTorch's profiler (Kineto): CUDA and ROCm, field names old and new."""

from __future__ import annotations

import re
from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.timeline.part import Numbers, Part, Pool, check_times, first_of, nanoseconds
from slipstream.timeline.readers.events import (
    Kineto,
    KinetoArgs,
    KinetoEvent,
    KinetoName,
    decode_kineto,
    message_bytes,
    ranks_of,
    said,
)
from slipstream.timeline.readers.pieces import Pieces, Watch
from slipstream.timeline.replays import GRAPH_KEY, NODE_KEY
from slipstream.timeline.table import Group, Int64, Kind, Marks, Role, Stream

#: Categories that are a device's, and what they are.
_DEVICE: Final = {
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "gpu_memset": Kind.SET,
    "concurrent_kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "Memcpy": Kind.COPY,
    "Memset": Kind.SET,
    "cuda_sync": Kind.WAIT,
    "cuda_event": Kind.RECORD,
}
#: Where events go.
_HOST_SIDE: Final = "host"
_DEVICE_SIDE: Final = "device"
_MARK: Final = "mark"
#: Categories whose correlation is that of a launch; all others that are no device's are the host's, without one.
_CALLS: Final = re.compile(r"(?i)runtime|driver")
#: The usual ones of the host. Of others, as new profilers may write them, arguments tell whose they are.
_SIDES: Final[dict[Any, str]] = (
    dict.fromkeys(("cpu_op", "cuda_runtime", "cuda_driver", "overhead", "Operator", "Runtime"), _HOST_SIDE)
    | dict.fromkeys(_DEVICE, _DEVICE_SIDE)
    | dict.fromkeys(("user_annotation", "gpu_user_annotation"), _MARK)
)
#: Dropped before anything is made of them, with the reason that is counted.
_DROPPED: Final = {
    "python_function": "python_function",
    "Trace": "profiler span",
    "Python": "python_function",
}

#: What is no stretch of time, and as what it is counted.
_PHASES: Final[dict[Any, str]] = {
    "s": "arrow", "f": "arrow", "t": "arrow", "M": "metadata", "C": "counter", "i": "instant", "I": "instant",
    "R": "instant",
}  # fmt: skip

#: The thread of an event.
_PLACE: Final = attrgetter("pid", "tid")

_LAUNCH: Final = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
_SYNC: Final = re.compile(
    r"^(?:cuda|hip|cu)(?:(?:Stream|Device|Event|Ctx|Context)Synchronize|Memcpy(?!.*Async)(?!.*Peer)\w*)"
)
_RECORD: Final = re.compile(r"^(?:cuda|hip|cu)EventRecord")
_STREAM_WAIT: Final = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")

#: The columns in the making.
_COLUMNS: Final = (
    "start_ns", "end_ns", "name", "stream", "correlation", "bytes", "category", GRAPH_KEY, NODE_KEY,
)  # fmt: skip


class _Header(msgspec.Struct):
    rank: Any = None
    world_size: Any = None
    pg_config: Any = None


def read_kineto(path: Path, watch: Watch = None) -> Part:
    """Read a profile of PyTorch.

    Args:
        path: JSON, plain or gzip.
        watch: is told of bytes read.

    Raises:
        TraceError: the file cannot be read, or is no trace.
    """
    return _Reader(path, watch).read()


class _Reader:
    """State of reading one file."""

    def __init__(self, path: Path, watch: Watch) -> None:
        self.part = Part(str(path), "kineto")
        self.pieces = Pieces(path, decode_kineto, watch)
        self.names, self.threads, self.lanes, self.categories = Pool(), Pool(), Pool(), Pool()
        self.ids = Numbers()
        self.thread_names: dict[Any, str] = {}
        self.details: list[tuple[int, KinetoArgs]] = []
        self.columns: dict[str, list[Any]] = {key: [] for key in _COLUMNS}
        self.marks: list[list[Any]] = [[], [], [], []]
        self.rows = 0

    def read(self) -> Part:
        for events in self.pieces:
            self._take(events)
        self._header()
        self._finish()
        return self.part

    # Pieces.

    def _take(self, events: list[Kineto]) -> None:
        part = self.part
        part.read += len(events)
        work = [event for event in events if type(event) is KinetoEvent]
        others = Counter(event.phase for event in events if not isinstance(event, KinetoEvent))
        # No stretches of time; most are arrows, as every launch has one.
        for phase, count in others.items():
            part.drop(_PHASES.get(phase, f"phase {phase}"), count)
        for event in events if "M" in others else ():
            if type(event) is KinetoName and event.name == "thread_name" and event.args is not None:
                self.thread_names[event.pid, event.tid] = str(event.args.name)
        sides: dict[str, list[KinetoEvent]] = {side: [] for side in (_HOST_SIDE, _DEVICE_SIDE, _MARK)}
        put = {category: sides[side].append for category, side in _SIDES.items()}
        for event in work:
            add = put.get(event.cat)
            if add is not None:
                add(event)
            elif event.cat in _DROPPED:
                part.drop(_DROPPED[event.cat])
            else:
                sides[_DEVICE_SIDE if _is_device(event) else _HOST_SIDE].append(event)
        # A few at a time: what is alive in the table should be its columns.
        if host := sides[_HOST_SIDE]:
            threads = self.threads
            streams = -2 - np.array([threads[place] for place in map(_PLACE, host)], np.int32)
            self._add(host, streams, host_side=True)
        if device := sides[_DEVICE_SIDE]:
            self._add(device, self._device_streams(device), host_side=False)
        if marks := sides[_MARK]:
            self._add_marks(marks)

    def _add(self, events: list[KinetoEvent], streams: Any, *, host_side: bool) -> None:
        start_ns, bad = nanoseconds([event.ts for event in events])
        dur_ns, bad_dur = nanoseconds([event.dur for event in events])
        if bad.any() or bad_dur.any():
            events, streams, start_ns, dur_ns = self._good(events, streams, start_ns, dur_ns, bad | bad_dur)
        columns, names, categories = self.columns, self.names, self.categories
        columns["start_ns"].append(start_ns)
        columns["end_ns"].append(start_ns + dur_ns)
        columns["name"].append(np.array([names[event.name] for event in events], np.int32))
        columns["stream"].append(streams)
        columns["category"].append(np.array([categories[event.cat] for event in events], np.int32))
        args = [event.args or _NO_ARGS for event in events]
        columns["correlation"].append(self.ids([each.correlation for each in args]))
        graphs = not host_side and any(each.graph_id for each in args)
        for key, of_device, ids in (
            ("bytes", not host_side, "bytes"), (GRAPH_KEY, graphs, "graph_id"), (NODE_KEY, graphs, "node_id"),
        ):  # fmt: skip
            found = self.ids([getattr(each, ids) for each in args]) if of_device else np.full(len(events), -1)
            columns[key].append(found)
        if not host_side:
            self.details += [
                (self.rows + number, each)
                for number, each in enumerate(args)
                if each.collective is not None or each.sync_kind is not None
            ]
        self.rows += len(events)

    def _good(
        self, events: Any, streams: Any, start_ns: Any, dur_ns: Any, bad: Any
    ) -> tuple[Any, Any, Any, Any]:
        self.part.drop("time", int(bad.sum()))
        self.part.note("dropped", int(bad.sum()), "events without a usable time")
        good = np.flatnonzero(~bad)
        return [events[i] for i in good], streams[good], start_ns[good], dur_ns[good]

    def _device_streams(self, events: list[KinetoEvent]) -> Any:
        found = []
        for event in events:
            args = event.args or _NO_ARGS
            device = event.pid if args.device is None else args.device
            stream = event.tid if args.stream is None else args.stream
            found.append(self.lanes[device, stream])
        return np.array(found, np.int32)

    def _add_marks(self, events: list[KinetoEvent]) -> None:
        start_ns, bad = nanoseconds([event.ts for event in events])
        dur_ns, bad_dur = nanoseconds([event.dur for event in events])
        streams = np.array(
            [
                self.lanes[event.pid, event.tid]
                if event.cat == "gpu_user_annotation"
                else -2 - self.threads[event.pid, event.tid]
                for event in events
            ]
        )
        if bad.any() or bad_dur.any():
            events, streams, start_ns, dur_ns = self._good(events, streams, start_ns, dur_ns, bad | bad_dur)
        names = [self.names[event.name] for event in events]
        for column, value in zip(self.marks, (start_ns, start_ns + dur_ns, names, streams), strict=True):
            column.append(np.asarray(value))

    # The whole file.

    def _header(self) -> None:
        part, members = self.part, self.pieces.head | self.pieces.tail
        about = _decoded(members.get("distributedInfo"), _Header) or _Header()
        if isinstance(about.rank, int) and not isinstance(about.rank, bool) and 0 <= about.rank < 1 << 31:
            part.rank = about.rank
        self.group_ranks = {
            str(each.get("pg_name")): tuple(each["ranks"])
            for each in about.pg_config or []
            if isinstance(each, dict) and isinstance(each.get("ranks"), list)
        }
        part.run = about.world_size
        base_ns = _decoded(members.get("baseTimeNanoseconds"), int)
        part.offset_ns = base_ns if isinstance(base_ns, int) and 0 <= base_ns < 1 << 61 else 0
        part.notes += self.pieces.notes(part.rank)

    def _finish(self) -> None:
        part = self.part
        part.names = [str(name) for name in self.names]
        joined = {
            key: np.concatenate(value) if value else np.empty(0, int) for key, value in self.columns.items()
        }
        self.columns.clear()
        self._streams(joined)
        category = joined.pop("category")
        # 0 is no graph.
        joined[GRAPH_KEY][joined[GRAPH_KEY] == 0] = -1
        if not (joined[GRAPH_KEY] >= 0).any():
            del joined[GRAPH_KEY], joined[NODE_KEY]
        joined["kind"] = self._kinds(joined["name"], category)
        part.columns = joined
        part.details = {row: {"": args} for row, args in self.details}  # replaced below
        check_times(part)
        raw = {row: args[""] for row, args in part.details.items()}
        part.details = {}
        self._launches()
        self._arguments(raw)  # type: ignore[arg-type]
        self._syncs(raw)  # type: ignore[arg-type]

    def _streams(self, joined: dict[str, Any]) -> None:
        """Number the device's streams first, then the threads."""
        part = self.part
        part.streams = [
            Stream(0, _number(device), _stream_name(stream), _number(stream)) for device, stream in self.lanes
        ]
        devices = len(part.streams)
        for pid, tid in self.threads:
            name = self.thread_names.get((pid, tid)) or f"thread {tid}"
            part.streams.append(Stream(0, None, name, _number(tid), Role.HOST))
        self.of_host = joined["stream"] < -1
        joined["stream"] = np.where(joined["stream"] < -1, devices - 2 - joined["stream"], joined["stream"])
        if self.marks[0]:
            start_ns, end_ns, names, streams = (np.concatenate(column) for column in self.marks)
            streams = np.where(streams < -1, devices - 2 - streams, streams)
            part.marks = Marks(start_ns, end_ns, names.astype(np.int32), streams.astype(np.int32))

    def _kinds(self, names: Any, category: Any) -> Any:
        """uint8 [N]: by category, and for calls of the runtime by name."""
        kinds = np.array([_DEVICE.get(each, Kind.HOST) for each in self.categories], np.uint8)[category]
        kinds[(kinds == Kind.HOST) & ~self.of_host] = Kind.KERNEL
        calls = np.array([bool(_CALLS.search(str(each))) for each in self.categories], np.bool_)[category]
        by_name = np.array([_call_kind(name) for name in self.part.names], np.uint8)
        self.is_call = calls
        return np.where(calls, by_name[names], kinds).astype(np.uint8)

    def _launches(self) -> None:
        """The call that issued each row of a device, by the correlation of both."""
        part = self.part
        columns = part.columns
        correlation = columns["correlation"]
        correlation[correlation == 0] = -1
        device = self._device_rows()
        calls = np.flatnonzero(~device & (correlation != -1))
        # Where two calls have one correlation, the launch of a graph is meant.
        calls = calls[np.argsort(columns["kind"][calls] != Kind.LAUNCH, kind="stable")]
        launch = np.full(len(part), -1, np.int32)
        rows = np.flatnonzero(device & (correlation != -1))
        launch[rows] = first_of(correlation[calls], calls, correlation[rows])
        columns["launch"] = launch
        clipped = int((device & (launch < 0) & (columns["kind"] <= Kind.COMM)).sum())
        if clipped:
            part.note("clipped", clipped, "device operations whose launch is not in the trace")

    def _device_rows(self) -> Any:
        devices = np.array([stream.device is not None for stream in self.part.streams], np.bool_)
        return devices[self.part.columns["stream"]] if len(self.part) else np.empty(0, np.bool_)

    def _arguments(self, raw: dict[int, KinetoArgs]) -> None:
        """Collectives' arguments, where the trace has them."""
        part = self.part
        groups = Pool()
        for row, args in raw.items():
            if args.collective is None:
                continue
            part.column("kind")[row] = Kind.COMM
            name = str(args.group_name)
            ranks = self.group_ranks.get(name) or ranks_of(args.group_ranks)
            part.column("group")[row] = groups[Group(name, ranks)]
            if isinstance(args.sequence, int):
                part.column("sequence")[row] = self.ids.one(args.sequence)
            part.column("bytes")[row] = message_bytes(args)
            part.details[row] = said(args)
        part.groups = list(groups)

    def _syncs(self, raw: dict[int, KinetoArgs]) -> None:
        """`cuda_sync`: what a stream, or the host, waited for."""
        part = self.part
        columns, unresolved = part.columns, 0
        waits = [row for row, args in raw.items() if args.sync_kind is not None]
        if waits:
            kind, launch = part.column("kind"), part.column("launch")
            record, waited = part.column("record"), part.column("waited")
            records = self._rows_named(_RECORD)
            wanted = self.ids([raw[row].wait_record for row in waits])
            found = first_of(columns["correlation"][records], records, wanted)
            lanes = {
                (_number(device), _number(key)): number for number, (device, key) in enumerate(self.lanes)
            }
            for row, recorded in zip(waits, found, strict=True):
                args = raw[row]
                host_waits = "Stream Wait" not in str(args.sync_kind)
                kind[row] = Kind.SYNC if host_waits else Kind.WAIT
                waited[row] = lanes.get((_number(args.device), _number(args.wait_stream)), -1)
                if str(args.sync_kind) == "Stream Sync":
                    waited[row] = columns["stream"][row]
                record[row] = recorded
                unresolved += "Event" in str(args.sync_kind) and recorded < 0
                if host_waits and launch[row] >= 0:
                    record[launch[row]], waited[launch[row]] = recorded, waited[row]
        if unresolved:
            part.note(
                "unresolved", int(unresolved), "waits for an event whose record the trace does not name"
            )
        calls = len(self._rows_named(_STREAM_WAIT))
        if calls and not any("Stream Wait" in str(raw[row].sync_kind) for row in waits):
            why = "calls that let a stream wait, without a record of it: the profiler's cuda_sync events were off"
            part.note("missing", calls, why)

    def _rows_named(self, pattern: re.Pattern[str]) -> Int64:
        wanted = np.array([bool(pattern.match(name)) for name in self.part.names], np.bool_)
        return np.flatnonzero(wanted[self.part.columns["name"]]) if len(wanted) else np.empty(0, np.int64)


_NO_ARGS: Final = KinetoArgs()


def _is_device(event: KinetoEvent) -> bool:
    args = event.args
    has_stream = args is not None and args.stream is not None and args.device is not None
    return has_stream and not _CALLS.search(str(event.cat))


def _call_kind(name: str) -> Kind:
    if _LAUNCH.match(name):
        return Kind.LAUNCH
    return Kind.SYNC if _SYNC.match(name) else Kind.HOST


def _decoded(raw: msgspec.Raw | None, kind: type) -> Any:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        return None


def _stream_name(stream: Any) -> str:
    """Name a stream; what CUPTI writes of the whole context has the stream -1, in some versions without a sign."""
    return "no stream" if _number(stream) in (-1, 0xFFFFFFFF) else f"stream {stream}"


def _number(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return -1
    return number if abs(number) < 1 << 62 else -1

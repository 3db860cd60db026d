"""Ascend's text output: `trace_view.json`, and `kernel_details.csv` where there is no timeline.

Times are decimal strings of 19 digits, which no float holds; they become integer nanoseconds digit by digit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.timeline.part import Numbers, Part, Pool, check_times, nanoseconds
from slipstream.timeline.readers.ascend import (
    COLLECTIVE,
    NOTHING,
    call_kind,
    group_hashes,
    group_of,
    is_annotation,
    is_step,
    link_queue,
    rank_of,
    read_step_times,
    settle,
    task_kind,
    whole,
)
from slipstream.timeline.readers.events import Scalar, TimedEvent
from slipstream.timeline.readers.pieces import Pieces, Watch
from slipstream.timeline.readers.sides import node_key
from slipstream.timeline.replays import GRAPH_KEY, NODE_KEY
from slipstream.timeline.table import Kind, Marks, Role, Stream

#: What events that are no operations are counted as.
_OTHERS: Final = {"M": "metadata", "s": "arrow", "f": "arrow", "t": "arrow", "C": "counter", "i": "instant"}
_TYPES: Final = {"INT8": 1, "UINT8": 1, "FP16": 2, "BFP16": 2, "BF16": 2, "INT16": 2, "FP32": 4, "INT32": 4}


class _Args(msgspec.Struct, gc=False):
    name: Scalar = None
    task_type: Scalar = msgspec.field(default=None, name="Task Type")
    model: Scalar = msgspec.field(default=None, name="Model Id")
    stream: Scalar = msgspec.field(default=None, name="Physic Stream Id")
    task: Scalar = msgspec.field(default=None, name="Task Id")
    subtask: Scalar = msgspec.field(default=None, name="Subtask Id")
    connection: Scalar = msgspec.field(default=None, name="connection_id")
    queue: Scalar = msgspec.field(default=None, name="correlation_id")
    bytes: Scalar = msgspec.field(default=None, name="data size(Byte)")
    step_stream: Any = msgspec.field(default=None, name="stream id")
    step_task: Any = msgspec.field(default=None, name="task id")
    step_context: Any = msgspec.field(default=None, name="context id")
    step_type: Any = msgspec.field(default=None, name="task type")
    step_bytes: Any = msgspec.field(default=None, name="size(Byte)")
    source_rank: Any = msgspec.field(default=None, name="src rank")
    target_rank: Any = msgspec.field(default=None, name="dst rank")
    transport: Any = msgspec.field(default=None, name="transport type")
    count: Any = None
    data_type: Any = None
    algorithm: Any = msgspec.field(default=None, name="alg_type")


class _Event(TimedEvent, gc=False):
    args: _Args | None = None


_DECODE: Final = msgspec.json.Decoder(list[_Event]).decode
_NO_ARGS: Final = _Args()


def read_trace_view(path: Path, watch: Watch = None) -> Part:
    """Read a `trace_view.json`, or msprof's `msprof_*.json`.

    Args:
        path: the file.
        watch: is told of bytes read.

    Raises:
        TraceError: the file cannot be read, or is no trace.
    """
    part = _Reader(path, watch).read()
    totals = path.parent / "step_trace_time.csv"
    if totals.is_file():
        read_step_times(part, totals)
    return part


class _Reader:
    """State of reading one file. What an event is shows only when all names of processes are known."""

    def __init__(self, path: Path, watch: Watch) -> None:
        self.part = Part(str(path), "ascend text", rank_of(path.parent))
        self.pieces = Pieces(path, _DECODE, watch)
        self.names, self.lanes, self.categories = Pool(), Pool(), Pool()
        self.ids = Numbers()
        self.processes: dict[Any, str] = {}
        self.lane_names: dict[Any, str] = {}
        self.columns: dict[str, list[Any]] = {
            key: [] for key in ("start_ns", "end_ns", "name", "lane", "category", "correlation", "queue")
        }
        self.args: dict[int, _Args] = {}
        self.rows = 0
        self.task_lanes: set[int] = set()

    def read(self) -> Part:
        for events in self.pieces:
            self._take(events)
        self.part.notes += self.pieces.notes(self.part.rank)
        self._finish()
        return self.part

    def _take(self, events: list[_Event]) -> None:
        part = self.part
        part.read += len(events)
        kept, functions, others = [], 0, Counter[Any]()
        for event in events:
            phase = event.ph
            if phase == "X":
                if event.cat == "python_function":
                    functions += 1
                else:
                    kept.append(event)
            elif phase == "M":
                others["M"] += 1
                self._name(event)
            else:
                others[phase if isinstance(phase, str) else None] += 1
        part.drop("python_function", functions)
        for phase, count in others.items():
            part.drop(_OTHERS.get(phase, f"phase {phase}"), count)
        start_ns, bad = nanoseconds([event.ts for event in kept])
        dur_ns, bad_dur = nanoseconds([event.dur for event in kept])
        bad = bad | bad_dur
        if bad.any():
            part.drop("time", int(bad.sum()))
            part.note("dropped", int(bad.sum()), "events without a usable time")
            kept = [event for event, each in zip(kept, bad, strict=True) if not each]
            start_ns, dur_ns = start_ns[~bad], dur_ns[~bad]
        args = [event.args or _NO_ARGS for event in kept]
        for key, value in (
            ("start_ns", start_ns),
            ("end_ns", start_ns + dur_ns),
            ("name", np.array([self.names[str(event.name)] for event in kept], np.int32)),
            ("lane", np.array([self.lanes[event.pid, event.tid] for event in kept], np.int32)),
            ("category", np.array([self.categories[event.cat] for event in kept], np.int32)),
            ("correlation", self.ids([-1 if each.connection is None else each.connection for each in args])),
            ("queue", self.ids([-1 if each.queue is None else each.queue for each in args])),
        ):
            self.columns[key].append(value)
        self.task_lanes.update(
            self.lanes[event.pid, event.tid]
            for event in kept
            if event.args is not None and event.args.task_type
        )
        for number, each in enumerate(args):
            if each.task_type is not None or each.step_task is not None or each.algorithm is not None:
                self.args[self.rows + number] = each
        self.rows += len(kept)

    def _name(self, event: _Event) -> None:
        """Metadata: the name of a process, or of a lane in it."""
        if event.name == "process_name" and event.args is not None:
            self.processes[event.pid] = str(event.args.name)
        elif event.name == "thread_name" and event.args is not None:
            self.lane_names[event.pid, event.tid] = str(event.args.name)

    # When everything is read.

    def _finish(self) -> None:
        part = self.part
        part.names = [str(name) for name in self.names]
        part.columns = {
            key: np.concatenate(value) if value else np.empty(0, np.int64)
            for key, value in self.columns.items()
        }
        part.details = {row: {"": args} for row, args in self.args.items()}
        self.places = {key: self._place(key) for key in self.lanes}
        self._drop_other_lanes()
        self._split_annotations()
        check_times(part)
        raw: dict[int, Any] = {row: args[""] for row, args in part.details.items()}
        part.details = {}
        self._fill(raw)
        self._drop_seen_twice(raw)
        columns = part.columns
        link_queue(part)
        device = np.array([stream.device is not None for stream in part.streams], np.bool_)[columns["stream"]]
        steps = columns["step"] > 0
        settle(part, device, ~device & (columns["correlation"] >= 0), steps)

    def _place(self, lane: Any) -> str:
        """What a lane shows: "task", "collective", "step", "host", or "" for what is no operation."""
        process, name = self.processes.get(lane[0], ""), self.lane_names.get(lane, "")
        if process.startswith("Ascend Hardware") or (not process and self.lanes[lane] in self.task_lanes):
            return "task"
        if process in ("HCCL", "Communication", "COMMUNICATION"):
            return "step" if name.startswith("Plane") else "collective"
        if process.startswith(("CANN", "Python", "python", "MindSpore", "MSTX", "mstx")) or not process:
            return "host"
        return ""

    def _drop_other_lanes(self) -> None:
        part = self.part
        shown = np.array([bool(place) for place in self.places.values()], np.bool_)
        keep = shown[part.columns["lane"]] if len(shown) else np.empty(0, np.bool_)
        part.drop("vendor's analysis", int((~keep).sum()))
        part.keep_rows(keep)

    def _split_annotations(self) -> None:
        """What people wrote stands among the operators; it becomes marks."""
        part, columns = self.part, self.part.columns
        python = np.array([each is not None for each in self.categories], np.bool_)
        operators = np.array([each in ("cpu_op", "user_annotation") for each in self.categories], np.bool_)
        written = np.array([is_annotation(name) for name in part.names], np.bool_)
        always = np.array([each == "user_annotation" for each in self.categories], np.bool_)
        category = columns["category"]
        is_mark = (python & operators)[category] & (written[columns["name"]] | always[category])
        self._make_streams()
        columns["stream"] = self.stream_of[columns["lane"]] if len(part) else np.empty(0, np.int32)
        rows = np.flatnonzero(is_mark)
        part.marks = Marks(
            columns["start_ns"][rows], columns["end_ns"][rows], columns["name"][rows], columns["stream"][rows]
        )
        part.keep_rows(~is_mark)

    def _make_streams(self) -> None:
        """A stream for each lane; one for a thread that has lanes in PyTorch's process and in CANN's."""
        numbers = Pool()
        found = []
        for lane, place in self.places.items():
            pid, tid = lane
            name = self.lane_names.get(lane)
            if place in ("task", "step"):
                stream = Stream(
                    0, _device(pid), f"stream {tid}" if place == "task" else str(name), whole(tid)
                )
            elif place == "collective":
                stream = Stream(0, _device(pid), name or "communication", whole(tid), Role.COMM)
            else:
                stream = Stream(0, None, f"thread {tid}", whole(tid), Role.HOST)
            found.append(numbers[stream])
        self.part.streams = list(numbers)
        self.stream_of = np.array(found, np.int32)

    def _fill(self, raw: dict[int, _Args]) -> None:
        """Kinds, graphs and details, for rows of a device from their arguments."""
        part, columns = self.part, self.part.columns
        names = [call_kind(name) for name in part.names]
        kind = np.array(names, np.uint8)[columns["name"]] if len(part) else np.empty(0, np.uint8)
        columns["kind"] = kind
        columns["step"] = np.zeros(len(part), np.int64)
        columns[GRAPH_KEY] = np.full(len(part), -1, np.int64)
        columns[NODE_KEY] = np.full(len(part), -1, np.int64)
        places = list(self.places.values())
        lanes = list(self.lanes)
        groups, hashes = Pool(), group_hashes(Path(part.path).parent)
        self.steps: list[int] = []
        for row, lane in enumerate(columns["lane"].tolist()):
            place = places[lane]
            if place == "host":
                continue
            args = raw.get(row, _NO_ARGS)
            if place == "task":
                self._fill_task(row, args)
            elif place == "step":
                kind[row] = Kind.SUBTASK
                self.steps.append(row)
            else:
                kind[row] = Kind.COMM
                name = part.names[columns["name"][row]]
                part.column("group")[row] = groups[
                    group_of(name, self.lane_names.get(lanes[lane], ""), hashes)
                ]
                self._fill_collective(row, args)
        part.groups = list(groups)

    def _fill_task(self, row: int, args: _Args) -> None:
        part, columns = self.part, self.part.columns
        task_type, name = str(args.task_type), part.names[columns["name"][row]]
        columns["kind"][row] = task_kind(task_type, name)
        columns["step"][row] = is_step(task_type)
        if args.bytes is not None:
            part.column("bytes")[row] = self.ids.one(args.bytes)
        model, task = whole(args.model), whole(args.task)
        if model not in (-1, NOTHING):
            columns[GRAPH_KEY][row] = model
            columns[NODE_KEY][row] = node_key(whole(args.stream), task)

    def _fill_collective(self, row: int, args: _Args) -> None:
        part = self.part
        match = COLLECTIVE.match(part.names[part.columns["name"][row]])
        if match:
            part.column("sequence")[row] = int(match.group(2))
        size = _TYPES.get(str(args.data_type), 0)
        if size and isinstance(args.count, int) and args.count < 1 << 56:
            part.column("bytes")[row] = args.count * size
        said = {"dtype": args.data_type, "algorithm": args.algorithm, "count": args.count}
        part.details[row] = {key: value for key, value in said.items() if value is not None}

    def _drop_seen_twice(self, raw: dict[int, _Args]) -> None:
        """Steps of collectives are shown twice: as tasks of their stream, and by plane, with who sends to whom."""
        part, columns = self.part, self.part.columns
        tasks = {
            (whole(args.stream), whole(args.task), whole(args.subtask), int(columns["start_ns"][row])): row
            for row, args in raw.items()
            if args.task_type is not None
        }
        keep = np.ones(len(part), np.bool_)
        for row in self.steps:
            args = raw.get(row, _NO_ARGS)
            key = (whole(args.step_stream), whole(args.step_task), whole(args.step_context))
            task = tasks.get((*key, int(columns["start_ns"][row])))
            said = {
                "step": args.step_type, "src rank": args.source_rank, "dst rank": args.target_rank,
                "transport": args.transport,
            }  # fmt: skip
            place = row if task is None else task
            part.details[place] = {k: v for k, v in said.items() if v not in (None, NOTHING)}
            if isinstance(args.step_bytes, int):
                part.column("bytes")[place] = self.ids.one(args.step_bytes)
            keep[row] = task is None
        part.drop("shown twice", int((~keep).sum()))
        part.keep_rows(keep)


def _device(pid: Any) -> int:
    """msprof packs the device's number into the lowest five bits of its own process ids."""
    return pid & 31 if isinstance(pid, int) else 0

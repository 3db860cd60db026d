"""Ascend's databases: `ascend_pytorch_profiler_N.db`, msprof's, and the totals of `analysis.db`.

SQLite with integer nanoseconds. Tables and columns that a version does not have are taken as empty.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.part import Part, Pool, check_times
from slipstream.timeline.readers.ascend import (
    NOTHING,
    call_kind,
    is_annotation,
    is_step,
    link_queue,
    rank_of,
    settle,
    task_kind,
    vendor_step,
)
from slipstream.timeline.readers.database import (
    Database,
    Lookup,
    integers,
    opened,
    pairs_of,
    whole,
    without_collection,
)
from slipstream.timeline.replays import GRAPH_KEY, NODE_KEY
from slipstream.timeline.table import Group, Int64, Kind, Marks, Role, Stream

#: What PYTORCH_API calls Python's own functions.
_PYTHON_FUNCTION: Final = 50003
_MSTX: Final = 50004
#: What puts work into the queue of the thread that launches it, and what takes it from there.
_QUEUE: Final = 50002
_TASK: Final = (
    "startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId", "taskId", "modelId",
)  # fmt: skip
#: The columns in the making, and what a row has there that says nothing.
#: frame: 1 of a task that is only the outside of another, 0 of other tasks; task: what both are.
#: step: 1 of a step of a collective; queue: what an entry put into or taken from the queue has in common.
_COLUMNS: Final[dict[str, tuple[type, int]]] = {
    "start_ns": (np.int64, -1), "end_ns": (np.int64, -1), "name": (np.int32, -1), "stream": (np.int32, -1),
    "kind": (np.uint8, Kind.HOST), "correlation": (np.int64, -1), "step": (np.uint8, 0), "task": (np.int64, -1),
    "frame": (np.int8, -1), GRAPH_KEY: (np.int64, -1), NODE_KEY: (np.int64, -1),
    "queue": (np.int64, -1),
}  # fmt: skip
_COLLECTIVE: Final = re.compile(r"_(\d{1,9})_\d+$")
_BYTES: Final = {"INT8": 1, "UINT8": 1, "FP16": 2, "BFP16": 2, "INT16": 2, "FP32": 4, "INT32": 4, "UINT32": 4}


def read_database(path: Path) -> Part:
    """Read a profile stored as a database.

    Raises:
        TraceError: the file cannot be read, is locked, or holds no profile.
    """
    with opened(path) as database, without_collection():
        return _Reader(path, database).read()


def read_totals(part: Part, path: Path) -> None:
    """Add the vendor's totals that `analysis.db` holds; a file that cannot be read is noted."""
    try:
        with opened(path) as database:
            found = database.rows("StepTraceTime")
            part.vendor += [vendor_step(part.rank or 0, row) for row in found]
    except (TraceError, ValueError, TypeError, OverflowError) as error:
        part.note("unreadable", 1, f"{path.name}: {error}")


class _Reader:
    """State of reading one database."""

    def __init__(self, path: Path, database: Database) -> None:
        self.path, self.database = path, database
        self.part = Part(str(path), "ascend db", rank_of(path.parent))
        self.names, self.streams = Pool(), Pool()
        self.columns: dict[str, list[Any]] = {key: [] for key in _COLUMNS}
        self.rows = 0
        self.marks: list[tuple[int, int, int, int]] = []
        self.strings: dict[int, str] = {}

    def read(self) -> Part:
        database, part = self.database, self.part
        if "TASK" not in database.tables and "PYTORCH_API" not in database.tables:
            raise TraceError(
                f"{self.path} is a database, but no profile: it has neither TASK nor PYTORCH_API. "
                "Profiles are ascend_pytorch_profiler_N.db and msprof_*.db."
            )
        ranks = database.rows("RANK_DEVICE_MAP")
        rank = ranks[0].get("rankId") if len(ranks) == 1 else None
        if isinstance(rank, int) and 0 <= rank < 1 << 31:
            part.rank = rank
        for batch in database.batches("STRING_IDS", ("id", "value")):
            self.strings.update(batch)
        self._tasks()
        collectives = self._collectives()
        self._calls()
        self._operators()
        self._steps()
        self._finish(collectives)
        return part

    def _add(self, count: int, **columns: Any) -> None:
        for key, collected in self.columns.items():
            dtype, nothing = _COLUMNS[key]
            collected.append(
                np.asarray(columns[key], dtype) if key in columns else np.full(count, nothing, dtype)
            )
        self.rows += count
        self.part.read += count

    def _timed(self, batch: list[tuple[Any, ...]]) -> tuple[Int64, Int64, list[tuple[Any, ...]]]:
        """Start and end of the rows that begin and end at some time, and their other columns."""
        columns = list(zip(*batch, strict=True))
        try:
            return np.array(columns[0], np.int64), np.array(columns[1], np.int64), columns[2:]
        except (TypeError, ValueError, OverflowError):
            good = [row for row in batch if isinstance(row[0], int) and isinstance(row[1], int)]
            self._lose(len(batch) - len(good))
            columns = list(zip(*good, strict=True)) or [()] * len(columns)
            return integers(columns[0]), integers(columns[1]), columns[2:]

    def _lose(self, count: int) -> None:
        """Count rows that neither begin nor end."""
        self.part.read += count
        self.part.drop("time", count)

    # The device.

    def _tasks(self) -> None:
        """Every TASK is a row, whatever it is."""
        steps: dict[int, tuple[int, int]] = {}
        # A name in a later part of the list wins.
        named: list[tuple[Int64, Int64]] = []
        wanted = ("globalTaskId", "name", "opId", "size")
        for batch in self.database.batches("COMMUNICATION_TASK_INFO", wanted):
            steps.update((task, (operation, size)) for task, _, operation, size in batch)
            tasks, names, _, _ = zip(*reversed(batch), strict=True)
            named.insert(0, (integers(tasks), integers(names)))
        for table in ("COMPUTE_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO"):
            for (of_tasks, their_names), _ in self.database.numbers(table, ("globalTaskId", "name")):
                named.append((of_tasks, their_names))
        name_of = Lookup(named)
        self.step_of: dict[int, tuple[int, int]] = {}
        of_steps = np.array([task for task in steps if isinstance(task, int)], np.int64)
        known: dict[tuple[int, int], tuple[int, int, bool]] = {}
        for columns, lost in self.database.numbers("TASK", _TASK, times=2):
            self._lose(lost)
            start, end, device, connection, task_id, task_types, stream, numbers, model = columns
            name, there = name_of(task_id)
            pairs, which = pairs_of(task_types, name)
            known |= {pair: self._kind_of(*pair) for pair in pairs if pair not in known}
            facts = np.array([known[pair] for pair in pairs], np.int64).reshape(-1, 3)[which]
            # A task that no table describes is the frame of one that is described, if there is such.
            frame = ~there & bool(len(name_of))
            for row in np.flatnonzero(np.isin(task_id, of_steps)).tolist():
                self.step_of[self.rows + row] = steps[int(task_id[row])]
                facts[row, 1:] = Kind.SUBTASK, True  # a part of a collective
            task = (stream << 32) | (numbers & 0xFFFFFFFF)
            model = np.where((model == NOTHING) | (model < 0), -1, model)
            places, which = pairs_of(device, stream)
            self._add(
                len(start), start_ns=start, end_ns=end, correlation=connection,
                name=facts[:, 0], kind=facts[:, 1], step=facts[:, 2], task=task, frame=frame,
                stream=np.array([self.streams[place] for place in places], np.int64)[which],
                **{GRAPH_KEY: model, NODE_KEY: np.where(model < 0, -1, task)},
            )  # fmt: skip

    def _kind_of(self, task_type: int, name: int) -> tuple[int, int, bool]:
        kind_text = self._text(task_type if task_type >= 0 else None)
        name_text = self._text(name) if name >= 0 else kind_text
        return self.names[name_text], task_kind(kind_text, name_text), is_step(kind_text)

    def _collectives(self) -> dict[int, int]:
        """Rows of COMMUNICATION_OP, by their opId."""
        part, found, groups = self.part, dict[int, int](), Pool()
        types = {row.get("id"): str(row.get("name")) for row in self.database.rows("ENUM_HCCL_DATA_TYPE")}
        wanted = ("startNs", "endNs", "opName", "connectionId", "groupName", "opId", "dataType", "count")
        self.collective_facts: list[tuple[int, int, int, int]] = []
        for batch in self.database.batches("COMMUNICATION_OP", wanted):
            start, end, columns = self._timed(batch)
            names, connection, group_names, operations, data_types, counts = columns
            facts = zip(names, group_names, operations, data_types, counts, strict=True)
            for row, (name, group, operation, data_type, count) in enumerate(facts, self.rows):
                found[operation] = row
                match = _COLLECTIVE.search(self._text(name))
                size = _BYTES.get(types.get(data_type, ""), -1)
                moved = int(count) * size if size > 0 and isinstance(count, int | float) else -1
                sequence = int(match.group(1)) if match else -1
                self.collective_facts.append((row, groups[Group(self._text(group))], sequence, moved))
            self._add(
                len(names), start_ns=start, end_ns=end, correlation=integers(connection),
                name=[self.names[self._text(name)] for name in names], kind=np.full(len(names), Kind.COMM),
                stream=np.full(len(names), self.streams["communication", 0]),
            )  # fmt: skip
        part.groups = list(groups)
        return found

    # The host.

    def _calls(self) -> None:
        kinds: dict[int, tuple[int, int]] = {}
        wanted = ("startNs", "endNs", "name", "globalTid", "connectionId")
        for (start, end, names, threads, connection), lost in self.database.numbers(
            "CANN_API", wanted, times=2
        ):
            self._lose(lost)
            pairs, which = pairs_of(names, threads)
            for name, _ in pairs:
                if name not in kinds:
                    text = self._text(name if name >= 0 else None)
                    kinds[name] = (self.names[text], call_kind(text))
            facts = np.array(
                [
                    (*kinds[name], self.streams["thread", max(thread, 0) & 0xFFFFFFFF])
                    for name, thread in pairs
                ],
                np.int64,
            )
            named = facts.reshape(-1, 3)[which]
            self._add(
                len(start), start_ns=start, end_ns=end, correlation=connection,
                name=named[:, 0], kind=named[:, 1], stream=named[:, 2],
            )  # fmt: skip

    def _operators(self) -> None:
        """PyTorch's own: operators, its queue, annotations. Its times are text."""
        part = self.part
        connections = self.database.numbers("CONNECTION_IDS", ("id", "connectionId"))
        connection_of = Lookup([(ids, values) for (ids, values), _ in connections])
        wanted = ("startNs", "endNs", "name", "globalTid", "type", "connectionId")
        for batch in self.database.batches("PYTORCH_API", wanted):
            kept = []
            for start, end, name, thread, kind, connection in batch:
                if kind == _PYTHON_FUNCTION:
                    part.drop("python_function")
                    part.read += 1
                    continue
                try:
                    times = int(start), int(end)
                except (TypeError, ValueError):
                    part.drop("time")
                    part.read += 1
                    continue
                text, stream = self._text(name), self.streams["thread", (thread or 0) & 0xFFFFFFFF]
                if kind == _MSTX or is_annotation(text):
                    self.marks.append((*times, self.names[text], stream))
                    part.read += 1
                else:
                    kept.append(
                        (*times, self.names[text], stream, whole(connection) if kind == _QUEUE else -1)
                    )
            table = np.array(kept, np.int64).reshape(-1, 5)
            self._add(
                len(kept), start_ns=table[:, 0], end_ns=table[:, 1], name=table[:, 2], stream=table[:, 3],
                kind=np.full(len(kept), Kind.HOST), queue=connection_of(table[:, 4])[0],
            )  # fmt: skip
        for batch in self.database.batches("MSTX_EVENTS", ("startNs", "endNs", "message", "globalTid")):
            for start, end, name, thread in batch:
                part.read += 1
                if isinstance(start, int) and isinstance(end, int):
                    stream = self.streams["thread", (thread or 0) & 0xFFFFFFFF]
                    self.marks.append((start, max(start, end), self.names[self._text(name)], stream))
                else:
                    part.drop("time")

    def _steps(self) -> None:
        """The profiler's steps, where PyTorch's own annotation of them is not there."""
        if any(name.startswith("ProfilerStep#") for name in self.names):
            return
        for row in self.database.rows("STEP_TIME"):
            start, end = row.get("startNs"), row.get("endNs")
            if isinstance(start, int) and isinstance(end, int):
                name = self.names[f"ProfilerStep#{row.get('id')}"]
                self.marks.append((start, end, name, self.streams["thread", 0]))
                self.part.read += 1

    def _text(self, number: Any) -> str:
        return self.strings.get(number, "" if number is None else f"string {number}")

    # When everything is read.

    def _finish(self, collectives: dict[int, int]) -> None:
        part = self.part
        columns = part.columns
        for key, (dtype, _) in _COLUMNS.items():
            made = self.columns.pop(key)
            columns[key] = np.concatenate(made) if made else np.empty(0, dtype)
        part.names = [str(name) for name in self.names]
        devices = [max(0, whole(first)) for first, _ in self.streams if not isinstance(first, str)]
        part.streams = [_stream(first, second, min(devices, default=0)) for first, second in self.streams]
        for row, group, sequence, moved in self.collective_facts:
            part.column("group")[row], part.column("sequence")[row] = group, sequence
            part.column("bytes")[row] = moved
        facts = self.step_of
        where = np.full(len(part), -1, np.int32)
        for row, (operation, size) in facts.items():
            where[row] = collectives.get(operation, -1)
            part.column("bytes")[row] = size if isinstance(size, int) and 0 <= size < 1 << 62 else -1
        columns["operation"] = where
        if self.marks:
            marks = np.array(self.marks, np.int64)
            start_ns, end_ns = marks[:, 0], marks[:, 1]
            part.marks = Marks(start_ns, end_ns, marks[:, 2].astype(np.int32), marks[:, 3].astype(np.int32))
        before = len(part)
        columns["row"] = np.arange(before, dtype=np.int32)
        check_times(part)
        self._settle(before)

    def _settle(self, before: int) -> None:
        part, columns = self.part, self.part.columns
        place = np.full(before + 1, -1, np.int32)
        place[columns.pop("row")] = np.arange(len(part), dtype=np.int32)
        part.column("parent")[:] = place[columns.pop("operation")]
        device = np.array([stream.device is not None for stream in part.streams], np.bool_)[columns["stream"]]
        self._frames()
        link_queue(part)
        settle(part, device, ~device & (columns["correlation"] >= 0), columns["step"] > 0)

    def _frames(self) -> None:
        """FFTS+ tasks are there twice: the task as the scheduler saw it, and what ran in it. Only that is work."""
        columns = self.part.columns
        kind, parent, start_ns = columns["kind"], columns["parent"], columns["start_ns"]
        frames = np.flatnonzero((columns["frame"] == 1) & (kind == Kind.KERNEL))
        inside = np.flatnonzero((columns["frame"] == 0) & np.isin(columns["task"], columns["task"][frames]))
        inside = inside[np.argsort(start_ns[inside], kind="stable")]
        by_task: dict[int, list[int]] = defaultdict(list)
        for row in inside.tolist():
            by_task[int(columns["task"][row])].append(row)
        for row in frames.tolist():
            rows = by_task.get(int(columns["task"][row]), [])
            place = bisect_left(rows, start_ns[row], key=lambda each: start_ns[each])
            if place < len(rows) and start_ns[rows[place]] <= columns["end_ns"][row]:
                found = rows[place]
                kind[row] = Kind.SUBTASK
                parent[row] = found if parent[found] < 0 else parent[found]


def _stream(first: Any, second: Any, device: int) -> Stream:
    if first == "thread":
        return Stream(0, None, f"thread {second}", second, Role.HOST)
    if first == "communication":
        return Stream(0, device, "communication", -1, Role.COMM)
    return Stream(0, max(0, whole(first)), f"stream {second}", whole(second))

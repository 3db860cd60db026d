"""Small traces in the formats of the profilers, from one list of tasks: readers are held to it."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Some day in 2025, in ns: times of real traces have 19 digits.
EPOCH_NS = 1_736_408_883_694_795_000


@dataclass(frozen=True)
class Task:
    """Something a device did, and when the host issued it. Times in ns from EPOCH_NS."""

    name: str
    start_ns: int
    end_ns: int
    stream: int = 7
    kind: str = "kernel"  # kernel, copy, set
    launch_ns: int | None = None  # None: the launch is not in the trace
    launch_name: str = "cudaLaunchKernel"
    correlation: int = 0  # 0: a number of its own; equal numbers share a launch
    model: int | None = None
    task_id: int = 0


def us(time_ns: int) -> float:
    return time_ns / 1000


def us_text(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


_CATEGORY = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}
_OLD_CATEGORY = {"kernel": "Kernel", "copy": "Memcpy", "set": "Memset"}
_TASK_TYPE = {"kernel": "AI_CORE", "copy": "PCIE_DMA_SQE", "set": "SDMA_SQE"}


def numbered(tasks: Sequence[Task]) -> list[tuple[int, Task]]:
    return [(task.correlation or 1000 + number, task) for number, task in enumerate(tasks)]


def kineto_events(tasks: Sequence[Task], *, old: bool = False) -> list[dict[str, Any]]:
    """Events as Kineto writes them, times relative to EPOCH_NS."""
    events: list[dict[str, Any]] = []
    launches: set[int] = set()
    for correlation, task in numbered(tasks):
        if task.launch_ns is not None and correlation not in launches:
            launches.add(correlation)
            where = {"pid": 100, "tid": 100, "ts": us(task.launch_ns)}
            category = "Runtime" if old else "cuda_runtime"
            args = {"correlation": correlation, "cbid": 1}
            events.append(
                {"ph": "X", "cat": category, "name": task.launch_name, **where, "dur": 1.5, "args": args}
            )
            events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": correlation, **where})
        category = (_OLD_CATEGORY if old else _CATEGORY)[task.kind]
        args = {"device": 0, "context": 1, "stream": task.stream, "correlation": correlation}
        if task.model is not None:
            args |= {"graph id": task.model, "graph node id": (task.model << 32) | task.task_id}
        events.append(
            {"ph": "X", "cat": category, "name": task.name, "pid": 0, "tid": task.stream, "ts": us(task.start_ns),
             "dur": us(task.end_ns - task.start_ns), "args": args}
        )  # fmt: skip
    return events


def write_kineto(path: Path, events: Sequence[dict[str, Any]], **header: Any) -> Path:
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "baseTimeNanoseconds": EPOCH_NS} | header
    data = json.dumps({**head, "traceEvents": list(events), "traceName": "x.json"}, indent=1).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def ascend_events(tasks: Sequence[Task], *, device: int = 0) -> list[dict[str, Any]]:
    """Events as torch_npu writes them: times are text, and ids are longer than 64 bits."""
    hardware, cann = (900 << 10) | (13 << 5) | device, (900 << 10) | (7 << 5) | device
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": hardware, "tid": 0, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "process_name", "pid": cann, "tid": 0, "args": {"name": "CANN"}},
    ]
    for correlation, task in numbered(tasks):
        if task.launch_ns is not None:
            events.append(
                {"ph": "X", "name": "Node@launch", "pid": cann, "tid": 5, "ts": us_text(EPOCH_NS + task.launch_ns),
                 "dur": 1.5, "args": {"level": "node", "connection_id": correlation}}
            )  # fmt: skip
        name = {"kernel": task.name, "copy": "MEMCPY_ASYNC", "set": "MEMSET_ASYNC"}[task.kind]
        ts = us_text(EPOCH_NS + task.start_ns)
        args = {
            "Model Id": 4294967295 if task.model is None else task.model, "Task Type": _TASK_TYPE[task.kind],
            "Physic Stream Id": task.stream, "Task Id": task.task_id, "Batch Id": 0, "Subtask Id": 4294967295,
            "connection_id": correlation,
        }  # fmt: skip
        where = {"pid": hardware, "tid": task.stream, "ts": ts}
        events.append(
            {"ph": "X", "name": name, **where, "dur": us(task.end_ns - task.start_ns), "args": args}
        )
        flow = str((task.stream << 64) | (task.task_id << 48) | 0xFFFFFFFF)
        events.append({"ph": "f", "name": f"HostToDevice{flow}", "cat": "HostToDevice", "id": flow, **where})
    return events


def write_ascend(folder: Path, events: Sequence[dict[str, Any]], *, rank: int = 0) -> Path:
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (folder / f"profiler_info_{rank}.json").write_text("{}")
    (output / "trace_view.json").write_text(json.dumps(list(events)))
    return folder


def write_database(path: Path, tasks: Sequence[Task]) -> Path:
    """A database as torch_npu writes it, with the tables that it cannot be read without."""
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    kinds = {"kernel": "KERNEL_AIVEC", "copy": "MEMCPY_ASYNC", "set": "MEMSET_ASYNC"}
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER,"
            " globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER,"
            " taskId INTEGER, modelId INTEGER)"
        )
        database.execute("CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER)")
        database.execute(
            "CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,"
            " connectionId INTEGER, name INTEGER)"
        )
        database.execute("CREATE TABLE STRING_IDS (id INTEGER, value TEXT)")
        for number, (correlation, task) in enumerate(numbered(tasks)):
            model = 4294967295 if task.model is None else task.model
            database.execute(
                "INSERT INTO TASK VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (EPOCH_NS + task.start_ns, EPOCH_NS + task.end_ns, 0, correlation, number, 1,
                 text(kinds[task.kind]), 4294967295, task.stream, task.task_id, model),
            )  # fmt: skip
            if task.kind == "kernel":
                database.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (?,?)", (text(task.name), number))
            if task.launch_ns is not None:
                start_ns = EPOCH_NS + task.launch_ns
                row = (start_ns, start_ns + 1500, 10000, (9 << 32) | 5, correlation, text("launch"))
                database.execute("INSERT INTO CANN_API VALUES (?,?,?,?,?,?)", row)
        database.executemany(
            "INSERT INTO STRING_IDS VALUES (?,?)", [(n, value) for value, n in strings.items()]
        )
    database.close()
    return path

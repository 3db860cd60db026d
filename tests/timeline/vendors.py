"""Runs of several ranks on the virtual device, as folders of every profiler, with the dumps of their graphs.

kineto    a JSON a rank, with cuda_sync, and get_graph_data() of each graph
rocm      the same under HIP's names, without ids of graphs and without events
text, db  a folder of torch_npu a rank: records and waits are tasks without an id, inside replays too
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.timeline.table import Kind
from tests.timeline.as_traces import _CALLS, kineto_of
from tests.timeline.virtual import Node, Work, World
from tests.timeline.writers import EPOCH_NS, us, us_text, write_kineto

NONE = 4294967295
STREAMS = {
    name: 2 + number for number, name in enumerate(("main", "branch", "comm", "plan", "plan2", "side"))
}
ALL_CALLS = _CALLS | {"cudaGraphLaunch": "AscendCL@aclmdlRIExecuteAsync"}


def write_cuda(folder: Path, world: World, graphs: Sequence[list[Node]]) -> list[Path]:
    """Write a file a rank; return the side files."""
    for rank in range(len(world.ranks)):
        about = {"rank": rank, "world_size": len(world.ranks)}
        write_kineto(folder / f"rank{rank}.json.gz", kineto_of(world, rank), distributedInfo=about)
    dumps = [
        {
            "exec_graph_id": graph + 1,
            "nodes": [
                {"node_type": "kernel", "tools_id": (graph + 1) << 32 | n, "dependencies": list(node.after)}
                for n, node in enumerate(nodes)
            ],
        }
        for graph, nodes in enumerate(graphs)
    ]
    side = folder.parent / "graphs.json"
    side.write_text(json.dumps(dumps))
    return [side]


def write_rocm(folder: Path, world: World, graphs: Sequence[list[Node]]) -> list[Path]:
    """Write what ROCm's profiler shows."""
    for rank in range(len(world.ranks)):
        events = []
        for event in kineto_of(world, rank):
            if event["cat"] == "cuda_sync":
                continue
            if event["cat"] == "cuda_runtime":
                event["name"] = event["name"].replace("cuda", "hip")
            for key in ("graph id", "graph node id", "context"):
                event["args"].pop(key, None)
            events.append(event)
        about = {"rank": rank, "world_size": len(world.ranks)}
        write_kineto(folder / f"rank{rank}.json", events, distributedInfo=about)
    return []


@dataclass(frozen=True)
class Task:
    """A task of an Ascend device."""

    name: str
    type: str
    start: int
    end: int
    stream: int
    task: int
    model: int = NONE
    connection: int = NONE
    part: int = NONE  # of a collective


@dataclass(frozen=True)
class Shown:
    """All of a rank. Collectives: (name, start, end, connection); host: (name, work, connection or -1)."""

    tasks: list[Task]
    collectives: list[tuple[str, int, int, int]]
    host: list[tuple[str, Work, int]]
    marks: list[tuple[str, int, int]]


_TYPES = {Kind.KERNEL: "AI_CORE", Kind.RECORD: "EVENT_RECORD", Kind.WAIT: "EVENT_WAIT"}


def seen(world: World, rank: int, graphs: Sequence[list[Node]]) -> Shown:
    """Return what a profiler of an Ascend device sees of a rank."""
    shown = Shown([], [], [], world.ranks[rank].marks)
    works = [work for work in world.works if work.rank == rank]
    ids = {id(work): 10 + n for n, work in enumerate(w for w in works if w.stream == "thread")}
    plans = [graph_tasks(nodes) for nodes in graphs]
    replays: dict[tuple[int, int], list[Work]] = {}
    for number, work in enumerate(works):
        if work.stream == "thread":
            connection = ids[id(work)] if work.name in ALL_CALLS else -1
            shown.host.append((ALL_CALLS.get(work.name, work.name), work, connection))
            continue
        assert work.call is not None
        connection, stream = ids[id(work.call)], STREAMS[work.stream]
        if work.graph >= 0:
            replays.setdefault((work.graph, work.replay), []).append(work)
        elif work.kind == Kind.COMM:
            name = f"hcom_allReduce__586_{work.number}_1"
            shown.collectives.append((name, work.start, work.end, connection))
            for part, (what, start, end) in enumerate(
                (("Notify Wait", work.start, work.begin), ("SDMA", work.begin, work.end))
            ):
                shown.tasks.append(
                    Task(what, what, start, end, stream, 60_000 + number, connection=connection, part=part)
                )
        else:
            kind = _TYPES[Kind(work.kind)]
            name = work.name if work.kind == Kind.KERNEL else kind
            task = Task(name, kind, work.start, work.end, stream, 20_000 + number, connection=connection)
            shown.tasks.append(task)
    for (graph, _), nodes in replays.items():
        shown.tasks.extend(_replayed(graph, nodes, plans[graph], ids))
    return shown


@dataclass(frozen=True)
class Planned:
    """A task of a captured graph: of a node, or a record or wait of `event`."""

    name: str
    stream: int
    task: int
    node: int
    event: int = -1


def graph_tasks(nodes: Sequence[Node]) -> list[Planned]:
    """Return a captured graph's tasks: an edge between streams is a record and a wait."""
    made: list[Planned] = []
    counts: dict[int, int] = {}

    def add(name: str, stream: int, node: int, event: int = -1) -> None:
        made.append(Planned(name, stream, counts.setdefault(stream, 0), node, event))
        counts[stream] += 1

    for number, node in enumerate(nodes):
        stream = STREAMS[node.stream]
        for other in node.after:
            if nodes[other].stream != node.stream:
                add(f"EVENT_WAIT_{other}_{number}", stream, number, other)
        add(node.name, stream, number)
        for later, following in enumerate(nodes):
            if number in following.after and following.stream != node.stream:
                add(f"EVENT_RECORD_{number}_{later}", stream, number, number)
    return made


def _replayed(graph: int, nodes: list[Work], plan: list[Planned], ids: dict[int, int]) -> list[Task]:
    found = []
    ends: dict[int, int] = {}
    for each in plan:
        work = nodes[each.node]
        assert work.call is not None
        start, end, kind = work.start, work.end, "AI_CORE"
        if each.event >= 0 and "RECORD" in each.name:
            start, end, kind = work.end, work.end, "EVENT_RECORD"
        elif each.event >= 0:
            free = ends.get(each.stream, nodes[each.event].start)
            start, end, kind = min(free, work.start), work.start, "EVENT_WAIT"
        ends[each.stream] = end
        name = each.name if kind == "AI_CORE" else kind
        found.append(Task(name, kind, start, end, each.stream, each.task, graph + 1, ids[id(work.call)]))
    return found


def dump(folder: Path, graphs: Sequence[list[Node]]) -> list[Path]:
    """Write `NPUGraph.debug_dump` of each graph."""
    tasks = [
        {"name": task.name, "ph": "X", "ts": 10 * task.task, "dur": 9.5, "pid": "1 aclGraph",
         "tid": f"stream{task.stream}",
         "args": {"Model Id": graph + 1, "Stream Id": task.stream, "Task Id": task.task}}
        for graph, nodes in enumerate(graphs) for task in graph_tasks(nodes)
    ]  # fmt: skip
    path = folder.parent / "dump.json"
    path.write_text(json.dumps(tasks))
    return [path]


def _output(folder: Path, rank: int) -> Path:
    output = folder / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output.parent / f"profiler_info_{rank}.json").write_text("{}")
    return output


def write_text(folder: Path, world: World, graphs: Sequence[list[Node]]) -> list[Path]:
    """Write torch_npu's text output, a folder a rank."""
    for rank in range(len(world.ranks)):
        events = _text_events(seen(world, rank, graphs))
        (_output(folder, rank) / "trace_view.json").write_text(json.dumps(events))
    return dump(folder, graphs)


def _text_events(shown: Shown) -> list[dict[str, Any]]:
    hardware, cann, hccl, python = (
        (900 << 10) | (13 << 5),
        (900 << 10) | (7 << 5),
        (900 << 10) | (15 << 5),
        900,
    )
    lanes = ((hardware, "Ascend Hardware"), (cann, "CANN"), (hccl, "HCCL"), (python, "Python"))
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in lanes
    ]
    group = {"name": "Group 0 Communication"}
    events.append({"ph": "M", "name": "thread_name", "pid": hccl, "tid": 0, "args": group})

    def add(name: str, pid: int, tid: int, start: int, end: int, args: dict[str, Any], **more: str) -> None:
        where = {"pid": pid, "tid": tid, "ts": us_text(EPOCH_NS + start), "dur": us(end - start)}
        events.append({"ph": "X", "name": name, **where, "args": args, **more})

    for task in shown.tasks:
        json_type = task.type + "_SQE" * task.type.startswith("EVENT")
        args = {
            "Model Id": task.model, "Task Type": json_type, "Physic Stream Id": task.stream, "Task Id": task.task,
            "Batch Id": 0, "Subtask Id": task.part, "connection_id": task.connection,
        }  # fmt: skip
        add(task.name, hardware, task.stream, task.start, task.end, args)
    for name, start, end, connection in shown.collectives:
        add(name, hccl, 0, start, end, {"connection_id": connection, "data_type": "FP32", "count": 64})
    for name, work, connection in shown.host:
        if connection >= 0:
            add(name, cann, 5, work.start, work.end, {"level": "acl", "connection_id": connection})
        else:
            add(name, python, 5, work.start, work.end, {}, cat="cpu_op")
    for text, start, end in shown.marks:
        add(text, python, 5, start, end, {}, cat="cpu_op")
    return events


_SCHEMA = """
CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,
    globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER);
CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER);
CREATE TABLE COMMUNICATION_TASK_INFO (name INTEGER, globalTaskId INTEGER, opId INTEGER, size INTEGER);
CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER,
    groupName INTEGER, opId INTEGER, dataType INTEGER, count INTEGER);
CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER,
    name INTEGER);
CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER,
    type INTEGER);
CREATE TABLE STRING_IDS (id INTEGER, value TEXT);
"""
_DB_TYPES = {"AI_CORE": "KERNEL_AICORE"}


def write_db(folder: Path, world: World, graphs: Sequence[list[Node]]) -> list[Path]:
    """Write torch_npu's databases, a folder a rank."""
    for rank in range(len(world.ranks)):
        path = _output(folder, rank) / f"ascend_pytorch_profiler_{rank}.db"
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA synchronous = OFF")  # nobody needs it after a crash
            database.executescript(_SCHEMA)
            _fill(database, seen(world, rank, graphs), rank)
        database.close()
    return dump(folder, graphs)


def _fill(database: sqlite3.Connection, shown: Shown, rank: int) -> None:
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    def put(table: str, *values: Any) -> None:
        database.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(values))})", values)

    operation_of = {connection: n for n, (_, _, _, connection) in enumerate(shown.collectives)}
    thread = (9 << 32) | 5
    for number, task in enumerate(shown.tasks):
        put(
            "TASK", EPOCH_NS + task.start, EPOCH_NS + task.end, rank, task.connection, number, 1,
            text(_DB_TYPES.get(task.type, task.type)), task.part, task.stream, task.task, task.model,
        )  # fmt: skip
        if task.part != NONE:
            put("COMMUNICATION_TASK_INFO", text(task.name), number, operation_of[task.connection], 64)
        elif task.type == "AI_CORE":
            put("COMPUTE_TASK_INFO", text(task.name), number)
    for number, (name, start, end, connection) in enumerate(shown.collectives):
        times = EPOCH_NS + start, EPOCH_NS + end
        put("COMMUNICATION_OP", text(name), *times, connection, text("586"), number, 0, 64)
    for name, work, connection in shown.host:
        start, end = EPOCH_NS + work.start, EPOCH_NS + work.end
        if connection >= 0:
            put("CANN_API", start, end, 20000, thread, connection, text(name))
        else:
            put("PYTORCH_API", str(start), str(end), thread, None, text(name), 50001)
    for name, start, end in shown.marks:
        put("PYTORCH_API", str(EPOCH_NS + start), str(EPOCH_NS + end), thread, None, text(name), 50001)
    for value, number in strings.items():
        put("STRING_IDS", number, value)

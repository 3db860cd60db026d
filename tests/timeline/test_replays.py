"""Replays: which graph, which time, which place in it; with ids, without, and with the dump of a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import TraceError
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.readers.sides import read_sides
from slipstream.timeline.table import Advanced, Kind, Source, Timeline
from tests.timeline.places import real
from tests.timeline.writers import (
    Task,
    ascend_events,
    kineto_events,
    write_ascend,
    write_database,
    write_kineto,
)


def replays(times: int, *, ids: bool, streams: tuple[int, int] = (7, 8), launched: bool = True) -> list[Task]:
    """A graph of three kernels on two streams, replayed; a kernel of no graph between replays."""
    tasks = []
    for n in range(times):
        at = 1_000 * n
        common: dict[str, Any] = {
            "launch_ns": at - 50 if launched else None,
            "launch_name": "cudaGraphLaunch",
            "correlation": 500 + n,
        }
        # Streams of a replay need not be those of another.
        first, second = streams if n % 2 == 0 else streams[::-1]
        for number, (name, begin, end, stream) in enumerate(
            (("draft", 0, 100, first), ("plan", 20, 60, second), ("verify", 110, 300, first))
        ):
            model = {"model": 45, "task_id": 10 + number} if ids else {}
            tasks.append(Task(name, at + begin, at + end, stream=stream, **common, **model))
        tasks.append(Task("sample", at + 400, at + 450, launch_ns=at + 350, task_id=100 + n))
    return tasks


def check(line: Timeline, times: int, *, others: bool = True) -> None:
    assert len(line.graphs) == 1
    assert line.graphs[0].nodes == 3
    work = line.is_work
    for replay in range(times):
        rows = np.flatnonzero(work & (line.replay == replay))
        assert sorted(line.node[rows].tolist()) == [0, 1, 2]
        assert sorted(line.name_of(row) for row in rows.tolist()) == ["draft", "plan", "verify"]
        assert set((line.start_ns[rows] // 1_000).tolist()) == {replay}
    names: dict[int, set[str]] = {}
    for row in np.flatnonzero(work & (line.graph == 0)).tolist():
        names.setdefault(int(line.node[row]), set()).add(line.name_of(row))
    assert all(len(found) == 1 for found in names.values())
    outside = work & (line.graph < 0)
    assert {line.name_of(row) for row in np.flatnonzero(outside).tolist()} == (
        {"sample"} if others else set()
    )


@pytest.mark.parametrize("ids", [False, True])
def test_one_launch_is_many_kernels(tmp_path: Path, ids: bool) -> None:
    line = open_timeline(write_kineto(tmp_path / "t.json", kineto_events(replays(4, ids=ids))))
    assert line.graphs[0].source is (Source.GIVEN if ids else Source.INFERRED)
    launches = line.kind == Kind.LAUNCH
    assert line.graph[launches].tolist() == [0] * 4
    assert line.replay[launches].tolist() == [0, 1, 2, 3]
    for replay in range(4):
        rows = np.flatnonzero(line.is_work & (line.replay == replay))
        assert len(set(line.launch[rows].tolist())) == 1
        assert line.replay[line.launch[rows[0]]] == replay
        assert sorted(line.node[rows].tolist()) == [0, 1, 2]


def test_two_graphs_are_told_apart(tmp_path: Path) -> None:
    other = [
        Task(
            "extend",
            1_000 * n + 500,
            1_000 * n + 600,
            launch_ns=1_000 * n + 470,
            launch_name="hipGraphLaunch",
        )
        for n in range(3)
    ]
    line = open_timeline(write_kineto(tmp_path / "t.json", kineto_events([*replays(3, ids=False), *other])))
    assert sorted(graph.nodes for graph in line.graphs) == [1, 3]
    assert line.replay[line.kind == Kind.LAUNCH].tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("form", ["text", "db"])
def test_ascend_tasks_name_their_model(tmp_path: Path, form: str) -> None:
    # One launch covers all replays, and streams of a graph are the same in all of them.
    tasks = [
        Task(task.name, task.start_ns, task.end_ns, stream=7 if task.name != "plan" else 8,
             launch_ns=-90 if task.model else task.launch_ns, model=task.model, task_id=task.task_id,
             correlation=77 if task.model else 0)
        for task in replays(3, ids=True)
    ]  # fmt: skip
    if form == "text":
        path = write_ascend(tmp_path / "x_ascend_pt", ascend_events(tasks))
    else:
        path = write_database(tmp_path / "ascend_pytorch_profiler_0.db", tasks)
    line = open_timeline(path)
    check(line, 3)
    assert line.graphs[0].key == "graph 45"
    assert line.graphs[0].source is Source.GIVEN


def test_a_clipped_replay_is_marked(tmp_path: Path) -> None:
    tasks = replays(3, ids=True, launched=False)[1:]
    tasks = [Task(t.name, t.start_ns, t.end_ns, model=t.model, task_id=t.task_id) for t in tasks[:-2]]
    line = open_timeline(write_kineto(tmp_path / "t.json", kineto_events(tasks)))
    graph = line.graph == 0
    assert np.bincount(line.replay[graph]).tolist() == [2, 3, 2]
    assert any(note.what == "clipped" and "not whole" in note.why for note in line.notes)


def launches_only(times: int) -> list[dict[str, Any]]:
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "hipGraphLaunch", "pid": 1, "tid": 1, "ts": n - 0.05,
         "dur": 0.01, "args": {"correlation": 900 + n}}
        for n in range(times)
    ]  # fmt: skip


def without_ids(tasks: list[Task]) -> list[dict[str, Any]]:
    events = kineto_events(
        [Task(t.name, t.start_ns, t.end_ns, stream=7) for t in tasks if t.name != "sample"]
    )
    for event in events:
        del event["args"]["correlation"]
    return events


def test_without_ids_equal_sequences_are_replays(tmp_path: Path) -> None:
    events = without_ids(replays(3, ids=False)) + launches_only(3)
    line = open_timeline(write_kineto(tmp_path / "t.json", events))
    check(line, 3, others=False)
    assert any(note.what == "inferred" and "no ids" in note.why for note in line.notes)


def test_without_ids_and_without_repeats_nothing_is_guessed(tmp_path: Path) -> None:
    events = without_ids(replays(3, ids=False))[:-1] + launches_only(3)
    line = open_timeline(write_kineto(tmp_path / "t.json", events))
    assert not line.graphs
    assert any(note.what == "missing" and note.count == 3 for note in line.notes)


# Dumps.


def cuda_dump(graph: int = 45) -> dict[str, Any]:
    """draft -> [event] -> verify, plan -> verify."""
    kinds = [("kernel", 10, []), ("kernel", 11, []), ("event_record", 50, [0]), ("kernel", 12, [2, 1])]
    return {
        "exec_graph_id": graph,
        "nodes": [
            {"index": n, "node_type": kind, "tools_id": (graph << 32) | key, "graph_id": graph, "node_id": key,
             "kernel_name": None, "event_ptr": 0, "dependencies": before, "dependents": []}
            for n, (kind, key, before) in enumerate(kinds)
        ],
    }  # fmt: skip


def test_topology_of_a_cuda_graph(tmp_path: Path) -> None:
    trace = write_kineto(tmp_path / "t.json", kineto_events(replays(2, ids=True)))
    side = tmp_path / "graph.json"
    side.write_text(json.dumps(cuda_dump()))
    line = open_timeline(trace, sides=[side])
    (graph,) = line.graphs
    assert graph.edges is not None
    assert graph.edges.tolist() == [[0, 3], [1, 3]]
    by_node = {
        int(line.node[row]): line.name_of(row)
        for row in np.flatnonzero(line.is_work & (line.graph == 0)).tolist()
    }
    assert by_node == {0: "draft", 1: "plan", 3: "verify"}


def test_a_topology_of_another_graph_is_noted(tmp_path: Path) -> None:
    trace = write_kineto(tmp_path / "t.json", kineto_events(replays(2, ids=True)))
    side = tmp_path / "graph.json"
    side.write_text(json.dumps([cuda_dump(graph=46)]))
    assert any(note.what == "unmatched" for note in open_timeline(trace, sides=[side]).notes)


def test_topology_of_an_ascend_graph() -> None:
    sides = read_sides([real("ascend/aclgraph-dump/graph_debug.json")])
    (topology,) = sides.topologies
    assert len(topology.node_keys) == 82
    assert len(set(topology.node_keys.tolist())) == 82
    tasks = json.loads(real("ascend/aclgraph-dump/graph_debug.json").read_text())
    between = [
        (tasks[before]["name"], tasks[after]["name"])
        for before, after in topology.edges.tolist()
        if tasks[before]["tid"] != tasks[after]["tid"]
    ]
    assert between
    for before, after in between:
        assert before.removeprefix("EVENT_RECORD_") == after.removeprefix("EVENT_WAIT_")


# Tokens.


def test_tokens_of_rounds(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text('{"accepted": [2, 0], "round": 7}\n\n{"advanced": 4, "start_ns": 12}\n')
    assert read_sides([path]).advanced == [Advanced(7, (3, 1)), Advanced(-1, (4,), 12)]
    trace = write_kineto(tmp_path / "t.json", kineto_events(replays(2, ids=True)))
    assert len(open_timeline(trace, sides=[path]).advanced) == 2


@pytest.mark.parametrize("text", ["", "{}", '{"round": 1}', '{"advanced": -1}', "x", "[]", '{"nodes": 1}'])
def test_a_side_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "side.json"
    path.write_text(text)
    with pytest.raises(TraceError, match="no file that goes beside a trace"):
        read_sides([path])
    with pytest.raises(TraceError, match="cannot read"):
        read_sides([tmp_path / "nothing"])

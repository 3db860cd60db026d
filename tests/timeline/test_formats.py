"""The same program in every format is the same table; folders of ranks are one run; our own traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.errors import TraceError
from slipstream.timeline.analysis import analyse
from slipstream.timeline.edges import EdgeKind, find_dependencies
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Role, Timeline
from slipstream.trace import Flow, Mark, Slice, write_chrome
from tests.timeline.writers import (
    EPOCH_NS,
    Task,
    ascend_events,
    kineto_events,
    write_ascend,
    write_database,
    write_kineto,
)


@st.composite
def programs(draw: st.DrawFn) -> list[Task]:
    """Tasks on a few streams, in order on each; some launches are not in the trace."""
    tasks, clocks = [], {2: 0, 3: 0, 5: 0}
    for number in range(draw(st.integers(1, 25))):
        stream = draw(st.sampled_from(sorted(clocks)))
        start = clocks[stream] + draw(st.integers(0, 3_000_000))
        clocks[stream] = end = start + draw(st.integers(1, 2_000_000))
        kind = draw(st.sampled_from(["kernel", "kernel", "copy", "set"]))
        launch = draw(st.one_of(st.none(), st.integers(-5_000_000, start)))
        tasks.append(Task(draw(st.sampled_from("abc")), start, end, stream, kind, launch, task_id=number))
    return tasks


KINDS = {"kernel": Kind.KERNEL, "copy": Kind.COPY, "set": Kind.SET}


def table(line: Timeline) -> list[tuple[int, int, int, int, int | None]]:
    return sorted(
        (
            int(line.start_ns[row]) + line.base_ns,
            int(line.end_ns[row]) + line.base_ns,
            line.streams[line.stream[row]].key,
            int(line.kind[row]),
            int(line.start_ns[line.launch[row]]) + line.base_ns if line.launch[row] >= 0 else -1,
        )
        for row in np.flatnonzero(line.on_device).tolist()
    )


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tasks=programs())
def test_every_format_gives_the_same_table(tmp_path: Path, tasks: list[Task]) -> None:
    check_formats(tmp_path, tasks)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tasks=programs())
def test_every_format_gives_the_same_table_of_many(tmp_path: Path, tasks: list[Task]) -> None:
    check_formats(tmp_path, tasks)


def check_formats(tmp_path: Path, tasks: list[Task]) -> None:
    expected = sorted(
        (
            EPOCH_NS + task.start_ns,
            EPOCH_NS + task.end_ns,
            task.stream,
            int(KINDS[task.kind]),
            -1 if task.launch_ns is None else EPOCH_NS + task.launch_ns,
        )
        for task in tasks
    )
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    paths = [
        write_kineto(tmp_path / "new.json", kineto_events(tasks)),
        write_kineto(tmp_path / "old.json.gz", kineto_events(tasks, old=True)),
        write_ascend(tmp_path / "text", ascend_events(tasks)),
        write_database(tmp_path / "ascend_pytorch_profiler_0.db", tasks),
    ]
    clipped = sum(task.launch_ns is None for task in tasks)
    for path in paths:
        line = open_timeline(path)
        assert table(line) == expected
        assert sum(note.count for note in line.notes if note.what == "clipped") == clipped


# Ours.


def test_our_own_trace(tmp_path: Path) -> None:
    events = [
        Slice("main", "verify", 5_000, 900, {"rows": 8, "route": "replay"}),
        Slice("main graph", "attention", 5_100, 300, {"phase": "verify"}),
        Slice("plan", "extend plan A", 5_200, 200),
        Slice("host", "publish", 6_000, 50),
        Flow("main waits for plan", "plan", 5_400, "main", 5_900),
        Mark("host", "eager", 6_020, {"reason": "no bucket"}),
    ]
    line = open_timeline(write_chrome(tmp_path / "t.json", events))
    (source,) = line.sources
    assert source.format == "slipstream"
    verify, part, plan, record, wait, publish = range(6)
    assert [line.name_of(row) for row in (verify, part, plan, publish)] == [
        "verify", "attention", "extend plan A", "publish",
    ]  # fmt: skip
    assert line.kind.tolist() == [Kind.KERNEL, Kind.SUBTASK, Kind.KERNEL, Kind.RECORD, Kind.WAIT, Kind.HOST]
    assert line.parent[part] == verify
    assert line.record[wait] == record
    assert line.streams[line.waited[wait]].name == "plan"
    assert line.streams[line.stream[wait]].name == "main"
    assert line.start_ns[wait] + line.base_ns == 5_900
    assert line.args(verify)["rows"] == 8
    assert [line.names[name] for name in line.marks.name] == ["verify", "extend plan A", "eager"]
    assert line.marks.args[0]["route"] == "replay"
    assert {stream.name: stream.role for stream in line.streams}["host"] is Role.HOST


COLLECTIVE: dict[str, int | str] = {"group": "tp", "sequence": 3, "bytes": 9}


def timed() -> list[Slice | Flow | Mark]:
    """A replay that its device timed: two streams, launched, and waited for by the host."""
    return [
        Slice("host", "replay", 4_000, 500),
        Slice("host", "settle", 4_600, 1_400),
        Slice("main", "verify", 5_000, 900, {"route": "replay", "bucket": 8, "width": 4}),
        Slice("main graph", "attention", 5_000, 300, {"phase": "verify", "kind": "kernel"}),
        Slice("branch graph", "indexer", 5_100, 500, {"phase": "verify", "kind": "kernel"}),
        Slice("main graph", "join", 5_600, 300, {"phase": "verify", "kind": "kernel"}),
        Slice("comm", "all_reduce", 5_700, 150, {"kind": "communication", **COLLECTIVE}),
        Slice("comm", "fetch", 5_850, 20, {"kind": "copy"}),
        Flow("launch", "host", 4_500, "main", 5_000),
        Flow("main waits for branch", "branch", 5_600, "main", 5_600),
        Flow("host waits for main", "main", 5_900, "host", 6_000),
        Flow("launch", "host", 4_550, "comm", 5_850),  # by a call that is not in the trace
    ]  # fmt: skip


def test_our_own_trace_of_a_device_that_times_its_operations(tmp_path: Path) -> None:
    about: dict[str, int | float | str] = {"rank": 1, "world_size": 4, "device": "npu"}
    line = open_timeline(write_chrome(tmp_path / "t.json", timed(), metadata=about))
    (source,) = line.sources
    assert source.rank == 1
    assert source.read == source.rows + source.marks + sum(source.dropped.values())
    assert not line.notes
    row = {line.name_of(row): row for row in range(len(line)) if line.kind[row] != Kind.RECORD}
    assert "verify" not in row  # a mark alone, and not a second time what it is made of
    assert [line.names[name] for name in line.marks.name] == ["verify", "all_reduce", "fetch"]
    inside = [row[name] for name in ("attention", "indexer", "join")]
    assert [line.streams[line.stream[each]].name for each in inside] == ["main", "branch", "main"]
    assert line.kind[inside].tolist() == [Kind.KERNEL] * 3
    assert line.graphs[0].key == "verify 8 x 4"
    assert line.graph[[*inside, row["replay"]]].tolist() == [0] * 4
    assert sorted(line.node[inside].tolist()) == [0, 1, 2]
    assert line.launch[inside].tolist() == [row["replay"]] * 3  # one launch for all of a replay
    assert line.kind[row["replay"]] == Kind.LAUNCH
    comm, copy = row["all_reduce"], row["fetch"]
    assert line.kind[[comm, copy]].tolist() == [Kind.COMM, Kind.COPY]
    assert line.groups[line.group[comm]].name == "tp"
    assert (line.sequence[comm], line.bytes[comm], line.group[copy]) == (3, 9, -1)
    wait, settle = row["main waits for branch"], row["settle"]
    assert line.kind[[wait, settle]].tolist() == [Kind.WAIT, Kind.SYNC]
    for waiter, stream, done in ((wait, "branch", 5_600), (settle, "main", 5_900)):
        record = line.record[waiter]
        assert line.kind[record] == Kind.RECORD
        assert line.start_ns[record] + line.base_ns == done
        assert line.streams[line.waited[waiter]].name == stream
    call = line.launch[copy]
    assert (line.name_of(call), line.dur_ns[call], line.start_ns[call] + line.base_ns) == ("launch", 0, 4_550)


def test_our_own_trace_of_a_device_that_does_not_says_so(tmp_path: Path) -> None:
    events = [Slice("main", "verify", 0, 10)]
    for device, noted in (("cuda", True), ("cpu", False)):
        path = write_chrome(tmp_path / f"{device}.json", events, metadata={"device": device, "rank": -1})
        line = open_timeline(path)
        said = [note.why for note in line.notes]
        assert any("phases are as long as the host took to issue them" in why for why in said) == noted
        assert line.sources[0].rank == 0  # -1 is no rank


def test_our_own_traces_of_two_ranks_keep_their_programs_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        events = [Slice("main", "verify", 100 * n + 30 * rank, 60) for n in range(5)]
        events += [Slice("host", "publish", 100 * n + 30 * rank + 60, 30) for n in range(5)]
        write_chrome(tmp_path / f"own.{rank}.json", events, metadata={"rank": rank, "world_size": 2})
    line = open_timeline(tmp_path)
    edges = find_dependencies(line).edges
    assert len(edges) == 2 * 9  # each row of a rank behind the one before
    assert set(edges.kind.tolist()) == {EdgeKind.HOST}
    assert (line.rank[edges.src] == line.rank[edges.dst]).all()


@pytest.mark.parametrize(("planned_ns", "before_verify_ns"), [(0, 80_000), (-40_000, 0)])
def test_a_plain_round_begins_with_its_plan_unless_the_round_before_still_runs(
    tmp_path: Path, planned_ns: int, before_verify_ns: int
) -> None:
    events = []
    for begin in range(1_000_000, 5_000_000, 1_000_000):
        events += [
            Slice("plan", "verify plan", begin + planned_ns, 70_000),
            Slice("main", "verify", begin + 80_000, 800_000, {"route": "replay", "width": 1}),
            Slice("main", "accept", begin + 885_000, 95_000),
        ]
    (reports,) = analyse(open_timeline(write_chrome(tmp_path / "t.json", events))).reports.values()
    assert len(reports) == 4
    for report in reports[1:-1]:
        plan, verify, accept = report.round.phases
        assert (plan.name, verify.name, accept.name) == ("verify plan", "verify", "accept")
        assert verify.start_ns - report.round.start_ns == before_verify_ns
        assert report.round.took_ns == 1_000_000
        for question in (1, 2, 3, 9):
            assert "nothing was drafted" in report.answers[question - 1].text


def test_a_trace_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = write_chrome(tmp_path / "t.json", [Slice("main", "verify", 0, 10)])
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    with pytest.raises(TraceError, match="schema 2"):
        open_timeline(path)


# Folders.


def rank_file(
    path: Path, rank: int | None, *, later_ns: int = 0, world: int = 2, collectives: int = 2
) -> None:
    tasks = [Task("gemm", later_ns, later_ns + 500)]
    tasks += [
        Task(
            "ncclDevKernel_AllReduce_RING",
            at := later_ns + 1_000 * (n + 1) + 10 * (rank or 0),
            at + 500,
            stream=20,
        )
        for n in range(collectives)
    ]
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world}}
    write_kineto(path, kineto_events(tasks), **about)


def test_a_folder_of_ranks_is_one_run(tmp_path: Path) -> None:
    rank_file(tmp_path / "b.json", 0)
    rank_file(tmp_path / "a.json.gz", 3)
    (tmp_path / "notes.json").write_text('{"not": "a trace"}')
    line = open_timeline(tmp_path)
    assert line.ranks == (0, 3)
    comm = np.flatnonzero(line.kind == Kind.COMM)
    assert sorted(zip(line.rank[comm].tolist(), line.sequence[comm].tolist(), strict=True)) == [
        (0, 0), (0, 1), (3, 0), (3, 1),
    ]  # fmt: skip
    assert len(set(line.group[comm].tolist())) == 1
    assert [line.groups[line.group[comm[0]]].ranks] == [(0, 3)]


def test_ranks_with_different_numbers_of_collectives_are_not_matched(tmp_path: Path) -> None:
    rank_file(tmp_path / "0.json", 0)
    rank_file(tmp_path / "1.json", 1, collectives=3)
    line = open_timeline(tmp_path)
    assert (line.sequence == -1).all()
    assert [note.count for note in line.notes if note.what == "unresolved"] == [5]


def test_ranks_by_the_names_of_files(tmp_path: Path) -> None:
    rank_file(tmp_path / "trace_rank_4.json", None)
    rank_file(tmp_path / "trace_rank_6.json", None)
    line = open_timeline(tmp_path)
    assert line.ranks == (4, 6)
    assert any(note.what == "inferred" and "names" in note.why for note in line.notes)


def test_one_rank_twice_is_refused(tmp_path: Path) -> None:
    rank_file(tmp_path / "monday.json", 1)
    rank_file(tmp_path / "tuesday.json", 1)
    with pytest.raises(TraceError, match=r"rank 1 is there twice.*monday.*tuesday"):
        open_timeline(tmp_path)


def test_ranks_of_different_runs_are_marked(tmp_path: Path) -> None:
    rank_file(tmp_path / "0.json", 0)
    rank_file(tmp_path / "1.json", 1, later_ns=50_000_000_000, world=4)
    notes = [note.why for note in open_timeline(tmp_path).notes if note.what == "mixed"]
    assert len(notes) == 2


def test_ascend_folders_are_found_below(tmp_path: Path) -> None:
    tasks = [Task("a", 10, 20, launch_ns=0)]
    for rank in (0, 1):
        write_ascend(
            tmp_path / "run" / f"host_{rank}_ascend_pt", ascend_events(tasks, device=rank), rank=rank
        )
    line = open_timeline(tmp_path)
    assert line.ranks == (0, 1)
    assert [stream.device for stream in line.streams if stream.device is not None] == [0, 1]


def test_a_database_is_preferred_to_text(tmp_path: Path) -> None:
    folder = write_ascend(tmp_path / "x_ascend_pt", ascend_events([Task("a", 10, 20)]))
    write_database(folder / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db", [Task("a", 10, 20)])
    assert open_timeline(folder).sources[0].format == "ascend db"


@pytest.mark.parametrize("what", ["nothing", "empty folder", "other files"])
def test_no_trace_there(tmp_path: Path, what: str) -> None:
    if what == "other files":
        (tmp_path / "a.json").write_text("{}")
    with pytest.raises(TraceError, match=r"nothing at|no trace is in"):
        open_timeline(tmp_path / "missing" if what == "nothing" else tmp_path)


# Ascend's collectives.


def test_parts_of_a_collective(tmp_path: Path) -> None:
    hardware, hccl = (900 << 10) | (13 << 5), (900 << 10) | (15 << 5)

    def at(ns: int) -> str:
        return f"{(EPOCH_NS + ns) // 1000}.{(EPOCH_NS + ns) % 1000:03d}"

    events = ascend_events([Task("matmul", 0, 50_000, stream=2, launch_ns=-10_000, task_id=1)])
    events += [
        {"ph": "M", "name": "process_name", "pid": hccl, "tid": 0, "args": {"name": "HCCL"}},
        {"ph": "M", "name": "thread_name", "pid": hccl, "tid": 0, "args": {"name": "Group 0 Communication"}},
        {"ph": "M", "name": "thread_name", "pid": hccl, "tid": 1, "args": {"name": "Plane 0"}},
        {"ph": "X", "name": "hcom_allReduce__586_3_1", "pid": hccl, "tid": 0, "ts": at(10_000), "dur": 30.0,
         "args": {"connection_id": 9, "data_type": "FP32", "alg_type": "MESH", "count": 100}},
    ]  # fmt: skip
    for number, (name, begin, end) in enumerate((("SDMA", 10_000, 20_000), ("Notify Wait", 15_000, 40_000))):
        common = {"ts": at(begin), "dur": (end - begin) / 1000}
        events += [
            {"ph": "X", "name": name, "pid": hardware, "tid": 4, **common,
             "args": {"Model Id": 4294967295, "Task Type": name, "Physic Stream Id": 4, "Task Id": 807,
                      "Subtask Id": number, "connection_id": 9}},
            {"ph": "X", "name": name, "pid": hccl, "tid": 1, **common,
             "args": {"stream id": 4, "task id": 807, "context id": number, "task type": name, "src rank": 0,
                      "dst rank": 1, "size(Byte)": 64, "transport type": "SDMA"}},
        ]  # fmt: skip
    line = open_timeline(write_ascend(tmp_path / "x", events))
    (collective,) = np.flatnonzero(line.kind == Kind.COMM).tolist()
    assert line.streams[line.stream[collective]].name == "stream 4"
    assert (line.sequence[collective], line.bytes[collective]) == (3, 400)
    assert line.groups[line.group[collective]].name == "hcom 586"
    parts = np.flatnonzero(line.kind == Kind.SUBTASK)
    assert line.parent[parts].tolist() == [collective, collective]
    assert line.args(int(parts[0]))["dst rank"] == 1
    assert line.bytes[parts].tolist() == [64, 64]
    assert line.sources[0].dropped["shown twice"] == 2
    # Parts overlap; the collective counts once.
    assert line.dur_ns[line.is_work].tolist() == [50_000, 30_000]


def test_steps_without_their_collective_are_communication(tmp_path: Path) -> None:
    events = ascend_events([Task("x", 0, 50, stream=4)])
    events[-2]["args"]["Task Type"] = events[-2]["name"] = "SDMA"
    line = open_timeline(write_ascend(tmp_path / "x", events))
    assert line.kind[line.on_device].tolist() == [Kind.COMM]
    assert any("whose collective is not in the trace" in note.why for note in line.notes)


def test_annotations_among_ascend_operators(tmp_path: Path) -> None:
    events = ascend_events([Task("x", 0, 50)])
    for number, name in enumerate(
        ("ProfilerStep#3", "draft_token", "prepare input", "aten::mm", "aclnnMuls")
    ):
        ts = f"{EPOCH_NS // 1000}.{number:03d}"
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 900, "tid": 900, "ts": ts, "dur": 1})
    line = open_timeline(write_ascend(tmp_path / "x", events))
    assert [line.names[name] for name in line.marks.name] == [
        "ProfilerStep#3",
        "draft_token",
        "prepare input",
    ]
    assert {line.name_of(row) for row in np.flatnonzero(~line.on_device).tolist()} == {
        "aten::mm",
        "aclnnMuls",
    }


def test_a_dump_of_a_graph_is_no_trace(tmp_path: Path) -> None:
    task = {"name": "k", "pid": "7 aclGraph", "tid": "stream1", "ts": 0, "dur": 9.5, "ph": "X"}
    dump = json.dumps([task | {"args": {"Model Id": 1, "Stream Id": 1, "Task Id": 0}}])
    (tmp_path / "graph.json").write_text(dump)
    with pytest.raises(TraceError, match="dump of a graph"):
        open_timeline(tmp_path / "graph.json")
    rank_file(tmp_path / "rank0.json", 0)
    assert len(open_timeline(tmp_path).sources) == 1


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    rank_file(tmp_path / "a.json", 0)
    rank_file(tmp_path / "b.json.gz", 1)
    told: list[tuple[int, int]] = []
    open_timeline(tmp_path, progress=lambda done, total: told.append((done, total)))
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)

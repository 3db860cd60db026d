"""PyTorch's profiles: what is read from synthetic ones is what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import TraceError
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Source, Timeline
from tests.timeline.writers import EPOCH_NS, Task, kineto_events, write_kineto

TASKS = (
    Task("gemm<float>", 10_000, 20_123, launch_ns=1_000),
    Task("Memcpy HtoD (Pinned -> Device)", 20_500, 21_001, kind="copy", launch_ns=3_000),
    Task("gemm<float>", 21_002, 30_000, stream=9, launch_ns=5_000),
)


def rows_of(line: Timeline) -> list[tuple[str, int, int, str]]:
    return [
        (line.name_of(row), int(line.start_ns[row]) + line.base_ns, int(line.end_ns[row]) + line.base_ns,
         line.streams[line.stream[row]].name)
        for row in np.flatnonzero(line.on_device).tolist()
    ]  # fmt: skip


def expected(tasks: tuple[Task, ...]) -> list[tuple[str, int, int, str]]:
    return [
        (task.name, EPOCH_NS + task.start_ns, EPOCH_NS + task.end_ns, f"stream {task.stream}")
        for task in tasks
    ]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("old", [False, True])
def test_operations_are_read_to_the_nanosecond(tmp_path: Path, name: str, old: bool) -> None:
    line = open_timeline(write_kineto(tmp_path / name, kineto_events(TASKS, old=old)))
    assert rows_of(line) == expected(TASKS)
    assert line.kind[line.on_device].tolist() == [Kind.KERNEL, Kind.COPY, Kind.KERNEL]
    launches = line.launch[line.on_device]
    assert [line.name_of(row) for row in launches.tolist()] == ["cudaLaunchKernel"] * 3
    assert line.start_ns[launches].tolist() == [0, 2_000, 4_000]


def test_times_that_no_float_holds(tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": 0,
            "dur": 1,
            "args": {"stream": 7},
        }
    ] * 2
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    for time in ("1736408883694795.841", "1736408883694795.842"):
        text = text.replace('"ts": 0', f'"ts": {time}', 1)
    path = tmp_path / "t.json"
    path.write_text(text)
    line = open_timeline(path)
    assert (line.start_ns + line.base_ns).tolist() == [1736408883694795841, 1736408883694795842]


def test_python_functions_are_dropped_and_counted(tmp_path: Path) -> None:
    frame = {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    line = open_timeline(write_kineto(tmp_path / "t.json", [*kineto_events(TASKS), *[frame] * 50]))
    assert line.sources[0].dropped["python_function"] == 50
    assert "f" not in line.names


def test_ids_longer_than_64_bits(tmp_path: Path) -> None:
    tasks = [
        Task("a", 10, 20, launch_ns=0, correlation=1 << 70),
        Task("b", 30, 40, launch_ns=5, correlation=1 << 71),
    ]
    line = open_timeline(write_kineto(tmp_path / "t.json", kineto_events(tasks)))
    assert line.start_ns[line.launch[line.on_device]].tolist() == [0, 5]


def odd_event(**changes: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "name": "odd", "pid": 0, "tid": 7, "ts": 25.0, "dur": 1.0}
    return event | {"args": {"stream": 7, "device": 0}} | changes


@pytest.mark.parametrize(
    ("changes", "what", "rows"),
    [
        ({"dur": -5}, "negative", 4),
        ({"dur": 1e15}, "dropped", 3),
        ({"dur": 1e300}, "dropped", 3),
        ({"ts": 10**40}, "dropped", 3),
        ({"ts": "noon"}, "dropped", 3),
        ({"ts": None}, "dropped", 3),
        ({"ts": -3e15}, "dropped", 3),
    ],
)
def test_times_that_cannot_be_meant_are_marked(tmp_path: Path, changes: Any, what: str, rows: int) -> None:
    line = open_timeline(write_kineto(tmp_path / "t.json", [*kineto_events(TASKS), odd_event(**changes)]))
    assert int(line.on_device.sum()) == rows
    assert [(note.what, note.count) for note in line.notes if note.what == what] == [(what, 1)]
    assert (line.end_ns >= line.start_ns).all()
    (source,) = line.sources
    assert source.read == source.rows + source.marks + sum(source.dropped.values())


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"name": None}, 1),
        ({"name": 7}, 1),
        ({"pid": "x", "tid": 1.5}, 1),
        ({"args": {"stream": "seven"}}, 1),
        ({"args": None}, 1),
        ({"tid": [1]}, 0),
        ({"args": {"stream": {"a": 1}, "device": []}}, 0),
        ({"args": 3}, 0),
    ],
)
def test_fields_of_any_type_cost_no_more_than_their_event(tmp_path: Path, changes: Any, kept: int) -> None:
    line = open_timeline(write_kineto(tmp_path / "t.json", [*kineto_events(TASKS), odd_event(**changes)]))
    assert int(line.on_device.sum()) == 3 + kept
    assert sum(note.count for note in line.notes if note.what == "dropped") == 1 - kept


def test_events_out_of_order_are_sorted(tmp_path: Path) -> None:
    line = open_timeline(write_kineto(tmp_path / "t.json", kineto_events(TASKS)[::-1]))
    assert rows_of(line) == expected(TASKS)


def test_waits_name_their_record(tmp_path: Path) -> None:
    def call(name: str, ts: int, correlation: int) -> dict[str, Any]:
        args = {"correlation": correlation}
        return {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": 2,
            "args": args,
        }

    def sync(kind: str, ts: int, correlation: int, stream: int, record: int, waited: int) -> dict[str, Any]:
        args = {
            "cuda_sync_kind": kind, "stream": stream, "correlation": correlation, "device": 0,
            "wait_on_stream": waited, "wait_on_cuda_event_record_corr_id": record,
        }  # fmt: skip
        return {
            "ph": "X",
            "cat": "cuda_sync",
            "name": kind,
            "pid": 0,
            "tid": stream,
            "ts": ts,
            "dur": 2,
            "args": args,
        }

    events = [
        *kineto_events(TASKS), call("cudaEventRecord", 31, 500), call("cudaStreamWaitEvent", 34, 501),
        sync("Stream Wait Event", 35, 501, 9, 500, 7), call("cudaStreamWaitEvent", 37, 502),
        sync("Stream Wait Event", 38, 502, 9, -1, -1), call("cudaEventSynchronize", 40, 503),
        sync("Event Sync", 41, 503, -1, 500, 7),
    ]  # fmt: skip
    line = open_timeline(write_kineto(tmp_path / "t.json", events))
    known, unknown = np.flatnonzero(line.kind == Kind.WAIT).tolist()
    assert line.name_of(int(line.record[known])) == "cudaEventRecord"
    assert line.streams[line.waited[known]].name == "stream 7"
    assert line.record[unknown] == -1
    assert [note.count for note in line.notes if note.what == "unresolved"] == [1]
    host = np.flatnonzero((line.kind == Kind.SYNC) & ~line.on_device)
    assert [line.name_of(int(row)) for row in line.record[host]] == ["cudaEventRecord"]
    assert not line.is_work[line.kind == Kind.SYNC].any()


def test_waits_without_events_are_said_to_be_missing(tmp_path: Path) -> None:
    call = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaStreamWaitEvent",
        "pid": 1,
        "tid": 1,
        "ts": 5,
        "dur": 1,
    }
    line = open_timeline(
        write_kineto(tmp_path / "t.json", [*kineto_events(TASKS), call | {"args": {"correlation": 9}}])
    )
    assert any("cuda_sync events were off" in note.why for note in line.notes)


def test_a_collective_says_group_size_and_number(tmp_path: Path) -> None:
    args = {
        "stream": 20, "device": 0, "correlation": 77, "Collective name": "allreduce", "In msg nelems": 100,
        "Out msg nelems": 100, "dtype": "BFloat16", "Process Group Name": "3", "Process Group Ranks": "[0, 2]",
        "Seq": 12,
    }  # fmt: skip
    event = odd_event(name="some_kernel", args=args)
    line = open_timeline(write_kineto(tmp_path / "t.json", [*kineto_events(TASKS), event]))
    (row,) = np.flatnonzero(line.kind == Kind.COMM).tolist()
    assert (line.kind_source[row], line.bytes[row], line.sequence[row]) == (Source.GIVEN, 200, 12)
    assert line.groups[line.group[row]].ranks == (0, 2)


def test_rocm_fills_and_copies_are_no_kernels(tmp_path: Path) -> None:
    tasks = [
        Task("__amd_rocclr_copyBuffer.kd", 10, 20, launch_name="hipGraphLaunch", launch_ns=0, correlation=5),
        Task(
            "__amd_rocclr_fillBufferAligned", 30, 40, launch_name="hipGraphLaunch", launch_ns=0, correlation=5
        ),
    ]
    line = open_timeline(write_kineto(tmp_path / "t.json", kineto_events(tasks)))
    assert line.kind[line.on_device].tolist() == [Kind.COPY, Kind.SET]
    assert (line.graph >= 0).all()
    assert line.kind[~line.on_device].tolist() == [Kind.LAUNCH]


def test_header_behind_the_events(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = json.dumps(kineto_events(TASKS))
    path.write_text(
        f'{{"traceEvents": {events}, "distributedInfo": {{"rank": 5, "world_size": 8}},'
        f' "baseTimeNanoseconds": {EPOCH_NS}}}'
    )
    line = open_timeline(path)
    assert line.ranks == (5,)
    assert rows_of(line) == expected(TASKS)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "hello", '{"a": 1}', '{"traceEvents": []}', "[1, 2]", "\x1f\x8b"]
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError, match=r"trace|events") as caught:
        open_timeline(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("phase", ["n", "XX", 7, None])
def test_a_phase_that_is_not_known_is_counted_and_the_others_are_read(tmp_path: Path, phase: Any) -> None:
    named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 100, "args": {"name": "worker"}}
    events = [*kineto_events(TASKS), named]
    usual = open_timeline(write_kineto(tmp_path / "usual.json", events))
    line = open_timeline(write_kineto(tmp_path / "t.json", [*events, odd_event(ph=phase)]))
    assert rows_of(line) == rows_of(usual) == expected(TASKS)
    assert line.streams == usual.streams
    (source,), (whole,) = line.sources, usual.sources
    assert source.dropped == whole.dropped | {f"phase {phase}": 1}


def test_categories_that_are_not_known(tmp_path: Path) -> None:
    device = odd_event(cat="npu_kernel", ts=40.0)
    call = odd_event(
        cat="privateuse1_runtime", name="launch", ts=5.0, args={"correlation": 77, "stream": 1, "device": 0}
    )
    other = odd_event(cat="memo", name="memo", ts=41.0, args={})
    line = open_timeline(write_kineto(tmp_path / "t.json", [*kineto_events(TASKS), device, call, other]))
    kinds = {line.name_of(row): (bool(line.on_device[row]), Kind(line.kind[row])) for row in range(len(line))}
    assert kinds["odd"] == (True, Kind.KERNEL)
    assert kinds["launch"] == kinds["memo"] == (False, Kind.HOST)


@pytest.mark.parametrize("rank", [-1, 1 << 40, 1 << 70, True, "3", 1.5, None])
def test_a_rank_that_is_none_is_not_taken(tmp_path: Path, rank: Any) -> None:
    path = write_kineto(tmp_path / "t.json", kineto_events([Task("a", 0, 9)]), distributedInfo={"rank": rank})
    assert open_timeline(path).rank.tolist() == [0]

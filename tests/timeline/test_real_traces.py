"""Real traces, held to what other programs and the vendors themselves counted in them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Role, Source, Timeline
from tests.timeline.places import real

KINETO = (
    "hta-critical-path/alexnet",
    "hta-critical-path/cuda_event_sync",
    "hta-critical-path/cuda_event_sync_multi_stream",
    "hta-critical-path/end_to_end/simple_add/input",
    "hta-critical-path/end_to_end/simple_add/output",
    "hta/a100-nccl-args.json.gz",
    "hta/a100-sampled-rank0.json.gz",
    "hta/cpu-only.json.gz",
    "hta/v100-ddp-54mb.json.gz",
    "hta/v100-graph-replays.json.gz",
    "dlrm-8rank",
    "tracelens/b200-vllm-eager.json.gz",
    "tracelens/h100-qwen-clipped.json.gz",
    "tracelens/mi300x-sglang-decode-capture.json.gz",
    "tracelens/mi300x-sglang-decode-graph.json.gz",
    "tracelens/mi300x-vllm-piecewise.json.gz",
)
ASCEND_TEXT = ("level1-rank0", "level1-rank1", "level2-rank0")


def busy_ns(line: Timeline, rows: np.ndarray) -> int:
    total, until = 0, -1
    for start, end in zip(line.start_ns[rows].tolist(), line.end_ns[rows].tolist(), strict=True):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def count(line: Timeline, kind: Kind) -> int:
    return int((line.kind == kind).sum())


@pytest.mark.parametrize("name", [f"kineto/{name}" for name in KINETO])
def test_nothing_is_lost_without_a_reason(name: str) -> None:
    line = open_timeline(real(name))
    for source in line.sources:
        assert source.read == source.rows + source.marks + sum(source.dropped.values())
    assert sum(source.rows for source in line.sources) == len(line)
    assert (np.diff(line.start_ns) >= 0).all()
    assert (line.end_ns >= line.start_ns).all()
    for column in (line.launch, line.parent, line.record):
        assert column.max(initial=-1) < len(line)
    launched = line.launch >= 0
    assert not line.on_device[line.launch[launched]].any()


def test_v100_replays() -> None:
    line = open_timeline(real("kineto/hta/v100-graph-replays.json.gz"))
    assert line.sources[0].read == 105_167
    assert int(line.is_work.sum()) == 15_632
    assert len([stream for stream in line.streams if stream.device is not None]) == 4
    assert count(line, Kind.LAUNCH) == 12
    assert count(line, Kind.COMM) == 64
    assert int((line.is_work & (line.launch < 0)).sum()) == 614
    assert [(graph.nodes, graph.source) for graph in line.graphs] == [
        (339, Source.INFERRED),
        (502, Source.INFERRED),
    ]
    for number, graph in enumerate(line.graphs):
        rows = (line.graph == number) & line.is_work
        assert int(rows.sum()) == 6 * graph.nodes
        for replay in range(6):
            nodes = line.node[rows & (line.replay == replay)]
            assert sorted(nodes.tolist()) == list(range(graph.nodes))
        # The same place in every replay is the same kernel.
        assert len(set(zip(line.node[rows].tolist(), line.name[rows].tolist(), strict=True))) == graph.nodes
    launches = line.kind == Kind.LAUNCH
    assert line.graph[launches].tolist() == [0, 1] * 6
    assert line.replay[launches].tolist() == [n // 2 for n in range(12)]


def test_v100_ddp_communication() -> None:
    line = open_timeline(real("kineto/hta/v100-ddp-54mb.json.gz"))
    assert line.sources[0].read == 216_092
    assert int(line.is_work.sum()) == 22_290
    assert count(line, Kind.COMM) == 2_020
    comm = line.is_work & (line.kind == Kind.COMM)
    assert busy_ns(line, comm) == pytest.approx(357e6, rel=0.01)
    # Wholly exposed: nothing else of the device runs while it does.
    assert busy_ns(line, comm) + busy_ns(line, line.is_work & ~comm) == busy_ns(line, line.is_work)


def test_vllm_piecewise_span() -> None:
    line = open_timeline(real("kineto/tracelens/mi300x-vllm-piecewise.json.gz"))
    work = line.is_work
    span_ns = int(line.end_ns[work].max() - line.start_ns[work].min())
    assert span_ns / 1e6 == pytest.approx(156.47, abs=0.005)
    assert busy_ns(line, work) / 1e6 == pytest.approx(156.09, abs=0.005)
    assert count(line, Kind.LAUNCH) == 25
    assert not (work & (line.launch < 0)).any()
    assert sorted(int(line.replay[line.graph == number].max()) + 1 for number in range(len(line.graphs))) == [
        1,
        1,
        23,
    ]


def test_sglang_decode_replay() -> None:
    line = open_timeline(real("kineto/tracelens/mi300x-sglang-decode-graph.json.gz"))
    (graph,) = line.graphs
    assert graph.nodes == 544
    assert any(
        "step[DECODE bs=32" in line.names[name] or "generation_32" in line.names[name]
        for name in line.marks.name
    )


def test_clipped_and_overlapping() -> None:
    line = open_timeline(real("kineto/tracelens/h100-qwen-clipped.json.gz"))
    assert int((line.is_work & (line.launch < 0)).sum()) == 509
    assert [note.count for note in line.notes if note.what == "clipped"] == [509]
    line = open_timeline(real("kineto/tracelens/b200-vllm-eager.json.gz"))
    assert int(line.is_work.sum()) == 929
    assert line.groups[0].ranks == tuple(range(8))


def test_collective_arguments() -> None:
    line = open_timeline(real("kineto/hta/a100-nccl-args.json.gz"))
    rows = np.flatnonzero(line.kind == Kind.COMM)
    assert len(rows) == 21
    assert (line.kind_source[rows] == Source.GIVEN).all()
    assert line.groups[0].ranks == (0, 1)
    first = next(row for row in rows.tolist() if line.args(row)["collective"] == "allreduce")
    assert line.bytes[first] % 4 == 0
    assert line.bytes[first] > 0


def test_recorded_events() -> None:
    line = open_timeline(real("kineto/hta-critical-path/cuda_event_sync_multi_stream"))
    (wait,) = np.flatnonzero(line.kind == Kind.WAIT).tolist()
    assert line.streams[line.stream[wait]].name == "stream 24"
    assert line.streams[line.waited[wait]].name == "stream 20"
    assert line.name_of(int(line.record[wait])) == "cudaEventRecord"


def test_eight_ranks() -> None:
    line = open_timeline(real("kineto/dlrm-8rank"))
    assert line.ranks == tuple(range(8))
    comm = line.kind == Kind.COMM
    assert int(comm.sum()) == 64
    keys = list(zip(line.group[comm].tolist(), line.sequence[comm].tolist(), strict=True))
    assert all(keys.count(key) == 8 for key in keys)
    assert [note.rank for note in line.notes if note.what == "clipped"] == [1, 3]


def test_no_device() -> None:
    line = open_timeline(real("kineto/hta/cpu-only.json.gz"))
    assert not line.on_device.any()
    assert any("no operation of a device" in note.why for note in line.notes)


@pytest.mark.parametrize("name", ASCEND_TEXT)
def test_ascend_text(name: str) -> None:
    line = open_timeline(real(f"ascend/910b-alexnet-text/{name}"))
    (source,) = line.sources
    assert source.read == source.rows + source.marks + sum(source.dropped.values())
    tasks = line.on_device & (line.kind != Kind.COMM)
    assert int(tasks.sum()) == 535
    check_totals(line, 0.1)
    # Exact to the nanosecond: the vendor's own ids are the starts.
    assert (line.start_ns[tasks] + line.base_ns).min() > 1_736_000_000_000_000_000
    assert count(line, Kind.WAIT) == 10
    assert count(line, Kind.RECORD) == 16


def check_totals(line: Timeline, within_us: float) -> None:
    for rank in line.ranks:
        (step,) = [step for step in line.vendor if step.rank == rank]
        ours = line.rank == rank
        computing = busy_ns(line, ours & line.on_device & (line.kind == Kind.KERNEL))
        communication = busy_ns(line, ours & line.on_device & (line.kind == Kind.COMM))
        either = busy_ns(line, ours & line.on_device & np.isin(line.kind, (Kind.KERNEL, Kind.COMM)))
        for found, name in (
            (computing, "Computing"),
            (communication, "Communication"),
            (computing + communication - either, "Overlapped"),
        ):
            assert abs(found - step.totals[name]) <= within_us * 1000, name


def test_ascend_database() -> None:
    line = open_timeline(real("ascend/910b-alexnet-db"))
    assert line.ranks == (0, 1)
    for rank in line.ranks:
        assert int((line.on_device & (line.rank == rank) & (line.kind != Kind.COMM)).sum()) == 552
    check_totals(line, 0.1)
    steps = np.flatnonzero(line.kind == Kind.SUBTASK)
    # Two of a rank switch the profiler on and off; all others are parts.
    assert int((line.parent[steps] < 0).sum()) == 4
    assert [stream.role for stream in line.streams if stream.name == "stream 4"] == [Role.COMM] * 2


def test_ascend_tables_of_four_ranks() -> None:
    line = open_timeline(real("ascend/qwen3-4rank"))
    assert line.ranks == (0, 1, 2, 3)
    assert len(line.vendor) == 4
    # Rank 2 ran on device 4 of its host: its collectives too.
    assert {(stream.rank, stream.device) for stream in line.streams} == {(0, 0), (1, 0), (2, 4), (3, 0)}
    ours = (line.rank == 0) & (line.kind == Kind.KERNEL)
    assert busy_ns(line, ours) == pytest.approx(line.vendor[0].totals["Computing"], abs=100)
    assert len([note for note in line.notes if note.what == "missing"]) == 4
    # Group and number of a collective are the same on all its ranks.
    ranks = {group.name: group.ranks for group in line.groups}
    assert ranks["hcom 3985310405473756128"] == (0, 2)
    assert ranks["hcom 3985310499963036764"] == (1, 3)
    assert ranks["hcom 5862276093215481612"] == (0, 1, 2, 3)
    rows = np.flatnonzero(line.kind == Kind.COMM)
    keys = list(zip(line.group[rows].tolist(), line.sequence[rows].tolist(), strict=True))
    assert all(keys.count(key) == len(line.groups[key[0]].ranks) for key in keys)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_memory_of_the_large_one() -> None:
    """A third of what HTA takes for it (338 MB) is the aim; measured in a process of its own."""
    path = real("kineto/hta/v100-ddp-54mb.json.gz")
    code = (
        "import pathlib, re; from slipstream.timeline.readers import open_timeline; "
        f"open_timeline({str(path)!r}); "
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text()).group(1))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 338 * 1024 // 3

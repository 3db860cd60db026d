"""The export for Perfetto, read the way Perfetto reads it."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import SlipstreamError, UsageError
from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.report.perfetto import write_perfetto
from slipstream.timeline.report.tracks import nested, side_by_side
from slipstream.timeline.table import Kind, Timeline
from tests.timeline.places import real
from tests.timeline.speculative import Shape, graphs, play

Slices = dict[int, list[dict[str, Any]]]


def exported(what: Analysis | Timeline, path: Path, **options: Any) -> list[dict[str, Any]]:
    write_perfetto(what, path / "trace.json", **options)
    write_perfetto(what, path / "trace.json.gz", **options)
    assert gzip.decompress((path / "trace.json.gz").read_bytes()) == (path / "trace.json").read_bytes()
    return json.loads((path / "trace.json").read_bytes(), parse_float=Decimal)["traceEvents"]


def nanoseconds(value: Decimal | int) -> int:
    ns = Decimal(value) * 1000
    assert ns == int(ns)
    return int(ns)


def begin_and_end(event: dict[str, Any]) -> tuple[int, int]:
    begin = nanoseconds(event["ts"])
    return begin, begin + nanoseconds(event["dur"])


def as_perfetto_reads(events: list[dict[str, Any]]) -> tuple[int, dict[int, tuple[Any, Any]]]:
    """Return how many slices it would drop, and of each arrow the slices that its ends are bound to.

    Events are sorted by time, those of one moment as they came. A slice goes onto its track's stack if it ends
    within the one below; what has ended by its start is taken off. An arrow's end is bound to the top of its
    track's stack. trace_processor v56 read three such files the same way.
    """
    timed = [event for event in events if event["ph"] in "Xsf"]
    timed.sort(key=lambda event: nanoseconds(event["ts"]))
    stacks: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    dropped = 0
    bound: dict[int, list[Any]] = {}
    for event in timed:
        stack = stacks.setdefault(event["tid"], [])
        if event["ph"] == "X":
            begin, end = begin_and_end(event)
            while stack and stack[-1][0] <= begin:
                stack.pop()
            if stack and end > stack[-1][0]:
                dropped += 1
                continue
            stack.append((end, event))
        else:
            ends = bound.setdefault(event["id"], [None, None])
            if event["ph"] == "f":
                assert ends[0] is not None, "an arrow ends before it begins"
            ends[event["ph"] == "f"] = stack[-1][1] if stack else None
    return dropped, {number: (one, other) for number, (one, other) in bound.items()}


def check(events: list[dict[str, Any]], timeline: Timeline, rows: int) -> None:
    """Nothing lost, nothing moved, every arrow between the rows of its edge."""
    slices = [event for event in events if event["ph"] == "X" and event["cat"] != "slipstream"]
    by_row = {event["args"]["row"]: event for event in slices}
    assert len(slices) == len(by_row) == rows
    for row, event in by_row.items():
        assert begin_and_end(event) == (timeline.start_ns[row], timeline.end_ns[row])
        assert event["name"] == timeline.name_of(row)
    dropped, arrows = as_perfetto_reads(events)
    assert dropped == 0
    assert arrows
    for one, other in arrows.values():
        assert one is not None
        assert other is not None
    owners: dict[int, set[int]] = {}
    for event in events:
        if event["ph"] != "M":
            owners.setdefault(event["tid"], set()).add(event["pid"])
    assert all(len(pids) == 1 for pids in owners.values())
    assert 0 not in owners


def device_tracks(events: list[dict[str, Any]], timeline: Timeline) -> Slices:
    found: Slices = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] != "slipstream" and timeline.on_device[event["args"]["row"]]:
            found.setdefault(event["tid"], []).append(event)
    return found


def pairs(arrows: dict[int, tuple[Any, Any]]) -> Counter[tuple[int, int]]:
    return Counter((one["args"]["row"], other["args"]["row"]) for one, other in arrows.values())


@pytest.mark.parametrize(
    "shape", [Shape(rounds=3), Shape(rounds=3, ascend=True), Shape(rounds=3, ranks=3, slow_rank=1)]
)
def test_speculative_rounds(shape: Shape, tmp_path: Path) -> None:
    analysis = analyse(play(shape).timeline(graphs=graphs(shape)))
    table = analysis.timeline
    events = exported(analysis, tmp_path)
    check(events, table, len(table))
    for track in device_tracks(events, table).values():
        ends = [begin_and_end(event) for event in track]
        assert all(one[1] <= other[0] for one, other in pairwise(ends))
    # Every launch and every event, graph and collective edge is an arrow between just its rows.
    drawn = pairs(as_perfetto_reads(events)[1])
    edges = analysis.deps.edges
    wanted = {(int(table.launch[row]), row) for row in np.flatnonzero(table.launch >= 0).tolist()}
    for kind in (EdgeKind.EVENT, EdgeKind.GRAPH, EdgeKind.COLLECTIVE):
        mine = edges.kind == kind
        wanted |= set(zip(edges.src[mine].tolist(), edges.dst[mine].tolist(), strict=True))
    assert wanted <= set(drawn)
    # The path of each rank lies on its own track, without a hole.
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for rank, reports in analysis.reports.items():
        mine = [e for e in events if e["ph"] == "X" and names[e["tid"]] == f"critical path of rank {rank}"]
        times = [begin_and_end(event) for event in mine]
        assert times[0][0] == reports[0].round.start_ns
        assert times[-1][1] == reports[-1].round.end_ns
        assert all(one[1] == other[0] for one, other in pairwise(times))


def test_one_round(tmp_path: Path) -> None:
    shape = Shape(rounds=6)
    analysis = analyse(play(shape).timeline(graphs=graphs(shape)))
    table, item = analysis.timeline, analysis.reports[0][3].round
    events = exported(analysis, tmp_path, round=3)
    rows = [e["args"]["row"] for e in events if e["ph"] == "X" and e["cat"] != "slipstream"]
    check(events, table, len(rows))
    inside = np.flatnonzero((table.start_ns < item.end_ns) & (table.end_ns > item.start_ns))
    assert set(inside.tolist()) <= set(rows)
    assert len(rows) < len(table) / 2
    with pytest.raises(UsageError, match=r"no round 6\. Rounds are numbered from 0 to 5"):
        write_perfetto(analysis, tmp_path / "no.json", round=6)
    with pytest.raises(UsageError, match="only after an analysis"):
        write_perfetto(table, tmp_path / "no.json", round=0)
    assert not (tmp_path / "no.json").exists()


def test_a_mere_timeline_and_times_of_many_digits(tmp_path: Path) -> None:
    day = 86_399_999_999_999
    table = timeline_of(
        [
            Op("first", 0, 1),
            Op("over it", 0, 7, bytes=1 << 53),
            Op("across both", 3, 11),
            Op("late", day - 1, day, args={"nan": float("nan"), "list": [1]}),
            Op("call", 0, 0, "thread", kind=Kind.HOST),
        ],
        base_ns=1_700_000_000_123_456_789,
    )
    events = exported(table, tmp_path)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 5
    assert {begin_and_end(event) for event in slices if event["name"] == "late"} == {(day - 1, day)}
    assert len({event["tid"] for event in slices}) == 3  # two of the stream, one of the thread
    assert as_perfetto_reads(events)[0] == 0
    whole = json.loads((tmp_path / "trace.json").read_bytes())
    assert whole["otherData"]["base_ns"] == "1700000000123456789"


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    table = timeline_of([Op("a", 0, 1)])
    with pytest.raises(SlipstreamError, match="cannot write the trace"):
        write_perfetto(table, tmp_path / "absent" / "trace.json")
    target = tmp_path / "there"
    target.mkdir()
    with pytest.raises(SlipstreamError, match="cannot write the trace"):
        write_perfetto(table, target)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_rows_of_a_stream_get_as_few_tracks_as_it_takes() -> None:
    start = np.array([0, 0, 2, 5, 5, 9], np.int64)
    end = np.array([8, 4, 6, 7, 5, 9], np.int64)
    assert side_by_side(start, end).tolist() == [0, 1, 2, 1, 3, 0]
    # [2, 6) lies across [0, 4), the call of no length within what is open.
    assert nested(start, end).tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "path",
    [
        "kineto/tracelens/mi300x-sglang-decode-graph.json.gz",
        pytest.param("kineto/tracelens/b200-vllm-eager.json.gz", marks=pytest.mark.slow),
        "ascend/910b-alexnet-text/level2-rank0",
        pytest.param("ascend/910b-alexnet-db", marks=pytest.mark.slow),
    ],
)
def test_real_traces_lose_nothing(path: str, tmp_path: Path) -> None:
    analysis = analyse(open_timeline(real(path)))
    check(exported(analysis, tmp_path), analysis.timeline, len(analysis.timeline))

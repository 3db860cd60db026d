"""Runs on the virtual device, written as profilers write them and read back: the same operations and paths."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from slipstream.timeline.analysis import analyse
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.path import Piece, critical_path
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Source, Timeline
from tests.timeline.as_traces import ascend_of, kineto_of
from tests.timeline.speculative import US, Shape, play
from tests.timeline.test_answers import check_invariants
from tests.timeline.test_path import has_work, programs
from tests.timeline.test_path import play as program
from tests.timeline.virtual import Costs, World
from tests.timeline.writers import write_ascend, write_kineto


def read_kineto(world: World, **header) -> Timeline:
    with tempfile.TemporaryDirectory() as folder:
        return open_timeline(write_kineto(Path(folder) / "trace.json", kineto_of(world), **header))


def read_ascend(world: World) -> Timeline:
    with tempfile.TemporaryDirectory() as folder:
        return open_timeline(write_ascend(Path(folder) / "x_ascend_pt", ascend_of(world)))


def operations(table: Timeline) -> Counter:
    """Work by name, length and start behind the first."""
    rows = np.flatnonzero(table.is_work)
    first = int(table.start_ns[rows].min())
    return Counter(
        (table.name_of(row), int(table.start_ns[row]) - first, int(table.dur_ns[row]))
        for row in rows.tolist()
    )


@given(steps=programs)
@settings(max_examples=25, deadline=None)
def test_kineto_comes_back(steps: list[tuple]) -> None:
    if not has_work(steps):
        return
    world = World(costs=Costs(call=100, launch=0, event=0, back=0)).run(program(steps))
    direct, table = world.timeline(), read_kineto(world)
    assert operations(table) == operations(direct)
    start = int(table.end_ns[table.is_work].max()) - world.end  # the file's clock begins at its first event
    # Without a dump of the graphs' edges both rest on the order of streams inside replays.
    paths = [
        critical_path(find_dependencies(line, infer=False), begin, begin + world.end)
        for line, begin in ((direct, 0), (table, start))
    ]
    assert [path.length_ns for path in paths] == [world.end, world.end]
    assert paths[0].by_piece()[Piece.WORK] == paths[1].by_piece()[Piece.WORK]


@given(steps=programs)
@settings(max_examples=25, deadline=None)
def test_ascend_comes_back(steps: list[tuple]) -> None:
    steps = [step for step in steps if step[0] != "replay"]
    if not has_work(steps):
        return
    world = World(ascend=True).run(program(steps))
    table = read_ascend(world)
    assert operations(table) == operations(world.timeline())
    path = critical_path(
        find_dependencies(table),
        int(table.end_ns[table.is_work].max()) - world.end,
        int(table.end_ns[table.is_work].max()),
    )
    assert path.length_ns == world.end
    blocking = np.flatnonzero((table.kind == Kind.WAIT) & (table.dur_ns > 1_000))
    deps = find_dependencies(table)
    for wait in blocking.tolist():
        into = [e for e in deps.edges_into(wait) if deps.edges.kind[e] == EdgeKind.EVENT_INFERRED]
        assert [deps.edges.confidence[e] for e in into] == [Confidence.INFERRED]


def test_speculative_rounds_come_back_from_kineto() -> None:
    shape = Shape()
    world = play(shape)
    direct, back = analyse(world.timeline()), analyse(read_kineto(world))
    check_invariants(back)
    ours, theirs = direct.reports[0], back.reports[0]
    assert [r.round.took_ns for r in ours] == [r.round.took_ns for r in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert [(p.name, p.span_ns, p.route) for p in mine.round.phases] == [
            (p.name, p.span_ns, p.route) for p in other.round.phases
        ]
        same = [a.values for a in mine.answers if a.question not in (6, 8)]
        assert same == [a.values for a in other.answers if a.question not in (6, 8)]
        assert {
            k: v for k, v in mine.answers[5].values.items() if k != "branch_stream" and k != "branches"
        } == {k: v for k, v in other.answers[5].values.items() if k != "branch_stream" and k != "branches"}


DEEPEP = [
    ("void deep_ep::internode::dispatch<true, 4>(int)", 120),
    ("void deep_ep::intranode::combine<bf16>(int)", 90),
    ("void deep_ep::layout::get_dispatch_layout(int)", 6),
    ("void deep_ep::internode::notify_dispatch(int)", 9),
]


@pytest.mark.parametrize("offset", [0, 40, 200])
def test_exposed_communication_of_a_dualpipe_like_step_is_exact(offset: int) -> None:
    """DeepEP kernels, by their names alone, beside the computation of the other micro-batch."""
    events = []
    truth_comm: set[int] = set()
    truth_kernels: set[int] = set()
    now = 0
    for layer in range(20):
        at = now + offset * US
        for number, (name, took) in enumerate(DEEPEP):
            start, end = at, at + took * US
            events.append(("comm", f"{name}", start, end, layer * 10 + number))
            truth_comm |= set(range(start // 1000, end // 1000))
            at = end + 2 * US
        for number in range(3):
            start, end = now + number * 60 * US, now + (number * 60 + 55) * US
            events.append(("main", "gemm", start, end, layer * 10 + 5 + number))
            truth_kernels |= set(range(start // 1000, end // 1000))
        now = max(at, now + 180 * US)
    written = []
    for stream, name, start, end, number in events:
        args = {
            "device": 0,
            "context": 1,
            "stream": 7 if stream == "main" else 20,
            "correlation": 500 + number,
        }
        written.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": args["stream"], "ts": start / 1000,
             "dur": (end - start) / 1000, "args": args}
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        analysis = analyse(open_timeline(write_kineto(Path(folder) / "dualpipe.json", written)))
    total = analysis.quality.totals[0]
    assert total.communication_ns == len(truth_comm) * 1000
    assert total.covered_ns == len(truth_comm & truth_kernels) * 1000
    assert total.exposed_ns == len(truth_comm - truth_kernels) * 1000
    table = analysis.timeline
    comm = table.kind == Kind.COMM
    assert comm.sum() == 80
    assert (table.kind_source[comm] <= Source.RULE).all()

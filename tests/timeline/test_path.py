from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.timeline.changes import Host, apply
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import Dependencies, find_dependencies
from slipstream.timeline.path import Piece, bubbles, critical_path
from slipstream.timeline.reschedule import make_model, reschedule
from slipstream.timeline.segment import find_rounds
from slipstream.timeline.table import Graph, Kind, Source
from tests.timeline.virtual import FREE, Costs, Node, Rank, World, edges_of

STREAMS = ["main", "plan", "comm"]

_step = st.one_of(
    st.tuples(st.just("host"), st.integers(1, 40)),
    st.tuples(st.just("kernel"), st.sampled_from(STREAMS), st.integers(1, 60)),
    st.tuples(st.just("join"), st.sampled_from(STREAMS), st.sampled_from(STREAMS)),
    st.tuples(st.just("sync"), st.sampled_from(STREAMS)),
    st.tuples(st.just("replay"), st.integers(0, 2), st.sampled_from(STREAMS)),
)
programs = st.lists(_step, min_size=1, max_size=40)

GRAPHS = [
    [Node("a", "main", 7), Node("b", "main", 5, 0)],
    [Node("a", "main", 9), Node("b", "branch", 20, 0), Node("c", "main", 4, 0), Node("d", "main", 3, 1, 2)],
    [Node("x", "comm", 11), Node("y", "side", 26, 0), Node("w", "comm", 13, 0), Node("z", "comm", 8, 1, 2)],
]
HOMES = ["main", "main", "comm"]
DUMPS = [Graph(0, f"graph {n}", Source.GIVEN, len(g), edges_of(g)) for n, g in enumerate(GRAPHS)]


def play(steps: list[tuple], times: float = 1.0, host: float = 1.0):
    def program(rank: Rank) -> Generator[None]:
        for index, step in enumerate(steps):
            if step[0] == "host":
                rank.host(f"host {index}", int(step[1] * host * 100))
            elif step[0] == "kernel":
                rank.kernel(f"kernel {index}", step[1], int(step[2] * times) * 100)
            elif step[0] == "join" and step[1] != step[2]:
                rank.wait(step[1], rank.record(step[2]))
            elif step[0] == "sync":
                yield from rank.sync(step[1])
            elif step[0] == "replay":
                nodes = [Node(n.name, n.stream, int(n.cost * times) * 100, *n.after) for n in GRAPHS[step[1]]]
                rank.replay(step[1], nodes, HOMES[step[1]])
        yield

    return program


def whole(deps: Dependencies, end: int):
    return critical_path(deps, 0, end)


def has_work(steps: list[tuple]) -> bool:
    return any(step[0] in ("kernel", "replay") for step in steps)


@pytest.mark.parametrize("ascend", [False, True])
@given(steps=programs)
@settings(max_examples=60, deadline=None)
def test_path_is_the_makespan_and_nothing_but_work(ascend: bool, steps: list[tuple]) -> None:
    if not has_work(steps):
        return
    world = World(ascend=ascend, costs=FREE).run(play(steps))
    deps = find_dependencies(world.timeline(graphs=DUMPS), infer=True)
    path = whole(deps, world.end)
    assert path.length_ns == world.end
    assert path.work_ns == world.end  # nothing costs anything but work, so the path is work alone
    assert path.by_piece()[Piece.UNKNOWN] == 0


@pytest.mark.parametrize("ascend", [False, True])
@given(steps=programs)
@settings(max_examples=60, deadline=None)
def test_path_sums_to_its_window_and_holds_the_true_work(ascend: bool, steps: list[tuple]) -> None:
    if not has_work(steps):
        return
    world = World(ascend=ascend).run(play(steps))
    deps = find_dependencies(world.timeline(graphs=DUMPS))
    path = whole(deps, world.end)
    assert path.length_ns == world.end
    assert np.array_equal(path.starts_ns[1:], path.ends_ns[:-1])
    assert sum(path.by_piece().values()) == world.end
    assert sum(path.rests_on().values()) == world.end


@given(steps=programs)
@settings(max_examples=60, deadline=None)
def test_with_nothing_changed_the_recording_comes_back(steps: list[tuple]) -> None:
    if not has_work(steps):
        return
    world = World(ascend=True).run(play(steps))
    deps = find_dependencies(world.timeline(graphs=DUMPS))
    model = make_model(deps)
    for careful in (False, True):
        again = reschedule(model, len(deps.timeline), careful=careful)
        assert np.array_equal(again.release_ns, deps.release_ns)


@pytest.mark.parametrize("ascend", [False, True])
@given(steps=programs, times=st.sampled_from([0.0, 0.5, 2.0, 3.0]))
@settings(max_examples=80, deadline=None)
def test_rescheduling_equals_running_it_again(ascend: bool, steps: list[tuple], times: float) -> None:
    if not has_work(steps):
        return
    world = World(ascend=ascend, costs=FREE).run(play(steps))
    other = World(ascend=ascend, costs=FREE).run(play(steps, times))
    deps = find_dependencies(world.timeline(graphs=DUMPS), infer=False)
    table = deps.timeline
    # Both runs issue the same work in the same order, so works pair up.
    work = (deps.done_ns - deps.release_ns).copy()
    pairs = {
        (a.name, a.graph, a.replay, a.node, a.kind): b for a, b in zip(world.works, other.works, strict=True)
    }
    rows = np.flatnonzero(table.is_work)
    expected = {}
    for row in rows.tolist():
        key = (
            table.name_of(row),
            *(int(c[row]) for c in (table.graph, table.replay, table.node)),
            table.kind[row],
        )
        expected[row] = pairs[key]
        work[row] = pairs[key].cost
    again = reschedule(make_model(deps), len(table), work_ns=work, careful=False)
    for row in rows.tolist():
        assert again.done_ns[row] == expected[row].end, table.name_of(row)


def test_a_wait_that_took_no_time_comes_before_the_call_that_begins_with_it() -> None:
    """A kernel ends as the host begins to wait for it: the wait has no length, the next call the same start."""
    steps = [("kernel", "main", 1), ("host", 1), ("sync", "main"), ("kernel", "main", 1)]
    for ascend in (False, True):
        table = World(ascend=ascend, costs=FREE).run(play(steps)).timeline()
        deps = find_dependencies(table, infer=False)
        (wait,) = np.flatnonzero(table.kind == Kind.SYNC).tolist()
        assert table.dur_ns[wait] == 0
        sources = [int(deps.edges.src[edge]) for edge in deps.edges_into(wait)]
        assert "kernel 0" in [table.name_of(row) for row in sources]
        behind = [int(deps.edges.dst[e]) for e in np.flatnonzero(deps.edges.src == wait)]
        assert [table.start_ns[row] for row in behind] == [table.end_ns[wait]]


@pytest.mark.parametrize("ascend", [False, True])
@given(steps=programs, factor=st.sampled_from([0.0, 0.5, 2.0, 3.0]))
@settings(max_examples=30, deadline=None)
def test_a_slower_host_equals_a_run_with_a_slower_host(
    ascend: bool, steps: list[tuple], factor: float
) -> None:
    # What the host does before its first call is in no trace's edges, so a program begins with one.
    steps = [("kernel", "main", 1), *steps]
    world = World(ascend=ascend, costs=FREE).run(play(steps))
    other = World(ascend=ascend, costs=Costs(int(100 * factor), 0, 0, 0)).run(play(steps, host=factor))
    deps = find_dependencies(world.timeline(graphs=DUMPS), infer=False)
    model = make_model(deps)
    inputs = apply(deps, find_rounds(deps), model, [Host(factor)])
    again = reschedule(
        model, len(deps.timeline), work_ns=inputs.work_ns[False], delay_ns=inputs.delay_ns[False]
    )
    works = [work for work in world.works if work.kind <= Kind.COMM]
    others = [work for work in other.works if work.kind <= Kind.COMM]
    ends = {
        (work.name, work.start, work.end, work.stream): twin.end
        for work, twin in zip(works, others, strict=True)
    }
    table = deps.timeline
    for row in np.flatnonzero(table.is_work).tolist():
        key = (table.name_of(row), int(table.start_ns[row]), int(table.end_ns[row]))
        assert again.done_ns[row] == ends[*key, table.streams[table.stream[row]].name], key


def test_a_collective_waits_for_the_last_rank() -> None:
    def program(rank: Rank) -> Generator[None]:
        rank.kernel("compute", "main", 50_000 if rank.rank == 1 else 10_000)
        rank.wait("comm", rank.record("main"))
        rank.collective("all-reduce", "comm", 5_000, 0)
        rank.wait("main", rank.record("comm"))
        rank.kernel("after", "main", 1_000)
        yield

    world = World(2).run(program)
    deps = find_dependencies(world.timeline())
    path = whole(deps, world.end)
    table = deps.timeline
    assert path.length_ns == world.end
    ranks = [(table.name_of(int(row)), int(table.rank[row])) for row in path.row if table.is_work[row]]
    assert ("compute", 1) in ranks
    assert ("compute", 0) not in ranks
    late = deps.edges.take(deps.edges.kind == EdgeKind.COLLECTIVE)
    assert [int(table.rank[row]) for row in late.src] == [1]
    assert [int(table.rank[row]) for row in late.dst] == [0]
    compute = table.names.index("compute")
    work = (deps.done_ns - deps.release_ns).copy()
    work[(table.name == compute) & (table.rank == 1)] = 20_000
    again = reschedule(make_model(deps), len(table), work_ns=work)
    assert again.done_ns.max() == world.end - 30_000


def test_blocking_waits_without_ids_find_their_records() -> None:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(5):
            rank.kernel("attention", "main", 10_000)
            rank.kernel("index", "plan", 40_000)
            rank.wait("main", rank.record("plan"))
            rank.kernel("after", "main", 1_000)
            rank.wait("plan", rank.record("main"))
        yield

    world = World(ascend=True).run(program)
    table = world.timeline(records=False)
    deps = find_dependencies(table)
    given = find_dependencies(world.timeline())
    inferred = deps.edges.take(deps.edges.kind == EdgeKind.EVENT_INFERRED)
    true = {
        (int(s), int(d))
        for s, d, k in zip(given.edges.src, given.edges.dst, given.edges.kind, strict=True)
        if k == EdgeKind.EVENT
    }
    sure = inferred.confidence == Confidence.INFERRED
    assert sure.sum() >= 5
    assert {(int(s), int(d)) for s, d in zip(inferred.src[sure], inferred.dst[sure], strict=True)} <= true
    path = whole(deps, world.end)
    assert path.work_ns == whole(given, world.end).work_ns
    # who the main stream waited for
    waits = [b for b in bubbles(deps, 0, world.end, rank=0) if table.streams[b.stream].name == "main"]
    assert {table.name_of(b.waited) for b in waits if b.waited >= 0 and table.on_device[b.waited]} == {
        "index"
    }

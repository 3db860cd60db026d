from __future__ import annotations

from collections.abc import Generator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.timeline.analysis import analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.path import Piece, critical_path
from slipstream.timeline.reschedule import make_model, reschedule
from slipstream.timeline.table import Graph, Kind, Role, Source, Stream
from tests.timeline.speculative import US
from tests.timeline.test_answers import check_invariants
from tests.timeline.virtual import Node, Rank, World

BRANCHED = [
    Node("fork", "main", 10 * US),
    Node("attention", "main", 20 * US, 0),
    Node("indexer", "branch", 60 * US, 0),
    Node("join", "main", 10 * US, 1, 2),
]


def replays(count: int) -> World:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(count):
            rank.replay(0, BRANCHED, "main")
            yield from rank.sync("main")

    return World().run(program)


def test_a_join_inside_replays_without_a_dump_is_inferred_from_its_steadiness() -> None:
    world = replays(5)
    deps = find_dependencies(world.timeline())
    table, edges = deps.timeline, deps.edges
    found = np.flatnonzero(edges.kind == EdgeKind.EVENT_INFERRED)
    pairs = {(table.name_of(edges.src[e]), table.name_of(edges.dst[e])) for e in found}
    assert ("indexer", "join") in pairs
    steady = [e for e in found if table.name_of(edges.dst[e]) == "join"]
    assert {int(edges.confidence[e]) for e in steady} == {Confidence.INFERRED}
    path = critical_path(deps, 0, world.end)
    names = [table.name_of(row) for row in path.row if row >= 0 and table.is_work[row]]
    assert names.count("indexer") == 5
    assert "attention" not in names


def test_two_replays_are_too_few_to_infer_from() -> None:
    deps = find_dependencies(replays(2).timeline())
    into = deps.edges.take(deps.edges.kind == EdgeKind.EVENT_INFERRED)
    assert set(into.confidence.tolist()) == {Confidence.GUESSED}


def test_without_inference_nothing_is_inferred() -> None:
    deps = find_dependencies(replays(5).timeline(), infer=False)
    assert EdgeKind.EVENT_INFERRED not in deps.count_by_kind()


def test_waits_that_name_no_record_are_counted_and_guessed() -> None:
    """CUDA 12.9 and later: every `cuda_sync` wait has -1."""

    def program(rank: Rank) -> Generator[None]:
        for _ in range(4):
            rank.kernel("compute", "main", 50 * US)
            rank.wait("comm", rank.record("main"))
            rank.kernel("send", "comm", 80 * US)
            rank.wait("main", rank.record("comm"))
            rank.kernel("after", "main", 10 * US)
            yield from rank.sync("main")

    world = World().run(program)
    given_ = find_dependencies(world.timeline())
    blind = find_dependencies(world.timeline(records=False))
    assert any(note.what == "unresolved" and note.count == 8 for note in blind.notes)
    guessed = blind.edges.take(blind.edges.kind == EdgeKind.EVENT_INFERRED)
    assert set(guessed.confidence.tolist()) == {Confidence.GUESSED}
    true = given_.edges.take(given_.edges.kind == EdgeKind.EVENT)
    pairs = set(zip(true.src.tolist(), true.dst.tolist(), strict=True))
    assert set(zip(guessed.src.tolist(), guessed.dst.tolist(), strict=True)) <= pairs
    assert len(guessed) >= 4
    paths = [critical_path(deps, 0, world.end) for deps in (given_, blind)]
    assert paths[0].work_ns == paths[1].work_ns


kinds = st.sampled_from(list(Kind))
rows = st.tuples(
    st.sampled_from(["a", "b", "cudaStreamWaitEvent", "ncclX", "cudaDeviceSynchronize"]),
    st.integers(0, 60_000),  # start
    st.integers(0, 9_000),
    st.sampled_from(["s1", "s2"]),
    kinds,
    st.integers(-1, 15),  # launch
    st.integers(-1, 1),  # graph
    st.integers(-1, 2),  # replay
    st.integers(-1, 3),  # node
    st.integers(-1, 15),  # record
    st.integers(-1, 2),  # sequence
    st.integers(0, 2),  # rank
)
texts = ["draft", "verify", "draft_extend", "step[DECODE bs=4]", "execute_context_0(x)_generation_2(sq4)"]
marks = st.lists(
    st.tuples(
        st.sampled_from(texts),
        st.integers(0, 60_000),
        st.integers(0, 9_000),
        st.integers(0, 2),
    ),
    max_size=6,
)


@given(made=st.lists(rows, max_size=16), marked=marks)
@settings(max_examples=150, deadline=None)
def test_nonsense_is_analysed_without_a_crash_and_adds_up(made: list[tuple], marked: list[tuple]) -> None:
    """Launches after their kernels, circles of records, nodes twice: what no profiler should write."""
    host = (Kind.HOST, Kind.LAUNCH, Kind.SYNC)
    ops = [
        Op(
            name,
            start,
            start + took,
            "thread" if kind in host else stream,
            kind,
            launch=launch if launch < len(made) else -1,
            graph=graph,
            replay=replay if graph >= 0 else -1,
            node=node if graph >= 0 else -1,
            record=record if record < len(made) else -1,
            waited="s2" if kind == Kind.WAIT else "",
            group=-1,
            sequence=sequence,
            rank=rank,
        )
        for name, start, took, stream, kind, launch, graph, replay, node, record, sequence, rank in made
    ]
    graphs = [
        Graph(0, "g0", Source.GIVEN, 4, np.array([[0, 1], [1, 2], [2, 0]], np.int32)),
        Graph(0, "g1", Source.INFERRED, 4),
    ]
    table = timeline_of(ops, marks=[(m, s, s + d, "thread", r) for m, s, d, r in marked], graphs=graphs)
    analysis = analyse(table)
    check_invariants(analysis)
    again = reschedule(make_model(analysis.deps), len(table))
    assert len(again.done_ns) == len(table)


def test_a_call_that_stands_in_its_copy_is_not_the_hosts_work() -> None:
    """A copy to pageable memory behind a long kernel: its call lasts as long as the kernel."""
    ops = [
        Op("cudaLaunchKernel", 0, 2_000, "thread", Kind.HOST),
        Op("cudaMemcpyAsync", 3_000, 512_000, "thread", Kind.HOST),
        Op("cudaLaunchKernel", 515_000, 517_000, "thread", Kind.HOST),
        Op("long", 5_000, 505_000, launch=0),
        Op("Memcpy DtoH", 506_000, 508_000, kind=Kind.COPY, launch=1),
        Op("next", 520_000, 530_000, launch=2),
    ]
    deps = find_dependencies(timeline_of(ops))
    table = deps.timeline
    path = critical_path(deps, 0, 530_000)
    took = {}
    for row, low, high in zip(path.row.tolist(), path.starts_ns.tolist(), path.ends_ns.tolist(), strict=True):
        took[table.name_of(row)] = took.get(table.name_of(row), 0) + high - low
    assert took["long"] >= 500_000
    assert "cudaMemcpyAsync" not in took
    work = (deps.done_ns - deps.release_ns).copy()
    work[table.name == table.names.index("long")] = 100_000
    again = reschedule(make_model(deps), len(table), work_ns=work)
    assert again.done_ns.max() == 130_000


def test_without_a_host_late_work_is_taken_to_have_waited_for_what_ended_last() -> None:
    """kernels [a]                        [b]        [c]
    reduces    [reduce ...............]         (c comes 300 us after b, and nothing ran: unexplained)
    """
    streams = (Stream(0, 4, "stream 2", 2), Stream(0, 4, "communication", -1, Role.COMM))
    ops = [
        Op("a", 0, 20 * US, "stream 2"),
        Op("reduce", 20 * US, 1000 * US, "communication", Kind.COMM),
        Op("b", 1150 * US, 1200 * US, "stream 2"),
        Op("c", 1500 * US, 1600 * US, "stream 2"),
    ]
    line = timeline_of(ops, streams=streams)
    (report,) = analyse(line).reports[0]
    assert report.path.by_piece()[Piece.WORK] == (20 + 980 + 50 + 100) * US
    assert report.path.by_piece()[Piece.UNKNOWN] == (150 + 300) * US
    assert sum(ns for (_, sure), ns in report.rests_on.items() if sure is Confidence.GUESSED) >= 980 * US
    # With a host in the trace, whose calls are not those of these rows, nothing of that is concluded.
    with_host = timeline_of([*ops, Op("aten::add", 0, US, "thread 1", Kind.HOST)], streams=streams)
    (report,) = analyse(with_host).reports[0]
    assert report.path.by_piece()[Piece.WORK] == (20 + 50 + 100) * US

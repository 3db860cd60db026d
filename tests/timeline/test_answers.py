from __future__ import annotations

import numpy as np
import pytest

from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.path import Piece
from slipstream.timeline.quality import totals
from slipstream.timeline.rounds import RoundKind, Route
from slipstream.timeline.table import Graph, Source
from tests.timeline.speculative import US, Shape, graphs, of_phase, play, with_device_marks
from tests.timeline.virtual import World


def covered(works, by) -> tuple[int, int]:
    mine = set().union(*(range(w.start // 100, w.end // 100) for w in works))
    cover = set().union(*(range(w.start // 100, w.end // 100) for w in by))
    return len(mine) * 100, len(mine & cover) * 100


def both(shape: Shape) -> tuple[World, Analysis]:
    world = play(shape)
    return world, analyse(world.timeline(graphs=graphs(shape)))


def check_invariants(analysis: Analysis) -> None:
    table = analysis.timeline
    for rank, reports in analysis.reports.items():
        total = totals(analysis.deps, rank)
        assert total.busy_ns + total.idle_ns == total.span_ns
        assert total.covered_ns + total.exposed_ns == total.communication_ns
        ends = [report.round.end_ns for report in reports]
        assert [report.round.start_ns for report in reports[1:]] == ends[:-1]  # nothing between rounds
        for report in reports:
            assert report.path.length_ns == report.round.took_ns
            assert sum(part.took_ns for part in report.parts) == report.round.took_ns
            assert sum(report.rests_on.values()) == report.round.took_ns
            for item in report.communication:
                assert 0 <= item.exposed_ns <= item.total_ns
                assert item.covered_ns + item.exposed_ns == item.total_ns
            for phase in report.round.phases:
                assert 0 <= phase.busy_ns <= phase.span_ns
            assert 0 <= report.answers[5].values.get("waited_ns", 0) <= report.round.took_ns
    assert len(table) == len(analysis.rounds.round_of)


@pytest.mark.parametrize("ascend", [False, True])
def test_nine_answers_are_exact(ascend: bool) -> None:
    shape = Shape(ascend=ascend)
    world, analysis = both(shape)
    check_invariants(analysis)
    reports = analysis.reports[0]
    assert [report.round.kind for report in reports] == [RoundKind.ROUND] * shape.rounds
    assert analysis.rounds.source is Source.GIVEN
    for number, report in enumerate(reports):
        answers = {answer.question: answer for answer in report.answers}
        draft, verify = of_phase(world, 0, f"{number} draft"), of_phase(world, 0, f"{number} verify")
        accept, plan = of_phase(world, 0, f"{number} accept"), of_phase(world, 0, f"{number} extend plan A")
        assert answers[1].values == {"route": "replay", "replays": 1, "forwards": 3}
        assert answers[2].values["padded_slots"] == 3
        assert answers[2].values["padded_ns"] == round(3 * 35 * US * 3 / 8)
        seam = verify[0].start - draft[-1].end
        assert answers[3].values["seam_ns"] == seam
        assert answers[3].values["idle_ns"] == seam
        assert answers[3].values["host"][0] == "build_tree: 80.0 us"
        assert not answers[4].known  # SGLang marks neither verify's width nor its bucket; see test_padding
        total, hidden = covered(plan, verify + accept)
        assert answers[5].values["total_ns"] == total
        assert answers[5].values["covered_ns"] == hidden
        joined = [join for join in report.joins if analysis.timeline.name_of(join.row) == "join_attention"]
        assert [join.waited_ns for join in joined] == [40 * US]
        assert analysis.timeline.name_of(joined[0].branch) == "indexer"
        assert joined[0].on_path
        assert answers[6].values["branch"] == "indexer"
        assert answers[6].values["waited_ns"] == 40 * US
        assert answers[6].values["side_by_side"] == 1  # lm_head, all-reduce, accept follow each other
        events = sum(ns for (kind, _), ns in report.rests_on.items() if kind == EdgeKind.EVENT)
        assert events >= 40 * US  # the all-reduce, which main waits for by an event
        comm = [work for work in verify if work.stream == "comm"]
        total, hidden = covered(comm, [w for w in world.works if w.kind == 0 and w.rank == 0])
        assert answers[7].values["total_ns"] == total == 40 * US
        assert answers[7].values["covered_ns"] == hidden
        assert answers[7].values["families"][0].startswith("ncclDevKernel_AllReduce:")
        assert not answers[8].known
        assert answers[8].text == "not in this trace, because it holds one rank"
        assert answers[9].values["route"] == "replay"
        assert report.path.by_piece()[Piece.UNKNOWN] == 0


def test_our_own_marks_say_rows_and_padding() -> None:
    shape = Shape()
    world = play(shape)
    table = with_device_marks(world.timeline(graphs=graphs(shape)), world, shape)
    analysis = analyse(table, advanced=2.5)
    check_invariants(analysis)
    for number, report in enumerate(analysis.reports[0]):
        answer = report.answers[3]
        graph = [w for w in of_phase(world, 0, f"{number} verify") if w.graph >= 0]
        busy = report.round.phase("verify").busy_ns
        assert (
            busy == covered(graph, [])[0] == 240 * US
        )  # the branch on a stream without marks is verify's too
        values = {key: answer.values[key] for key in ("requests", "bucket", "width", "rows", "padded_rows")}
        assert values == {"requests": 5, "bucket": 8, "width": 4, "rows": 32, "padded_rows": 12}
        assert answer.values["padded_at_most_ns"] == round(busy * 12 / 32)
        assert report.cost_ns == report.path.length_ns / 12.5


def test_an_eager_rank_and_who_waited_for_it() -> None:
    shape = Shape(ranks=2, eager_extend=(1,), eager_host=300 * US)
    world, analysis = both(shape)
    check_invariants(analysis)
    for report in analysis.reports[0][1:]:
        answer = report.answers[7]
        assert answer.values["apart"] == ["extend"]
        assert "eager on [1]" in answer.text
        assert answer.values["late_rank"] == 1
        number = report.round.number
        ours, theirs = (
            next(w for w in of_phase(world, rank, f"{number} verify") if w.meeting) for rank in (0, 1)
        )
        assert answer.values["waited_for_it_ns"] == theirs.start - ours.start
    nine = analysis.reports[1][2].answers[8]
    assert nine.values["route"] == "eager"
    saved = nine.values["saved_ns"]
    eager = analysis.reports[1][2].round.phase("extend").span_ns
    assert saved == eager - 40 * US
    # where it is late by nothing, nobody is said to have waited
    analysis = both(Shape(ranks=2, eager_extend=(1,)))[1]
    assert {r.answers[7].values["late_rank"] for r in analysis.reports[0]} == {-1}


def test_a_late_rank_is_named_and_the_path_goes_there() -> None:
    shape = Shape(ranks=3, slow_rank=2)
    _, analysis = both(shape)
    check_invariants(analysis)
    table = analysis.timeline
    for report in analysis.reports[0]:
        assert report.answers[7].values["late_rank"] == 2
        ranks = {int(table.rank[row]) for row in report.path.row if row >= 0}
        assert 2 in ranks
        assert not report.answers[7].values["apart"]


def test_without_marks_rounds_are_found_by_their_graphs_and_say_so() -> None:
    shape = Shape(rounds=8, marks="none")
    world, analysis = both(shape)
    check_invariants(analysis)
    assert analysis.rounds.source is Source.INFERRED
    assert "period of 3" in analysis.rounds.evidence[0]
    reports = analysis.reports[0]
    assert len(reports) == 8
    for number, report in enumerate(reports):
        names = [phase.name for phase in report.round.phases]
        assert names == ["draft", "verify", "extend"]
        assert report.round.start_ns == of_phase(world, 0, f"{number} draft")[0].start
        assert report.answers[0].source is Source.INFERRED
        assert report.answers[0].values["forwards"] == 3


def test_two_joins_that_wait_through_one_stretch_of_time_wait_once() -> None:
    """Reductions one after the other on their stream, each of work that was done long before its turn came.

    stream 0  m1 m2                        reduce 1 waits from m1 on, 20, until 100
    stream 1  reduce 0 ........ 1 .... 2   reduce 2 waits from m2 on, 40, until 120; 40 to 100 is one time
    """
    stretches = [
        ("r0", 0, 100, 1),
        ("m1", 0, 20, 0),
        ("m2", 20, 40, 0),
        ("r1", 100, 120, 1),
        ("r2", 120, 130, 1),
    ]
    ops = [
        Op(name, start * US, end * US, f"stream {stream}", graph=0, replay=0, node=node)
        for node, (name, start, end, stream) in enumerate(stretches)
    ]
    edges = np.array([[0, 3], [1, 3], [1, 2], [3, 4], [2, 4]], np.int32)
    analysis = analyse(timeline_of(ops, graphs=[Graph(0, "graph 0", Source.GIVEN, 5, edges)]))
    check_invariants(analysis)
    (report,) = analysis.reports[0]
    waits = {analysis.timeline.name_of(join.row): (join.since_ns, join.waited_ns) for join in report.joins}
    assert waits == {"r1": (20 * US, 80 * US), "r2": (40 * US, 80 * US)}
    assert report.round.took_ns == 130 * US < sum(waited for _, waited in waits.values())
    answer = report.answers[5]
    assert answer.values["waited_ns"] == 100 * US
    assert (answer.values["branch"], answer.values["branch_waited_ns"]) == ("r0", 80 * US)
    assert answer.values["branches"] == ["r0 on stream 1: 1 join, 80.0 us", "r1 on stream 1: 1 join, 80.0 us"]
    assert answer.text == (
        "2 joins of branches side by side are on the path and wait 100.0 us, "
        "longest for r0 on stream 1: 80.0 us in 1"
    )


def test_summary_has_median_p90_and_outliers() -> None:
    shape = Shape(rounds=10)
    _, analysis = both(shape)
    stats = analysis.summary[0]["round_ns"]
    assert stats.count == 10
    took = [report.round.took_ns for report in analysis.reports[0]]
    assert stats.median == np.median(took)
    assert stats.p90 == np.percentile(took, 90)
    assert analysis.summary[0]["q7 exposed_ns"].count == 10


def test_routes_are_told_from_rows() -> None:
    _, analysis = both(Shape(eager_extend=(0,)))
    routes = {phase.name: phase.route for phase in analysis.reports[0][2].round.phases}
    assert routes["draft"] is Route.REPLAY
    assert routes["verify"] is Route.REPLAY
    assert routes["extend"] is Route.EAGER
    assert routes["accept"] is Route.EAGER

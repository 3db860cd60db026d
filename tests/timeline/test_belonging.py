"""Whose the host's time on a path is: a phase's by its mark or by what it launched, else a seam's."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from slipstream.timeline.analysis import analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.breakdown import Stretch
from slipstream.timeline.path import Piece
from slipstream.timeline.table import Kind
from tests.timeline.speculative import US, Shape, graphs, play
from tests.timeline.test_answers import check_invariants
from tests.timeline.virtual import Rank, World

#: A phase, SGLang's mark of it, and how many kernels it has. The host prepares each for HOST, the call takes 2 us.
PHASES = (
    ("draft", "draft", 6),
    ("verify", "verify", 4),
    ("accept", "accept", 1),
    ("extend", "draft_extend", 2),
)
HOST, KERNEL = 40 * US, 5 * US
CALL = 2 * US


def eager(rank: Rank, *, waits: bool) -> Generator[None]:
    """Rounds without a graph on a host that is slower than its device: the path may never come to the device."""
    for _ in range(5):
        for phase, text, kernels in PHASES:
            end = rank.mark(text)
            for number in range(kernels):
                rank.host("aten::linear", HOST)
                rank.kernel(f"{phase} {number}", "main", KERNEL)
            end()
            if phase == "draft":
                if waits:
                    yield from rank.sync("main")
                rank.host("build_tree", 80 * US)
        if waits:
            yield from rank.sync("main")
        rank.host("process_batch_result", 25 * US)
    yield


@pytest.mark.parametrize("waits", [False, True])
def test_a_host_that_holds_every_kernel_up_is_told_of_phase_by_phase(waits: bool) -> None:
    world = World().run(lambda rank: eager(rank, waits=waits))
    analysis = analyse(world.timeline())
    check_invariants(analysis)
    for report in analysis.reports[0][1:-1]:
        parts = {part.label: part for part in report.parts}
        assert list(parts) == ["draft", "draft → verify", "verify", "accept", "extend", "extend → next round"]
        for phase, _, kernels in PHASES[1:]:
            # The round begins when the first draft kernel does, so only of the draft a preparation lies before it.
            assert parts[phase].host_ns == kernels * (HOST + CALL), phase
            assert parts[phase].host["aten::linear"] == kernels * HOST
        assert parts["draft"].host["aten::linear"] >= 4 * HOST
        assert parts["draft → verify"].host == {"build_tree": 80 * US}
        assert parts["extend → next round"].host["process_batch_result"] == 25 * US
        device = [label for label, part in parts.items() if part.work_ns]
        assert device == (["draft", "extend"] if waits else [])


def test_an_eager_extend_among_replays_is_the_host_s_in_its_mark() -> None:
    shape = Shape(eager_extend=(0,), eager_host=300 * US)
    analysis = analyse(play(shape).timeline(graphs=graphs(shape)))
    check_invariants(analysis)
    for report in analysis.reports[0]:
        parts = {part.label: part for part in report.parts}
        assert parts["extend"].host["aten::linear"] > 300 * US  # of 600, what verify does not hide
        assert "accept → extend" not in parts
        assert parts["draft → verify"].host["build_tree"] == 80 * US


def parts_of(ops: list[Op], marks: list[tuple[str, int, int, str]]) -> dict[str, Stretch]:
    (report,) = analyse(timeline_of(ops, marks=marks)).reports[0]
    return {part.label: part for part in report.parts}


def call(start: int, kernel: int, launch: int) -> list[Op]:
    return [
        Op("launch", start, start + 10, "thread", Kind.HOST),
        Op("k", kernel, kernel + 20, "stream 0", launch=launch),
    ]


def test_calls_outside_of_marks_belong_to_what_they_launched() -> None:
    """One step's mark over all of it (vLLM's old ones): one phase, and the path runs along its launches."""
    ops = call(0, 20, 0) + call(100, 120, 2) + call(200, 220, 4)
    parts = parts_of(ops, [("execute_context_0(0)_generation_4(4)", 0, 300, "thread")])
    assert list(parts) == ["decode"]
    assert parts["decode"].host_ns == 190  # from 20, where the round begins, to the end of the last call


def test_time_in_a_mark_is_cut_at_its_edges() -> None:
    ops = call(0, 20, 0) + call(100, 120, 2)
    marks = [("draft", 0, 15, "thread"), ("verify", 80, 115, "thread")]
    parts = parts_of(ops, marks)
    assert [(label, part.host_ns) for label, part in parts.items()] == [
        ("draft → verify", 60),  # from 20, where the round begins, to the mark at 80
        ("verify", 30),  # to 100, and the call
    ]
    assert parts["verify"].host == {"code in verify": 20, "launch": 10}
    assert parts["verify"].work_ns == 20


def test_each_thread_has_its_own_marks() -> None:
    """A plan that another thread marks and launches within verify; a third thread writes no marks at all."""
    ops = call(0, 20, 0) + call(60, 80, 2) + call(130, 150, 4)
    ops += [Op("launch", 50, 55, "plans", Kind.HOST), Op("plan", 60, 70, "stream 1", launch=6)]
    ops += [Op("launch", 70, 72, "autograd", Kind.HOST), Op("k", 110, 115, "stream 2", launch=8)]
    ops += [Op("launch", 76, 77, "autograd", Kind.HOST), Op("k", 116, 118, "stream 2", launch=10)]
    marks = [("draft", 0, 15, "thread"), ("verify", 30, 145, "thread"), ("extend plan A", 50, 75, "plans")]
    analysis = analyse(timeline_of(ops, marks=marks))
    (report,) = analysis.reports[0]
    table = analysis.timeline
    begun = {phase.name: table.start_ns[phase.rows].tolist() for phase in report.round.phases}
    # What autograd launched at 70 lies in the innermost mark there, at 76 in the one that is left.
    assert begun == {"draft": [20], "extend plan A": [60, 110], "verify": [80, 116, 150]}
    # The path goes from thread to thread, as they hand over: 20 to 30 it is in no mark of its own.
    assert {part.label: part.host_ns for part in report.parts} == {
        "draft → extend plan A": 30,  # to the plan's call at 50
        "extend plan A": 5 + 2 + 3,  # the call; autograd's, and what is left of the mark
        "verify": 15 + 65,  # 55 to 70, 75 to the end of the last call
    }


def test_the_parts_are_the_path_piece_by_piece() -> None:
    for shape in (Shape(ranks=2, eager_extend=(1,), slow_rank=1), Shape(ascend=True, plan_b=20 * US)):
        for reports in analyse(play(shape).timeline(graphs=graphs(shape))).reports.values():
            for report in reports:
                sums = report.path.by_piece()
                parts = report.parts
                assert sum(part.work_ns for part in parts) == sums[Piece.WORK]
                assert sum(part.host_ns for part in parts) == sums[Piece.HOST]
                assert sum(part.delay_ns for part in parts) == sums[Piece.DELAY]
                assert sum(part.unknown_ns for part in parts) == sums[Piece.UNKNOWN]
                assert all(part.host.total() == part.host_ns for part in parts)

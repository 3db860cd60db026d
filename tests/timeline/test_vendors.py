"""Speculative rounds of two ranks in every vendor's format: the nine answers are those of the run itself."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.answers import Answer
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.path import Piece, critical_path
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Timeline
from tests.timeline import vendors
from tests.timeline.speculative import (
    US,
    Shape,
    draft_nodes,
    extend_nodes,
    graphs,
    of_phase,
    play,
    verify_nodes,
)
from tests.timeline.test_answers import check_invariants, covered
from tests.timeline.test_path import DUMPS, GRAPHS, has_work, programs
from tests.timeline.test_path import play as random_program
from tests.timeline.test_read_back import operations
from tests.timeline.virtual import FREE, Node, World

WRITERS = {
    "kineto": vendors.write_cuda,
    "rocm": vendors.write_rocm,
    "text": vendors.write_text,
    "db": vendors.write_db,
}


#: How long the eager rank's host takes before each kernel: so long that its path runs there, or hidden.
EAGER_HOST = [300 * US, 10 * US]


def shape_of(vendor: str, eager_host: int) -> Shape:
    """Two plan streams, three padded slots, one eager rank, which is late as well."""
    return Shape(
        rounds=5,
        ranks=2,
        eager_extend=(1,),
        eager_host=eager_host,
        slow_rank=1,
        plan_b=15 * US,
        ascend=vendor in ("text", "db"),
    )


@functools.cache
def written(vendor: str, eager_host: int) -> tuple[World, Shape, Analysis]:
    shape = shape_of(vendor, eager_host)
    world = play(shape)
    nodes = [draft_nodes(shape), verify_nodes(shape, -1), extend_nodes(shape)]
    return world, shape, analyse(read_back(vendor, world, nodes))


def read_back(vendor: str, world: World, graphs: Sequence[list[Node]]) -> Timeline:
    """Write a run as a vendor's profiler would, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        sides = WRITERS[vendor](run, world, graphs)
        return open_timeline(run, sides=sides)


def values_of(answer: Answer) -> dict[str, object]:
    """The values of an answer, without what vendors call streams, collectives and calls."""
    own_words = ("branch_stream", "branches", "families")
    values: dict[str, object] = {key: value for key, value in answer.values.items() if key not in own_words}
    if "host" in values:
        values["host"] = answer.values["host"][0]  # type: ignore[index]
    return values


@pytest.mark.parametrize("eager_host", EAGER_HOST)
@pytest.mark.parametrize("vendor", list(WRITERS))
def test_nine_answers_of_a_run_come_back_from_every_format(
    tmp_path: Path, vendor: str, eager_host: int
) -> None:
    world, shape, back = written(vendor, eager_host)
    check_invariants(back)
    direct = analyse(world.timeline(graphs=graphs(shape)))
    events_known = vendor != "rocm"  # ROCm shows no event, so joins are guessed there
    for rank in (0, 1):
        ours, theirs = direct.reports[rank], back.reports[rank]
        assert [r.round.took_ns for r in theirs] == [r.round.took_ns for r in ours]
        for mine, other in zip(ours, theirs, strict=True):
            for wanted, found in zip(mine.answers, other.answers, strict=True):
                if wanted.question == 6 and not events_known:
                    continue
                assert found.known == wanted.known, found
                assert values_of(found) == values_of(wanted), (vendor, rank, wanted.question)
            assert other.path.length_ns == mine.path.length_ns
            if events_known:
                assert other.path.by_piece()[Piece.WORK] == mine.path.by_piece()[Piece.WORK]
            assert other.path.by_piece()[Piece.UNKNOWN] == 0


@pytest.mark.parametrize("eager_host", EAGER_HOST)
@pytest.mark.parametrize("vendor", list(WRITERS))
def test_nine_answers_of_every_format_are_the_truth(vendor: str, eager_host: int) -> None:
    """Against the run itself, not against another analysis of it."""
    world, shape, analysis = written(vendor, eager_host)
    assert len(analysis.reports[0]) == len(analysis.reports[1]) == shape.rounds
    for rank in (0, 1):
        for number, report in enumerate(analysis.reports[rank]):
            answers = {answer.question: answer.values for answer in report.answers}
            draft, verify = (of_phase(world, rank, f"{number} {phase}") for phase in ("draft", "verify"))
            accept, extend = (of_phase(world, rank, f"{number} {phase}") for phase in ("accept", "extend"))
            plans = [w for part in "AB" for w in of_phase(world, rank, f"{number} extend plan {part}")]
            assert answers[1] == {"route": "replay", "replays": 1, "forwards": shape.forwards}
            assert (answers[2]["padded_slots"], answers[2]["requests"]) == (3, 5)
            assert answers[2]["padded_ns"] == round(3 * 35 * US * 3 / 8)
            assert answers[3]["seam_ns"] == verify[0].start - draft[-1].end
            assert answers[3]["host"][0] == "build_tree: 80.0 us"
            assert report.answers[3].text.startswith("not in this trace, because")
            total, hidden = covered(plans, verify + accept)
            assert (answers[5]["total_ns"], answers[5]["covered_ns"]) == (total, hidden)
            assert answers[5]["overlaps"] == "in part"
            if rank == 0 or eager_host > 100 * US:
                assert answers[6]["waited_ns"] == 0  # the path runs through the late rank, or its host
            elif vendor != "rocm":
                assert (answers[6]["branch"], answers[6]["branch_waited_ns"]) == ("indexer", 40 * US)
            comm = [work for work in verify if work.kind == Kind.COMM]
            total, hidden = covered(
                comm, [w for w in world.works if w.kind == Kind.KERNEL and w.rank == rank]
            )
            assert (answers[7]["total_ns"], answers[7]["covered_ns"]) == (total, hidden)
            assert (answers[8]["apart"], answers[8]["late_rank"]) == (["extend"], 1)
            calls = [next(w for w in of_phase(world, r, f"{number} verify") if w.meeting) for r in (0, 1)]
            assert answers[8]["waited_for_it_ns"] == calls[1].start - calls[0].start
            assert answers[9]["route"] == ("eager" if rank == 1 else "replay")
            assert answers[9]["span_ns"] == extend[-1].end - extend[0].start
    spans = {
        rank: np.median(
            [
                w[-1].end - w[0].start
                for n in range(shape.rounds)
                if (w := of_phase(world, rank, f"{n} extend"))
            ]
        )
        for rank in (0, 1)
    }
    saved = {r.answers[8].values["saved_ns"] for r in analysis.reports[0]}
    assert saved == {round(spans[1] - spans[0])}


@pytest.mark.parametrize("vendor", list(WRITERS))
@given(steps=programs)
@settings(max_examples=15, deadline=None)
def test_random_programs_come_back_from_every_format(vendor: str, steps: list[tuple]) -> None:
    """The same operations, and a path as long as the run; where events and edges are known, of work alone."""
    if not has_work(steps):
        return
    world = World(ascend=vendor in ("text", "db"), costs=FREE).run(random_program(steps))
    table = read_back(vendor, world, GRAPHS)
    assert operations(table) == operations(world.timeline(graphs=DUMPS))
    end = int(table.end_ns[table.is_work].max())
    path = critical_path(find_dependencies(table), end - world.end, end)
    assert path.length_ns == world.end
    if vendor == "kineto":
        assert path.work_ns == world.end
        assert path.by_piece()[Piece.UNKNOWN] == 0

"""Speculative rounds of two ranks in every vendor's format and in ours: the nine answers are those of the run."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.path import Piece, critical_path
from slipstream.timeline.question import Answer
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Source, Timeline
from tests.timeline import own, vendors
from tests.timeline.speculative import (
    ATOM,
    IN_BUCKET,
    SGLANG,
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
from tests.timeline.virtual import FREE, Costs, Node, Work, World

VENDORS = {
    "kineto": vendors.write_cuda,
    "rocm": vendors.write_rocm,
    "text": vendors.write_text,
    "db": vendors.write_db,
}
#: And ours, whose phases say what a run's shape is; of programs without phases there is nothing to say.
FORMATS = [*VENDORS, "ours"]


#: How long the eager rank's host takes before each kernel: so long that its path runs there, or hidden.
EAGER_HOST = [300 * US, 10 * US]


def shape_of(vendor: str, eager_host: int) -> Shape:
    """Two plan streams, three padded slots, one eager rank, which is late as well. Four drafts: three forwards."""
    return Shape(
        rounds=5,
        ranks=2,
        width=5,
        eager_extend=(1,),
        eager_host=eager_host,
        slow_rank=1,
        plan_b=15 * US,
        ascend=vendor in ("text", "db"),
    )


@functools.cache
def written(vendor: str, eager_host: int) -> tuple[World, Shape, Analysis]:
    """A run and its analysis. The user says verify's width where the engine does not: ours does."""
    shape = shape_of(vendor, eager_host)
    world = play(shape)
    width = None if vendor == "ours" else shape.width
    return world, shape, analyse(read_back(vendor, world, nodes_of(shape), shape), width=width)


def nodes_of(shape: Shape) -> list[list[Node]]:
    return [draft_nodes(shape), verify_nodes(shape, -1), extend_nodes(shape)]


def read_back(
    vendor: str, world: World, graphs: Sequence[list[Node]], shape: Shape | None = None
) -> Timeline:
    """Write a run as a vendor's profiler or our runtime would, and read it."""
    write: Callable[[Path, World, Sequence[list[Node]]], list[Path]]
    if vendor == "ours":
        write = functools.partial(own.write_ours, said=None if shape is None else own.said_by(shape))
    else:
        write = VENDORS[vendor]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        sides = write(run, world, graphs)
        return open_timeline(run, sides=sides)


def values_of(answer: Answer, vendor: str) -> dict[str, object]:
    """The values of an answer, without what vendors call streams, collectives and calls.

    In ours the forks of a graph are waits like its joins, so there are more of those.
    """
    own_words = ("branch_stream", "branches", "families", *(("joins",) if vendor == "ours" else ()))
    values: dict[str, object] = {key: value for key, value in answer.values.items() if key not in own_words}
    if "host" in values:
        values["host"] = answer.values["host"][0]  # type: ignore[index]
    return values


@pytest.mark.parametrize("eager_host", EAGER_HOST)
@pytest.mark.parametrize("vendor", FORMATS)
def test_nine_answers_of_a_run_come_back_from_every_format(
    tmp_path: Path, vendor: str, eager_host: int
) -> None:
    world, shape, back = written(vendor, eager_host)
    check_invariants(back)
    direct = analyse(world.timeline(graphs=graphs(shape)), width=shape.width)
    events_known = vendor != "rocm"  # ROCm shows no event, so joins are guessed there
    for rank in (0, 1):
        ours, theirs = direct.reports[rank], back.reports[rank]
        assert [r.round.took_ns for r in theirs] == [r.round.took_ns for r in ours]
        for mine, other in zip(ours, theirs, strict=True):
            for wanted, found in zip(mine.answers, other.answers, strict=True):
                if wanted.question == 6 and not events_known:
                    continue
                if wanted.question == 4 and vendor == "ours":
                    continue  # it says more than SGLang does
                assert found.known == wanted.known, found
                assert values_of(found, vendor) == values_of(wanted, vendor), (vendor, rank, wanted.question)
            assert other.path.length_ns == mine.path.length_ns
            if events_known:
                assert other.path.by_piece()[Piece.WORK] == mine.path.by_piece()[Piece.WORK]
            assert other.path.by_piece()[Piece.UNKNOWN] == 0


@pytest.mark.parametrize("eager_host", EAGER_HOST)
@pytest.mark.parametrize("vendor", FORMATS)
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
            check_rows(report.answers[3], shape, vendor, busy_of(verify))
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


def busy_of(works: list[Work]) -> int:
    """How long at least one of some works runs."""
    return covered(works, [])[0]


def check_rows(answer: Answer, shape: Shape, vendor: str, busy_ns: int) -> None:
    """Question 4: all of it by our marks; of SGLang's, with the width that the user said, all but the bucket's."""
    rows = {"requests": 5, "width": 5, "route": "replay", "busy_ns": busy_ns}
    if vendor == "ours":
        wanted = {"bucket": 8, "rows": 40, "padded_rows": 15, "padded_at_most_ns": round(busy_ns * 3 / 8)}
        assert (answer.values, answer.source) == ({**rows, **wanted}, Source.GIVEN)
    else:
        assert (answer.values, answer.source) == ({**rows, "rows": 25}, Source.USER)
        assert answer.text == (
            "requests 5, width 5 (by --width), rows 25; "
            "padding is not in this trace, because its bucket is not marked"
        )


@pytest.mark.parametrize(
    ("marks", "width"),
    [(("verify", IN_BUCKET), 5), ((ATOM,), None)],
    ids=["marks with a bucket, and --width", "marks of ATOM"],
)
@pytest.mark.parametrize("vendor", list(VENDORS))
def test_rows_and_padding_of_verify_are_exact(vendor: str, marks: tuple[str, ...], width: int | None) -> None:
    shape = replace(shape_of(vendor, 10 * US), rounds=2, ranks=1, eager_extend=(), verify_marks=marks)
    world = play(shape)
    analysis = analyse(read_back(vendor, world, nodes_of(shape)), width=width)
    assert len(analysis.reports[0]) == 2
    for number, report in enumerate(analysis.reports[0]):
        answer, busy = report.answers[3], busy_of(of_phase(world, 0, f"{number} verify"))
        assert answer.values == {
            "requests": 5,
            "bucket": 8,
            "width": 5,
            "rows": 40,
            "padded_rows": 15,
            "route": "replay",
            "busy_ns": busy,
            "padded_at_most_ns": round(busy * 3 / 8),
        }
        assert answer.source is (Source.USER if width else Source.GIVEN)
        assert ("width 5 (by --width)" in answer.text) == (width is not None)


@pytest.mark.parametrize("vendor", list(VENDORS))
def test_without_a_width_the_rows_of_verify_are_not_in_the_trace(vendor: str) -> None:
    shape = replace(shape_of(vendor, 10 * US), rounds=2, ranks=1, verify_marks=("verify", SGLANG))
    analysis = analyse(read_back(vendor, play(shape), nodes_of(shape)))
    for report in analysis.reports[0]:
        assert not report.answers[3].known
        assert report.answers[3].text == (
            "not in this trace, because no mark of verify says its width or rows, only its requests, 5: "
            "say the width with --width"
        )


def test_our_own_trace_says_what_a_token_cost() -> None:
    _, shape, analysis = written("ours", EAGER_HOST[0])
    for reports in analysis.reports.values():
        for number, report in enumerate(reports):
            tokens = own.advanced_by(shape, number)
            assert report.advanced == (tokens,)
            assert report.cost_ns == report.path.length_ns / tokens


@pytest.mark.parametrize("vendor", FORMATS)
@given(steps=programs)
@settings(max_examples=15, deadline=None)
def test_random_programs_come_back_from_every_format(vendor: str, steps: list[tuple]) -> None:
    check_program(vendor, steps, FREE)


@pytest.mark.slow
@pytest.mark.parametrize("vendor", FORMATS)
@given(steps=programs, costs=st.sampled_from([FREE, Costs()]))
@settings(max_examples=400, deadline=None)
def test_many_random_programs_come_back(vendor: str, steps: list[tuple], costs: Costs) -> None:
    check_program(vendor, steps, costs)


def check_program(vendor: str, steps: list[tuple], costs: Costs) -> None:
    """The same operations, and a path as long as the run; where events and edges are known, of work alone."""
    if not has_work(steps):
        return
    world = World(ascend=vendor in ("text", "db"), costs=costs).run(random_program(steps))
    table = read_back(vendor, world, GRAPHS)
    assert operations(table) == operations(world.timeline(graphs=DUMPS))
    end = int(table.end_ns[table.is_work].max())
    path = critical_path(find_dependencies(table), end - world.end, end)
    assert path.length_ns == world.end
    if vendor in ("kineto", "ours") and costs is FREE:
        assert path.work_ns == world.end
    if vendor == "ours" or (vendor == "kineto" and costs is FREE):
        assert path.by_piece()[Piece.UNKNOWN] == 0

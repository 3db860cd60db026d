"""The plan of graphs as a whole: what each rule makes of it, what it covers, pads and takes."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from slipstream.errors import UsageError
from slipstream.graph.histogram import Histogram, Skipped, Unit
from slipstream.graph.modes import AttentionSupport, GraphMode
from slipstream.graph.plan_notes import steps
from slipstream.graph.plan_report import plan_data, plan_lines
from slipstream.graph.plan_types import MAX_REQUESTS, PlanRequest
from slipstream.graph.planner import plan_graphs
from slipstream.graph.platform_rules import CompileMode, PlatformSettings, Xlite
from slipstream.graph.sizes import SizeSource
from slipstream.graph.streams import Hccl, MemoryProbe, StreamFacts

NONE, PIECES, FULL = GraphMode.NONE, GraphMode.PIECEWISE, GraphMode.FULL
DECODE_ONLY, BOTH = GraphMode.FULL_DECODE_ONLY, GraphMode.FULL_AND_PIECEWISE


def histogram(**counts: int) -> Histogram:
    return Histogram("lines", Unit.REQUESTS, {int(size[1:]): count for size, count in counts.items()})


class TestSizes:
    @pytest.mark.parametrize(
        ("request_", "sizes"),
        [
            (PlanRequest(16, 4, (1, 2, 4, 8, 16)), (4, 8, 16)),
            (PlanRequest(8, 3, (1, 2, 4, 8, 16, 24), 24), (3, 6, 9, 18, 24)),
            (PlanRequest(8, 5, (4, 8), 8), (5,)),
            (PlanRequest(8, sizes=(1, 2, 4, 8), sequence_ranks=8), (8,)),
            (PlanRequest(20), (1, 2, 4, 8, 16)),
            (PlanRequest(4, 3, (1, 2, 4, 8), mode=PIECES), (1, 2, 4, 8)),
            (PlanRequest(4, 3, (1, 2, 4, 8, 32), max_batched_tokens=8, mode=PIECES), (1, 2, 4, 8)),
            (PlanRequest(4, mode=NONE), ()),
        ],
    )
    def test_what_is_captured(self, request_: PlanRequest, sizes: tuple[int, ...]) -> None:
        plan = plan_graphs(request_)
        assert plan.sizes == sizes
        assert tuple(graph.size for graph in plan.graphs) == sizes

    def test_ascends_maximum(self) -> None:
        assert plan_graphs(PlanRequest(40, 4)).sizes[-1] == 160
        assert plan_graphs(PlanRequest(200, 4)).sizes[-1] == 512

    def test_every_change_of_the_list_is_said(self) -> None:
        plan = plan_graphs(PlanRequest(8, 3, (3, 8, 24, 30, 48), max_batched_tokens=40, sequence_ranks=8))
        assert [(c.rule, c.asked, c.got) for c in plan.changes] == [
            ("max-batched-tokens", "3, 8, 24, 30, 48", "3, 8, 24, 30"),
            ("sequence-parallel", "3, 8, 24, 30", "8, 24"),
            ("decode-width", "8, 24", "24"),
        ]

    def test_the_cut_of_a_hardware(self) -> None:
        plan = plan_graphs(PlanRequest(64, platform=PlatformSettings(a5=True), mode=PIECES))
        assert plan.mode is PIECES
        assert len(plan.sizes) == 4
        assert (plan.sizes[0], plan.sizes[-1]) == (1, 64)
        assert "a5-sizes" in {change.rule for change in plan.changes}

    def test_a_list_over_what_a_step_computes_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"every size is over max-batched-tokens 4.*smallest is 8"):
            plan_graphs(PlanRequest(8, sizes=(8, 16), max_batched_tokens=4))


class TestMode:
    def test_the_platform_comes_first_then_the_backend(self) -> None:
        settings = PlatformSettings(encoder_decoder=True)
        plan = plan_graphs(PlanRequest(8, mode=FULL, platform=settings, support=AttentionSupport.NEVER))
        assert plan.mode is PIECES
        assert "encoder-decoder" in {change.rule for change in plan.changes}

    def test_whole_graphs_beside_xlite(self) -> None:
        plan = plan_graphs(PlanRequest(8, platform=PlatformSettings(xlite=Xlite.DECODE)))
        assert plan.mode is DECODE_ONLY
        assert all(graph.whole and not graph.mixed for graph in plan.graphs)

    def test_nothing_is_captured_without_compilation(self) -> None:
        settings = PlatformSettings(compile_mode=CompileMode.NONE)
        plan = plan_graphs(PlanRequest(8, mode=DECODE_ONLY, platform=settings))
        assert (plan.mode, plan.sizes, plan.best.sizes) == (NONE, (), ())
        assert plan.coverage.uncovered == tuple(range(1, 9))
        assert plan.notes == (
            "nothing is captured: every step runs eagerly",
            "no histogram: every decode batch from 1 to 8 requests counts alike",
        )

    def test_a_fall_back_that_is_forbidden(self) -> None:
        with pytest.raises(UsageError, match=r"mode full is not possible.*Take full_and_piecewise"):
            plan_graphs(PlanRequest(8, mode=FULL, support=AttentionSupport.UNIFORM_BATCH, fallback=False))

    def test_a_fall_back_of_the_platform_that_is_forbidden(self) -> None:
        request = PlanRequest(8, platform=PlatformSettings(encoder_decoder=True), fallback=False)
        with pytest.raises(
            UsageError, match=r"not possible on Ascend.*\(encoder-decoder\).*--mode piecewise"
        ):
            plan_graphs(request)
        assert plan_graphs(replace(request, mode=PIECES)).mode is PIECES

    def test_too_few_blocks_of_state(self) -> None:
        with pytest.raises(UsageError, match="cache has 4"):
            plan_graphs(PlanRequest(8, state_blocks=4))


class TestCoverage:
    @pytest.mark.parametrize(
        ("request_", "uncovered", "said"),
        [
            (PlanRequest(20), (17, 18, 19, 20), "add 20 to the sizes: --sizes 1,2,4,8,16,20"),
            (PlanRequest(25, 4), (25,), "decode batch of 25 requests run eagerly"),
            (PlanRequest(10, sizes=(8, 16), mode=DECODE_ONLY), (9, 10), "--sizes 8,10,16"),
            (
                PlanRequest(9, max_batched_tokens=8),
                (9,),
                "raise max-batched-tokens from 8 to 9, or lower max-req",
            ),
            (PlanRequest(9, sizes=(1, 8), max_size=8), (9,), "--sizes 1,8,9 --max-size 9"),
            (
                PlanRequest(10, mode=DECODE_ONLY, sizes=(8,), sequence_ranks=8),
                (9, 10),
                "set max-requests to 16, which splits evenly",
            ),
        ],
    )
    def test_batches_without_a_graph_and_what_to_set(
        self, request_: PlanRequest, uncovered: tuple[int, ...], said: str
    ) -> None:
        plan = plan_graphs(request_)
        assert plan.coverage.uncovered == uncovered
        assert any(said in note for note in plan.notes), plan.notes

    def test_what_it_says_to_set_covers_everything(self) -> None:
        for requests in (1, 7, 20, 25, 100, 129):
            for width in (1, 3, 4):
                if (requests, width) == (1, 3):
                    continue  # Ascend's default ends at 2 rows there, and is refused
                plan = plan_graphs(PlanRequest(requests, width))
                advice = [note for note in plan.notes if "--sizes" in note and "add" in note]
                assert bool(advice) == bool(plan.coverage.uncovered)
                if advice:
                    sizes = tuple(int(size) for size in advice[0].split("--sizes ")[1].split(","))
                    assert not plan_graphs(PlanRequest(requests, width, sizes)).coverage.uncovered

    def test_a_default_list_that_vllm_would_not_start_with_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"largest size 2 holds no decode request of 3 rows.*--sizes 3"):
            plan_graphs(PlanRequest(1, 3))

    def test_graphs_that_nothing_takes_are_named(self) -> None:
        plan = plan_graphs(PlanRequest(4, sizes=(1, 4, 64), mode=DECODE_ONLY))
        assert any("no decode batch is padded to 64: leave them out" in note for note in plan.notes)

    def test_pieces_of_odd_rows_are_a_warning_beside_drafts(self) -> None:
        said = "2 of 3 sizes are no multiple of 4"
        assert any(said in note for note in plan_graphs(PlanRequest(4, 4, (2, 9, 16), mode=PIECES)).notes)
        assert not any(
            "multiple" in note for note in plan_graphs(PlanRequest(4, 1, (2, 9), mode=PIECES)).notes
        )


class TestCost:
    def test_without_a_histogram_every_batch_counts_alike_and_it_says_so(self) -> None:
        plan = plan_graphs(PlanRequest(4, sizes=(2, 4), mode=FULL))
        assert plan.planned.padded == (1 + 0 + 1 + 0) / 4
        assert plan.notes[-1] == "no histogram: every decode batch from 1 to 4 requests counts alike"
        assert plan_data(plan)["assumed"] == "every decode batch alike"

    def test_with_a_histogram_steps_count(self) -> None:
        request = PlanRequest(8, 3, (6, 24), histogram=histogram(_5=3, _2=1), mode=FULL)
        plan = plan_graphs(request)
        # 5 requests x 3 rows in a bucket of 8: 24 rows, 9 padded.
        assert plan.planned.padded == 9 * 3 / 4
        assert (plan.graphs[1].bucket, plan.graphs[1].share, plan.graphs[1].mean_padded_rows) == (
            8,
            0.75,
            9.0,
        )
        assert plan_data(plan)["assumed"] is None

    def test_the_best_list_for_a_histogram(self) -> None:
        plan = plan_graphs(PlanRequest(20, histogram=histogram(_3=90, _7=10), budget=2))
        assert (plan.best.sizes, plan.best.padded) == ((3, 7), 0.0)
        # What the histogram never shows is not paid for, but it is said, with the list that has it.
        assert plan.best.uncovered == tuple(range(8, 21))
        assert plan.covering is not None
        assert plan.covering.sizes == (3, 20)
        assert any("no graph for 8 to 20 requests" in note and "3,20" in note for note in plan.notes)

    def test_the_best_list_is_of_whole_requests_and_ranks(self) -> None:
        plan = plan_graphs(PlanRequest(16, 3, mode=FULL, sequence_ranks=4, budget=3))
        assert all(size % 12 == 0 for size in plan.best.sizes)
        assert plan.best.uncovered == ()

    def test_taking_the_best_list_gives_its_cost(self) -> None:
        for mode in (FULL, PIECES, DECODE_ONLY, BOTH):
            plan = plan_graphs(PlanRequest(23, 3, mode=mode, budget=5))
            again = plan_graphs(PlanRequest(23, 3, plan.best.sizes, mode=mode))
            assert (again.sizes, again.planned.padded) == (plan.best.sizes, plan.best.padded)
            assert again.coverage.uncovered == ()

    def test_it_is_never_worse_than_the_default_list(self) -> None:
        random_ = random.Random(9)
        for _ in range(60):
            most, width = random_.randint(1, 130), random_.randint(1, 5)
            counts = {random_.randint(1, most): random_.randint(1, 9) for _ in range(random_.randint(1, 30))}
            request = PlanRequest(
                most,
                width,
                random_.choice(list(SizeSource)),
                mode=random_.choice((FULL, PIECES, DECODE_ONLY, BOTH)),
                histogram=Histogram("lines", Unit.REQUESTS, counts),
            )
            default = plan_graphs(request).default
            best = plan_graphs(replace(request, budget=len(default.sizes))).best
            assert len(best.sizes) <= len(default.sizes)
            # Fewer eager steps first, then fewer padded rows.
            assert (best.eager_share, best.padded) <= (default.eager_share, default.padded)

    def test_it_is_never_worse_than_the_planned_list_with_what_it_lacks(self) -> None:
        for requests in (7, 20, 25, 53, 100, 127):
            for width in (1, 3, 5):
                for mode in (FULL, PIECES, DECODE_ONLY):
                    plan = plan_graphs(PlanRequest(requests, width, mode=mode))
                    whole = plan.completed or plan.planned
                    assert whole.eager_share == plan.best.eager_share == 0
                    assert len(plan.best.sizes) <= len(whole.sizes) == plan.budget
                    assert plan.best.padded <= whole.padded

    def test_512_sizes_are_planned_within_a_second(self) -> None:
        started = time.perf_counter()
        plan = plan_graphs(PlanRequest(512, sizes=SizeSource.VLLM, budget=50))
        assert time.perf_counter() - started < 1
        assert len(plan.best.sizes) == 50


class TestStreams:
    def test_both_ways_of_communicating_are_said(self) -> None:
        request = PlanRequest(
            512, streams=StreamFacts(48, tp=4), mode=PIECES, hccl=Hccl.AIV, probe_streams=300
        )
        data = plan_data(plan_graphs(request))["streams"]
        assert (data["hccl"], data["max_sizes"], data["graphs_per_size"]) == ("aiv", 17, 49)
        assert {way: facts["max_sizes"] for way, facts in data["by_hccl"].items()} == {"aiv": 17, "ffts": 11}
        assert len(data["kept_sizes"]) == 17
        assert (data["probe_streams_per_size"], data["probe_max_sizes"]) == (300, 6)

    def test_too_many_sizes_are_a_note_with_what_would_be_kept(self) -> None:
        plan = plan_graphs(
            PlanRequest(512, streams=StreamFacts(61, tp=4, dp=4), mode=PIECES, probe_streams=400)
        )
        assert any(
            "have streams for 5 of the 51 sizes (ffts), and would keep 1," in note for note in plan.notes
        )
        assert any(
            "by the probe (400 streams a size) 4 sizes fit, and 51 are planned" in note for note in plan.notes
        )

    def test_where_not_one_size_fits_whole_graphs_are_advised(self) -> None:
        plan = plan_graphs(PlanRequest(8, streams=StreamFacts(900, tp=4), mode=PIECES))
        assert any(
            "pieces are not possible there; take --mode full_decode_only" in note for note in plan.notes
        )
        whole = plan_graphs(PlanRequest(8, streams=StreamFacts(900, tp=4), mode=DECODE_ONLY))
        assert not any("streams" in note for note in whole.notes)

    def test_memory_grows_from_the_largest_down(self) -> None:
        plan = plan_graphs(PlanRequest(4, sizes=(1, 2, 4), probe_memory=MemoryProbe(100, 5)))
        assert [graph.memory_mib for graph in plan.graphs] == [110, 105, 100]
        assert plan_data(plan)["memory_mib"] == 110

    def test_a_probe_without_layers_is_refused(self) -> None:
        with pytest.raises(UsageError, match="give --layers"):
            plan_graphs(PlanRequest(4, probe_streams=5))


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (PlanRequest(0), f"max-requests 0 is not possible; it is 1 to {MAX_REQUESTS}"),
        (PlanRequest(MAX_REQUESTS + 1), "max-requests 4097"),
        (PlanRequest(8, 0), "num-draft-tokens 0 is not possible"),
        (PlanRequest(8, budget=0), "budget 0 is not possible"),
        (PlanRequest(8, max_batched_tokens=0), "max-batched-tokens 0"),
        (PlanRequest(8, max_size=-1), "max-size -1"),
        (PlanRequest(8, 9, max_batched_tokens=8), "largest size 8 holds no decode request of 9 rows"),
    ],
)
def test_numbers_that_are_not_possible(request_: PlanRequest, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_graphs(request_)


def test_skipped_lines_are_counted_and_the_first_are_named() -> None:
    skipped = tuple(Skipped(number, "?", "is not `size count`") for number in range(1, 9))
    read = replace(histogram(_1=4, _9=2), skipped=skipped)
    lines = plan_lines(plan_graphs(PlanRequest(4, histogram=read)))
    assert lines[:4] == [
        "- histogram: lines, 4 decode steps",
        "- histogram: 2 steps left out: more than 4 requests",
        "- histogram: 8 lines skipped",
        "- histogram: line 1: '?' is not `size count`",
    ]
    assert sum("line " in line for line in lines) == 5


def test_lists_are_shortened_for_tables() -> None:
    assert steps((1, 2, 4, 8, 16, 24, 32)) == "1, 2, 4, 8 to 32 by 8"
    assert steps((1, 2, 3, 4, 5, 9)) == "1 to 5, 9"
    assert steps(()) == "none"

"""Our own round in many orders: clean, with plain decoding's tokens; broken ones are found and named."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache

import pytest

from slipstream.check.rounds import (
    SMALL,
    USUAL,
    RoundCase,
    RoundRun,
    explore_round,
    reference_tokens,
    run_round,
)
from slipstream.device.soft.machine import Finding, ProgramOrder, Scheduler, Seeded
from slipstream.engine import drafting
from tests.device.soft import broken_rounds
from tests.device.soft.broken_rounds import Last
from tests.engines import verify_always
from tests.speculative.test_auto import AnyRound

Broken = Callable[[], AbstractContextManager[None]]

ONE = RoundCase(prompts=(9,), answers=(10,), bucket=1, period=4)
THREE = RoundCase(prompts=(9, 4, 18), answers=(10, 4, 6), bucket=3, period=4)


class TestEngine:
    """The whole engine, on the software NPU and on the CPU."""

    @pytest.mark.parametrize("order", [None, 1, 3], ids=["program", "starved", "priorities"])
    @pytest.mark.parametrize("graph", ["none", "full"])
    @pytest.mark.parametrize("case", [ONE, THREE], ids=["one", "three"])
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn", "auto"])
    def test_it_gives_the_tokens_of_the_cpu(
        self, draft: str, case: RoundCase, graph: str, order: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chooser = AnyRound(7)
        if draft in ("ngram", "auto"):
            monkeypatch.setattr(drafting, "choose_round", chooser if draft == "auto" else verify_always)
            monkeypatch.setattr(drafting, "TOO_DEAR", math.inf)
        if draft == "auto":
            monkeypatch.setattr(drafting.Drafting, "decide_heads", chooser.heads)
        case = replace(case, draft=draft, graph=graph)
        run = run_round(None if order is None else Seeded(order), case)
        assert run.report.clean, str(run.report)
        assert run.tokens == reference_tokens(case)
        if draft == "auto":
            assert {choice.head for choice, _ in chooser.chosen} == {True, False}
        elif draft != "none":
            assert any(len(tokens) > 1 for step in run.settled for _, tokens in step)

    @pytest.mark.parametrize("draft", ["none", "nextn"])
    def test_a_request_that_samples_draws_the_same(self, draft: str) -> None:
        case = replace(THREE, draft=draft, temperature=0.8)
        run = run_round(Seeded(2), case)
        assert run.report.clean, str(run.report)
        assert run.tokens == reference_tokens(case)

    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    def test_in_pieces(self, draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(drafting, "choose_round", verify_always)
        monkeypatch.setattr(drafting, "TOO_DEAR", math.inf)
        case = replace(THREE, draft=draft, graph="piecewise", check=True)
        run = run_round(Seeded(1), case)
        assert run.report.clean, str(run.report)
        assert run.tokens == reference_tokens(case)

    @pytest.mark.parametrize("order", [None, 2, 5], ids=["program", "two", "five"])
    def test_whole_rounds_and_chunks_of_prompts_in_pieces(self, order: int | None) -> None:
        """A chunk's static inputs are written again for the next: in the stream's order, or too early."""
        case = replace(THREE, prompts=(40, 4, 35), graph="full_and_piecewise")
        run = run_round(None if order is None else Seeded(order), case)
        assert run.report.clean, str(run.report)
        assert run.tokens == reference_tokens(case)

    def test_bfloat16(self) -> None:
        case = replace(THREE, dtype="bf16")
        run = run_round(Seeded(2), case)
        assert run.report.clean, str(run.report)
        assert run.tokens == reference_tokens(case)

    def test_checking_mode_poisons_and_is_clean(self) -> None:
        run = run_round(Seeded(4), replace(USUAL, check=True))
        assert run.report.clean, str(run.report)
        assert run.tokens == usual_tokens()


class TestOurRound:
    @pytest.mark.parametrize(
        "order",
        [ProgramOrder(), Last("main"), Last("plan"), *map(Seeded, range(5))],
        ids=lambda order: getattr(order, "temperament", getattr(order, "_name", "program")),
    )
    def test_it_is_clean(self, order: Scheduler) -> None:
        _check(run_round(order))

    def test_it_is_clean_in_every_order_of_a_small_case(self) -> None:
        every = explore_round(10_000)
        assert every.clean, "\n\n".join(map(str, every.findings))
        assert every.complete

    @pytest.mark.slow
    def test_it_is_clean_in_500_orders(self) -> None:
        for seed in range(500):
            _check(run_round(Seeded(seed)))

    @pytest.mark.slow
    def test_200_orders_take_about_a_minute(self) -> None:
        """48 s on a quiet core (docs/log.md); the time of all threads, on a busy one, is several times that."""
        run_round()
        began = time.process_time()
        for seed in range(20):
            run_round(Seeded(seed))
        assert 10 * (time.process_time() - began) < 360


@cache
def usual_tokens() -> list[list[int]]:
    return reference_tokens()


def _check(run: RoundRun) -> None:
    assert run.report.clean, str(run.report)
    assert run.tokens == usual_tokens()


def _finding(*ops: str, missing: str) -> Callable[[Finding], bool]:
    def fits(finding: Finding) -> bool:
        named = all(any(op.startswith(wanted) for op in finding.ops) for wanted in ops)
        return named and finding.missing.startswith(missing)

    return fits


#: Each broken round, the edge that a finding has to name, and the stream whose lateness does the harm.
BROKEN: list[tuple[Broken, Callable[[Finding], bool], str]] = [
    (
        broken_rounds.verify_plan_before_draft,
        _finding(
            "slipstream::stack_columns on main (replay",
            "slipstream::verify_rows on plan",
            missing="`plan.wait_stream(main)` after slipstream::stack_columns",
        ),
        "main",
    ),
    (
        broken_rounds.verify_before_plan,
        _finding(
            "slipstream::verify_rows on plan",
            "slipstream::embed_dense on main (replay",
            missing="`main.wait_stream(plan)` after slipstream::verify_rows",
        ),
        "plan",
    ),
    (
        broken_rounds.extend_plan_b_before_accept,
        _finding(
            "slipstream::accept_and_commit on main",
            "slipstream::extend_inputs on plan",
            missing="`plan.wait_stream(main)` after slipstream::accept_and_commit",
        ),
        "main",
    ),
    (
        broken_rounds.padded_rows_reset_late,
        _finding(
            "aten::zero_ on plan",
            "slipstream::rope_and_store on main (replay",
            missing="`main.wait_stream(plan)` after aten::zero_",
        ),
        "plan",
    ),
]
NAMES = [broken.__name__ for broken, _, _ in BROKEN]


class TestBrokenRounds:
    @pytest.mark.parametrize(("broken", "edge", "late"), BROKEN, ids=NAMES)
    def test_it_is_found_within_50_orders_with_the_missing_edge(
        self, broken: Broken, edge: Callable[[Finding], bool], late: str
    ) -> None:
        with broken():
            found = (run_round(Seeded(seed)).report.findings for seed in range(50))
            assert any(edge(finding) for findings in found for finding in findings)

    @pytest.mark.parametrize(("broken", "edge", "late"), BROKEN, ids=NAMES)
    def test_program_order_hides_it_and_another_order_shows_it(
        self, broken: Broken, edge: Callable[[Finding], bool], late: str
    ) -> None:
        with broken():
            in_order, reordered = run_round(), run_round(Last(late))
        assert in_order.tokens == usual_tokens()
        assert reordered.settled != in_order.settled
        if broken is not broken_rounds.extend_plan_b_before_accept:
            assert reordered.error is None
            assert reordered.tokens != usual_tokens()
        # Found all the same: that there is no order does not depend on the order that was run.
        assert any(map(edge, in_order.report.findings))

    @pytest.mark.parametrize(("broken", "edge", "late"), BROKEN, ids=NAMES)
    def test_it_is_found_in_every_order_of_a_small_case(
        self, broken: Broken, edge: Callable[[Finding], bool], late: str
    ) -> None:
        with broken():
            assert any(map(edge, explore_round(50, SMALL).findings))

    def test_mirrors_that_are_written_before_the_round_is_settled(self) -> None:
        with broken_rounds.mirrors_written_early():
            report = run_round(Seeded(2)).report
        assert report.kinds() == {"host-buffer"}
        assert "copy host to device on main" in report.findings[0].title
        assert "main.synchronize()" in report.findings[0].missing

    def test_a_stale_extend_plan_costs_drafts_or_crashes(self) -> None:
        """It never changes a text that it finishes: a draft is verified, wherever it comes from."""
        with broken_rounds.extend_plan_b_before_accept():
            runs = [run_round(order) for order in (Last("main"), *map(Seeded, range(8)))]
        assert {repr(run.settled) for run in runs} != {repr(run_round().settled)}
        for run in runs:
            assert run.error is not None or run.tokens == usual_tokens()

"""The dispatcher: which graph serves a batch in each mode, and the kind of reason where none does."""

from __future__ import annotations

import time

import pytest

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatch, Dispatcher
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.reasons import Reason

WIDTHS = {"draft": (3,), "verify": (4, 1), "extend": (4,)}


def make(mode: GraphMode, buckets: tuple[int, ...] = (1, 4)) -> Dispatcher:
    return Dispatcher(mode, buckets if mode is not GraphMode.NONE else (), WIDTHS, (8, 16))


def of(dispatch: Dispatch) -> tuple[GraphMode, str, Reason]:
    return dispatch.mode, str(dispatch.key), dispatch.kind


NONE, PIECES, WHOLE = GraphMode.NONE, GraphMode.PIECEWISE, GraphMode.FULL

#: For each mode: verify of 3 requests x 4, of 5 x 4, of 3 x 2; draft of 3 x 3; a chunk of 10 rows, of 17.
TABLE = {
    GraphMode.NONE: (
        (NONE, "verify 3x4", Reason.DISABLED),
        (NONE, "verify 5x4", Reason.DISABLED),
        (NONE, "verify 3x2", Reason.DISABLED),
        (NONE, "draft 3x3", Reason.DISABLED),
        (NONE, "prefill 1x10", Reason.DISABLED),
        (NONE, "prefill 1x17", Reason.DISABLED),
    ),
    GraphMode.PIECEWISE: (
        (PIECES, "verify 16 rows", Reason.CAPTURED),
        (NONE, "verify 5x4", Reason.TOO_LARGE),
        (NONE, "verify 4x2", Reason.WIDTH_DIFFERS),
        (PIECES, "draft 4x3", Reason.CAPTURED),
        (PIECES, "prefill 16 rows", Reason.CAPTURED),
        (NONE, "prefill 1x17", Reason.TOO_LARGE),
    ),
    GraphMode.FULL: (
        (WHOLE, "verify 4x4", Reason.CAPTURED),
        (NONE, "verify 5x4", Reason.TOO_LARGE),
        (NONE, "verify 4x2", Reason.WIDTH_DIFFERS),
        (WHOLE, "draft 4x3", Reason.CAPTURED),
        (NONE, "prefill 1x10", Reason.NOT_CAPTURED),
        (NONE, "prefill 1x17", Reason.NOT_CAPTURED),
    ),
    GraphMode.FULL_DECODE_ONLY: (
        (WHOLE, "verify 4x4", Reason.CAPTURED),
        (NONE, "verify 5x4", Reason.TOO_LARGE),
        (NONE, "verify 4x2", Reason.WIDTH_DIFFERS),
        (WHOLE, "draft 4x3", Reason.CAPTURED),
        (NONE, "prefill 1x10", Reason.NOT_UNIFORM),
        (NONE, "prefill 1x17", Reason.NOT_UNIFORM),
    ),
    GraphMode.FULL_AND_PIECEWISE: (
        (WHOLE, "verify 4x4", Reason.CAPTURED),
        (NONE, "verify 5x4", Reason.TOO_LARGE),
        (NONE, "verify 4x2", Reason.WIDTH_DIFFERS),
        (WHOLE, "draft 4x3", Reason.CAPTURED),
        (PIECES, "prefill 16 rows", Reason.CAPTURED),
        (NONE, "prefill 1x17", Reason.TOO_LARGE),
    ),
}


@pytest.mark.parametrize("mode", GraphMode, ids=lambda mode: mode.value)
def test_each_mode_takes_the_graphs_that_it_names(mode: GraphMode) -> None:
    dispatcher = make(mode)
    batches = [("verify", 3, 4), ("verify", 5, 4), ("verify", 3, 2), ("draft", 3, 3)]
    found = [of(dispatcher.dispatch(*batch)) for batch in batches]
    found += [of(dispatcher.dispatch_mixed("prefill", rows)) for rows in (10, 17)]
    assert tuple(found) == TABLE[mode]


@pytest.mark.parametrize("mode", GraphMode, ids=lambda mode: mode.value)
def test_phases_of_a_round_are_padded_to_the_same_bucket(mode: GraphMode) -> None:
    """Whatever their routes: rows of one phase are those of the next."""
    dispatcher = make(mode)
    dispatcher.disable("extend", "off")
    dispatcher.fail(GraphMode.FULL, BatchDescriptor("draft", 4, 3), "failed")
    for count in range(1, 7):
        phases = [("draft", 3), ("verify", 4), ("extend", 4), ("verify", 2)]
        assert len({dispatcher.dispatch(phase, count, width).bucket for phase, width in phases}) == 1


def test_padding_is_of_the_bucket_not_of_the_key() -> None:
    decision = make(GraphMode.PIECEWISE).dispatch("verify", 3, 4)
    assert (decision.rows, decision.padded_rows, decision.shape) == (12, 4, BatchDescriptor("verify", 4, 4))
    assert (decision.route, decision.reason) == (Route.REPLAY, "captured")


def test_5_requests_of_3_rows_in_a_bucket_of_8_are_24_rows_and_9_of_them_padding() -> None:
    decision = Dispatcher(GraphMode.FULL, (8,)).dispatch("verify", 5, 3)
    assert (decision.shape.rows, decision.padded_rows) == (24, 9)


def test_a_graph_that_failed_is_eager_with_its_words_and_its_bucket_until_it_is_mended() -> None:
    dispatcher, key = make(GraphMode.FULL), BatchDescriptor("verify", 4, 4)
    dispatcher.fail(GraphMode.FULL, key, "capture failed: because")
    failed = dispatcher.dispatch("verify", 3, 4)
    assert (failed.route, failed.bucket, failed.reason) == (Route.EAGER, 4, "capture failed: because")
    assert failed.kind is Reason.FAILED
    assert dispatcher.dispatch("verify", 1, 4).route is Route.REPLAY
    assert dispatcher.dispatch("extend", 3, 4).route is Route.REPLAY
    dispatcher.mend(GraphMode.FULL, key)
    assert dispatcher.dispatch("verify", 3, 4).route is Route.REPLAY


def test_pieces_stand_in_for_a_whole_graph_that_failed_where_the_mode_has_them() -> None:
    for mode, expected in ((GraphMode.FULL_AND_PIECEWISE, PIECES), (GraphMode.FULL_DECODE_ONLY, NONE)):
        dispatcher = make(mode)
        dispatcher.fail(GraphMode.FULL, BatchDescriptor("verify", 4, 4), "failed")
        assert dispatcher.dispatch("verify", 3, 4).mode is expected
        assert dispatcher.dispatch("verify", 1, 4).mode is WHOLE


def test_what_another_rank_cannot_do_is_not_done() -> None:
    for mode in (GraphMode.FULL, GraphMode.FULL_AND_PIECEWISE, GraphMode.PIECEWISE):
        decision = make(mode).dispatch("verify", 3, 4, at_most=GraphMode.NONE)
        assert (decision.route, decision.kind) == (Route.EAGER, Reason.RANK_DISAGREED)
        assert decision.reason == f"{mode.decode.value} here, none on another rank"
    assert make(GraphMode.PIECEWISE).dispatch("verify", 3, 4, at_most=PIECES).mode is PIECES
    assert make(GraphMode.NONE).dispatch("verify", 3, 4, at_most=NONE).kind is Reason.DISABLED


def test_graphs_that_sleep_are_not_captured() -> None:
    dispatcher = make(GraphMode.FULL_AND_PIECEWISE)
    dispatcher.sleep(True)
    for decision in (dispatcher.dispatch("verify", 3, 4), dispatcher.dispatch_mixed("prefill", 8)):
        assert (decision.route, decision.kind) == (Route.EAGER, Reason.NOT_CAPTURED)
        assert "sleep" in decision.reason
    dispatcher.sleep(False)
    assert dispatcher.dispatch("verify", 3, 4).route is Route.REPLAY


def test_a_phase_that_nobody_captures_says_so() -> None:
    decision = Dispatcher(GraphMode.FULL, (1,), {"verify": (1,)}).dispatch("extend", 1, 4)
    assert (decision.kind, decision.reason) == (Reason.NOT_CAPTURED, "extend is not captured")


def test_the_same_batch_gives_the_same_decision_object() -> None:
    dispatcher = make(GraphMode.FULL)
    assert dispatcher.dispatch("verify", 3, 4) is dispatcher.dispatch("verify", 3, 4)


def test_a_decision_takes_less_than_5_microseconds() -> None:
    """Measured 0.2; the first one of a batch 3."""
    dispatcher, best = make(GraphMode.FULL_AND_PIECEWISE), 1.0
    for _ in range(20):
        began = time.perf_counter()
        for count in (1, 2, 3, 4) * 25:
            dispatcher.dispatch("verify", count, 4)
        best = min(best, (time.perf_counter() - began) / 100)
    assert best < 5e-6

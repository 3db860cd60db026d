"""Drafts are verified where measured times say that they pay for their rows."""

from __future__ import annotations

import pytest

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher
from slipstream.graph.modes import GraphMode
from slipstream.speculative.breakeven import PhaseCosts, drafts_pay
from tests.engines import Fleet, answers, greedy

WIDE, PLAIN = BatchDescriptor("verify", 1, 4), BatchDescriptor("verify", 1, 1)
DISPATCHER = Dispatcher(GraphMode.FULL, (1, 2, 4))


def costs(wide_ns: int, plain_ns: int) -> PhaseCosts:
    made = PhaseCosts()
    made.observe(WIDE, wide_ns)
    made.observe(PLAIN, plain_ns)
    return made


@pytest.mark.parametrize(
    ("wide_ns", "expected", "pays"),
    [(200, 0.9, False), (200, 1.1, True), (120, 0.3, True), (120, 0.1, False), (500, 3.0, False)],
)
def test_a_lone_request_gains_where_its_tokens_outweigh_the_time(
    wide_ns: int, expected: float, pays: bool
) -> None:
    assert drafts_pay(costs(wide_ns, 100), DISPATCHER, 1, 4, expected) == pays


def test_all_requests_pay_for_one_requests_drafts() -> None:
    """Times are those of the bucket that the batch runs in; one request's drafts have to repay them all."""
    made = PhaseCosts()
    made.observe(BatchDescriptor("verify", 4, 4), 200)
    made.observe(BatchDescriptor("verify", 4, 1), 100)
    assert not drafts_pay(made, DISPATCHER, 3, 4, 2.5)
    assert drafts_pay(made, DISPATCHER, 3, 4, 3.5)


def test_one_slow_run_hardly_counts() -> None:
    made = costs(150, 100)
    made.observe(WIDE, 150_000)
    assert made.ratio(WIDE, PLAIN) < 1.6


def test_a_lasting_change_is_learnt() -> None:
    made = costs(150, 100)
    for _ in range(200):
        made.observe(WIDE, 300)
    assert made.ratio(WIDE, PLAIN) == pytest.approx(3, rel=0.01)


def test_a_shape_that_never_ran_is_guessed() -> None:
    assert 1 < PhaseCosts().ratio(WIDE, PLAIN) < 4


def test_captures_give_the_first_times(tiny: Fleet) -> None:
    engine = tiny.engine(draft="ngram", buckets=(1, 2), max_requests=2)
    assert set(engine.core.costs._mean_ns) == {
        BatchDescriptor("verify", b, w) for b in (1, 2) for w in (1, 4)
    }


@pytest.mark.parametrize(("ratio", "width"), [(100.0, 1), (0.1, 4)])
def test_the_engine_asks_it(tiny: Fleet, monkeypatch: pytest.MonkeyPatch, ratio: float, width: int) -> None:
    """A text full of repeats: verified wide where that is cheap, not once where it is dear."""
    monkeypatch.setattr(PhaseCosts, "ratio", lambda *_: ratio)
    engine = tiny.engine(draft="ngram", num_steps=3)
    prompt = tiny.prompts()[3]
    assert answers(engine, [prompt], greedy(24)) == [tiny.plain("f32", prompt, 24)]
    widths = {width for _, _, width in engine.stats.graphs.phases}
    assert width in widths
    assert bool(engine.stats.drafted) == (width == 4)

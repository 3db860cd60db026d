"""What rounds take: learnt from whole rounds, guessed from captures where a kind never ran."""

from __future__ import annotations

import random

import pytest

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher
from slipstream.graph.modes import GraphMode
from slipstream.speculative.prices import PhaseCosts, RoundKind, RoundPrices

PLAIN, WIDE, KEPT, HEAD = (
    RoundKind(1, 1),
    RoundKind(1, 4),
    RoundKind(1, 1, extend=True),
    RoundKind(1, 4, draft=True, extend=True),
)
TRUE = {PLAIN: 100.0, WIDE: 150.0, KEPT: 118.0, HEAD: 180.0}


def prices(captured: bool = True) -> RoundPrices:
    costs = PhaseCosts()
    if captured:
        for width, time_ns in {1: 80, 2: 90, 3: 100, 4: 115}.items():
            costs.observe(BatchDescriptor("verify", 1, width), time_ns)
            costs.observe(BatchDescriptor("extend", 1, width), 5)
            costs.observe(BatchDescriptor("draft", 1, width), 3 * width)
    return RoundPrices(costs, Dispatcher(GraphMode.FULL, (1, 2, 4)))


def run(
    made: RoundPrices, kinds: list[RoundKind], rounds: int, speed: float = 1.0, noise: float = 0.0
) -> None:
    chance = random.Random(0)
    for _ in range(rounds):
        for kind in kinds:
            made.observe(kind, TRUE[kind] * speed * (1 + noise * chance.uniform(-1, 1)))


@pytest.mark.parametrize("captured", [True, False])
def test_every_kind_is_learnt(captured: bool) -> None:
    made = prices(captured)
    run(made, list(TRUE), 60, noise=0.1)
    for kind, time_ns in TRUE.items():
        assert made.time_ns(kind) == pytest.approx(time_ns, rel=0.05)


def test_a_few_rounds_say_most() -> None:
    made = prices()
    run(made, [PLAIN, HEAD], 4)
    assert made.time_ns(HEAD) == pytest.approx(TRUE[HEAD], rel=0.06)


def test_without_any_round_captures_say_what_is_dearer() -> None:
    made = prices()
    times = made.times(1)
    widths = [times.round_ns(width) for width in (1, 2, 3, 4)]
    assert widths == sorted(widths)
    assert times.round_ns(4) < times.round_ns(4, extend=True) < times.round_ns(4, draft=True, extend=True)


def test_what_one_kind_shows_of_the_heads_cost_holds_for_the_others() -> None:
    made = prices()
    run(made, [PLAIN], 5)
    before = made.time_ns(HEAD)
    for _ in range(30):
        made.observe(KEPT, 150.0)  # three times what was expected of the extend
    assert made.time_ns(HEAD) > before + 20


def test_a_slower_machine_slows_kinds_that_do_not_run() -> None:
    made = prices()
    run(made, list(TRUE), 40)
    run(made, [PLAIN], 60, speed=1.5)
    assert made.time_ns(PLAIN) == pytest.approx(150, rel=0.03)
    for kind in (WIDE, HEAD):
        assert made.time_ns(kind) / made.time_ns(PLAIN) == pytest.approx(TRUE[kind] / TRUE[PLAIN], rel=0.15)


def test_one_slow_round_hardly_counts() -> None:
    made = prices()
    run(made, list(TRUE), 40)
    made.observe(WIDE, 150_000)
    assert made.time_ns(WIDE) < 1.15 * TRUE[WIDE]


def test_a_kind_that_looked_dear_is_not_dear_for_ever() -> None:
    """Its first rounds met a busy machine; nobody would choose it again, and nothing else could show it."""
    made = prices()
    run(made, [PLAIN], 20)
    for _ in range(3):
        made.observe(WIDE, 400.0)
    dear = made.time_ns(WIDE)
    run(made, [PLAIN], 1000)
    assert made.time_ns(WIDE) < 0.75 * dear


def test_batches_of_a_bucket_share_what_is_known() -> None:
    made = prices()
    three, four = made.times(3), made.times(4)
    assert three.kind(2, draft=True, extend=True) == four.kind(2, draft=True, extend=True)
    made.observe(four.kind(1), 500.0)
    assert three.round_ns(1) == four.round_ns(1)
    assert four.plain_rate == pytest.approx(4 / 3 * three.plain_rate)
    assert four.alone_ns == made.times(1).round_ns(1)


def test_a_plain_round_has_no_draft() -> None:
    assert prices().times(1).kind(1, draft=True) == PLAIN

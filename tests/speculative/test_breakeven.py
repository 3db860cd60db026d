"""The round that gives the most tokens a second, by measured times and what drafts are likely to bring."""

from __future__ import annotations

import pytest

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher
from slipstream.graph.modes import GraphMode
from slipstream.speculative.breakeven import Choice, HostUse, Outlook, choose_round, rate_with_head
from slipstream.speculative.prices import PhaseCosts, RoundPrices, RoundTimes
from tests.engines import Fleet, answers, greedy

DISPATCHER = Dispatcher(GraphMode.FULL, (1, 2, 4))
NOBODY = Choice(1, head=False)
WIDTHS = (4, 3, 2, 1)


def times(verify: dict[int, int], count: int = 1, bucket: int = 1, head: int = 0) -> RoundTimes:
    """Times of rounds that were measured: verify by width, and each of the head's forwards."""
    prices = RoundPrices(PhaseCosts(), DISPATCHER)
    made = prices.times(count)
    rounds = {
        made.kind(width, draft=draft, extend=extend): time_ns
        + extend * head
        + draft * head * max(width - 2, 0)
        for width, time_ns in verify.items()
        for draft, extend in ((False, False), (False, True), (True, True))
    }
    for kind, time_ns in list(rounds.items()) * 200:
        assert kind.bucket == bucket
        prices.observe(kind, time_ns)
    return made


def choose(
    made: RoundTimes, outlooks: list[Outlook], widths: tuple[int, ...] = WIDTHS, rate: float | None = None
) -> Choice:
    return choose_round(made, outlooks, widths, rate)


def chances(expected: float, num_steps: int = 3) -> list[float]:
    return [expected / num_steps] * num_steps


@pytest.mark.parametrize(
    ("wide_ns", "expected", "pays"),
    [(200, 0.9, False), (200, 1.1, True), (120, 0.3, True), (120, 0.1, False), (500, 3.0, False)],
)
def test_a_lone_request_gains_where_its_tokens_outweigh_the_time(
    wide_ns: int, expected: float, pays: bool
) -> None:
    outlooks = [Outlook(ngram=chances(expected))]
    chosen = choose(times({4: wide_ns, 1: 100}), outlooks, (4, 1))
    assert chosen == (Choice(4, head=False) if pays else NOBODY)


@pytest.mark.parametrize(("expected", "pays"), [(2.5, False), (3.5, True)])
def test_all_requests_pay_for_one_requests_drafts(expected: float, pays: bool) -> None:
    """Times are those of the bucket that the batch runs in; one request's drafts have to repay them all."""
    made = times({4: 200, 1: 100}, count=3, bucket=4)
    outlooks = [Outlook(ngram=chances(expected)), Outlook(), Outlook()]
    assert (choose(made, outlooks, (4, 1)) != NOBODY) == pays


@pytest.mark.parametrize(
    ("ngram", "width"),
    [([0.9, 0.1, 0.0], 2), ([0.9, 0.8, 0.0], 3), ([0.9, 0.8, 0.7], 4), ([0.1, 0.0, 0.0], 1)],
)
def test_a_round_is_as_wide_as_its_drafts_are_likely_to_hold(ngram: list[float], width: int) -> None:
    made = times({4: 145, 3: 130, 2: 115, 1: 100})
    assert choose(made, [Outlook(ngram)]).width == width


VERIFY = {4: 145, 3: 130, 2: 115, 1: 100}


@pytest.mark.parametrize(
    ("outlook", "head_ns", "chosen"),
    [
        (Outlook((), (0.5, 0.3, 0.2)), 8, Choice(3, head=True)),  # 1.8 in 146; 2.0 in 169
        (Outlook((), (0.9, 0.8, 0.7)), 8, Choice(4, head=True)),
        (Outlook((), (0.1, 0.05, 0.0)), 8, NOBODY),  # its extend is paid for in any case
        (Outlook((0.9, 0.9, 0.8), (0.5, 0.3, 0.2)), 8, Choice(4, head=False)),  # ngram needs no forward
        (Outlook((0.3, 0.2, 0.1), (0.8, 0.6, 0.5)), 8, Choice(4, head=True)),
        (Outlook((), (0.4, 0.1, 0.0)), 8, Choice(2, head=True)),  # 1.4 in 123; 1.5 in 146
        (Outlook((), ()), 8, NOBODY),
    ],
)
def test_a_head_that_is_kept_drafts_where_it_brings_more_than_its_time(
    outlook: Outlook, head_ns: int, chosen: Choice
) -> None:
    assert choose(times(VERIFY, head=head_ns), [outlook], rate=1 / 100) == chosen


def test_a_head_that_is_left_out_does_not_draft() -> None:
    assert choose(times(VERIFY, head=8), [Outlook((), (0.9, 0.9, 0.9))]) == NOBODY


class TestTheRateWithAHead:
    """Tokens a nanosecond in the long run; a plain round's is 1 / 100."""

    @staticmethod
    def rate(
        usual: list[list[tuple[float, list[float]]]],
        head: int = 8,
        bucket: int = 1,
    ) -> float:
        outlooks = [Outlook(usual=each) for each in usual]
        made = times(VERIFY, count=len(outlooks), head=head, bucket=bucket)
        return rate_with_head(made, outlooks, WIDTHS)

    def test_that_is_always_as_sure_is_that_of_its_best_round(self) -> None:
        assert self.rate([[(1.0, [0.5, 0.3, 0.2])]]) == pytest.approx(1.8 / 146, rel=1e-3)

    def test_mixes_wide_rounds_where_it_is_sure_with_plain_ones(self) -> None:
        sure, unsure = [0.9, 0.85, 0.8], [0.05, 0.0, 0.0]
        expected = (0.5 * 3.55 + 0.5 * 1) / (0.5 * 169 + 0.5 * 108)
        assert self.rate([[(0.5, sure), (0.5, unsure)]]) == pytest.approx(expected, rel=1e-3)

    def test_that_is_never_sure_is_less_than_plain_by_its_extend(self) -> None:
        assert self.rate([[(1.0, [0.0, 0.0, 0.0])]]) == pytest.approx(1 / 108, rel=1e-3)

    def test_of_several_requests_is_by_what_is_usual(self) -> None:
        usual = [(0.5, [0.8, 0.6, 0.4]), (0.5, [0.2, 0.0, 0.0])]
        assert self.rate([usual] * 4, bucket=4) == pytest.approx(4 * 1.8 / 146, rel=1e-3)

    def test_counts_the_text_that_ngram_drafts_anyway(self) -> None:
        """Its rounds take the head's extend and bring no more."""
        host, made = HostUse(share=0.5, accepted=2.0, width=4), times(VERIFY, head=8)
        expected = (0.5 * 3 + 0.5) / (0.5 * (145 + 8) + 0.5 * 146 / 1.8)
        assert host.rate(made, 1.8 / 146) == pytest.approx(expected, rel=1e-3)
        assert host.rate(made) == pytest.approx((0.5 * 3 + 0.5) / (0.5 * 145 + 0.5 * 100), rel=1e-3)
        assert HostUse().rate(made) == pytest.approx(1 / 100, rel=1e-3)

    def test_of_requests_that_no_head_drafts_for_is_nothing(self) -> None:
        assert self.rate([[]]) == 0


def test_a_gain_within_the_noise_is_not_taken() -> None:
    assert choose(times({2: 100, 1: 100}), [Outlook([0.01])], (2, 1)) == NOBODY


def test_captures_give_the_first_times(tiny: Fleet) -> None:
    engine = tiny.engine(draft="ngram", buckets=(1, 2), max_requests=2)
    assert all(engine.core.costs.knows(BatchDescriptor("verify", b, w)) for b in (1, 2) for w in (1, 4))
    assert not engine.core.costs.knows(BatchDescriptor("verify", 1, 2))


@pytest.mark.parametrize(("dear", "width"), [(4, 1), (1, 4)])
def test_the_engine_asks_it(tiny: Fleet, monkeypatch: pytest.MonkeyPatch, dear: int, width: int) -> None:
    """A text full of repeats: verified wide where that is cheap, not once where it is dear."""
    monkeypatch.setattr(RoundPrices, "time_ns", lambda self, kind: 100.0 if kind.width == dear else 1.0)
    engine = tiny.engine(draft="ngram", num_steps=3)
    prompt = tiny.prompts()[3]
    assert answers(engine, [prompt], greedy(24)) == [tiny.plain("f32", prompt, 24)]
    widths = {width for _, _, width in engine.stats.graphs.phases}
    assert width in widths
    assert bool(engine.stats.drafted) == (width == 4)

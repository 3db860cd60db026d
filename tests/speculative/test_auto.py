"""`--draft auto`: whatever it chooses, the text is plain decoding's, and the head's state is whole."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from slipstream.config import SamplingParams
from slipstream.engine.engine import SCORED_ROWS, Engine
from slipstream.model.nextn_build import random_head
from slipstream.speculative.breakeven import Choice, Outlook
from slipstream.speculative.keeper import Stance
from slipstream.speculative.lag import LIMIT
from slipstream.speculative.ngram import NOTHING, NgramDrafter
from slipstream.speculative.survival import Survival
from tests.engines import Fleet, answers, come_and_go, drain, greedy
from tests.speculative.oracle import OracleHead

TOKENS = 40


def late(behind: Sequence[int | None]) -> list[int]:
    return [row for row, count in enumerate(behind) if count]


def left_out(behind: Sequence[int | None], room: int = LIMIT - 8) -> Stance:
    """Heads are left out; those that have no room any more catch up."""
    return Stance(None, [row for row in late(behind) if (behind[row] or 0) > room])


class AnyRound:
    """Chooses at random among all that may be chosen, seeded; notes what it chose."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.chosen: set[tuple[Choice, bool]] = set()
        self.loses = 0.0

    def heads(self, requests: Sequence[Any], behind: Sequence[int | None]) -> Stance:
        """Whether the heads are kept up to date in this round. Now and then one loses the thread."""
        if self.random.random() < 0.6:
            lost = [row for row in late(behind) if self.random.random() < self.loses]
            return Stance(1.0, [row for row in late(behind) if row not in lost], lost)
        return left_out(behind)

    def __call__(
        self, times: Any, outlooks: Sequence[Outlook], widths: Sequence[int], rate: float | None = None
    ) -> Choice:
        width = self.random.choice(list(widths))
        choice = Choice(width, rate is not None and width > 1 and self.random.random() < 0.6)
        self.chosen.add((choice, rate is not None))
        return choice


@pytest.fixture
def any_round(monkeypatch: pytest.MonkeyPatch) -> AnyRound:
    chooser = AnyRound(7)
    monkeypatch.setattr("slipstream.engine.drafting.choose_round", chooser)
    monkeypatch.setattr("slipstream.engine.drafting.TOO_DEAR", math.inf)  # whatever rows cost here
    monkeypatch.setattr("slipstream.engine.drafting.Drafting.decide_heads", chooser.heads)
    return chooser


def choose_always(monkeypatch: pytest.MonkeyPatch, choice: Choice, room: int = LIMIT - 8) -> None:
    monkeypatch.setattr("slipstream.engine.drafting.choose_round", lambda *_, **__: choice)
    monkeypatch.setattr("slipstream.engine.drafting.TOO_DEAR", math.inf)  # whatever rows cost here
    monkeypatch.setattr(
        "slipstream.engine.drafting.Drafting.decide_heads",
        lambda self, requests, behind: Stance(1.0, late(behind)) if choice.head else left_out(behind, room),
    )


def auto_engine(tiny: Fleet, **options: Any) -> Engine:
    """An engine with a random head, which is as hard on the state as a trained one."""
    head = random_head(tiny.loaded(options.get("dtype", "f32"), options.get("kernels", "auto")).target, 0)
    return tiny.engine_with_head(head, draft="auto", **options)


def oracle_engine(tiny: Fleet, right_at: Any, **options: Any) -> Engine:
    truth = {tuple(p): p + tiny.plain("f32", p, 80) for p in tiny.prompts()}
    head = OracleHead(truth, tiny.loaded().target.config.vocab_size, right_at)
    head.engine = tiny.engine_with_head(head, draft="auto", **options)
    return head.engine


class TestTheSameTextAsPlain:
    @pytest.mark.parametrize("graph", ["full", "none"])
    @pytest.mark.parametrize("num_steps", [1, 3, 5])
    @pytest.mark.parametrize("dtype", ["f32", "q4", pytest.param("bf16", marks=pytest.mark.slow)])
    def test_whatever_is_chosen(
        self, tiny: Fleet, any_round: AnyRound, dtype: str, num_steps: int, graph: str
    ) -> None:
        engine = auto_engine(tiny, dtype=dtype, num_steps=num_steps, graph=graph)
        prompts = tiny.prompts()
        plain = [tiny.plain(dtype, prompt, TOKENS) for prompt in prompts]
        assert answers(engine, prompts, greedy(TOKENS)) == plain
        for index in (0, 3, 6):
            assert answers(engine, [prompts[index]], greedy(TOKENS)) == [plain[index]]
        widths = range(1, num_steps + 2)
        every = {(Choice(width, head=False), kept) for width in widths for kept in (False, True)}
        assert any_round.chosen == every | {(Choice(width, head=True), True) for width in widths[1:]}
        assert set(engine.stats.kinds) == {"plain", "ngram", "head", "mixed"}
        assert engine.stats.catch_ups > 0
        assert engine.scheduler.pool.free == engine.core.plan.num_pages
        routes = engine.stats.graphs
        assert (routes.eager == 0) == (graph == "full")

    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.usefixtures("any_round")
    def test_with_padding_poisoned(self, tiny: Fleet, any_round: AnyRound, seed: int, kernels: str) -> None:
        any_round.random.seed(seed)
        engine = auto_engine(tiny, buckets=(3,), check=True, kernels=kernels)
        prompts = tiny.prompts()[:5]
        plain = [tiny.plain("f32", prompt, 24, kernels) for prompt in prompts]
        assert answers(engine, prompts, greedy(24)) == plain
        assert answers(engine, prompts[:2], greedy(24)) == plain[:2]

    @pytest.mark.usefixtures("any_round")
    @pytest.mark.parametrize("dtype", ["f32", "q4"])
    def test_while_requests_come_and_go(self, tiny: Fleet, dtype: str) -> None:
        engine = auto_engine(tiny, dtype=dtype, max_requests=4, prefill_chunk=16, check=True)
        prompts = tiny.prompts()
        lengths = [3 + 9 * index for index in range(len(prompts))]
        tokens = come_and_go(engine, prompts, lengths, aborted=4, steps=600)
        for request_id, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            expected = tiny.plain(dtype, prompt, length)
            if request_id == 4:
                expected = expected[: len(tokens.get(4, []))]
            assert tokens.get(request_id, []) == expected

    @pytest.mark.usefixtures("any_round")
    def test_through_preemption(self, tiny: Fleet) -> None:
        prompts = tiny.prompts()[1:5]
        engine = auto_engine(tiny, page_size=4, num_pages=34, prefill_chunk=16)
        assert answers(engine, prompts, greedy(TOKENS)) == [tiny.plain("f32", p, TOKENS) for p in prompts]
        assert engine.stats.preemptions > 0

    @pytest.mark.usefixtures("any_round")
    def test_beside_requests_that_sample(self, tiny: Fleet) -> None:
        """What a request draws depends on it alone: rounds of another width draw the same."""
        sampled = SamplingParams(max_tokens=24, temperature=0.8, top_k=40, ignore_eos=True)
        prompts = tiny.prompts()[1:5]
        order = [(p, sampled if i % 2 else greedy(24)) for i, p in enumerate(prompts)]
        texts = []
        for engine in (tiny.engine(draft="none"), auto_engine(tiny)):
            for prompt, sampling in order:
                engine.add(prompt, sampling)
            texts.append(drain(engine))
        assert texts[0] == texts[1]


class TestTheHeadsState:
    @pytest.mark.parametrize("dtype", ["f32", "q4"])
    @pytest.mark.parametrize("seed", range(4))
    def test_after_any_rounds_is_what_a_prefill_gives(
        self, tiny: Fleet, any_round: AnyRound, dtype: str, seed: int
    ) -> None:
        """Text cannot show a hole in the head's keys and values, because wrong drafts are thrown away."""
        any_round.random.seed(seed)
        prompt = tiny.prompts()[2]
        engine = auto_engine(tiny, dtype=dtype)
        engine.add(prompt, greedy(60))
        outputs = [token for _ in range(16) for output in engine.step() for token in output.token_ids]
        request = engine.scheduler.running[0]
        if engine._behind(request):
            engine._catch_up_one(request)
        assert engine._behind(request) == 0
        fresh = auto_engine(tiny, dtype=dtype)
        fresh.add(prompt + outputs[:-1], greedy(60))
        fresh.scheduler.admit()
        [first] = fresh._prefill(fresh.scheduler.running[0])
        assert first.token_ids == outputs[-1:]
        slots = [e.scheduler.running[0].slot for e in (engine, fresh)]
        after_rounds, after_prefill = engine._state, fresh._state
        assert after_rounds.lengths_M[slots[0]] == after_prefill.lengths_M[slots[1]]
        tolerance = 1e-4 if dtype == "f32" else 2e-2
        assert after_rounds.hidden_MH[slots[0]].allclose(after_prefill.hidden_MH[slots[1]], atol=tolerance)
        if dtype == "f32":
            assert after_rounds.candidate_M[slots[0]] == after_prefill.candidate_M[slots[1]]

    def test_an_oracle_that_was_left_out_is_right_at_once(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Plain rounds and the head's by turns: each of the head's advances the full width."""
        turns = iter(range(10_000))
        monkeypatch.setattr("slipstream.engine.drafting.TOO_DEAR", math.inf)  # whatever rows cost here
        monkeypatch.setattr(
            "slipstream.engine.drafting.Drafting.decide_heads",
            lambda self, requests, behind: left_out(behind) if next(turns) % 3 else Stance(1.0, late(behind)),
        )
        monkeypatch.setattr(
            "slipstream.engine.drafting.choose_round",
            lambda times, outlooks, widths, rate: Choice(4 if rate else 1, head=rate is not None),
        )
        monkeypatch.setattr(NgramDrafter, "propose", lambda *_: NOTHING)
        engine = oracle_engine(tiny, lambda _: True)
        prompts = tiny.prompts()
        assert answers(engine, prompts, greedy(48)) == [tiny.plain("f32", p, 48) for p in prompts]
        assert engine.stats.acceptance_by_position == [1.0] * 3
        assert engine.stats.catch_ups > 0

    def test_room_is_made_before_it_is_full(self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        choose_always(monkeypatch, Choice(1, head=False))
        engine = auto_engine(tiny)
        prompt = tiny.prompts()[2]
        assert answers(engine, [prompt], greedy(140)) == [tiny.plain("f32", prompt, 140)]
        assert engine.stats.catch_ups == 138 // (LIMIT - 7)  # the last round's row is not waited for
        assert set(engine.stats.kinds) == {"plain"}


class TestWhatItLearns:
    @pytest.mark.parametrize("right", [True, False])
    def test_a_head_that_is_not_used_is_still_judged(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch, right: bool
    ) -> None:
        """Rows that it catches up with are held against the text."""
        choose_always(monkeypatch, Choice(1, head=False), room=24)
        engine = oracle_engine(tiny, lambda _: right)
        prompt = tiny.prompts()[2]
        engine.add(prompt, greedy(80))
        worth = engine._drafting._keeper.worth
        before = worth.chances(0.99, 1)[0]
        while engine.stats.catch_ups == 0:
            engine.step()
        held = SCORED_ROWS if right else 0
        expected = Survival((before,), 6, 0.98)
        for _ in range(SCORED_ROWS):
            expected.learn(1, min(held, 1))
        assert worth.chances(0.99, 1) == pytest.approx(expected.chances(1))

    @pytest.mark.parametrize("right", [True, False])
    def test_a_head_is_used_where_it_is_right(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch, right: bool
    ) -> None:
        """Times as on a machine where a row more costs a sixth, whatever this one does."""
        monkeypatch.setattr("slipstream.speculative.prices.PhaseCosts.observe", lambda *_: None)
        monkeypatch.setattr("slipstream.speculative.prices.RoundPrices.observe", lambda *_: None)
        engine = oracle_engine(tiny, lambda _: right)
        prompts = tiny.prompts()
        for prompt in prompts:
            assert answers(engine, [prompt], greedy(48)) == [tiny.plain("f32", prompt, 48)]
        kinds = engine.stats.kinds
        if right:
            assert kinds.most_common(1)[0][0] == "head"
            assert engine.stats.mean_advanced > 3.5
        else:
            assert kinds["head"] < 0.1 * engine.stats.rounds  # tried, and given up

    def test_without_a_head_it_is_ngram_of_any_width(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("slipstream.speculative.prices.PhaseCosts.observe", lambda *_: None)
        monkeypatch.setattr("slipstream.speculative.prices.RoundPrices.observe", lambda *_: None)
        engine = tiny.engine(draft="auto")
        assert engine.core.head is None
        prompts = tiny.prompts()
        for prompt in prompts:
            assert answers(engine, [prompt], greedy(48)) == [tiny.plain("f32", prompt, 48)]
        assert set(engine.stats.kinds) == {"plain", "ngram"}
        assert {phase for phase, _, _ in engine.stats.graphs.phases} == {"verify"}


@pytest.mark.slow
def test_the_real_model_eight_prompts(smollm2: Fleet, any_round: AnyRound) -> None:
    from slipstream.bench.workloads import decode_prompts
    from slipstream.llm import chat_ids

    loaded = smollm2.loaded("q4")
    prompts = [chat_ids(loaded.tokenizer, prompt.user) for prompt in decode_prompts()]
    plain = [smollm2.plain("q4", prompt, 48) for prompt in prompts]
    engine = smollm2.engine_with_head(random_head(loaded.target, 0), draft="auto", dtype="q4")
    assert answers(engine, prompts, greedy(48)) == plain
    for prompt, expected in zip(prompts, plain, strict=True):
        assert answers(engine, [prompt], greedy(48)) == [expected]

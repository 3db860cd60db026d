"""Greedy text is plain decoding's text, token for token, whatever drafts, batches, graphs or pages are used.

"Plain" is one prompt alone, decoded eagerly, one token a round.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.bench.workloads import decode_prompts
from slipstream.config import SamplingParams
from slipstream.engine.engine import Engine
from slipstream.llm import chat_ids
from slipstream.model.nextn_build import random_weights
from slipstream.model.nextn_file import save_head
from slipstream.speculative.breakeven import Choice
from tests.engines import Fleet, answers, come_and_go, drain, greedy, verify_always
from tests.speculative.oracle import OracleHead

TOKENS = 24
DTYPES = ("f32", "q4", pytest.param("bf16", marks=pytest.mark.slow))
DRAFTS = [("none", 3)] + [(draft, steps) for draft in ("ngram", "nextn") for steps in (1, 3, 5)]


@pytest.fixture
def always_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify every ngram draft: whether it pays is a matter of measured times, which no test can foresee."""
    monkeypatch.setattr("slipstream.engine.drafting.choose_round", verify_always)
    monkeypatch.setattr("slipstream.engine.drafting.TOO_DEAR", math.inf)  # whatever rows cost here


def assert_plain(
    fleet: Fleet, dtype: str, engine: Engine, count: int = TOKENS, kernels: str = "auto"
) -> None:
    """All prompts together, then the longest and the shortest alone, give the plain text."""
    prompts = fleet.prompts()
    plain = [fleet.plain(dtype, prompt, count, kernels) for prompt in prompts]
    assert answers(engine, prompts, greedy(count)) == plain
    for index in (0, 6):
        assert answers(engine, [prompts[index]], greedy(count)) == [plain[index]]
    assert engine.scheduler.pool.free == engine.core.plan.num_pages


@pytest.mark.usefixtures("always_verify")
class TestTheSameTextAsPlain:
    @pytest.mark.parametrize("graph", ["full", "none"])
    @pytest.mark.parametrize(("draft", "num_steps"), DRAFTS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_with_every_drafter(
        self, tiny: Fleet, dtype: str, draft: str, num_steps: int, graph: str
    ) -> None:
        engine = tiny.engine(dtype=dtype, draft=draft, num_steps=num_steps, graph=graph)
        assert_plain(tiny, dtype, engine)
        routes = engine.stats.graphs
        assert (routes.eager == 0) == (graph == "full")
        assert (routes.replays == 0) == (graph == "none")

    @pytest.mark.parametrize("graph", ["full", "none"])
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_with_torchs_kernels(self, tiny: Fleet, dtype: str, draft: str, graph: str) -> None:
        """What runs where no native library was built."""
        engine = tiny.engine(dtype=dtype, draft=draft, graph=graph, kernels="torch")
        assert_plain(tiny, dtype, engine, kernels="torch")

    # Torch's threads wait for each other by spinning, which takes long on a busy machine.
    @pytest.mark.parametrize("kernels", ["auto", pytest.param("torch", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_on_two_threads(self, tiny: Fleet, dtype: str, kernels: str) -> None:
        """How work is cut among threads depends on the number of rows; a row's result must not."""
        prompts, options = tiny.prompts()[:3], {"dtype": dtype, "kernels": kernels, "threads": 2}
        plain = [
            answers(tiny.engine(draft="none", graph="none", **options), [p], greedy(8))[0] for p in prompts
        ]
        for draft in ("none", "ngram", "nextn"):
            assert answers(tiny.engine(draft=draft, buckets=(4,), **options), prompts, greedy(8)) == plain

    @pytest.mark.parametrize("buckets", [(1, 2, 4, 8), (8,), (3,)], ids=str)
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    @pytest.mark.parametrize("dtype", ["f32", "q4"])
    def test_with_padding_poisoned(
        self, tiny: Fleet, dtype: str, draft: str, buckets: tuple[int, ...]
    ) -> None:
        """Batches fill a bucket, are padded to it or exceed it; a stale row would raise or change the text."""
        engine = tiny.engine(dtype=dtype, draft=draft, buckets=buckets, check=True)
        assert_plain(tiny, dtype, engine)
        assert engine.stats.graphs.padded_rows > 0
        assert (engine.stats.graphs.eager > 0) == (buckets == (3,))

    @pytest.mark.parametrize("page_size", [4, 16])
    @pytest.mark.parametrize("prefill_chunk", [7, 256])
    @pytest.mark.parametrize("draft", ["none", "nextn"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_with_any_chunk_and_page(
        self, tiny: Fleet, dtype: str, draft: str, prefill_chunk: int, page_size: int
    ) -> None:
        engine = tiny.engine(dtype=dtype, draft=draft, prefill_chunk=prefill_chunk, page_size=page_size)
        assert_plain(tiny, dtype, engine)

    def test_with_more_requests_than_run_together(self, tiny: Fleet) -> None:
        engine = tiny.engine(draft="nextn", max_requests=3)
        assert_plain(tiny, "f32", engine)

    @pytest.mark.parametrize("pays", ["never", "every other time"])
    def test_when_drafting_stops_and_begins_again(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch, pays: str
    ) -> None:
        """Wide and plain rounds follow each other on the same state."""
        verdicts = iter(range(100_000))

        def decide(*args: Any, **options: Any) -> Choice:
            pay = pays != "never" and next(verdicts) % 2 == 0
            return verify_always(*args, **options) if pay else Choice(1, head=False)

        monkeypatch.setattr("slipstream.engine.drafting.choose_round", decide)
        engine = tiny.engine(draft="ngram")
        assert_plain(tiny, "f32", engine)
        widths = {width for _, _, width in engine.stats.graphs.phases}
        assert widths == ({1} if pays == "never" else {1, 4})


@pytest.mark.usefixtures("always_verify")
class TestRequestsThatComeAndGo:
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    @pytest.mark.parametrize("dtype", ["f32", "q4"])
    def test_do_not_change_the_others_text(self, tiny: Fleet, dtype: str, draft: str) -> None:
        """One joins every other step, each leaves after another number of tokens, one is given up."""
        engine = tiny.engine(dtype=dtype, draft=draft, max_requests=4, prefill_chunk=16, check=True)
        prompts = tiny.prompts()
        lengths = [3 + 5 * index for index in range(len(prompts))]
        tokens = come_and_go(engine, prompts, lengths, aborted=4, steps=400)
        for request_id, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            expected = tiny.plain(dtype, prompt, length)
            if request_id == 4:
                assert len(tokens.get(4, [])) < length
                expected = expected[: len(tokens.get(4, []))]
            assert tokens.get(request_id, []) == expected
        assert engine.scheduler.pool.free == engine.core.plan.num_pages

    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_preemption_changes_nothing(self, tiny: Fleet, dtype: str, draft: str) -> None:
        """Pages for about two of four growing requests: the young ones lose theirs and start again."""
        prompts = tiny.prompts()[1:5]
        engine = tiny.engine(dtype=dtype, draft=draft, page_size=4, num_pages=34, prefill_chunk=16)
        expected = [tiny.plain(dtype, prompt, 40) for prompt in prompts]
        assert answers(engine, prompts, greedy(40)) == expected
        assert engine.stats.preemptions > 0
        assert engine.scheduler.pool.free == 34


@pytest.mark.usefixtures("always_verify")
class TestSampledRequests:
    SAMPLED = SamplingParams(max_tokens=TOKENS, temperature=0.8, top_k=40, ignore_eos=True)

    def serve(self, tiny: Fleet, order: list[Any], **options: Any) -> dict[int, list[int]]:
        engine = tiny.engine(**options)
        for prompt, sampling in order:
            engine.add(prompt, sampling)
        return drain(engine)

    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    def test_leave_greedy_text_as_it_is(self, tiny: Fleet, draft: str) -> None:
        prompts = tiny.prompts()[:4]
        order = [(p, self.SAMPLED if i % 2 else greedy(TOKENS)) for i, p in enumerate(prompts)]
        tokens = self.serve(tiny, order, draft=draft)
        assert [tokens[0], tokens[2]] == [tiny.plain("f32", prompts[i], TOKENS) for i in (0, 2)]

    def test_depend_on_seed_and_request_alone(self, tiny: Fleet) -> None:
        """Not on the drafter, the batch, the graphs or a preemption."""
        prompts = tiny.prompts()[1:5]
        mixed = [(p, self.SAMPLED if i == 1 else greedy(TOKENS)) for i, p in enumerate(prompts)]
        others_short = [(p, s if i == 1 else greedy(1)) for i, (p, s) in enumerate(mixed)]
        text = self.serve(tiny, mixed, draft="none")[1]
        assert text != tiny.plain("f32", prompts[1], TOKENS)
        assert self.serve(tiny, mixed, draft="ngram")[1] == text
        assert self.serve(tiny, mixed, draft="nextn", graph="none", prefill_chunk=7)[1] == text
        assert self.serve(tiny, others_short, draft="nextn")[1] == text
        assert self.serve(tiny, mixed, draft="nextn", page_size=4, num_pages=30)[1] == text

    def test_verify_no_draft_even_where_it_would_hold(self, tiny: Fleet) -> None:
        """A head that foresees the sampled text: behind its first draft the target's argmax would slip in."""
        prompts = tiny.prompts()[1:3]
        order = [(prompts[0], self.SAMPLED), (prompts[1], greedy(TOKENS))]
        text = self.serve(tiny, order, draft="none")
        truth = {tuple(p): p + text[i] + [0] * 8 for i, p in enumerate(prompts)}
        head = OracleHead(truth, tiny.loaded().target.config.vocab_size)
        head.engine = engine = tiny.engine_with_head(head)
        for prompt, sampling in order:
            engine.add(prompt, sampling)
        assert drain(engine) == text
        assert engine.stats.drafted[0] < TOKENS  # the greedy request's rounds only, each of 4 tokens

    def test_differ_by_seed_and_by_request(self, tiny: Fleet) -> None:
        prompt = tiny.prompts()[1]
        two = [(prompt, self.SAMPLED)] * 2
        first, second = self.serve(tiny, two).values()
        assert first != second
        assert self.serve(tiny, two, seed=1)[0] not in (first, second)


class TestHeads:
    """A head's guesses change how far a round goes, never the text."""

    def oracle_engine(self, tiny: Fleet, right_at: Any, **options: Any) -> tuple[Engine, OracleHead]:
        dtype = options.get("dtype", "f32")
        truth = {tuple(p): p + tiny.plain(dtype, p, 48) for p in tiny.prompts()}
        head = OracleHead(truth, tiny.loaded().target.config.vocab_size, right_at)
        engine = tiny.engine_with_head(head, **options)
        head.engine = engine
        return engine, head

    @pytest.mark.parametrize("graph", ["full", "none"])
    @pytest.mark.parametrize("num_steps", [1, 3, 5])
    @pytest.mark.parametrize("dtype", ["f32", "q4"])
    def test_an_oracle_advances_the_full_width(
        self, tiny: Fleet, dtype: str, num_steps: int, graph: str
    ) -> None:
        engine, _ = self.oracle_engine(tiny, lambda _: True, dtype=dtype, num_steps=num_steps, graph=graph)
        assert_plain(tiny, dtype, engine)
        assert engine.stats.mean_advanced == num_steps + 1
        assert engine.stats.acceptance_by_position == [1.0] * num_steps

    @pytest.mark.parametrize("period", [2, 3, 5])
    def test_a_head_right_at_times_advances_as_far_as_it_is_right(self, tiny: Fleet, period: int) -> None:
        """Wrong at every `period`-th position: the rounds are those of a naive simulation."""
        num_steps = 3
        engine, head = self.oracle_engine(tiny, lambda position: position % period > 0, num_steps=num_steps)
        prompts = tiny.prompts()
        assert answers(engine, prompts, greedy(TOKENS)) == [tiny.plain("f32", p, TOKENS) for p in prompts]
        advanced, drafted, accepted = [], [0] * num_steps, [0] * num_steps
        for prompt in prompts:
            known = head.truth[tuple(prompt)]
            newest, end = len(prompt), len(prompt) + TOKENS - 1
            while newest < end:
                held = 0
                while held < num_steps and head.guess(prompt, newest + 1 + held) == known[newest + 1 + held]:
                    held += 1
                for position in range(num_steps):
                    drafted[position] += 1
                    accepted[position] += position < held
                advanced.append(held + 1)
                newest += held + 1
        assert engine.stats.request_rounds == len(advanced)
        assert engine.stats.advanced == sum(advanced)
        assert engine.stats.acceptance_by_position == [a / d for a, d in zip(accepted, drafted, strict=True)]

    @pytest.mark.parametrize("graph", ["full", "none"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_head_of_some_tokens_is_right_where_the_text_is_of_these(
        self, tiny: Fleet, dtype: str, graph: str
    ) -> None:
        """An oracle with a draft vocabulary: another token's draft is the next one that it has, which is wrong."""
        draft_ids = torch.arange(0, tiny.loaded().target.config.vocab_size, 2)
        engine, head = self.oracle_engine(tiny, lambda _: True, dtype=dtype, graph=graph)
        head.draft_ids = draft_ids
        engine = tiny.engine_with_head(head, dtype=dtype, graph=graph)
        head.engine = engine
        assert_plain(tiny, dtype, engine)
        first, second, third = engine.stats.acceptance_by_position
        assert 0 < third <= second <= first < 1

    @pytest.mark.parametrize("graph", ["full", "none"])
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_head_file_with_a_draft_vocabulary(
        self, tiny: Fleet, tmp_path: Path, dtype: str, kernels: str, graph: str
    ) -> None:
        config = tiny.loaded().target.config
        weights = replace(random_weights(config, 1), draft_ids=torch.arange(5, config.vocab_size, 7))
        save_head(weights, tmp_path / "head.safetensors")
        head = str(tmp_path / "head.safetensors")
        engine = tiny.engine(
            dtype=dtype, draft="nextn", head=head, graph=graph, kernels=kernels, check=True, buckets=(1, 8)
        )
        assert_plain(tiny, dtype, engine, kernels=kernels)
        assert engine.stats.drafted[0] == engine.stats.request_rounds
        candidates = engine._state.candidate_M
        assert (candidates[candidates > 0] % 7 == 5).all()

    def test_an_oracle_survives_preemption(self, tiny: Fleet) -> None:
        """Candidate and hidden row are made again by the prefill that follows."""
        prompts = tiny.prompts()[1:5]
        engine, _ = self.oracle_engine(tiny, lambda _: True, page_size=4, num_pages=34, prefill_chunk=16)
        assert answers(engine, prompts, greedy(40)) == [tiny.plain("f32", p, 40) for p in prompts]
        assert engine.stats.preemptions > 0
        assert engine.stats.mean_advanced == 4

    def test_a_random_head_is_hardly_ever_right(self, tiny: Fleet) -> None:
        engine = tiny.engine(draft="nextn")
        assert_plain(tiny, "f32", engine, count=40)
        assert engine.stats.acceptance_by_position[0] < 0.05
        assert engine.stats.mean_advanced < 1.05

    def test_the_head_sees_the_same_rows_in_rounds_as_in_prefill(self, tiny: Fleet) -> None:
        """The head's state after a round is what prefilling the same tokens gives: its drafts are its own.

        Text cannot show this, because wrong drafts are thrown away.
        """
        prompt = tiny.prompts()[2]
        engine = tiny.engine(draft="nextn")
        engine.add(prompt, greedy(30))
        outputs = [token for _ in range(9) for output in engine.step() for token in output.token_ids]
        fresh = tiny.engine(draft="nextn")
        fresh.add(prompt + outputs[:-1], greedy(30))
        fresh.scheduler.admit()
        [first] = fresh._prefill(fresh.scheduler.running[0])
        assert first.token_ids == outputs[-1:]
        slots = [e.scheduler.running[0].slot for e in (engine, fresh)]
        after_round, after_prefill = engine._state, fresh._state
        assert after_round.lengths_M[slots[0]] == after_prefill.lengths_M[slots[1]]
        assert after_round.candidate_M[slots[0]] == after_prefill.candidate_M[slots[1]]
        assert after_round.hidden_MH[slots[0]].allclose(after_prefill.hidden_MH[slots[1]], atol=1e-4)


@pytest.mark.usefixtures("always_verify")
class TestRealModel:
    @staticmethod
    def chat(smollm2: Fleet, names: tuple[str, ...] = ()) -> list[list[int]]:
        tokenizer = smollm2.loaded("q4").tokenizer
        return [chat_ids(tokenizer, p.user) for p in decode_prompts() if not names or p.name in names]

    @pytest.mark.slow
    def test_two_prompts_alone_and_together(self, smollm2: Fleet) -> None:
        prompts = self.chat(smollm2, ("chat1", "copy1"))
        plain = [smollm2.plain("q4", prompt, TOKENS) for prompt in prompts]
        for draft in ("none", "ngram", "nextn"):
            engine = smollm2.engine(dtype="q4", draft=draft, buckets=(1, 2))
            assert answers(engine, prompts, greedy(TOKENS)) == plain, draft
            assert answers(engine, prompts[:1], greedy(TOKENS)) == plain[:1], draft
            if draft == "nextn":  # the head that ships for this model
                assert engine.stats.acceptance_by_position[0] > 0.2

    @pytest.mark.slow
    @pytest.mark.parametrize("graph", ["full", "none"])
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    @pytest.mark.parametrize("dtype", ["q4", "f32"])
    def test_eight_prompts_alone_and_together(
        self, smollm2: Fleet, dtype: str, draft: str, graph: str
    ) -> None:
        prompts, count = self.chat(smollm2), 64 if dtype == "q4" else 24  # float32 takes three times as long
        plain = [smollm2.plain(dtype, prompt, count) for prompt in prompts]
        engine = smollm2.engine(dtype=dtype, draft=draft, graph=graph)
        assert answers(engine, prompts, greedy(count)) == plain
        for prompt, expected in zip(prompts, plain, strict=True):
            assert answers(engine, [prompt], greedy(count)) == [expected]

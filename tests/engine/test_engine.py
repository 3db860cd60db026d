"""The engine's loop: endings inside accepted runs, refusals, prefill in chunks, statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.config import EngineConfig, SamplingParams
from slipstream.engine.engine import Engine
from slipstream.errors import PromptTooLongError, RequestTooLargeError, UsageError
from slipstream.llm import LLM, complete, stream
from slipstream.model.nextn_build import random_head
from slipstream.trace import Recorder
from tests.engines import Fleet, answers, drain, greedy, verify_always
from tests.model.tiny import write_tiny_gguf
from tests.speculative.oracle import OracleHead


def oracle_engine(tiny: Fleet, prompts: list[list[int]], **options: int) -> Engine:
    """Every round of it advances by 4, so that all endings fall inside an accepted run."""
    truth = {tuple(p): p + tiny.plain("f32", p, 64) for p in prompts}
    head = OracleHead(truth, tiny.loaded().target.config.vocab_size)
    head.engine = engine = tiny.engine_with_head(head, **options)
    return engine


class TestEndingsInsideAnAcceptedRun:
    @pytest.fixture
    def prompt(self, tiny: Fleet) -> list[int]:
        return tiny.prompts()[1]

    @pytest.mark.parametrize("max_tokens", range(1, 10))
    def test_max_tokens(self, tiny: Fleet, prompt: list[int], max_tokens: int) -> None:
        engine = oracle_engine(tiny, [prompt])
        [answer] = complete(engine, [prompt], greedy(max_tokens))
        assert (answer.token_ids, answer.finish_reason) == (tiny.plain("f32", prompt, max_tokens), "length")
        assert engine.scheduler.pool.free == engine.core.plan.num_pages

    @pytest.mark.parametrize("index", range(2, 7))
    def test_a_stop_token(self, tiny: Fleet, prompt: list[int], index: int) -> None:
        plain = tiny.plain("f32", prompt, 20)
        end = plain.index(plain[index])
        engine = oracle_engine(tiny, [prompt])
        [answer] = complete(engine, [prompt], greedy(20, stop_token_ids=(plain[index],)))
        assert (answer.token_ids, answer.finish_reason) == (plain[: end + 1], "stop")
        assert answer.text == tiny.loaded().tokenizer.decode(plain[:end])

    @pytest.mark.parametrize("index", range(2, 7))
    def test_the_end_of_text_token_unless_ignored(self, tiny: Fleet, prompt: list[int], index: int) -> None:
        plain = tiny.plain("f32", prompt, 20)
        engine = oracle_engine(tiny, [prompt])
        engine._eos_ids = frozenset({plain[index]})
        [answer] = complete(engine, [prompt], SamplingParams(max_tokens=20))
        assert answer.token_ids == plain[: plain.index(plain[index]) + 1]
        assert answers(engine, [prompt], greedy(20)) == [plain]

    def test_a_stop_string_that_spans_tokens(self, tiny: Fleet, prompt: list[int]) -> None:
        """Plain and speculative decoding end at the same token and release the same text."""
        decode = tiny.loaded().tokenizer.decode
        plain = tiny.plain("f32", prompt, 30)
        whole = decode(plain)
        for start in range(2, len(whole) - 3):
            stop = whole[start : start + 3]
            if "�" in stop:
                continue
            sampling = greedy(30, stop=(stop,))
            [expected] = complete(tiny.engine(draft="none", graph="none"), [prompt], sampling)
            [answer] = complete(oracle_engine(tiny, [prompt]), [prompt], sampling)
            assert answer == expected
            assert answer.finish_reason == "stop"
            assert answer.text == whole[: whole.index(stop)]
            return
        pytest.fail("the text has no three characters to stop at")

    def test_the_end_of_the_context(self, tiny: Fleet, prompt: list[int]) -> None:
        engine = oracle_engine(tiny, [prompt], max_model_len=len(prompt) + 11)
        [answer] = complete(engine, [prompt], greedy(1000))
        assert (answer.token_ids, answer.finish_reason) == (tiny.plain("f32", prompt, 11), "length")


class TestRefusals:
    def test_of_one_request_leave_the_others_alone(self, tiny: Fleet) -> None:
        prompts = tiny.prompts()[:3]
        engine = tiny.engine(draft="ngram", num_pages=12)
        engine.add(prompts[0], greedy(8))
        engine.step()
        with pytest.raises(RequestTooLargeError):
            engine.add(prompts[1], greedy(240))
        with pytest.raises(PromptTooLongError):
            engine.add([5] * 256, greedy(1))
        with pytest.raises(UsageError):
            engine.add(prompts[1], greedy(0))
        engine.add(prompts[2], greedy(8))
        tokens = drain(engine)
        assert set(tokens) == {0, 1}
        assert tokens[1] == tiny.plain("f32", prompts[2], 8)

    def test_give_completions_with_the_reason_and_the_others_are_served(self, tiny: Fleet) -> None:
        config = tiny.config(draft="ngram", num_pages=12, max_model_len=128)
        llm = LLM(tiny.path, config)
        good = "hello there"
        prompts = [good, "", "x" * 500, "half a pair \ud800", good]
        completions = llm.generate(prompts, SamplingParams(max_tokens=8, ignore_eos=True), chat=False)
        expected = tiny.plain("f32", llm.tokenizer.encode(good), 8)
        assert [c.token_ids for c in completions] == [expected, [], [], [], expected]
        assert [c.finish_reason for c in completions] == ["length", "error", "error", "error", "length"]
        for completion, words in zip(
            completions[1:4], ["empty", "context holds 128", "Unicode"], strict=True
        ):
            assert completion.error is not None
            assert words in completion.error
            assert "\n" not in completion.error
        [alone] = llm.generate(good, SamplingParams(max_tokens=8, ignore_eos=True), chat=False)
        assert alone.token_ids == expected
        # In the chat template as well, where an empty message is refused before it has tokens.
        completions = llm.generate([good, " \n"], SamplingParams(max_tokens=4, ignore_eos=True))
        assert [bool(c.error) for c in completions] == [False, True]


class TestGivingUp:
    @pytest.mark.parametrize("draft", ["nextn", "auto"])
    def test_an_unfinished_stream_leaves_nothing_behind(self, tiny: Fleet, draft: str) -> None:
        engine = tiny.engine_with_head(random_head(tiny.loaded().target, 0), draft=draft)
        for output in stream(engine, tiny.prompts()[1], greedy(100)):
            if output.token_ids:
                break
        assert (engine.busy, engine.scheduler.pool.free) == (False, engine.core.plan.num_pages)
        assert (engine._requests, engine._generators) == ({}, {})
        assert engine._drafting._ngrams == {}
        keeper = engine._drafting._keeper
        assert keeper is None or keeper._standings == {}

    def test_an_interrupted_call_leaves_nothing_to_the_next(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, prompts = tiny.engine(draft="ngram"), tiny.prompts()[:3]
        step, steps = engine.step, iter(range(100))

        def interrupted() -> object:
            if next(steps) == 5:
                raise KeyboardInterrupt
            return step()

        monkeypatch.setattr(engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            complete(engine, prompts, greedy(20))
        assert (engine.busy, engine.scheduler.pool.free) == (False, engine.core.plan.num_pages)
        monkeypatch.undo()
        assert answers(engine, prompts, greedy(8)) == [tiny.plain("f32", p, 8) for p in prompts]

    def test_an_unknown_request_is_no_error(self, tiny: Fleet) -> None:
        assert tiny.engine().abort(99) is None

    def test_a_waiting_request_can_be_given_up(self, tiny: Fleet) -> None:
        engine, prompts = tiny.engine(max_requests=1), tiny.prompts()[:2]
        for prompt in prompts:
            engine.add(prompt, greedy(4))
        engine.step()
        output = engine.abort(1)
        assert output is not None
        assert (output.token_ids, output.finish_reason) == ([], "abort")
        assert drain(engine).keys() == {0}


class TestPrefill:
    def test_takes_one_chunk_a_step_while_others_decode(self, tiny: Fleet) -> None:
        engine = tiny.engine(prefill_chunk=16)
        short, long = tiny.prompts()[1], tiny.prompts()[6]
        engine.add(short, greedy(40))
        engine.step()
        engine.add(long, greedy(4))
        chunks = -(-len(long) // 16)
        for _ in range(chunks - 1):
            [output] = engine.step()
            assert (output.request_id, len(output.token_ids)) == (0, 1)
        assert {output.request_id for output in engine.step()} == {0, 1}
        assert engine.stats.prompt_tokens == len(short) + len(long)

    def test_is_in_the_trace_as_eager_with_its_reason(self, tiny: Fleet) -> None:
        recorder = Recorder()
        engine = tiny.engine(prefill_chunk=16, recorder=recorder)
        answers(engine, [tiny.prompts()[6]], greedy(2))
        slices = [event for event in recorder.events() if getattr(event, "name", "") == "prefill"]
        assert sum(int(event.args["rows"]) for event in slices) == len(tiny.prompts()[6])
        assert {event.args["reason"] for event in slices} == {"prefill is not captured"}


class TestStats:
    def test_count_rounds_tokens_and_time(self, tiny: Fleet) -> None:
        prompts = tiny.prompts()[:2]
        engine = oracle_engine(tiny, prompts)
        answers(engine, prompts, greedy(9))
        stats = engine.stats
        # The first token is prefill's; then two rounds of 4 for each request.
        assert (stats.request_rounds, stats.advanced, stats.round_tokens) == (4, 16, 16)
        assert stats.rounds == 3  # the second request joined one step later
        assert dict(stats.drafted) == dict(stats.accepted) == {0: 4, 1: 4, 2: 4}
        assert 0 < stats.host_share < 1
        assert 0 < stats.graphs.phase_ns < stats.round_ns
        assert stats.prompt_tokens == sum(map(len, prompts))

    def test_tokens_cut_off_at_the_end_are_advanced_but_not_given(self, tiny: Fleet) -> None:
        prompt = tiny.prompts()[1]
        engine = oracle_engine(tiny, [prompt])
        answers(engine, [prompt], greedy(7))
        assert (engine.stats.advanced, engine.stats.round_tokens, engine.stats.mean_advanced) == (8, 6, 4)

    def test_start_empty_and_can_be_reset(self, tiny: Fleet) -> None:
        engine = tiny.engine(draft="nextn")
        captures = engine.stats.graphs.captures
        answers(engine, tiny.prompts()[:1], greedy(6))
        engine.stats.reset()
        stats = engine.stats
        assert (stats.mean_advanced, stats.acceptance_by_position, stats.host_share) == (0, [], 0)
        assert (stats.rounds, stats.round_ns, stats.graphs.replays) == (0, 0, 0)
        assert stats.graphs.captures == captures > 0

    def test_samplers_verify_no_draft(self, tiny: Fleet) -> None:
        engine = tiny.engine(draft="nextn")
        sampled = SamplingParams(max_tokens=6, temperature=1.0, ignore_eos=True)
        complete(engine, tiny.prompts()[:1], sampled)
        assert (engine.stats.acceptance_by_position, engine.stats.mean_advanced) == ([], 1)


class TestWhatIsUploaded:
    def test_padding_names_no_request_and_stale_drafts_and_pages_are_gone(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A large batch full of drafts comes first, then one request, which samples and has none."""
        monkeypatch.setattr("slipstream.engine.drafting.choose_round", verify_always)
        monkeypatch.setattr("slipstream.engine.drafting.TOO_DEAR", math.inf)  # whatever rows cost here
        engine = tiny.engine(draft="ngram", buckets=(4,), max_requests=4)
        answers(engine, [tiny.prompts()[3]] * 4, greedy(12))
        assert engine.stats.drafted
        host = engine.core.buffers.host
        assert (host["drafts"] >= 0).any()
        engine.add(tiny.prompts()[0], SamplingParams(max_tokens=4, temperature=1.0, ignore_eos=True))
        engine.step()
        request = engine.scheduler.running[0]
        assert request.pages is not None
        assert host["slots"].tolist() == [request.slot, 4, 4, 4]
        assert host["greedy"].tolist() == [0] * 4
        assert (host["drafts"] == -1).all()
        assert host["pages"][0].nonzero().numel() == len(request.pages.pages) == 1
        assert not host["pages"][1:].any()


class TestSamplers:
    def test_top_k_of_one_is_greedy(self, tiny: Fleet) -> None:
        prompts = tiny.prompts()[:3]
        sampling = SamplingParams(max_tokens=16, temperature=5.0, top_k=1, ignore_eos=True)
        for draft in ("none", "nextn"):
            expected = [tiny.plain("f32", p, 16) for p in prompts]
            assert answers(tiny.engine(draft=draft), prompts, sampling) == expected

    @pytest.mark.parametrize("temperature", [1e-40, 1e-320])
    def test_a_tiny_temperature_does_not_take_the_engine_down(self, tiny: Fleet, temperature: float) -> None:
        prompt = tiny.prompts()[1]
        sampling = replace(greedy(8), temperature=temperature)
        assert answers(tiny.engine(), [prompt], sampling) == [tiny.plain("f32", prompt, 8)]


def test_tokens_come_in_steps_and_make_the_whole_answer(tiny: Fleet) -> None:
    prompt = tiny.prompts()[3]
    llm = LLM(tiny.path, tiny.config(draft="ngram"))
    steps: Iterator[object] = llm.stream("abc abc abc abc" * 3, greedy(24), chat=False)
    outputs = list(steps)
    assert [token for output in outputs for token in output.token_ids] == tiny.plain("f32", prompt, 24)
    assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + ["length"]
    text = "".join(output.text for output in outputs)
    assert text == llm.tokenizer.decode(tiny.plain("f32", prompt, 24))


def test_two_engines_with_different_kernels_live_in_one_process(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    prompts, sampling = ["abc abc abc", "some words"], SamplingParams(max_tokens=12)
    native, torch_ = (LLM(path, EngineConfig(kernels=kernels)) for kernels in ("auto", "torch"))
    first = [answer.token_ids for answer in native.generate(prompts, sampling)]
    other = [answer.token_ids for answer in torch_.generate(prompts, sampling)]
    assert [answer.token_ids for answer in native.generate(prompts, sampling)] == first
    assert [answer.token_ids for answer in torch_.generate(prompts, sampling)] == other

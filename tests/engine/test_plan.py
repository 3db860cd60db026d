"""From what was asked to what is done: each decision, and each value that is not possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.device.caps import Caps
from slipstream.errors import UnknownNameError, UsageError
from slipstream.plan import EnginePlan, ModelShape, resolve

CAPS = Caps(
    device="cpu",
    dtypes=("q4", "f32"),
    graph_modes=("full", "none"),
    parallel_streams=False,
    row_invariant=("q4", "f32"),
    default_threads=3,
)
SHAPE = ModelShape(name="model", context_length=8192, four_bit=True, slot_values=25)


def plan(config: EngineConfig | None = None, shape: ModelShape = SHAPE, **sampling: Any) -> EnginePlan:
    return resolve(config or EngineConfig(), CAPS, shape, SamplingParams(**sampling))


def spec(*arguments: Any) -> EngineConfig:
    return EngineConfig(spec=SpecConfig(*arguments))


def graph(*arguments: Any) -> EngineConfig:
    return EngineConfig(graph=GraphConfig(*arguments))


def decision(resolved: EnginePlan, what: str) -> tuple[str, str, str]:
    [found] = [d for d in resolved.decisions if d.what == what]
    return found.asked, found.got, found.why


@pytest.mark.parametrize(
    ("config", "what", "asked", "got", "why"),
    [
        (EngineConfig(), "dtype", "auto", "q4", "the file holds 4-bit blocks"),
        (EngineConfig(dtype="f32"), "dtype", "f32", "f32", "as asked"),
        (EngineConfig(), "threads", "default", "3", "cores of this process"),
        (EngineConfig(threads=2), "threads", "2", "2", "as asked"),
        (EngineConfig(), "draft", "auto", "auto", "ngram or nobody drafts, round by round"),
        (spec("ngram"), "draft", "ngram", "ngram", "as asked"),
        (spec("nextn"), "draft", "nextn", "nextn", "no head was given, so it is random"),
        (spec("nextn", 3, "head.safetensors"), "draft", "nextn", "nextn", "as asked"),
        (spec("nextn", 3, "head.safetensors"), "head", "head.safetensors", "head.safetensors", "as asked"),
        (spec("nextn"), "head", "default", "random", "none ships for this model"),
        (spec("auto"), "head", "default", "none", "none ships for this model"),
        (spec("auto"), "draft", "auto", "auto", "ngram or nobody drafts, round by round"),
        (spec("auto", 3, "head.safetensors"), "draft", "auto", "auto", "ngram, the head or nobody drafts"),
        (spec("auto", 5), "num_steps", "5", "5", "verifies 6 rows a request"),
        (EngineConfig(), "num_steps", "3", "3", "verifies 4 rows a request"),
        (spec("none", 5), "num_steps", "5", "0", "verifies 1 rows a request"),
        (EngineConfig(), "max_model_len", "default", "4096", "knows 8192 positions"),
        (EngineConfig(max_model_len=8192), "max_model_len", "8192", "8192", "as asked"),
        (EngineConfig(max_model_len=60), "num_pages", "default", "32", "8 requests of 60 tokens at once"),
        (EngineConfig(num_pages=7), "num_pages", "7", "7", "as asked"),
        (EngineConfig(), "buckets", "1,2,4,8", "1,2,4,8", "as asked"),
        (graph("full", (8, 2, 2)), "buckets", "2,8", "2,8", "as asked"),
        (graph("full", (4,)), "buckets", "4", "4", "5 to 8 requests run eagerly"),
        (graph("none"), "buckets", "1,2,4,8", "none", "graphs are off"),
        (EngineConfig(max_requests=3), "buckets", "1,2,4,8", "1,2,4", "at most 3 requests run"),
        (EngineConfig(max_requests=1), "buckets", "1,2,4,8", "1", "at most 1 requests run"),
    ],
)
def test_each_decision_says_what_was_asked_what_is_done_and_why(
    config: EngineConfig, what: str, asked: str, got: str, why: str
) -> None:
    found = decision(plan(config), what)
    assert found[:2] == (asked, got)
    assert why in found[2]


def test_a_file_without_blocks_is_computed_in_float32() -> None:
    resolved = plan(shape=replace(SHAPE, four_bit=False))
    assert (resolved.dtype, decision(resolved, "dtype")[2]) == ("f32", "the file holds no 4-bit blocks")


@pytest.mark.parametrize("draft", ["ngram", "nextn"])
def test_a_temperature_turns_speculation_off_and_says_so(draft: str) -> None:
    resolved = plan(spec(draft), temperature=0.7)
    assert (resolved.draft, resolved.width, resolved.num_steps) == ("none", 1, 0)
    asked, got, why = decision(resolved, "draft")
    assert (asked, got) == (draft, "none")
    assert "temperature is above 0" in why


def test_plain_decoding_at_a_temperature_is_as_asked() -> None:
    assert decision(plan(spec("none"), temperature=0.7), "draft") == ("none", "none", "as asked")


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("num_steps", [1, 16])
def test_a_request_of_full_length_has_pages_for_a_round_more(page_size: int, num_steps: int) -> None:
    config = replace(spec("ngram", num_steps), page_size=page_size, max_model_len=127)
    resolved = plan(config)
    assert resolved.width == num_steps + 1
    assert resolved.pages_per_request * page_size >= 127 + resolved.width
    assert resolved.num_pages == 8 * resolved.pages_per_request
    assert resolved.kv_bytes == (resolved.num_pages + 1) * page_size * 100


def test_every_setting_has_exactly_one_decision() -> None:
    names = [d.what for d in plan().decisions]
    assert len(set(names)) == len(names)
    assert {"dtype", "threads", "draft", "num_steps", "graph", "buckets", "max_model_len", "num_pages"} <= {
        *names
    }


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (spec("ngram", 0), "num-steps 0 is not possible: a round drafts 1 to 16 tokens.*--draft none"),
        (spec("ngram", 17), "num-steps 17 is not possible: a round drafts 1 to 16"),
        (spec("none", 0), "num-steps 0"),
        (EngineConfig(page_size=3), "page-size 3 is not possible; use one of 1,2,4,8,16,32,64"),
        (EngineConfig(page_size=128), "page-size 128"),
        (EngineConfig(max_requests=0), "max-requests 0 is not possible; it is 1 to 512"),
        (EngineConfig(max_requests=10**9), "max-requests 1000000000 is not possible; it is 1 to 512"),
        (EngineConfig(num_pages=0), "num-pages 0 is not possible; it is at least 1"),
        (EngineConfig(prefill_chunk=0), "prefill-chunk 0"),
        (EngineConfig(threads=0), "threads 0"),
        (EngineConfig(threads=100_000), "threads 100000 is not possible; it is 1 to 512"),
        (EngineConfig(seed=-1), "seed -1 is not possible; it is 0 to 4294967295"),
        (EngineConfig(seed=2**64), "seed 18446744073709551616"),
        (EngineConfig(max_model_len=-5), "max-model-len -5"),
        (EngineConfig(max_model_len=8193), "max-model-len 8193 is not possible: model knows 8192"),
        (EngineConfig(dtype="bf16"), "device 'cpu' cannot compute in bf16; possible: q4,f32"),
        (graph("full", ()), "list of buckets is empty"),
        (graph("none", (0,)), "bucket 0 is not possible"),
        (
            spec("ngram", 3, "head.safetensors"),
            "a head is given, but the drafter is 'ngram'; use --draft nextn",
        ),
    ],
)
def test_a_value_that_is_not_possible_is_named_with_what_is(config: EngineConfig, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(config)


@pytest.mark.parametrize(
    ("config", "kind", "nearest"),
    [
        (spec("ngrm"), "drafter", "ngram"),
        (spec("NEXTN"), "drafter", "nextn"),
        (EngineConfig(dtype="fp32"), "dtype", "f32"),
        (EngineConfig(device="cpus"), "device", "cpu"),
        (graph("ful"), "graph mode", "full"),
    ],
)
def test_an_unknown_name_gets_the_nearest(config: EngineConfig, kind: str, nearest: str) -> None:
    with pytest.raises(
        UnknownNameError, match=rf"unknown {kind} .*Did you mean '{nearest}'\?.*Possible: "
    ) as caught:
        plan(config)
    assert caught.value.nearest == nearest


def test_a_name_like_no_other_gets_the_list_only() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown drafter 'xyzzy'\. Possible: auto, nextn, ngram, none\.$"
    ):
        plan(spec("xyzzy"))

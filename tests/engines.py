"""Engines on one small model, made quickly: weights are loaded once a dtype, plain answers kept.

fleet.engine(dtype="q4", draft="ngram", num_steps=5, buckets=(3,))
fleet.plain(dtype, prompt, 32)          what plain, eager decoding of this prompt alone gives
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.engine.core import build_core
from slipstream.engine.engine import Engine
from slipstream.llm import LoadedModel, build_engine, complete, load_model, model_shape, plan_for
from slipstream.native import library
from slipstream.plan import EnginePlan, resolve
from slipstream.speculative.breakeven import Choice, Outlook
from slipstream.trace import Recorder

#: Tokens of prompt and answer of all engines here.
MAX_LEN = 256

#: Lengths around the pages' and the attention's steps (16, 64), a lone token, repeats that ngram finds.
TINY_TEXTS = (
    "x",
    "hello there",
    "the people and the people and the",
    "abc abc abc abc" * 3,
    "0123456789" * 6 + "ab",  # 62 tokens: the answer crosses position 64
    "some other words that could be more" * 2,
    "a much longer prompt of one hundred and fifty tokens or so " * 3,
    "z" * 15,
)


@dataclass
class Fleet:
    """One model file and the engines on it."""

    path: Path
    threads: int = 1
    max_len: int = MAX_LEN
    _loaded: dict[tuple[str, str], LoadedModel] = field(default_factory=dict, repr=False)
    _plain: dict[tuple[str, str, tuple[int, ...]], list[int]] = field(default_factory=dict, repr=False)

    def config(
        self,
        *,
        dtype: str = "f32",
        draft: str = "none",
        num_steps: int = 3,
        head: str | None = None,
        graph: str = "full",
        buckets: tuple[int, ...] = (1, 2, 4, 8),
        check: bool = False,
        mixed_sizes: tuple[int, ...] | None = None,
        extend_graph: str = "on",
        **options: Any,
    ) -> EngineConfig:
        options = {"threads": self.threads, "max_model_len": self.max_len} | options
        spec, graphs = (
            SpecConfig(draft, num_steps, head),
            GraphConfig(graph, buckets, check, mixed_sizes, extend_graph),
        )
        return EngineConfig(dtype=dtype, spec=spec, graph=graphs, **options)

    def loaded(self, dtype: str = "f32", kernels: str = "auto") -> LoadedModel:
        key = (dtype, kernels)
        if key not in self._loaded:
            plan, checkpoint, device = plan_for(str(self.path), self.config(dtype=dtype, kernels=kernels))
            self._loaded[key] = load_model(checkpoint, device, plan)
        return self._loaded[key]

    def plan(self, **options: Any) -> EnginePlan:
        loaded = self._loaded_for(options)
        return resolve(self.config(**options), loaded.caps, model_shape(loaded.checkpoint))

    def engine(self, *, recorder: Recorder | None = None, **options: Any) -> Engine:
        plan = self.plan(**options)
        self._use(plan)
        return build_engine(self._loaded_for(options), plan, recorder)

    def engine_with_head(self, head: Any, *, draft: str = "nextn", **options: Any) -> Engine:
        """An engine whose NextN head is `head`, anything with its `forward` and `candidates`."""
        loaded = self._loaded_for(options)
        plan = self.plan(draft=draft, **options)
        self._use(plan)
        core = build_core(plan, loaded.device, loaded.target, head)
        return Engine(core, loaded.tokenizer.eos_ids, loaded.tokenizer.stream)

    def _loaded_for(self, options: dict[str, Any]) -> LoadedModel:
        return self.loaded(options.get("dtype", "f32"), options.get("kernels", "auto"))

    @staticmethod
    def _use(plan: EnginePlan) -> None:
        # Kernels and threads are settings of the process, made when weights are loaded; here these are kept.
        library.use(plan.kernels == "native", plan.threads)
        torch.set_num_threads(plan.threads)

    def prompts(self, texts: Sequence[str] = TINY_TEXTS) -> list[list[int]]:
        return [self.loaded().tokenizer.encode(text) for text in texts]

    def plain(self, dtype: str, prompt: Sequence[int], count: int, kernels: str = "auto") -> list[int]:
        """The first `count` tokens of plain, eager decoding, alone."""
        key = (dtype, kernels, tuple(prompt))
        if len(self._plain.get(key, ())) < count:
            engine = self.engine(dtype=dtype, kernels=kernels, draft="none", graph="none")
            [answer] = complete(engine, [list(prompt)], greedy(max(count, 24)))
            self._plain[key] = answer.token_ids
        return self._plain[key][:count]


def verify_always(
    times: Any, outlooks: Sequence[Outlook], widths: Sequence[int], rate: float | None = None
) -> Choice:
    """Stands in for `choose_round`, whose verdict depends on measured times: every ngram draft is verified."""
    return Choice(max(widths) if any(outlook.ngram for outlook in outlooks) else 1, head=False)


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    """Greedy decoding that ends with its length only."""
    return SamplingParams(max_tokens=max_tokens, **({"ignore_eos": True} | options))


def answers(engine: Engine, prompts: Sequence[list[int]], sampling: SamplingParams) -> list[list[int]]:
    """The tokens of each prompt, served together."""
    completions = complete(engine, prompts, sampling)
    assert all(completion.error is None for completion in completions)
    return [completion.token_ids for completion in completions]


def come_and_go(
    engine: Engine, prompts: Sequence[list[int]], lengths: Sequence[int], *, aborted: int, steps: int
) -> dict[int, list[int]]:
    """Tokens by request, where one joins every other step and request `aborted` is given up at step 12."""
    tokens: dict[int, list[int]] = {}
    left = list(zip(prompts, lengths, strict=True))
    for step in range(steps):
        if left and step % 2 == 0:
            prompt, length = left.pop(0)
            engine.add(prompt, greedy(length))
        if step == 12:
            assert engine.abort(aborted) is not None
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    assert not engine.busy
    return tokens


def drain(engine: Engine, limit: int = 2000) -> dict[int, list[int]]:
    """Step until nothing is left; tokens by request."""
    tokens: dict[int, list[int]] = {}
    for _ in range(limit):
        if not engine.busy:
            return tokens
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    raise AssertionError(f"still busy after {limit} steps")

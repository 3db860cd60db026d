"""Training data in memory: a tiny target's own answers, with its hidden rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.engine.core import prefill_chunk, use_kernels
from slipstream.engine.engine import Engine
from slipstream.train.shards import TrainingSequence
from tests.engines import Fleet, answers, greedy


@dataclass
class Answers:
    """Samples with random access, as training wants them."""

    samples: list[TrainingSequence]

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        return [(len(sample.hidden_TH), sample.prompt_length) for sample in self.samples]

    def ids(self, index: int) -> torch.Tensor:
        return self.samples[index].ids

    def load(self, index: int) -> TrainingSequence:
        return self.samples[index]


def answer(fleet: Fleet, prompts: Sequence[list[int]], max_tokens: int, **options: object) -> Answers:
    """Let the target answer; hidden rows come from a prefill of prompt and answer."""
    engine = fleet.engine(draft="none", graph="none", **options)
    samples = []
    for prompt, tokens in zip(prompts, answers(engine, prompts, greedy(max_tokens)), strict=True):
        ids = prompt + tokens
        samples.append(TrainingSequence(torch.tensor(ids), hidden_rows(engine, ids[:-1]), len(prompt)))
    return Answers(samples)


def hidden_rows(engine: Engine, ids: list[int]) -> torch.Tensor:
    use_kernels(engine.core.plan)
    pages = list(range(1, 1 + -(-len(ids) // engine.core.plan.page_size)))
    return prefill_chunk(engine.core, ids, 0, pages).clone()


def random_prompts(count: int, length: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(3, vocab_size, (length + index % 5,), generator=generator).tolist()
        for index in range(count)
    ]

"""What a head is worth: acceptance by position and tokens a round, by greedy decoding through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.engine.stats import EngineStats
from slipstream.llm import LoadedModel, build_engine, complete, model_shape
from slipstream.plan import resolve

#: Requests that are answered together.
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Greedy decoding with a head.

    Attributes:
        acceptance: by draft position, how often a draft held of those verified.
        mean_advanced: tokens advanced a round.
        prompts, tokens: answered, generated.
    """

    acceptance: list[float]
    mean_advanced: float
    prompts: int
    tokens: int

    def data(self) -> dict[str, Any]:
        """Return it as a record."""
        return asdict(self)


def evaluate_head(
    loaded: LoadedModel,
    config: EngineConfig,
    path: Path,
    prompts: Sequence[list[int]],
    num_steps: int,
    max_tokens: int,
) -> Evaluation:
    """Answer prompts with the head in `path`.

    Args:
        loaded: the target.
        config: how the target runs; drafts, buckets and requests are set here.
        path: a head file.
        prompts: token ids of each.
        num_steps: drafts a round.
        max_tokens: of an answer; it may end by itself before.
    """
    batch = min(_BATCH, len(prompts))
    config = replace(
        config,
        spec=SpecConfig("nextn", num_steps, str(path)),
        graph=GraphConfig(buckets=(batch,)),
        max_requests=batch,
    )
    plan = resolve(config, loaded.caps, model_shape(loaded.checkpoint))
    threads = torch.get_num_threads()
    try:
        engine = build_engine(loaded, plan)
        engine.reset_stats()
        answers = complete(engine, list(prompts), SamplingParams(max_tokens=max_tokens))
    finally:
        torch.set_num_threads(threads)
    stats: EngineStats = engine.stats
    tokens = sum(len(answer.token_ids) for answer in answers)
    return Evaluation(stats.acceptance_by_position, stats.mean_advanced, len(prompts), tokens)

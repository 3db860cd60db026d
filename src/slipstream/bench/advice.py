"""Which num_steps is best here: what each width takes, and what the drafts of a run brought.

    k drafts     1 + accepted drafts     in draft(k) + verify(k + 1) + extend(k + 1)

Times are of replays in the middle of answers, one shape after the other, so that a busy moment hits all alike.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

from slipstream.config import SamplingParams
from slipstream.engine.core import build_core
from slipstream.engine.engine import Engine
from slipstream.engine.request import Phase
from slipstream.graph.buckets import pick_bucket
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.llm import LoadedModel

#: Replays of each shape; the median counts.
_REPEATS = 15


def advise(loaded: LoadedModel, engine: Engine, prompts: list[list[int]]) -> list[dict[str, float]]:
    """Return one record for each number of drafts, from none to the engine's.

    Each has num_steps, draft_ms, verify_ms, extend_ms, advanced (tokens a request and round) and tok_s.

    Args:
        loaded: weights.
        engine: whose drafts were measured; its counts say how many held.
        prompts: as many as decode together.
    """
    plan = engine.core.plan
    bucket = pick_bucket(plan.buckets, len(prompts))
    if plan.draft == "none" or bucket is None or plan.check:
        return []
    # An engine of its own, whose graphs have every width.
    every_width = replace(plan, draft="auto")
    core = build_core(every_width, loaded.device, loaded.target, engine.core.head)
    probe = Engine(core, frozenset(), loaded.tokenizer.stream)
    _decode_a_while(probe, prompts)
    times = _times_ms(probe, bucket)
    accepted = engine.stats.acceptance_by_position
    records = []
    for steps in range(plan.num_steps + 1):
        parts = [
            ("draft", steps),
            ("verify", steps + 1),
            ("extend", steps + 1 if steps else 0),
        ]  # plain decoding keeps no head
        draft, verify, extend = (
            times.get(BatchDescriptor(phase, bucket, width), 0.0) for phase, width in parts
        )
        advanced = 1 + sum(accepted[:steps])
        records.append(
            {
                "num_steps": steps,
                "draft_ms": draft,
                "verify_ms": verify,
                "extend_ms": extend,
                "advanced": advanced,
                "tok_s": len(prompts) * advanced / (draft + verify + extend) * 1e3,
            }
        )
    return records


def _decode_a_while(engine: Engine, prompts: list[list[int]]) -> None:
    """Bring all requests into decoding, so that the static buffers hold rows with context."""
    for ids in prompts:
        engine.add(ids, SamplingParams(max_tokens=64, ignore_eos=True))
    rounds = 0
    while rounds < 4 and engine.busy:
        engine.step()
        rounds += all(request.phase is Phase.DECODE for request in engine.scheduler.running)


def _times_ms(engine: Engine, bucket: int) -> dict[BatchDescriptor, float]:
    graphs = {key: graph for key, graph in engine.core.runner.graphs.items() if key.num_reqs == bucket}
    times: dict[BatchDescriptor, list[float]] = {key: [] for key in graphs}
    for _ in range(_REPEATS):
        for key, graph in graphs.items():
            started = time.perf_counter_ns()
            graph.replay()
            engine.core.device.synchronize()
            times[key].append((time.perf_counter_ns() - started) / 1e6)
    return {key: statistics.median(measured) for key, measured in times.items()}


def advice_text(records: list[dict[str, float]], batch: int) -> str:
    """Return the advice for people: the best number of drafts, and what each takes and brings."""
    best = max(records, key=lambda record: record["tok_s"])
    steps = int(best["num_steps"])
    what = f"num_steps {steps}" if steps else "plain decoding (--draft none)"
    lines = [f"best at batch {batch}, by these times and the drafts accepted above: {what}"]
    for each in records:
        draft, verify, extend = (each[f"{phase}_ms"] for phase in ("draft", "verify", "extend"))
        parts = f"draft {draft:.2f} + verify {verify:.2f} + extend {extend:.2f} ms"
        lines.append(
            f"  num_steps {int(each['num_steps'])}: {each['advanced']:.2f} advanced in {parts}: "
            f"{each['tok_s']:.0f} tok/s{'  <' if each is best else ''}"
        )
    return "\n".join(lines)


def best_num_steps(records: list[dict[str, Any]]) -> int | None:
    """Return the number of drafts with the most tokens a second, or None where nothing was measured."""
    return int(max(records, key=lambda record: record["tok_s"])["num_steps"]) if records else None

"""`slipstream bench decode`: plain against speculative decoding, interleaved, on the same weights.

Not a load test: requests arrive together and the prompts are fixed. Decode speed is tokens of rounds over the
time of rounds, so prefill and the first token of each request are outside.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rich.table import Table

from slipstream.bench.tables import kernel_ms, phase_rows
from slipstream.bench.workloads import Prompt, decode_prompts
from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.engine.engine import Engine
from slipstream.errors import UsageError
from slipstream.llm import LoadedModel, build_engine, chat_ids, complete, load_model, model_shape, plan_for
from slipstream.plan import EnginePlan, resolve


@dataclass(frozen=True, slots=True)
class DecodeBench:
    """What to measure.

    Attributes:
        model: as for `LLM`.
        config: the speculative engine's; the plain one is the same without drafts.
        max_tokens: tokens an answer.
        repeats: runs of each; medians are reported.
        batch: requests that decode together.
        eager: measure plain decoding without graphs as well.
    """

    model: str
    config: EngineConfig
    max_tokens: int = 128
    repeats: int = 3
    batch: int = 1
    eager: bool = False


@dataclass(slots=True)
class Series:
    """Measurements of one engine.

    Attributes:
        tok_s: decode speed of each repeat over all prompts.
        by_prompt: decode speeds of each prompt's group.
        advanced: tokens advanced a request and round, each group's newest repeat.
        answers: tokens of each group, by repeat.
    """

    engine: Engine
    tok_s: list[float] = field(default_factory=list)
    by_prompt: dict[str, list[float]] = field(default_factory=dict)
    advanced: dict[str, float] = field(default_factory=dict)
    answers: list[dict[str, list[list[int]]]] = field(default_factory=list)
    _tokens: int = 0
    _time_ns: int = 0

    def begin(self) -> None:
        """Start a repeat."""
        self._tokens = self._time_ns = 0
        self.answers.append({})

    def run(self, name: str, prompts: list[list[int]], sampling: SamplingParams) -> None:
        """Answer one group of prompts and keep what it took."""
        stats = self.engine.stats
        before_tokens, before_ns = stats.round_tokens, stats.round_ns
        before_rounds, before_advanced = stats.request_rounds, stats.advanced
        answers = complete(self.engine, prompts, sampling)
        failed = next((answer.error for answer in answers if answer.error), None)
        if failed is not None:
            raise UsageError(f"prompt {name} cannot be measured: {failed}")
        tokens, time_ns = stats.round_tokens - before_tokens, stats.round_ns - before_ns
        self._tokens += tokens
        self._time_ns += time_ns
        self.by_prompt.setdefault(name, []).append(tokens / time_ns * 1e9 if time_ns else 0.0)
        rounds = stats.request_rounds - before_rounds
        self.advanced[name] = (stats.advanced - before_advanced) / rounds if rounds else 0.0
        self.answers[-1][name] = [answer.token_ids for answer in answers]

    def end(self) -> None:
        """Close a repeat."""
        self.tok_s.append(self._tokens / self._time_ns * 1e9 if self._time_ns else 0.0)


def run_decode(bench: DecodeBench, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure, and return the record that the last line prints.

    Args:
        bench: what to measure.
        progress: called with what is being done.
    """
    config = replace(bench.config, max_requests=max(bench.batch, 1))
    progress("loading the model")
    plan, checkpoint, device = plan_for(bench.model, config)
    loaded = load_model(checkpoint, device, plan)
    progress("capturing graphs")
    series = _engines(loaded, plan, config, with_eager=bench.eager)
    prompts = decode_prompts()
    groups = [prompts[start : start + bench.batch] for start in range(0, len(prompts), bench.batch)]
    sampling = SamplingParams(max_tokens=bench.max_tokens, ignore_eos=True)
    _warm_up(loaded, series, prompts[0])
    for repeat in range(bench.repeats):
        for measured in series.values():
            measured.begin()
        for index, group in enumerate(groups):
            name = "+".join(prompt.name for prompt in group)
            ids = [chat_ids(loaded.tokenizer, prompt.user) for prompt in group]
            # Who goes first alternates, so that neither is always the one with the warm caches.
            order = list(series.items())[:: 1 if (repeat + index) % 2 == 0 else -1]
            for kind, measured in order:
                progress(f"run {repeat + 1} of {bench.repeats}: {name}, {kind}")
                measured.run(name, ids, sampling)
        for measured in series.values():
            measured.end()
    return _record(bench, loaded, plan, series)


def _engines(
    loaded: LoadedModel, plan: EnginePlan, config: EngineConfig, *, with_eager: bool
) -> dict[str, Series]:
    """Return the engines to compare, on the same weights."""
    shape = model_shape(loaded.checkpoint)
    plain_config = replace(config, spec=SpecConfig(draft="none"))
    plain = resolve(plain_config, loaded.caps, shape)
    series = {"plain": Series(build_engine(loaded, plain)), "spec": Series(build_engine(loaded, plan))}
    if with_eager:
        eager = resolve(replace(plain_config, graph=GraphConfig(mode="none")), loaded.caps, shape)
        series["eager"] = Series(build_engine(loaded, eager))
    return series


def _warm_up(loaded: LoadedModel, series: dict[str, Series], prompt: Prompt) -> None:
    ids = chat_ids(loaded.tokenizer, prompt.user)
    for measured in series.values():
        complete(measured.engine, [ids], SamplingParams(max_tokens=8, ignore_eos=True))
        measured.engine.reset_stats()


def _record(
    bench: DecodeBench, loaded: LoadedModel, plan: EnginePlan, series: dict[str, Series]
) -> dict[str, Any]:
    plain, spec = series["plain"], series["spec"]
    stats = spec.engine.stats
    plain_tok_s, spec_tok_s = statistics.median(plain.tok_s), statistics.median(spec.tok_s)
    by_prompt = {
        name: {
            "plain_tok_s": statistics.median(plain.by_prompt[name]),
            "spec_tok_s": statistics.median(spec.by_prompt[name]),
            "speedup": _speedup(spec.by_prompt[name], plain.by_prompt[name]),
            "mean_advanced": spec.advanced[name],
        }
        for name in plain.by_prompt
    }
    reasons = Counter[str]()
    for measured in (plain, spec):
        reasons.update(measured.engine.stats.graphs.eager_reasons)
    record: dict[str, Any] = {
        "workload": "decode",
        "model": loaded.checkpoint.config.name,
        "dtype": plan.dtype,
        "draft": plan.draft,
        "num_steps": plan.num_steps,
        "batch": bench.batch,
        "max_tokens": bench.max_tokens,
        "repeats": bench.repeats,
        "threads": plan.threads,
        "plain_tok_s": plain_tok_s,
        "spec_tok_s": spec_tok_s,
        "speedup": _speedup(spec.tok_s, plain.tok_s),
        "mean_advanced": stats.mean_advanced,
        "acceptance_by_position": stats.acceptance_by_position,
        "greedy_equal": plain.answers == spec.answers,
        "replays": plain.engine.stats.graphs.replays + stats.graphs.replays,
        "eager": plain.engine.stats.graphs.eager + stats.graphs.eager,
        "eager_reasons": dict(reasons),
        "padded_rows": plain.engine.stats.graphs.padded_rows + stats.graphs.padded_rows,
        "host_share": stats.host_share,
        "plain_host_share": plain.engine.stats.host_share,
        "prefill_tok_s": stats.prompt_tokens / stats.prefill_ns * 1e9 if stats.prefill_ns else 0.0,
        "peak_rss_mb": loaded.device.memory_bytes() / 1e6,
        "weight_mb": loaded.target.weight_bytes / 1e6,
        "by_prompt": by_prompt,
        "phases": phase_rows(stats),
        "kernel_ms": kernel_ms(spec.engine.kernel_ns()),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    if "eager" in series:
        record["eager_tok_s"] = statistics.median(series["eager"].tok_s)
        record["replay_over_eager"] = _speedup(plain.tok_s, series["eager"].tok_s)
        record["greedy_equal"] = record["greedy_equal"] and plain.answers == series["eager"].answers
    return record


def _speedup(fast: list[float], slow: list[float]) -> float:
    """Return the median of paired ratios; 0 where nothing was measured, as when the context has no room."""
    return statistics.median(f / s if s else 0.0 for f, s in zip(fast, slow, strict=True))


def decode_table(record: dict[str, Any]) -> Table:
    """Return the table of a record, a line a prompt."""
    title = f"{record['model']}, {record['dtype']}, draft {record['draft']}, batch {record['batch']}"
    table = Table(title=title, title_justify="left")
    table.add_column("prompt", overflow="fold")
    for name in ("plain tok/s", "spec tok/s", "speed-up", "advanced"):
        table.add_column(name, justify="right")
    rows = [*record["by_prompt"].items(), ("all", record)]
    for name, row in rows:
        table.add_row(
            name,
            f"{row['plain_tok_s']:.1f}",
            f"{row['spec_tok_s']:.1f}",
            f"{row['speedup']:.2f}",
            f"{row['mean_advanced']:.2f}",
        )
    return table

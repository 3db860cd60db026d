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

from slipstream.bench.advice import advice_text, advise, best_num_steps
from slipstream.bench.bandwidth import forward_bytes, read_gb_s
from slipstream.bench.breakdown import PhaseClock, breakdown_table, reading, round_breakdown
from slipstream.bench.workloads import Prompt, decode_prompts
from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.engine.engine import Engine
from slipstream.errors import UsageError
from slipstream.graph.stats_text import graph_records
from slipstream.llm import LoadedModel, build_engine, chat_ids, complete, load_model, model_shape, plan_for
from slipstream.plan import EnginePlan, resolve
from slipstream.trace import ambient_recorder


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
        clock: the engine's recorder: times of what no graph runs.
    """

    engine: Engine
    clock: PhaseClock
    tok_s: list[float] = field(default_factory=list)
    by_prompt: dict[str, list[float]] = field(default_factory=dict)
    advanced: dict[str, float] = field(default_factory=dict)
    answers: list[dict[str, list[list[int]]]] = field(default_factory=list)
    _tokens: int = 0
    _time_ns: int = 0
    _contexts: list[float] = field(default_factory=list)

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
        self._contexts.append(sum(len(a.prompt_ids) + len(a.token_ids) / 2 for a in answers))

    def end(self) -> None:
        """Close a repeat."""
        self.tok_s.append(self._tokens / self._time_ns * 1e9 if self._time_ns else 0.0)

    def reset(self) -> None:
        """Forget a warm-up."""
        self.engine.reset_stats()
        self.clock.reset()

    @property
    def context(self) -> float:
        """Tokens of context that a round reads, those of all its requests, in the middle of an answer."""
        return statistics.mean(self._contexts)


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
    bandwidth = read_gb_s(plan.threads)
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
    # Others may have used the machine at one of the two moments.
    record = _record(bench, loaded, plan, series, max(bandwidth, read_gb_s(plan.threads)))
    progress("measuring every width")
    first = [chat_ids(loaded.tokenizer, prompt.user) for prompt in groups[0]]
    record["by_num_steps"] = advise(loaded, series["spec"].engine, first)
    record["best_num_steps"] = best_num_steps(record["by_num_steps"])
    return record


def _engines(
    loaded: LoadedModel, plan: EnginePlan, config: EngineConfig, *, with_eager: bool
) -> dict[str, Series]:
    """Return the engines to compare, on the same weights."""
    shape = model_shape(loaded.checkpoint)
    plain_config = replace(config, spec=SpecConfig(draft="none"))
    plans = {"plain": resolve(plain_config, loaded.caps, shape), "spec": plan}
    if with_eager:
        plans["eager"] = resolve(replace(plain_config, graph=GraphConfig(mode="none")), loaded.caps, shape)
    clocks = {
        kind: PhaseClock(ambient_recorder({"engine": kind, "device": made.device}))
        for kind, made in plans.items()
    }
    return {kind: Series(build_engine(loaded, plans[kind], clock), clock) for kind, clock in clocks.items()}


def _warm_up(loaded: LoadedModel, series: dict[str, Series], prompt: Prompt) -> None:
    ids = chat_ids(loaded.tokenizer, prompt.user)
    for measured in series.values():
        complete(measured.engine, [ids], SamplingParams(max_tokens=8, ignore_eos=True))
        measured.reset()


def _record(
    bench: DecodeBench, loaded: LoadedModel, plan: EnginePlan, series: dict[str, Series], bandwidth: float
) -> dict[str, Any]:
    plain, spec = series["plain"], series["spec"]
    stats = spec.engine.stats
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
        "plain_tok_s": statistics.median(plain.tok_s),
        "spec_tok_s": statistics.median(spec.tok_s),
        "speedup": _speedup(spec.tok_s, plain.tok_s),
        "mean_advanced": stats.mean_advanced,
        "acceptance_by_position": stats.acceptance_by_position,
        "rounds_by_kind": dict(stats.kinds),
        "greedy_equal": all(measured.answers == plain.answers for measured in series.values()),
        **_routes(plain, spec),
        "host_share": stats.host_share,
        "plain_host_share": plain.engine.stats.host_share,
        "prefill_tok_s": stats.prompt_tokens / stats.prefill_ns * 1e9 if stats.prefill_ns else 0.0,
        "peak_rss_mb": loaded.device.memory_bytes() / 1e6,
        "weight_mb": loaded.target.weight_bytes / 1e6,
        "read_gb_s": bandwidth,
        "by_prompt": _by_prompt(plain, spec),
        "rounds": _breakdowns(loaded, plan, series),
        "graph_mode": plan.graph_mode.value,
        "extend_graph": _extend_graph(spec),
        "graphs": graph_records(stats.graphs),
        "never_replayed": [str(key) for _, key in stats.graphs.never_replayed()],
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }
    if "eager" in series:
        record["eager_tok_s"] = statistics.median(series["eager"].tok_s)
        record["replay_over_eager"] = _speedup(plain.tok_s, series["eager"].tok_s)
    return record


def _by_prompt(plain: Series, spec: Series) -> dict[str, dict[str, float]]:
    return {
        name: {
            "plain_tok_s": statistics.median(plain.by_prompt[name]),
            "spec_tok_s": statistics.median(spec.by_prompt[name]),
            "speedup": _speedup(spec.by_prompt[name], plain.by_prompt[name]),
            "mean_advanced": spec.advanced[name],
        }
        for name in plain.by_prompt
    }


def _routes(plain: Series, spec: Series) -> dict[str, Any]:
    """Return how often both took which route; the eager engine is meant to have no replays."""
    graphs = [measured.engine.stats.graphs for measured in (plain, spec)]
    reasons = Counter[str]()
    for each in graphs:
        reasons.update(each.eager_reasons)
    return {
        "replays": sum(each.replays for each in graphs),
        "eager": sum(each.eager for each in graphs),
        "eager_reasons": dict(reasons),
        "padded_rows": sum(each.padded_rows for each in graphs),
    }


def _extend_graph(spec: Series) -> dict[str, Any] | None:
    """Return what the extend graphs cost and save, None where there are none to switch."""
    saving = spec.engine.core.extend_saving
    return None if saving is None else {"why": saving.why, **saving.data()}


def _breakdowns(
    loaded: LoadedModel, plan: EnginePlan, series: dict[str, Series]
) -> dict[str, dict[str, Any]]:
    reads = forward_bytes(loaded.target, plan.slot_bytes)
    return {
        kind: round_breakdown(
            measured.engine.stats, measured.clock, measured.engine.kernel_ns(), measured.context, reads
        )
        for kind, measured in series.items()
    }


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


def decode_details(record: dict[str, Any]) -> list[Table | str]:
    """Return what stands below the table: where the rounds' time went, and what the forwards read."""
    bandwidth = record["read_gb_s"]
    heads = f"this machine reads {bandwidth:.1f} GB/s (threads: {record['threads']})"
    lines = [f"{kind}: {reading(data, bandwidth)}" for kind, data in record["rounds"].items()]
    kinds = ", ".join(f"{count} {kind}" for kind, count in record["rounds_by_kind"].items())
    heads += f"; spec rounds: {kinds}"
    if record["extend_graph"]:
        lines.append(f"extend graph, {record['extend_graph']['asked']}: {record['extend_graph']['why']}")
    if record["by_num_steps"]:
        lines.append(advice_text(record["by_num_steps"], record["batch"]))
    return [breakdown_table(record["rounds"]), heads, *lines]

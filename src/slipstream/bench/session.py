"""`slipstream run`: one prompt, streamed; then plain decoding of the same prompt, and what both took."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.bench.tables import (
    acceptance,
    console,
    graph_data,
    kernel_ms,
    kernel_shares,
    phase_rows,
    prefill_routes,
    round_table,
    speed,
)
from slipstream.config import EngineConfig, SamplingParams, SpecConfig
from slipstream.engine.core import recorder_for
from slipstream.engine.engine import Engine
from slipstream.engine.stats import EngineStats
from slipstream.errors import SlipstreamError, UnknownNameError
from slipstream.graph.stats_text import captured_rows, padding_table, prometheus
from slipstream.llm import (
    LoadedModel,
    build_engine,
    chat_ids,
    complete,
    load_model,
    model_shape,
    plan_for,
    stream,
)
from slipstream.plan import EnginePlan, resolve
from slipstream.trace import NullRecorder, Recorder, write_chrome

#: What `--graph-metrics` prints.
METRICS = ("none", "table", "prometheus")

#: Decisions that make a run slower than it could be: said after every run, not by `plan` only.
_DOWNGRADES = (("draft", "none"), ("kernels", "torch"))


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What `run` was asked for.

    Attributes:
        compare: decode plainly afterwards.
        trace: where the trace goes.
        quiet: no text while it runs; the caller prints data.
    """

    model: str
    prompt: str
    system: str | None
    raw: bool
    compare: bool
    trace: Path
    config: EngineConfig
    sampling: SamplingParams
    quiet: bool


@dataclass(slots=True)
class RunReport:
    """What came of it.

    Attributes:
        first_token_s: from the start of the command to the first token, loading included.
        kernel_ns: time inside the replays by native kernel.
        plain: statistics of plain decoding, or None where there was no comparison.
        same_text: whether plain decoding gave the same tokens, or None.
    """

    plan: EnginePlan
    stats: EngineStats
    prompt_tokens: int
    kernel_ns: dict[str, int] = field(default_factory=dict)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "abort"
    interrupted: bool = False
    first_token_s: float = 0.0
    plain: EngineStats | None = None
    same_text: bool | None = None
    trace: Path | None = None
    trace_error: str | None = None

    def data(self) -> dict[str, Any]:
        """Return the figures of the tables as plain data."""
        stats = self.stats
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "interrupted": self.interrupted,
            "prompt_tokens": self.prompt_tokens,
            "tokens": len(self.token_ids),
            "first_token_s": self.first_token_s,
            "tok_s": speed(stats),
            "plain_tok_s": speed(self.plain) if self.plain else None,
            "same_text": self.same_text,
            "draft": self.plan.draft,
            "mean_advanced": stats.mean_advanced,
            "acceptance_by_position": stats.acceptance_by_position,
            "rounds_by_kind": dict(stats.kinds),
            "host_share": stats.host_share,
            "phases": phase_rows(stats),
            "kernel_ms": kernel_ms(self.kernel_ns),
            "graphs": graph_data(self.plan, self.stats),
            "decisions": self.plan.decisions,
            "trace": str(self.trace) if self.trace else None,
            "trace_error": self.trace_error,
        }

    def show(self, graph_metrics: str = "none") -> None:
        """Print the tables; `graph_metrics` is one of `METRICS`."""
        out, stats = console(), self.stats
        out.print()
        out.print(
            f"{len(self.token_ids)} tokens ({self.finish_reason}) after a prompt of {self.prompt_tokens}; first "
            f"token {self.first_token_s:.1f} s after the start, model loading included"
        )
        line = f"{self.plan.draft} drafts: {speed(stats):.1f} tok/s" if self.plan.draft != "none" else ""
        plain_speed = speed(self.plain) if self.plain else speed(stats) if self.plan.draft == "none" else 0.0
        if plain_speed:
            line += f"{'; ' if line else ''}plain decoding: {plain_speed:.1f} tok/s"
        if line and self.plain and plain_speed:
            same = "same text" if self.same_text else "ANOTHER TEXT, which is a defect: please report it"
            line += f" on this machine now; {speed(stats) / plain_speed:.2f} times as fast; {same}"
        out.print(line)
        if self.plan.draft != "none":
            kinds = ", ".join(f"{count} {kind}" for kind, count in stats.kinds.items())
            out.print(f"mean advanced {stats.mean_advanced:.2f}; acceptance by position  {acceptance(stats)}")
            out.print(f"rounds: {kinds}")
        out.print(round_table(stats))
        if self.kernel_ns:
            out.print(f"inside the replays: {kernel_shares(self.kernel_ns)}")
        prefill_ms = stats.prefill_ns / 1e6
        routes = prefill_routes(stats)
        out.print(f"prefill: {routes}; {stats.prompt_tokens} rows, {prefill_ms:.0f} ms")
        for decision in self.plan.decisions:
            if (decision.what, decision.got) in _DOWNGRADES and decision.asked != decision.got:
                out.print(f"{decision.what}: asked {decision.asked}, got {decision.got}: {decision.why}")
        if self.trace is not None:
            out.print(f"trace: {self.trace} (open it in Perfetto, ui.perfetto.dev)")
        if self.trace_error is not None:
            out.print(f"no trace: {self.trace_error}")
        if graph_metrics == "table":
            print("\n" + padding_table(stats.graphs, self.plan.graph_mode, captured_rows(stats.graphs)))
        elif graph_metrics == "prometheus":
            print("\n" + prometheus(stats.graphs))


def check_metrics(name: str) -> None:
    """Check what `--graph-metrics` was given.

    Raises:
        UnknownNameError: it is none of `METRICS`.
    """
    if name not in METRICS:
        raise UnknownNameError("graph metrics", name, METRICS)


def run_session(order: RunOrder) -> RunReport:
    """Load, answer, compare, write the trace. Ctrl-C keeps what there is."""
    started = time.perf_counter()
    words = console(error=True)
    with words.status("loading the model"):
        plan, checkpoint, device = plan_for(order.model, order.config, order.sampling)
        loaded = load_model(checkpoint, device, plan)
        prompt_ids = _prompt_ids(loaded, order)
        recorder = recorder_for(plan)
        recorder = recorder if recorder.enabled else Recorder()
    with words.status("capturing graphs"):
        engine = build_engine(loaded, plan, recorder)
    report = RunReport(plan, engine.stats, len(prompt_ids))
    try:
        _answer(engine, prompt_ids, order, report, started)
        if order.compare and plan.draft != "none":
            with words.status("decoding plainly, for comparison"):
                _compare(loaded, prompt_ids, order, report)
    except KeyboardInterrupt:
        report.interrupted = True
    _write_trace(order, recorder, report)
    return report


def _prompt_ids(loaded: LoadedModel, order: RunOrder) -> list[int]:
    if order.raw:
        return loaded.tokenizer.encode(order.prompt)
    return chat_ids(loaded.tokenizer, order.prompt, order.system)


def _answer(
    engine: Engine, prompt_ids: list[int], order: RunOrder, report: RunReport, started: float
) -> None:
    try:
        for output in stream(engine, prompt_ids, order.sampling):
            if not report.token_ids:
                report.first_token_s = time.perf_counter() - started
            report.token_ids += output.token_ids
            report.text += output.text
            report.finish_reason = output.finish_reason or report.finish_reason
            if not order.quiet:
                sys.stdout.write(output.text)
                sys.stdout.flush()
    finally:
        report.kernel_ns = engine.kernel_ns()
        if not order.quiet and report.token_ids:
            sys.stdout.write("\n")
            sys.stdout.flush()


def _compare(loaded: LoadedModel, prompt_ids: list[int], order: RunOrder, report: RunReport) -> None:
    config = replace(order.config, spec=SpecConfig(draft="none"))
    engine = build_engine(
        loaded,
        resolve(config, loaded.caps, model_shape(loaded.checkpoint), order.sampling),
        NullRecorder(),
    )
    answer = complete(engine, [prompt_ids], order.sampling)[0]
    report.plain = engine.stats
    report.same_text = answer.token_ids == report.token_ids


def _write_trace(order: RunOrder, recorder: Recorder, report: RunReport) -> None:
    try:
        about: dict[str, int | float | str] = {"device": report.plan.device, "dropped": recorder.dropped}
        report.trace = write_chrome(order.trace, recorder.events(), metadata=about)
    except SlipstreamError as error:
        # The answer is there and stays: a trace that cannot be written must not take it away.
        report.trace_error = str(error)

"""`slipstream bench forward`: one forward of the target alone, by rows, and a prefill.

What a speculative round costs rests on two ratios that this shows: the whole forward over its matrices (the
rest is what a graph can save), and a forward of several rows over one of one row (what verifying drafts costs).
The forwards are interleaved, so that a change of the machine's speed meets them all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from slipstream.bench.bandwidth import forward_bytes, read_gb_s
from slipstream.bench.tables import kernel_ms
from slipstream.config import MAX_NUM_STEPS, EngineConfig, SamplingParams, SpecConfig
from slipstream.engine.core import EngineCore, chunk_rows, prefill_chunk
from slipstream.errors import UsageError
from slipstream.llm import LoadedModel, build_engine, complete, load_model, model_shape, plan_for
from slipstream.plan import EnginePlan, resolve

#: Rows of the widest verify.
MAX_ROWS = MAX_NUM_STEPS + 1

#: Prefills are long: their median needs no more.
_PREFILLS = 3


@dataclass(frozen=True, slots=True)
class ForwardBench:
    """What to measure.

    Attributes:
        model: as for `LLM`.
        config: device, dtype, kernels, threads; the rest follows from this order.
        rows: rows of each forward, ascending, 1 to `MAX_ROWS`.
        context: tokens in the KV cache before the first row.
        prefill: tokens of the prefill, 0 for none.
        repeats: forwards of each number of rows; medians are reported.
    """

    model: str
    config: EngineConfig
    rows: tuple[int, ...] = (1, 2, 3, 4, 8)
    context: int = 200
    prefill: int = 512
    repeats: int = 100


@dataclass(slots=True)
class _Times:
    """Of one number of rows, forward by forward, in nanoseconds."""

    whole: list[int]
    kernels: list[dict[str, int]]


def run_forward(bench: ForwardBench, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure, and return the record that the last line prints.

    Args:
        bench: what to measure.
        progress: called with what is being done.

    Raises:
        UsageError: the order is not possible, or not with this model.
    """
    progress("loading the model")
    loaded, plan = _load(bench)
    progress("capturing graphs")
    engine = build_engine(loaded, plan)
    bandwidth = read_gb_s(plan.threads)
    core = engine.core
    core.runner.capture({"verify": tuple(r for r in bench.rows if r not in (1, plan.width))}, core.main)
    _fill(core, bench.context, max(bench.rows))
    times = {rows: _Times([], []) for rows in bench.rows}
    for repeat in range(bench.repeats + 1):
        progress(f"forwards, {repeat} of {bench.repeats}")
        for rows, measured in times.items():
            _forward(core, rows, measured if repeat else None)  # the first is a warm-up
    progress("prefill")
    prefill_ms = []
    if bench.prefill:
        for _ in range(_PREFILLS):
            before = engine.stats.prefill_ns
            complete(engine, [_ids(core, bench.prefill)], SamplingParams(max_tokens=1, ignore_eos=True))
            prefill_ms.append((engine.stats.prefill_ns - before) / 1e6)
    bandwidth = max(bandwidth, read_gb_s(plan.threads))
    return _record(bench, loaded, plan, core, times, prefill_ms, bandwidth)


def _load(bench: ForwardBench) -> tuple[LoadedModel, EnginePlan]:
    _check(bench)
    most = max(bench.rows)
    length = max(bench.context + most, bench.prefill + 1)
    config = replace(
        bench.config,
        spec=SpecConfig("ngram", most - 1) if most > 1 else SpecConfig("none"),
        graph=replace(bench.config.graph, buckets=(1,)),
        max_requests=1,
    )
    _, checkpoint, device = plan_for(bench.model, config)
    shape = model_shape(checkpoint)
    if length > shape.context_length:
        raise UsageError(
            f"{shape.name} knows {shape.context_length} positions, and this takes {length}. Lower --context, "
            "--rows or --prefill."
        )
    plan = resolve(replace(config, max_model_len=length), device.caps, shape)
    return load_model(checkpoint, device, plan), plan


def _check(bench: ForwardBench) -> None:
    for what, value, least in (
        ("context", bench.context, 1),
        ("prefill", bench.prefill, 0),
        ("repeats", bench.repeats, 1),
    ):
        if value < least:
            raise UsageError(f"{what} {value} is not possible; it is at least {least}.")
    for rows in bench.rows:
        if not 1 <= rows <= MAX_ROWS:
            raise UsageError(f"rows {rows} is not possible; it is 1 to {MAX_ROWS}.")


def _ids(core: EngineCore, count: int) -> list[int]:
    """Return tokens without a pattern: which ones does not matter to the time of a dense model."""
    return [index * 7919 % core.target.config.vocab_size for index in range(count)]


def _fill(core: EngineCore, context: int, rows: int) -> None:
    """Compute `context` tokens of one request, and give the verify graphs the rows behind them."""
    pages = list(range(1, -(-(context + rows) // core.plan.page_size) + 1))
    ids, chunk, buffers = _ids(core, context + rows), core.plan.prefill_chunk, core.buffers
    with core.main:
        for start in range(0, context, chunk):
            prefill_chunk(core, ids[start : min(start + chunk, context)], start, pages)
        buffers.host["pages"][0, : len(pages)] = buffers.host["pages"].new_tensor(pages)
        buffers.upload()
        positions_R, slots_R, _ = chunk_rows(core, rows, context, pages)
        buffers.view("verify.ids", rows).copy_(positions_R.new_tensor(ids[context:]))
        buffers.view("verify.positions", rows).copy_(positions_R)
        buffers.view("verify.slots", rows).copy_(slots_R)


def _forward(core: EngineCore, rows: int, into: _Times | None) -> None:
    dispatch = core.runner.dispatcher.dispatch("verify", 1, rows)
    before = core.runner.kernel_ns()
    started = time.perf_counter_ns()
    core.runner.run(dispatch, 1, core.main)
    core.device.synchronize()
    ended = time.perf_counter_ns()
    if into is not None:
        after = core.runner.kernel_ns()
        into.whole.append(ended - started)
        into.kernels.append({kernel: spent - before.get(kernel, 0) for kernel, spent in after.items()})


def _record(
    bench: ForwardBench,
    loaded: LoadedModel,
    plan: EnginePlan,
    core: EngineCore,
    times: dict[int, _Times],
    prefill_ms: list[float],
    bandwidth: float,
) -> dict[str, Any]:
    reads = forward_bytes(loaded.target, plan.slot_bytes)
    read_bytes = reads.of(bench.context)
    rows = [_row(core, count, measured, read_bytes) for count, measured in times.items()]
    by_rows = {row["rows"]: row for row in rows}
    for row in rows:
        row["over_one_row"] = row["ms"] / by_rows[1]["ms"] if 1 in by_rows else None
    prefill = statistics.median(prefill_ms) if prefill_ms else 0.0
    return {
        "workload": "forward",
        "model": loaded.checkpoint.config.name,
        "dtype": plan.dtype,
        "kernels": plan.kernels,
        "threads": plan.threads,
        "context": bench.context,
        "repeats": bench.repeats,
        "weight_mb": reads.weights / 1e6,
        "read_mb": read_bytes / 1e6,
        "read_gb_s": bandwidth,
        "rows": rows,
        "prefill_tokens": bench.prefill,
        "prefill_chunk": plan.prefill_chunk,
        "prefill_ms": prefill,
        "prefill_tok_s": bench.prefill / prefill * 1e3 if prefill else 0.0,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


def _row(core: EngineCore, rows: int, measured: _Times, read_bytes: float) -> dict[str, Any]:
    """Return one line; what the kernels took is None where the device cannot tell."""
    dispatch = core.runner.dispatcher.dispatch("verify", 1, rows)
    whole_ns = statistics.median(measured.whole)
    matrices_ns = statistics.median(
        sum(spent for kernel, spent in each.items() if kernel.startswith("linear"))
        for each in measured.kernels
    )
    medians = {
        kernel: round(statistics.median(each[kernel] for each in measured.kernels))
        for kernel in measured.kernels[0]
    }
    return {
        "rows": rows,
        "route": dispatch.route.value,
        "reason": dispatch.reason,
        "ms": whole_ns / 1e6,
        "matrices_ms": matrices_ns / 1e6 if matrices_ns else None,
        "over_matrices": whole_ns / matrices_ns if matrices_ns else None,
        "gb_s": read_bytes / whole_ns,
        "kernel_ms": kernel_ms({kernel: spent for kernel, spent in medians.items() if spent}),
    }


def forward_table(record: dict[str, Any]) -> Table:
    """Return the table of a record, a line a number of rows."""
    title = (
        f"{record['model']}, {record['dtype']}, {record['kernels']} kernels: "
        f"one forward at context {record['context']}"
    )
    table = Table(title=title, title_justify="left")
    for name in (
        "rows",
        "route",
        "ms",
        "matrices ms",
        "whole / matrices",
        "x one row",
        "GB/s",
        "of the machine's",
    ):
        table.add_column(name, justify="left" if name == "route" else "right")
    for row in record["rows"]:
        table.add_row(
            str(row["rows"]),
            row["route"],
            f"{row['ms']:.2f}",
            _or_dash(row["matrices_ms"]),
            _or_dash(row["over_matrices"]),
            _or_dash(row["over_one_row"]),
            f"{row['gb_s']:.1f}",
            f"{row['gb_s'] / record['read_gb_s']:.0%}",
        )
    return table


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def forward_details(record: dict[str, Any]) -> list[str]:
    """Return the lines below the table."""
    lines = [
        f"a forward reads {record['read_mb']:.0f} MB; this machine reads {record['read_gb_s']:.1f} GB/s "
        f"(threads: {record['threads']})"
    ]
    if record["prefill_tokens"]:
        lines.append(
            f"prefill of {record['prefill_tokens']} tokens, {record['prefill_chunk']} at a time: "
            f"{record['prefill_ms']:.0f} ms, {record['prefill_tok_s']:.0f} tok/s"
        )
    return lines

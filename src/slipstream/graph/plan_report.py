"""A plan of graphs as plain data and as tables for people. No torch."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream.graph.coverage import ranges
from slipstream.graph.modes import GraphMode
from slipstream.graph.plan_notes import steps
from slipstream.graph.plan_types import GraphPlan, ListCost, StreamReport
from slipstream.graph.sizes import SizeSource
from slipstream.graph.streams import STREAMS, Hccl

#: Skipped lines of a histogram that people are shown; the number of all of them stands beside.
_MOST_SKIPPED = 5


def plan_data(plan: GraphPlan) -> dict[str, Any]:
    """Return plain JSON values."""
    request = plan.request
    return {
        "max_requests": request.max_requests,
        "num_draft_tokens": request.width,
        "width": request.width,
        "mode": {"asked": request.mode.value, "got": plan.mode.value},
        "source": _source(plan),
        "sizes": list(plan.sizes),
        "rows": [graph.size for graph in plan.graphs],
        "buckets": [graph.bucket for graph in plan.graphs],
        "graphs": [
            {
                "size": graph.size,
                "bucket": graph.bucket,
                "width": request.width,
                "rows": graph.size,
                "decode": _route(plan, graph.decode, graph.whole),
                "mixed": plan.mode.mixed.value if graph.mixed else "none",
                "requests": None if graph.requests is None else list(graph.requests),
                "share": graph.share,
                "mean_padded_rows": graph.mean_padded_rows,
                "most_padded_rows": graph.most_padded_rows,
                "streams": graph.streams,
                "memory_mib": graph.memory_mib,
            }
            for graph in plan.graphs
        ],
        "batches": [
            {
                "requests": requests,
                "rows": requests * request.width,
                "size": size,
                "padded_rows": plan.coverage.padded_rows(requests),
            }
            for requests, size in enumerate(plan.coverage.sizes, 1)
        ],
        "uncovered_requests": list(plan.coverage.uncovered),
        "assumed": "every decode batch alike" if request.histogram is None else None,
        "expected_padded_rows": plan.planned.padded,
        "eager_share": plan.planned.eager_share,
        "completed_sizes": None if plan.completed is None else list(plan.completed.sizes),
        "completed_expected_padded_rows": None if plan.completed is None else plan.completed.padded,
        "budget": plan.budget,
        "best_sizes": list(plan.best.sizes),
        "best_expected_padded_rows": plan.best.padded,
        "best_uncovered_requests": list(plan.best.uncovered),
        "best_covering_sizes": list((plan.covering or plan.best).sizes),
        "best_covering_expected_padded_rows": (plan.covering or plan.best).padded,
        "default_sizes": list(plan.default.sizes),
        "default_expected_padded_rows": plan.default.padded,
        "default_uncovered_requests": list(plan.default.uncovered),
        "histogram": _histogram_data(plan),
        "streams": None if plan.streams is None else _stream_data(plan.streams),
        "memory_mib": plan.graphs[0].memory_mib if plan.graphs else None,
        "platform": None if plan.settings is None else msgspec.to_builtins(plan.settings),
        "changes": [
            {"what": c.what, "asked": c.asked, "got": c.got, "why": c.why, "rule": c.rule}
            for c in plan.changes
        ],
        "notes": list(plan.notes),
    }


def plan_tables(plan: GraphPlan) -> RenderableType:
    """Return the tables that people read."""
    parts: list[RenderableType] = [_head(plan)]
    if plan.graphs:
        parts.append(_graph_table(plan))
    parts.append(_list_table(plan))
    if plan.streams is not None:
        parts.append(_stream_table(plan.streams))
    if plan.changes:
        parts.append(_change_table(plan))
    return Group(*parts)


def plan_lines(plan: GraphPlan) -> list[str]:
    """Return what stands below the tables; a line may be long, for it may hold a list to copy."""
    return [f"- {note}" for note in (*_histogram_words(plan), *plan.notes)]


# Data.


def _source(plan: GraphPlan) -> str:
    sizes = plan.request.sizes
    return sizes.value if isinstance(sizes, SizeSource) else "list"


def _route(plan: GraphPlan, decode: bool, whole: bool) -> str:
    if not decode:
        return GraphMode.NONE.value
    return GraphMode.FULL.value if whole else GraphMode.PIECEWISE.value


def _histogram_data(plan: GraphPlan) -> dict[str, Any] | None:
    read = plan.request.histogram
    if read is None:
        return None
    used = read.requests(plan.request.width, plan.request.max_requests)
    return {
        "kind": read.kind,
        "steps": sum(used.counts.values()),
        "requests": {str(requests): count for requests, count in used.counts.items()},
        "left_out": used.left_out,
        "skipped_lines": len(read.skipped),
        "skipped": [{"line": s.line, "text": s.text, "why": s.why} for s in read.skipped],
    }


def _stream_data(report: StreamReport) -> dict[str, Any]:
    return {
        "hccl": report.hccl.value,
        "streams": STREAMS,
        "graphs_per_size": report.facts.graphs_per_size,
        "streams_per_size": report.budget.streams_per_size,
        "max_sizes": report.budget.max_sizes,
        "kept_sizes": list(report.kept),
        "by_hccl": {
            hccl.value: {
                "streams_per_size": report.budgets[hccl].streams_per_size,
                "max_sizes": report.budgets[hccl].max_sizes,
                "piecewise_max_sizes": report.pieces[hccl].max_sizes,
            }
            for hccl in Hccl
        },
        "probe_streams_per_size": report.probe_streams,
        "probe_max_sizes": report.probe_max_sizes,
    }


# Tables.


def _head(plan: GraphPlan) -> Text:
    request = plan.request
    source = {"list": "the given list", "ascend": "Ascend's default", "vllm": "vLLM's default"}[_source(plan)]
    words_of = "no drafts" if request.width == 1 else "its last token and its drafts"
    rows = "row" if request.width == 1 else "rows"
    return Text(
        f"{len(plan.graphs)} sizes from {source}, mode {plan.mode.value}; up to {request.max_requests} requests "
        f"of {request.width} {rows} each ({words_of})"
    )


def _graph_table(plan: GraphPlan) -> Table:
    request = plan.request
    seen = request.histogram is not None
    table = Table(title="Graphs", title_justify="left")
    columns = [
        "bucket x width",
        "rows",
        "decode",
        "mixed",
        "requests",
        "padded, mean",
        "padded, most",
        "steps",
    ]
    columns += ["streams"] if plan.streams is not None else []
    columns += ["MiB, all so far"] if request.probe_memory is not None else []
    for name in columns:
        table.add_column(name, justify="left" if name in ("decode", "mixed") else "right")
    for graph in reversed(plan.graphs):
        first, last = graph.requests or (0, 0)
        cells = [
            f"{graph.bucket} x {request.width}",
            str(graph.size),
            _route(plan, graph.decode, graph.whole),
            plan.mode.mixed.value if graph.mixed else "none",
            "" if graph.requests is None else str(first) if first == last else f"{first} to {last}",
            f"{graph.mean_padded_rows:.2f}" if graph.requests and (graph.share or not seen) else "",
            str(graph.most_padded_rows) if graph.requests else "",
            f"{graph.share:.1%}",
        ]
        cells += [str(graph.streams)] if plan.streams is not None else []
        cells += [f"{graph.memory_mib:,.0f}"] if graph.memory_mib is not None else []
        table.add_row(*cells)
    return table


def _list_table(plan: GraphPlan) -> Table:
    table = Table(title="Lists of sizes", title_justify="left")
    for name in ("list", "sizes"):
        table.add_column(name, overflow="fold")
    for name in ("graphs", "padded rows a step", "eager steps"):
        table.add_column(name, justify="right")
    table.add_column("requests without a graph", overflow="fold")
    lists = [("planned", plan.planned)]
    if plan.completed is not None:
        added = set(plan.completed.sizes) - set(plan.sizes)
        lists.append((f"planned, and {', '.join(map(str, added))}", plan.completed))
    if plan.default.sizes != plan.planned.sizes:
        lists.append(("default", plan.default))
    lists.append((f"best of {plan.budget}", plan.best))
    if plan.covering is not None:
        lists.append((f"best of {plan.budget}, all batches", plan.covering))
    for name, cost in lists:
        table.add_row(name, *_cost_cells(cost))
    return table


def _cost_cells(cost: ListCost) -> tuple[str, ...]:
    return (
        steps(cost.sizes),
        str(len(cost.sizes)),
        f"{cost.padded:.3f}",
        f"{cost.eager_share:.1%}",
        ranges(cost.uncovered) or "none",
    )


def _stream_table(report: StreamReport) -> Table:
    table = Table(title="Streams: sizes that fit", title_justify="left")
    for name in ("by", "streams a size", "sizes", "sizes in pieces only"):
        table.add_column(name, justify="left" if name == "by" else "right")
    for hccl in Hccl:
        budget = report.budgets[hccl]
        table.add_row(
            f"formula, HCCL {hccl.value}{' (planned)' if hccl is report.hccl else ''}",
            str(budget.streams_per_size),
            str(budget.max_sizes),
            str(report.pieces[hccl].max_sizes),
        )
    if report.probe_streams is not None:
        table.add_row("probe capture", str(report.probe_streams), str(report.probe_max_sizes), "")
    return table


def _change_table(plan: GraphPlan) -> Table:
    table = Table(title="What was changed", title_justify="left")
    for name in ("setting", "asked", "got", "why"):
        table.add_column(name, overflow="fold")
    for change in plan.changes:
        table.add_row(change.what, change.asked, change.got, f"{change.why} ({change.rule})")
    return table


def _histogram_words(plan: GraphPlan) -> list[str]:
    read = plan.request.histogram
    if read is None:
        return []
    used = read.requests(plan.request.width, plan.request.max_requests)
    lines = [f"histogram: {read.kind}, {sum(used.counts.values()):,} decode steps"]
    lines += [f"histogram: {count:,} steps left out: {why}" for why, count in used.left_out.items()]
    if read.skipped:
        lines.append(f"histogram: {len(read.skipped):,} line{'s' * (len(read.skipped) > 1)} skipped")
        lines += [f"histogram: {skipped}" for skipped in read.skipped[:_MOST_SKIPPED]]
    return lines

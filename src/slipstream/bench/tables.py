"""What people see after a generation or a benchmark: tables of rich, and the same figures as plain data."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from slipstream.engine.stats import EngineStats
from slipstream.graph.dispatch import MIXED
from slipstream.graph.modes import Route
from slipstream.graph.stats_text import graph_records, padding_counts
from slipstream.plan import Decision, EnginePlan


def phase_rows(stats: EngineStats) -> list[dict[str, Any]]:
    """Return one record for each phase and shape: route, rows, padding, time and share of the rounds' time."""
    reasons = stats.graphs.eager_reasons
    rows = []
    for (phase, bucket, width), counts in sorted(stats.graphs.phases.items()):
        runs = counts.replays + counts.eager
        why = [reason.removeprefix(f"{phase}: ") for reason in reasons if reason.startswith(f"{phase}: ")]
        rows.append(
            {
                "phase": phase,
                "route": "replay" if not counts.eager else "eager" if not counts.replays else "both",
                "reason": "; ".join(why) if counts.eager else "captured",
                "bucket": bucket,
                "width": width,
                "runs": runs,
                "rows": counts.rows,
                "padded_rows": counts.padded_rows,
                "ms_per_run": counts.time_ns / runs / 1e6,
                "ms": counts.time_ns / 1e6,
                "share": counts.time_ns / stats.round_ns if stats.round_ns else 0.0,
            }
        )
    return rows


def round_table(stats: EngineStats) -> Table:
    """Return the table of phases."""
    table = Table(title="Where the time of the rounds went", title_justify="left")
    for name in ("phase", "route", "reason"):
        table.add_column(name)
    for name in ("bucket", "width", "runs", "rows", "padded", "ms/run", "ms", "share"):
        table.add_column(name, justify="right")
    for row in phase_rows(stats):
        table.add_row(
            row["phase"],
            row["route"],
            row["reason"],
            str(row["bucket"]),
            str(row["width"]),
            str(row["runs"]),
            str(row["rows"]),
            str(row["padded_rows"]),
            f"{row['ms_per_run']:.2f}",
            f"{row['ms']:.0f}",
            f"{row['share']:.1%}",
        )
    host_ms = (stats.round_ns - stats.graphs.phase_ns) / 1e6
    what = "plans, accept, schedule, publish"
    table.add_row("host", "", what, "", "", "", "", "", "", f"{host_ms:.0f}", f"{stats.host_share:.1%}")
    return table


def prefill_routes(stats: EngineStats) -> str:
    """Return how chunks of prompts ran, and why where they ran eagerly, for people."""
    chunks = [(dispatch, count) for dispatch, count in stats.graphs.runs() if dispatch.shape.phase in MIXED]
    parts = []
    replays = sum(count for dispatch, count in chunks if dispatch.route is Route.REPLAY)
    if replays:
        padded = sum(dispatch.padded_rows * count for dispatch, count in chunks)
        parts.append(f"replay, {replays} chunks in pieces, {padded} padded rows")
    for reason in dict.fromkeys(d.reason for d, _ in chunks if d.route is Route.EAGER):
        parts.append(f"eager ({reason})")
    return ", ".join(parts) or "none"


def graph_data(plan: EnginePlan, stats: EngineStats) -> dict[str, Any]:
    """Return everything of the graphs as plain data."""
    graphs = stats.graphs
    return {
        "mode": plan.graph_mode.value,
        "captures": graphs.captures,
        "capture_ms": graphs.capture_ns / 1e6,
        "padding": padding_counts(graphs),
        "eager": [
            {"phase": phase, "kind": kind.value, "count": count}
            for (phase, kind), count in graphs.eager_kinds().items()
        ],
        "never_replayed": [str(key) for _, key in graphs.never_replayed()],
        "graphs": graph_records(graphs),
    }


def speed(stats: EngineStats) -> float:
    """Return decode tokens a second: tokens of rounds over the time of rounds; 0 before the first."""
    return stats.round_tokens / stats.round_ns * 1e9 if stats.round_ns else 0.0


def kernel_ms(kernel_ns: dict[str, int]) -> dict[str, float]:
    """Return the kernels' times in milliseconds, for data."""
    return {kernel: spent / 1e6 for kernel, spent in kernel_ns.items()}


def kernel_shares(kernel_ns: dict[str, int]) -> str:
    """Return the kernels' shares of the time inside replays, largest first, for people."""
    total = sum(kernel_ns.values())
    ordered = sorted(kernel_ns.items(), key=lambda item: -item[1])
    return ", ".join(f"{kernel} {spent / total:.1%}" for kernel, spent in ordered if spent >= 0.005 * total)


def acceptance(stats: EngineStats) -> str:
    """Return the acceptance by position, for people."""
    shares = stats.acceptance_by_position
    return "  ".join(f"{i}: {share:.0%}" for i, share in enumerate(shares, 1)) or "no draft was verified"


def decision_table(decisions: tuple[Decision, ...]) -> Table:
    """Return the table of settings."""
    table = Table(title="Settings", title_justify="left")
    for name in ("setting", "asked", "got", "why"):
        table.add_column(name, overflow="fold")
    for decision in decisions:
        table.add_row(decision.what, decision.asked, decision.got, decision.why)
    return table


def console(*, error: bool = False) -> Console:
    """Return a console: plain and wide where the output is no terminal."""
    made = Console(stderr=error, highlight=False)
    return made if made.is_terminal else Console(stderr=error, highlight=False, width=140)

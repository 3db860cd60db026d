"""What graphs did, for people, for programs and for Prometheus. Pure: no torch.

padding_table(stats, mode, sizes)   vLLM's table of --cudagraph-metrics, markdown
graph_records(stats)                a record a graph, plain data
prometheus(stats)                   counters and gauges in Prometheus' text format
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from slipstream.graph.modes import GraphMode
from slipstream.graph.stats import GraphRecord, GraphStats

#: Phases that the table counts: the target's forwards, as in vLLM; drafts and extends have no steps of their
#: own there.
_FORWARDS = ("verify", "prefill")

_COLUMNS = ("Unpadded Tokens", "Padded Tokens", "Num Paddings", "Runtime Mode", "Count")

_PERCENTILES = (50, 90, 99)

_NS = 1e-9


def padding_counts(stats: GraphStats) -> list[tuple[int, int, int, str, int]]:
    """Return (tokens, padded tokens, paddings, runtime mode, count) of the target's forwards, by count."""
    counts = Counter[tuple[int, int, int, str]]()
    for dispatch, count in stats.runs():
        if dispatch.shape.phase in _FORWARDS:
            row = dispatch.rows, dispatch.shape.rows, dispatch.padded_rows, dispatch.mode.name
            counts[row] += count
    return [(*row, count) for row, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def padding_table(stats: GraphStats, mode: GraphMode, sizes: Sequence[int]) -> str:
    """Return vLLM's table: how many forwards of how many tokens were padded to what, in which mode.

    Args:
        stats: what happened.
        mode: the engine's.
        sizes: rows that were captured.
    """
    rows = [_COLUMNS, *(tuple(map(str, row)) for row in padding_counts(stats))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "-|-".join("-" * width for width in widths))
    table = "\n".join(f"|-{line}-|" if index == 1 else f"| {line} |" for index, line in enumerate(lines))
    settings = f"- Mode: {mode.name}\n- Capture sizes: {list(sizes)}"
    return f"**CUDAGraph Config Settings:**\n\n{settings}\n\n**CUDAGraph Stats:**\n\n{table}\n"


def captured_rows(stats: GraphStats) -> list[int]:
    """Return the rows of the target's graphs, ascending."""
    return sorted({key.rows for _, key in stats.graphs if key.phase in _FORWARDS})


def graph_records(stats: GraphStats) -> list[dict[str, Any]]:
    """Return everything of each graph as plain data, phase by phase."""
    records = []
    for (mode, key), record in sorted(
        stats.graphs.items(), key=lambda item: (item[0][1].phase, item[0][0].value, item[0][1].rows)
    ):
        records.append(
            {
                "phase": key.phase,
                "mode": mode.value,
                "graph": str(key),
                "rows": key.rows,
                "requests": key.num_reqs,
                "pieces": record.pieces,
                "captures": record.captures,
                "capture_ms": record.capture_ns / 1e6,
                "memory_bytes": record.memory_bytes,
                "streams": record.streams,
                "tasks": record.tasks,
                "update_ms": record.update_ns / 1e6,
                "wait_ms": record.wait_ns / 1e6,
                "replays": record.replays,
                "raw_rows": record.raw_rows,
                "padded_rows": record.padded_rows,
                **{f"replay_ms_p{p}": record.percentile_ns(p) / 1e6 for p in _PERCENTILES},
            }
        )
    return records


#: Families with one sample a graph: name, kind, help, and what is told of its record.
_OF_A_GRAPH: tuple[tuple[str, str, str, Callable[[GraphRecord], float]], ...] = (
    ("graph_replays_total", "counter", "Replays of a graph.", lambda record: record.replays),
    ("graph_rows_total", "counter", "Rows of batches that a graph replayed.", lambda record: record.raw_rows),
    (
        "graph_rows_padded_total",
        "counter",
        "Rows of replays that belonged to no request.",
        lambda record: record.padded_rows,
    ),
    (
        "graph_captures_total",
        "counter",
        "Captures of a graph; more than one after a sleep.",
        lambda record: record.captures,
    ),
    ("graph_capture_seconds_total", "counter", "Time of captures.", lambda record: record.capture_ns * _NS),
    ("graph_memory_bytes", "gauge", "Memory that a graph holds alone.", lambda record: record.memory_bytes),
    ("graph_tasks", "gauge", "Updatable ops of a graph.", lambda record: record.tasks),
    (
        "graph_update_seconds_total",
        "counter",
        "Host time of refreshing tasks.",
        lambda record: record.update_ns * _NS,
    ),
    (
        "graph_wait_seconds_total",
        "counter",
        "Host time of waiting before replays.",
        lambda record: record.wait_ns * _NS,
    ),
)


def prometheus(stats: GraphStats, prefix: str = "slipstream") -> str:
    """Return the same as counters and gauges in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, object], float]]) -> None:
        lines.append(f"# HELP {prefix}_{name} {text}")
        lines.append(f"# TYPE {prefix}_{name} {kind}")
        for labels, value in samples:
            shown = ",".join(f'{label}="{_escaped(str(given))}"' for label, given in labels.items())
            lines.append(f"{prefix}_{name}{{{shown}}} {value:g}")

    graphs = list(_labelled(stats))
    for name, kind, text, value in _OF_A_GRAPH:
        family(name, kind, text, ((of, value(record)) for of, record in graphs))
    family(
        "graph_replay_seconds",
        "summary",
        "Time of the newest replays, from launch to return.",
        (
            ({**of, "quantile": percent / 100}, record.percentile_ns(percent) * _NS)
            for of, record in graphs
            for percent in _PERCENTILES
        ),
    )
    family(
        "graph_eager_total",
        "counter",
        "Steps of a phase that no graph ran, by the kind of reason.",
        (
            ({"phase": phase, "reason": kind.value}, count)
            for (phase, kind), count in sorted(
                stats.eager_kinds().items(), key=lambda item: (item[0][0], item[0][1].value)
            )
        ),
    )
    family(
        "graph_padding_total",
        "counter",
        "The target's forwards by tokens, padded tokens and runtime mode.",
        (
            ({"unpadded": raw, "padded": padded, "mode": mode}, count)
            for raw, padded, _, mode, count in padding_counts(stats)
        ),
    )
    return "\n".join(lines) + "\n"


def _labelled(stats: GraphStats) -> Iterator[tuple[dict[str, object], Any]]:
    for (mode, key), record in stats.graphs.items():
        yield {"phase": key.phase, "mode": mode.value, "graph": str(key)}, record


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

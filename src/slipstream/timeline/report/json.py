"""Everything as plain data with stable keys. Times are integers or means in nanoseconds, from the trace's begin.

docs/trace.md lists the keys. A key is never renamed or taken away without a higher `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slipstream.timeline.analysis import Analysis, RoundReport
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.path import NO_EDGE, Piece
from slipstream.timeline.report.overview import Overview, rank_lines
from slipstream.timeline.report.quality import merged_notes
from slipstream.timeline.report.verdict import verdict
from slipstream.timeline.rounds import Phase
from slipstream.timeline.stats import Stats
from slipstream.timeline.table import Source, SourceFile

SCHEMA: Final = 1

Data = dict[str, Any]


def analysis_data(
    analysis: Analysis, views: Mapping[int, Overview], rank: int, number: int | None = None
) -> Data:
    """Return an analysis as plain data.

    Args:
        analysis: of a trace.
        views: of every rank.
        rank: the one that the verdict is of.
        number: the one round of that rank to tell of, with every piece of its path; all rounds by default.
    """
    table = analysis.timeline
    lines = rank_lines(analysis, views)
    return {
        "schema": SCHEMA,
        "rank": rank,
        "verdict": verdict(views[rank], next(line for line in lines if line.rank == rank)),
        "base_ns": table.base_ns,
        "sources": [source_data(source) for source in table.sources],
        "ranks": [
            {
                "rank": line.rank,
                "evidence": analysis.rounds.evidence.get(line.rank, ""),
                "overview": overview_data(views[line.rank]),
                "caused_wait_ns": line.caused_ns,
                "waited_ns": line.stood_ns,
                "last_to_come": line.last,
                "summary": {
                    name: stats_data(stats) for name, stats in analysis.summary.get(line.rank, {}).items()
                },
                "rounds": [
                    round_data(analysis, report, pieces=number is not None)
                    for report in analysis.reports[line.rank]
                    if number is None or (line.rank == rank and report.round.number == number)
                ],
            }
            for line in lines
        ],
        "rounds_source": _source(analysis.rounds.source),
        "quality": quality_data(analysis),
    }


def overview_data(view: Overview) -> Data:
    """Return one rank's overview."""
    return {
        "kind": view.kind.value,
        "rounds": [report.round.number for report in view.reports],
        "round_ns": stats_data(view.took),
        "busy_share": view.busy,
        "inside": [{"name": name, "share": share} for name, share in view.inside],
        "path": [
            {
                "label": part.label,
                "rounds": part.rounds,
                "share": part.share,
                "ns": stats_data(part.stats),
                "device_share": part.work,
                "host_share": part.host,
                "delay_share": part.delay,
                "unexplained_share": part.unknown,
                "host": part.host_name,
            }
            for part in view.parts
        ],
        "spent": [
            {"what": entry.value, "name": name, "ns_per_round": ns, "share": ns * len(view.reports) / total}
            for (entry, name), ns in sorted(view.ledger.per_round().items(), key=lambda item: -item[1])
            if (total := view.ledger.total_ns)
        ],
        "rests_on": [
            {"edge": _edge(edge), "confidence": _sure(sure), "share": share}
            for edge, sure, share in view.rests_on
        ],
        "communication": [
            {
                "what": part.what,
                "operations_per_round": part.count,
                "total_ns": part.total_ns,
                "covered_ns": part.covered_ns,
                "exposed_ns": part.exposed_ns,
            }
            for part in view.communication
        ],
        "padding": [
            {
                "phase": item.phase,
                "rounds": item.rounds,
                "rows": item.rows,
                "padded_rows": item.padded_rows,
                "cost_ns": item.cost_ns,
                "at_most": item.at_most,
            }
            for item in view.padding
        ],
        "routes": {
            name: {route.value: count for route, count in routes.items()}
            for name, routes in view.routes.items()
        },
        "advanced": view.advanced,
        "token_ns": view.token_ns,
    }


def source_data(source: SourceFile) -> Data:
    """Return what is told of one file that was read."""
    return {
        "path": source.path,
        "format": source.format,
        "rank": source.rank,
        "read": source.read,
        "rows": source.rows,
        "marks": source.marks,
        "dropped": dict(source.dropped),
    }


def round_data(analysis: Analysis, report: RoundReport, *, pieces: bool = False) -> Data:
    """Return one round; with every piece of its path if asked."""
    item = report.round
    return {
        "number": item.number,
        "kind": item.kind.value,
        "why": item.why,
        "start_ns": item.start_ns,
        "end_ns": item.end_ns,
        "took_ns": item.took_ns,
        "facts": dict(item.facts),
        "advanced": None if report.advanced is None else list(report.advanced),
        "token_ns": report.cost_ns,
        "phases": [_phase(analysis, phase) for phase in item.phases],
        "path": _path(analysis, report, pieces=pieces),
        "communication": [
            {
                "what": part.what,
                "operations": part.count,
                "total_ns": part.total_ns,
                "covered_ns": part.covered_ns,
                "exposed_ns": part.exposed_ns,
            }
            for part in report.communication
        ],
        "joins": _joins(analysis, report),
        "bubbles": _bubbles(analysis, report),
        "answers": [
            {
                "question": answer.question,
                "known": answer.known,
                "text": answer.text,
                "values": dict(answer.values),
                "source": _source(answer.source),
            }
            for answer in report.answers
        ],
    }


def _path(analysis: Analysis, report: RoundReport, *, pieces: bool) -> Data:
    path = report.path
    data: Data = {
        "ns": path.length_ns,
        **{f"{_PIECES[piece]}_ns": ns for piece, ns in path.by_piece().items()},
        "parts": [
            {
                "label": part.label,
                "seam": part.seam,
                "ns": part.took_ns,
                "device_ns": part.work_ns,
                "host_ns": part.host_ns,
                "delay_ns": part.delay_ns,
                "unexplained_ns": part.unknown_ns,
                "host": dict(part.host.most_common()),
                "meanwhile": dict(part.meanwhile.most_common()),
            }
            for part in report.parts
        ],
        "rests_on": [
            {"edge": _edge(edge), "confidence": _sure(sure), "ns": ns}
            for (edge, sure), ns in report.rests_on.items()
        ],
    }
    if pieces:
        columns = (path.starts_ns, path.ends_ns, path.row, path.piece, path.edge, path.confidence)
        data["pieces"] = [
            {
                "start_ns": start,
                "end_ns": end,
                "piece": _PIECES[Piece(piece)],
                "row": _row(analysis, row),
                "edge": _edge(edge),
                "confidence": _sure(sure),
            }
            for start, end, row, piece, edge, sure in zip(*(c.tolist() for c in columns), strict=True)
        ]
    return data


def _joins(analysis: Analysis, report: RoundReport) -> list[Data]:
    return [
        {
            "row": _row(analysis, join.row),
            "branch": _row(analysis, join.branch),
            "other": _row(analysis, join.other),
            "since_ns": join.since_ns,
            "waited_ns": join.waited_ns,
            "edge": _edge(join.kind),
            "confidence": _sure(join.confidence),
            "on_path": join.on_path,
            "side_by_side": join.side_by_side,
        }
        for join in report.joins
    ]


def _bubbles(analysis: Analysis, report: RoundReport) -> list[Data]:
    return [
        {
            "stream": analysis.timeline.streams[hole.stream].name,
            "start_ns": hole.start_ns,
            "idle_ns": hole.idle_ns,
            "before": _row(analysis, hole.row),
            "waited_for": _row(analysis, hole.waited),
            "edge": _edge(hole.edge),
            "confidence": _sure(hole.confidence),
        }
        for hole in report.bubbles
    ]


_PIECES = {
    Piece.WORK: "device",
    Piece.HOST: "host",
    Piece.DELAY: "delay",
    Piece.UNKNOWN: "unexplained",
}


def _phase(analysis: Analysis, phase: Phase) -> Data:
    graphs = analysis.timeline.graphs
    return {
        "name": phase.name,
        "start_ns": phase.start_ns,
        "end_ns": phase.end_ns,
        "span_ns": phase.span_ns,
        "busy_ns": phase.busy_ns,
        "operations": len(phase.rows),
        "route": phase.route.value,
        "facts": dict(phase.facts),
        "told": list(phase.told),
        "graphs": [graphs[graph].key for graph in phase.graphs],
    }


def _row(analysis: Analysis, row: int) -> Data | None:
    if row < 0:
        return None
    table = analysis.timeline
    stream = table.streams[int(analysis.deps.place[row])]
    return {
        "name": table.name_of(row),
        "stream": stream.name,
        "rank": stream.rank,
        "start_ns": int(table.start_ns[row]),
        "end_ns": int(table.end_ns[row]),
    }


def quality_data(analysis: Analysis) -> Data:
    """Return the quality of the data."""
    quality = analysis.quality
    return {
        "device_operations": quality.work,
        "launched_share": quality.launched_share,
        "inferred_kinds": quality.inferred_kinds,
        "edges": {_edge(kind): count for kind, count in quality.edges.items()},
        "inferred_edges": quality.inferred_edges,
        "guessed_edges": quality.guessed_edges,
        "totals": [
            {
                "rank": total.rank,
                "span_ns": total.span_ns,
                "busy_ns": total.busy_ns,
                "idle_ns": total.idle_ns,
                "computing_ns": total.computing_ns,
                "communication_ns": total.communication_ns,
                "covered_ns": total.covered_ns,
                "exposed_ns": total.exposed_ns,
                "copying_ns": total.copying_ns,
            }
            for total in quality.totals
        ],
        "vendor": [
            {"rank": rank, "what": what, "vendor_ns": said, "ours_ns": ours}
            for rank, what, said, ours in quality.vendor
        ],
        "clocks": [
            {
                "rank": clock.rank,
                "moved_ns": clock.moved_ns,
                "drift_ppm": clock.drift_ppm,
                "collectives": clock.collectives,
                "spread_ns": clock.spread_ns,
            }
            for clock in analysis.timeline.clocks
        ],
        "notes": [{"what": what, "text": text} for what, text in merged_notes(quality.notes)],
    }


def stats_data(stats: Stats) -> Data:
    """Return a number over rounds."""
    return {
        "count": stats.count,
        "median": stats.median,
        "p90": stats.p90,
        "low": stats.low,
        "high": stats.high,
        "outliers": list(stats.outliers),
    }


def _edge(kind: int) -> str:
    return "none" if kind == NO_EDGE else EdgeKind(kind).name.lower()


def _sure(confidence: int) -> str:
    return Confidence(confidence).name.lower()


def _source(source: Source) -> str:
    return source.name.lower()

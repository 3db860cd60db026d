"""What a page says of rounds, in plain values for JSON; rows are positions on the page, times ns of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.timeline.analysis import Analysis, RoundReport
from slipstream.timeline.breakdown import Stretch
from slipstream.timeline.question import QUESTIONS, Answer
from slipstream.timeline.report.choice import Chosen
from slipstream.timeline.report.json import source_data
from slipstream.timeline.report.pack import EXACT
from slipstream.timeline.report.quality import grouped_notes
from slipstream.timeline.report.scene import Scene
from slipstream.timeline.report.words import host_name
from slipstream.timeline.stats import Stats
from slipstream.timeline.table import Source
from slipstream.timeline.wording import ranks_named

#: Of the host's operations in a part of a path, so many are named.
_HOST_NAMES = 8
#: Arguments of so many rows are carried.
_MOST_DETAILS = 20_000

Plain = dict[str, Any]


def page_model(analysis: Analysis, chosen: Chosen, scene: Scene) -> tuple[Plain, dict[str, Any]]:
    """Return the description of a page, and the columns of its paths.

    Path columns are those of the ranks one after another; "path" of a round says which pieces are its own.
    """
    table = analysis.timeline
    pieces: list[RoundReport] = []
    at = 0
    rounds: dict[str, list[Plain]] = {}
    for rank, reports in analysis.reports.items():
        made = rounds.setdefault(str(rank), [])
        for report in reports:
            here = (rank, report.round.number) in chosen.rounds
            made.append(_round(report, scene, here, at))
            if here:
                pieces.append(report)
                at += len(report.path)
    model: Plain = {
        "ranks": list(analysis.reports) or list(table.ranks),
        "lanes": scene.lanes,
        "names": scene.names,
        "shorts": scene.shorts,
        "groups": [{"name": group.name, "ranks": group.ranks} for group in table.groups],
        "graphs": [{"key": g.key, "nodes": g.nodes, "source": int(g.source)} for g in table.graphs],
        "rounds": rounds,
        "summary": {
            str(rank): {name: _stats(stats) for name, stats in named.items()}
            for rank, named in analysis.summary.items()
        },
        "evidence": {str(rank): text for rank, text in analysis.rounds.evidence.items()},
        "marked": analysis.rounds.source is Source.GIVEN,
        "questions": QUESTIONS,
        "quality": _quality(analysis),
        "details": _details(analysis, chosen, scene),
        "leftOut": chosen.left_out,
        "baseNs": str(table.base_ns),
        "range": _range(analysis),
    }
    return model, _path_columns(pieces, scene)


def _range(analysis: Analysis) -> tuple[int, int]:
    """Return the time from the first to the last operation."""
    table = analysis.timeline
    return (int(table.start_ns[0]), int(table.end_ns.max())) if len(table) else (0, 1)


def _round(report: RoundReport, scene: Scene, here: bool, at: int) -> Plain:
    item = report.round
    return {
        "n": item.number,
        "kind": item.kind.value,
        "counts": item.counts,
        "why": item.why,
        "start": item.start_ns,
        "end": item.end_ns,
        "facts": _plain(item.facts),
        "here": here,
        "path": (at, at + len(report.path)) if here else (0, 0),
        "sums": list(report.path.by_piece().values()),
        "phases": [
            {
                "name": phase.name,
                "start": phase.start_ns,
                "end": phase.end_ns,
                "busy": phase.busy_ns,
                "route": phase.route.value,
                "ops": len(phase.rows),
                "facts": _plain(phase.facts),
            }
            for phase in item.phases
        ],
        "parts": [_part(part) for part in report.parts],
        "rests": [(int(edge), int(sure), ns) for (edge, sure), ns in report.rests_on.items()],
        "comm": [
            (part.what, part.count, part.total_ns, part.covered_ns, part.exposed_ns)
            for part in report.communication
        ],
        "joins": _joins(report, scene) if here else [],
        "bubbles": _bubbles(report, scene) if here else [],
        "answers": [_answer(answer) for answer in report.answers],
        "advanced": report.advanced,
        "cost": report.cost_ns,
    }


def _part(part: Stretch) -> Plain:
    return {
        "label": part.label,
        "seam": part.seam,
        "sums": (part.work_ns, part.host_ns, part.delay_ns, part.unknown_ns),
        "host": _host(part.host),
        "meanwhile": _host(part.meanwhile),
    }


def _host(names: Counter[str]) -> list[tuple[str, int]]:
    return [(host_name(name), ns) for name, ns in names.most_common(_HOST_NAMES)]


def _joins(report: RoundReport, scene: Scene) -> list[Plain]:
    rows = np.array([(join.row, join.branch, join.other) for join in report.joins], np.int64).reshape(-1, 3)
    return [
        {
            "row": row,
            "branch": branch,
            "other": other,
            "waited": join.waited_ns,
            "edge": join.kind,
            "sure": join.confidence,
            "onPath": bool(join.on_path),
            "beside": bool(join.side_by_side),
        }
        for join, (row, branch, other) in zip(report.joins, scene.at(rows).tolist(), strict=True)
    ]


def _bubbles(report: RoundReport, scene: Scene) -> list[Plain]:
    rows = np.array([(bubble.row, bubble.waited) for bubble in report.bubbles], np.int64).reshape(-1, 2)
    return [
        {
            "start": bubble.start_ns,
            "end": bubble.end_ns,
            "row": row,
            "waited": waited,
            "edge": bubble.edge,
            "sure": bubble.confidence,
        }
        for bubble, (row, waited) in zip(report.bubbles, scene.at(rows).tolist(), strict=True)
    ]


def _answer(answer: Answer) -> Plain:
    return {
        "q": answer.question,
        "text": answer.text,
        "values": dict(answer.values),
        "source": int(answer.source),
        "known": answer.known,
    }


def _stats(stats: Stats) -> Sequence[Any]:
    return (stats.count, stats.median, stats.p90, stats.low, stats.high, stats.outliers)


def _quality(analysis: Analysis) -> Plain:
    quality = analysis.quality
    return {
        "work": quality.work,
        "launched": quality.launched_share,
        "inferredKinds": quality.inferred_kinds,
        "edges": [(int(kind), count) for kind, count in quality.edges.items()],
        "inferredEdges": quality.inferred_edges,
        "guessedEdges": quality.guessed_edges,
        "totals": [
            {
                "rank": total.rank,
                "span": total.span_ns,
                "busy": total.busy_ns,
                "idle": total.idle_ns,
                "computing": total.computing_ns,
                "comm": total.communication_ns,
                "covered": total.covered_ns,
                "exposed": total.exposed_ns,
                "copying": total.copying_ns,
            }
            for total in quality.totals
        ],
        "vendor": quality.vendor,
        "notes": [
            (note.what, note.count, note.why, ranks_named(note.ranks) if len(note.ranks) else "")
            for note in grouped_notes(quality.notes)
        ],
        "sources": [source_data(source) for source in analysis.timeline.sources],
    }


def _details(analysis: Analysis, chosen: Chosen, scene: Scene) -> Mapping[str, Any]:
    """Return what else the trace says of rows, by their position on the page."""
    details = analysis.timeline.details
    carried = [row for row in details if scene.place[row] >= 0][:_MOST_DETAILS]
    return {str(int(scene.place[row])): _plain(details[row]) for row in carried}


def _plain(args: Mapping[str, object]) -> Plain:
    """Return what JSON holds and a page reads back unchanged: ids of many digits as text."""
    return {
        key: value if isinstance(value, float | str) or _is_exact(value) else str(value)
        for key, value in args.items()
        if value is not None
    }


def _is_exact(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= EXACT


def _path_columns(reports: Iterable[RoundReport], scene: Scene) -> dict[str, Any]:
    paths = [report.path for report in reports]

    def column(parts: Iterable[Any]) -> Any:
        return np.concatenate([np.zeros(0, np.int64), *parts])

    rows = column(path.row for path in paths).astype(np.int64)
    waited = column(path.waited for path in paths).astype(np.int64)
    starts = column(path.starts_ns for path in paths)
    return {
        "pathStart": starts,
        "pathDur": column(path.ends_ns for path in paths) - starts,
        "pathRow": scene.at(rows),
        "pathWaited": scene.at(waited),
        "pathPiece": column(path.piece for path in paths),
        "pathEdge": column(path.edge for path in paths),
        "pathSure": column(path.confidence for path in paths),
    }

"""What a reader should know of the data, in lines: the most important ones, or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.timeline.analysis import Analysis
from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.report.words import EDGES
from slipstream.timeline.table import Note
from slipstream.timeline.wording import counted, duration, percent, ranks_named

#: Words of notes by weight: the first change numbers, the last only say how they came about.
_WEIGHT = (
    "mixed",
    "truncated",
    "unreadable",
    "clocks",
    "dropped",
    "negative",
    "unresolved",
    "missing",
    "clipped",
    "unmatched",
    "repaired",
    "empty",
    "inferred",
)
_SHORT = 4
#: The vendor's totals and ours are the same within this.
_SAME_NS = 100


def quality_lines(analysis: Analysis, *, short: bool) -> list[str]:
    """Return lines on the data.

    Args:
        analysis: of the trace.
        short: the most important ones only.
    """
    lines = [_launched(analysis)]
    lines += vendor_lines(analysis)
    notes = merged_notes(analysis.quality.notes)
    lines += [f"{what}: {text}" for what, text in (notes[:_SHORT] if short else notes)]
    if short and len(notes) > _SHORT:
        lines.append(f"and {counted(len(notes) - _SHORT, 'more note')} (--details)")
    if not short:
        lines += _edges(analysis)
        for total in analysis.quality.totals:
            lines.append(
                f"rank {total.rank}: span {duration(total.span_ns)} = busy {duration(total.busy_ns)} + idle "
                f"{duration(total.idle_ns)}; computing {duration(total.computing_ns)}; communication "
                f"{duration(total.communication_ns)} = hidden {duration(total.covered_ns)} + exposed "
                f"{duration(total.exposed_ns)}; copies besides {duration(total.copying_ns)}"
            )
        for source in analysis.timeline.sources:
            lost = ", ".join(f"{reason} {count:,}" for reason, count in source.dropped.items())
            lines.append(
                f"{source.path} ({source.format}, rank {source.rank}): {source.read:,} read = "
                f"{counted(source.rows, 'operation')} + {counted(source.marks, 'annotation')} + "
                f"{counted(sum(source.dropped.values()), 'other')}{f' ({lost})' if lost else ''}"
            )
    return lines


def _launched(analysis: Analysis) -> str:
    quality = analysis.quality
    own = {source.format for source in analysis.timeline.sources} == {"slipstream"}
    if own and not quality.launched_share:
        return "Slipstream's own trace: the host issues and runs in one, so there are no launches to match"
    text = f"the launch of {percent(quality.launched_share)} of the device's time is in the trace"
    if quality.inferred_kinds:
        text += f"; what {counted(quality.inferred_kinds, 'operation')} are was inferred"
    return text


def vendor_lines(analysis: Analysis) -> list[str]:
    """Compare the vendor's own totals with ours."""
    vendor = analysis.quality.vendor
    if not vendor:
        return []
    if not len(analysis.timeline):
        return []
    partial = {total.rank for total in analysis.quality.totals if not total.computing_ns}
    apart = [
        (rank, word, said, ours)
        for rank, word, said, ours in vendor
        if abs(said - ours) > _SAME_NS and rank not in partial
    ]
    held = sorted({rank for rank, *_ in vendor} - partial)
    if not apart:
        words = sorted({word for _, word, _, _ in vendor})
        where = "" if len(held) == len(analysis.timeline.ranks) else f" ({ranks_named(held)})"
        return [f"the vendor's own totals ({', '.join(words)}) equal ours to 0.1 us{where}"] if held else []
    return [
        f"rank {rank}: the vendor says {word} {duration(said)}, the operations here give {duration(ours)}"
        for rank, word, said, ours in apart
    ]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Notes that say the same, of all ranks that have it: how often together, and of which ranks."""

    what: str
    why: str
    count: int
    ranks: tuple[int, ...]


def grouped_notes(notes: Sequence[Note]) -> list[Grouped]:
    """Return notes, those of all ranks that say the same as one, the weightiest first."""
    found: dict[tuple[str, str], list[Note]] = {}
    for note in notes:
        found.setdefault((note.what, note.why), []).append(note)
    grouped = [
        Grouped(
            what,
            why,
            sum(note.count for note in mine),
            tuple(sorted({note.rank for note in mine if note.rank is not None})),
        )
        for (what, why), mine in found.items()
    ]

    def weight(note: Grouped) -> tuple[int, int]:
        place = _WEIGHT.index(note.what) if note.what in _WEIGHT else len(_WEIGHT) - 1
        return place, -note.count

    return sorted(grouped, key=weight)


def merged_notes(notes: Sequence[Note]) -> list[tuple[str, str]]:
    """Return (what, text) of grouped notes."""
    lines = []
    for note in grouped_notes(notes):
        where = f"on {ranks_named(note.ranks)}" if len(note.ranks) > 1 else ""
        often = f"{note.count:,}" if note.count > 1 else ""
        more = f" ({' '.join(filter(None, (often, where)))})" if where or often else ""
        lines.append((note.what, f"{note.why}{more}"))
    return lines


def _edges(analysis: Analysis) -> list[str]:
    quality = analysis.quality
    kinds = ", ".join(
        f"{EDGES[kind]} {quality.edges[kind]:,}" for kind in EdgeKind if quality.edges.get(kind)
    )
    return [
        f"dependencies: {kinds or 'none'}; {quality.inferred_edges:,} of them inferred by a rule, "
        f"{quality.guessed_edges:,} guessed from times"
    ]

"""How good the data is: what is missing, what was concluded, and our totals against the vendor's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.overlap import covered_ns, union
from slipstream.timeline.table import Kind, Note, Source


@dataclass(frozen=True, slots=True)
class Totals:
    """One rank's device over the whole trace; busy + idle = span, covered + exposed = communication.

    Attributes:
        rank: whose.
        span_ns: from its first work to the end of its last.
        busy_ns, idle_ns: at least one stream works; none does.
        computing_ns: at least one kernel runs.
        communication_ns, covered_ns, exposed_ns: of communication, what kernels cover, what they do not.
        copying_ns: copies and sets that neither a kernel nor communication covers.
    """

    rank: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    computing_ns: int
    communication_ns: int
    covered_ns: int
    exposed_ns: int
    copying_ns: int


def totals(deps: Dependencies, rank: int, start_ns: int | None = None, end_ns: int | None = None) -> Totals:
    """Return one rank's totals, over the whole trace or a stretch of it."""
    table = deps.timeline
    rows = np.flatnonzero(table.is_work & (table.rank == rank))
    begin, end = table.start_ns[rows], table.end_ns[rows]
    low = start_ns if start_ns is not None else int(begin[0]) if len(rows) else 0  # rows ascend by start
    high = end_ns if end_ns is not None else int(end.max(initial=low))
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    kind = table.kind[rows]
    busy = union(begin, end)
    kernels = union(begin[kind == Kind.KERNEL], end[kind == Kind.KERNEL])
    comm = union(begin[kind == Kind.COMM], end[kind == Kind.COMM])
    both = union(
        begin[(kind == Kind.KERNEL) | (kind == Kind.COMM)], end[(kind == Kind.KERNEL) | (kind == Kind.COMM)]
    )
    covered = int(covered_ns(comm.start_ns, comm.end_ns, kernels).sum())
    return Totals(
        rank,
        high - low,
        busy.total_ns,
        high - low - busy.total_ns,
        kernels.total_ns,
        comm.total_ns,
        covered,
        comm.total_ns - covered,
        busy.total_ns - both.total_ns,
    )


@dataclass(frozen=True)
class Quality:
    """What a reader of an answer should know of the data.

    Attributes:
        work: rows of devices' work.
        launched_share: of the devices' work time, the part whose launch is in the trace.
        inferred_kinds: rows whose kind was concluded, not read.
        edges: how many there are of each kind.
        inferred_edges, guessed_edges: how many of them were concluded by a rule, or guessed.
        totals: by rank.
        vendor: (rank, the vendor's word, the vendor's ns, ours).
        notes: what readers and rules left out or repaired.
    """

    work: int
    launched_share: float
    inferred_kinds: int
    edges: dict[EdgeKind, int]
    inferred_edges: int
    guessed_edges: int
    totals: tuple[Totals, ...]
    vendor: tuple[tuple[int, str, int, int], ...]
    notes: tuple[Note, ...]


_VENDOR_WORDS = {
    "Computing": "computing_ns",
    "Communication": "communication_ns",
    "Overlapped": "covered_ns",
    "Communication(Not Overlapped)": "exposed_ns",
}


def quality(deps: Dependencies, notes: tuple[Note, ...] = ()) -> Quality:
    """Return the quality of a timeline and of what was concluded from it."""
    table = deps.timeline
    work = np.flatnonzero(table.is_work)
    took = table.dur_ns[work]
    launched = int(took[table.launch[work] >= 0].sum())
    mine = tuple(totals(deps, rank) for rank in table.ranks if (table.is_work & (table.rank == rank)).any())
    vendor: list[tuple[int, str, int, int]] = []
    for total in mine:
        steps = [step for step in table.vendor if step.rank == total.rank]
        for word, ours in _VENDOR_WORDS.items():
            said = [step.totals[word] for step in steps if word in step.totals]
            if said:
                vendor.append((total.rank, word, sum(said), int(getattr(total, ours))))
    sure = deps.edges.confidence
    return Quality(
        len(work),
        launched / int(took.sum()) if took.sum() else 0.0,
        int((table.kind_source[work] == Source.INFERRED).sum()),
        deps.count_by_kind(),
        int((sure == Confidence.INFERRED).sum()),
        int((sure == Confidence.GUESSED).sum()),
        mine,
        tuple(vendor),
        (*table.notes, *deps.notes, *notes),
    )

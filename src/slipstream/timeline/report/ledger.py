"""Where the critical paths of some rounds went, by name: an account whose entries sum to the rounds' time.

work        attention_kernel 41.2 us    ncclAllReduce 12.0 us
host        build_tree 80.0 us
delay       launches 4.1 us, stream order 1.9 us ...
idle        nothing known held the path up, here or on a rank whose kernels are not in the trace
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from slipstream.timeline.analysis import RoundReport
from slipstream.timeline.breakdown import family, short_name
from slipstream.timeline.path import Path, Piece
from slipstream.timeline.report.words import EDGES
from slipstream.timeline.table import Int32, Kind, Timeline

#: Unexplained time of ranks that show collectives, and no kernel.
NO_KERNELS: Final = "a rank whose kernels are not in the trace"


class Entry(StrEnum):
    """What a nanosecond of a path was spent on."""

    WORK = "device work"
    COMM = "communication"
    COPY = "copies"
    HOST = "host"
    DELAY = "delay"
    IDLE = "unexplained"


@dataclass
class Ledger:
    """The account of some rounds.

    Attributes:
        rounds: how many.
        total_ns: their paths together, which is the rounds' time.
        spent: time by (entry, name).
        meanwhile: what the host did in the time that is unexplained.
        count: operations of the work on the paths, by (entry, name).
    """

    rounds: int
    total_ns: int
    spent: Counter[tuple[Entry, str]] = field(default_factory=Counter)
    meanwhile: Counter[str] = field(default_factory=Counter)
    count: Counter[tuple[Entry, str]] = field(default_factory=Counter)

    def of(self, *entries: Entry) -> int:
        """Return the time of entries, all names together."""
        return sum(ns for (entry, _), ns in self.spent.items() if entry in entries)

    def share(self, *entries: Entry) -> float:
        """Return their share of the paths."""
        return self.of(*entries) / self.total_ns if self.total_ns else 0.0

    def names(self, *entries: Entry) -> list[tuple[str, int]]:
        """Return the names that the time of these entries went to, and how much, the largest first."""
        found: Counter[str] = Counter()
        for (entry, name), ns in self.spent.items():
            if entry in entries:
                found[name] += ns
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))

    def per_round(self) -> dict[tuple[Entry, str], float]:
        """Return the mean of each name over rounds; they sum to the mean round."""
        return {key: ns / self.rounds for key, ns in self.spent.items()} if self.rounds else {}


def ledger_of(timeline: Timeline, reports: Sequence[RoundReport]) -> Ledger:
    """Return the account of rounds.

    Args:
        timeline: the rows.
        reports: of the rounds.
    """
    account = Ledger(len(reports), sum(report.path.length_ns for report in reports))
    names: dict[int, tuple[Entry, str]] = {}
    blind = np.setdiff1d(timeline.rank, timeline.rank[timeline.on_device & (timeline.kind == Kind.KERNEL)])
    for report in reports:
        _work(timeline, report.path, account, names)
        _delays(timeline, report.path, account, blind)
        for part in report.parts:
            for name, ns in part.host.items():
                account.spent[Entry.HOST, name] += ns
            account.meanwhile.update(part.meanwhile)
    return account


def _work(timeline: Timeline, path: Path, account: Ledger, names: dict[int, tuple[Entry, str]]) -> None:
    mine = (path.piece == Piece.WORK) & (path.row >= 0)
    rows, took = path.row[mine], (path.ends_ns - path.starts_ns)[mine]
    # A name is of one kind almost always; where a user's rule says otherwise the kinds stay apart.
    keys = timeline.name[rows].astype(np.int64) * 16 + timeline.kind[rows]
    used, which = np.unique(keys, return_inverse=True)
    sums = np.bincount(which, took, len(used)).astype(np.int64).tolist()
    counts = np.bincount(which, minlength=len(used)).tolist()
    for key, ns, count in zip(used.tolist(), sums, counts, strict=True):
        if key not in names:
            names[key] = _entry(timeline.names[key // 16], Kind(key % 16))
        account.spent[names[key]] += ns
        account.count[names[key]] += count


def _entry(name: str, kind: Kind) -> tuple[Entry, str]:
    if kind == Kind.COMM:
        return Entry.COMM, family(name)
    if kind in (Kind.COPY, Kind.SET):
        return Entry.COPY, short_name(name).strip()
    return Entry.WORK, short_name(name).strip()


def _delays(timeline: Timeline, path: Path, account: Ledger, blind: Int32) -> None:
    took = path.ends_ns - path.starts_ns
    delay = path.piece == Piece.DELAY
    for edge in np.unique(path.edge[delay]).tolist():
        account.spent[Entry.DELAY, EDGES[edge]] += int(took[delay & (path.edge == edge)].sum())
    unknown = path.piece == Piece.UNKNOWN
    elsewhere = unknown & (path.row >= 0) & np.isin(timeline.rank[np.maximum(path.row, 0)], blind)
    for name, mine in (("nothing known held it up", unknown & ~elsewhere), (NO_KERNELS, elsewhere)):
        if mine.any():
            account.spent[Entry.IDLE, name] += int(took[mine].sum())

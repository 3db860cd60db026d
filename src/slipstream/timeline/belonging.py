"""Which phase each stretch of a path belongs to; what lies between two phases is the seam between them.

    device     [ draft ]                           [ verify ]
    thread     [mark: draft]   build_tree   [mark: verify   launch]
    path         draft         draft → verify    verify      verify

The device's work belongs to its own phase. The host's time belongs to the phase of the round whose mark it lies
in; outside of marks, or without any, a call belongs to the phase of what it launched. All else lies between what
is before it and what is behind it on the path: within a phase, or in a seam. So a host that holds every kernel up
is told of phase by phase too, though the path never comes to the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.timeline.dispatch import first_issued
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.host_marks import HostMarks
from slipstream.timeline.path import Path, Piece
from slipstream.timeline.rounds import Round, Rounds
from slipstream.timeline.table import Int32, Int64, UInt8

_PREVIOUS, _NEXT, _OUTSIDE = "previous round", "next round", "outside"
_NO_MARKS = HostMarks(())


@dataclass(frozen=True)
class Stretches:
    """A path, the host's pieces cut where marks begin and end: P of them, ascending, none empty.

    Attributes:
        start_ns, end_ns: int64 [P].
        row: int32 [P], as of the path.
        piece: uint8 [P], a Piece.
        names: of phases.
        before, after: int32 [P], into `names`: the phase before and the one behind; equal within a phase.
    """

    start_ns: Int64
    end_ns: Int64
    row: Int32
    piece: UInt8
    names: list[str]
    before: Int32
    after: Int32


class Belonging:
    """Says of the paths of a run's rounds what belongs to which phase."""

    def __init__(self, deps: Dependencies, rounds: Rounds) -> None:
        self._deps, self._rounds = deps, rounds
        self._marks = {
            rank: HostMarks(
                (phase.host, item.number, index)
                for item in items
                for index, phase in enumerate(item.phases)
                if phase.host is not None
            )
            for rank, items in rounds.of_rank.items()
        }
        self._issued = first_issued(deps.timeline)
        # What they do was asked for some time before, maybe under another mark.
        self._dispatchers = np.unique(deps.timeline.stream[deps.timeline.takings])

    def of(self, item: Round, path: Path) -> Stretches:
        """Return the stretches of the path of a round."""
        start, end, row, piece = self._cut(path)
        rank = self._rank(row)
        names: dict[str, int] = {}
        own = np.full(len(start), -1, np.int32)

        def assign(where: Int64, number: Int32, phase: Int32) -> None:
            key = number.astype(np.int64) << 32 | (phase + 1)  # one whole number for both
            for one in np.unique(rank[where]).tolist():
                mine = rank[where] == one
                keys, which = np.unique(key[mine], return_inverse=True)
                found = [self._name(item, one, k >> 32, (k & 0xFFFFFFFF) - 1) for k in keys.tolist()]
                numbers = np.array([names.setdefault(name, len(names)) for name in found], np.int32)
                own[where[mine]] = numbers[which]

        rounds = self._rounds
        work = np.flatnonzero((piece == Piece.WORK) & (row >= 0))
        number, phase = rounds.round_of[row[work]], rounds.phase_of[row[work]]
        # A record or a wait is no work of a phase: it lies between those around it.
        known = (phase >= 0) | (number < 0)
        assign(work[known], number[known], phase[known])
        host = np.flatnonzero((piece == Piece.HOST) & (row >= 0))
        under_marks = host[~np.isin(self._deps.timeline.stream[row[host]], self._dispatchers)]
        for one in np.unique(rank[under_marks]).tolist():
            mine = under_marks[rank[under_marks] == one]
            number, phase = self._of_rank(one).at(start[mine], self._deps.timeline.stream[row[mine]])
            here = number == item.number
            if here.any():
                assign(mine[here], number[here], phase[here])
        # A call's own time; what lies before it led from another call to it.
        calls = host[(own[host] < 0) & (start[host] >= self._deps.timeline.start_ns[row[host]])]
        issued = self._issued[row[calls]]
        known = (issued >= 0) & (rounds.round_of[issued] == item.number) & (rounds.phase_of[issued] >= 0)
        calls, issued = calls[known], issued[known]
        assign(calls, rounds.round_of[issued], rounds.phase_of[issued])
        return Stretches(start, end, row, piece, *_around(own, item, self._origin(item, path), names))

    def _origin(self, item: Round, path: Path) -> str | None:
        """Return the phase of this round that the path comes from: its host has launched it already, or None."""
        before = path.through[self._deps.timeline.start_ns[path.through] < path.start_ns]
        row = int(before[0]) if len(before) else int(path.through[-1]) if len(path.through) else -1
        if row < 0 or self._deps.timeline.on_device[row]:
            return None
        issued = int(self._issued[row])
        if issued < 0 or self._rounds.round_of[issued] != item.number or self._rounds.phase_of[issued] < 0:
            return None
        return self._name(
            item, int(self._deps.timeline.rank[row]), item.number, int(self._rounds.phase_of[issued])
        )

    def _cut(self, path: Path) -> tuple[Int64, Int64, Int32, UInt8]:
        """Return the pieces of a path, the host's cut at the edges of its marks."""
        start, end, row, piece = path.starts_ns, path.ends_ns, path.row, path.piece
        thread = np.where(
            (piece == Piece.HOST) & (row >= 0), self._deps.timeline.stream[np.maximum(row, 0)], -1
        )
        edges = [
            self._of_rank(self._deps.timeline.streams[one].rank).within(
                start[thread == one], end[thread == one], one
            )
            for one in np.setdiff1d(thread, self._dispatchers).tolist()
            if one >= 0
        ]
        if not any(map(len, edges)):
            return start, end, row, piece
        begins = np.unique(np.concatenate((start, *edges)))
        at = np.searchsorted(start, begins, side="right") - 1
        return begins, np.append(begins[1:], path.end_ns), row[at], piece[at]

    def _rank(self, row: Int32) -> Int32:
        return np.where(row >= 0, self._deps.timeline.rank[np.maximum(row, 0)], -1).astype(np.int32)

    def _of_rank(self, rank: int) -> HostMarks:
        return self._marks.get(rank, _NO_MARKS)

    def _name(self, item: Round, rank: int, number: int, index: int) -> str:
        """Name a phase, as seen from a round."""
        mine = self._rounds.of_rank.get(rank, ())
        if not 0 <= number < len(mine) or not 0 <= index < len(mine[number].phases):
            return _OUTSIDE
        if number == item.number:
            return mine[number].phases[index].name
        return _PREVIOUS if number < item.number else _NEXT


def _around(
    own: Int32, item: Round, origin: str | None, names: dict[str, int]
) -> tuple[list[str], Int32, Int32]:
    """Return all names, and for each stretch the number of the phase before it and of the one behind it."""
    at = np.arange(len(own))
    known = np.flatnonzero(own >= 0)
    first = int(own[known[0]]) if len(known) else names.setdefault(item.phases[0].name, len(names))
    last = int(own[known[-1]]) if len(known) else first
    start = names.setdefault(_PREVIOUS, len(names)) if item.number else first
    if origin is not None:
        start = names.setdefault(origin, len(names))
    end = names.setdefault(_NEXT, len(names)) if item.following >= 0 else last
    back = np.maximum.accumulate(np.where(own >= 0, at, -1))
    ahead = np.minimum.accumulate(np.where(own >= 0, at, len(own))[::-1])[::-1]
    padded = np.append(own, end)
    before = np.where(back >= 0, own[np.maximum(back, 0)], start).astype(np.int32)
    return list(names), before, padded[ahead].astype(np.int32)

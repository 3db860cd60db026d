"""The last accesses of a buffer, byte range by byte range, and the check of a new one against them.

An access is ordered after an earlier one if the clock of its actor has seen the earlier one's tick. What isn't
ordered is a race whatever order was run: the two could have come the other way round. This is FastTrack
(Flanagan and Freund, 2009) over byte ranges: a write forgets what it covers, since a later access that is
ordered after the write is ordered after everything the write was ordered after, and else races with the write.

Plain ranges live in `cells`, sorted and disjoint, each with one last write. Stepped regions live in `rows`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from slipstream.device.soft.machine.regions import Region, overlap, rows_meet

if TYPE_CHECKING:
    from slipstream.device.soft.machine.commands import Command

Clock = dict[int, int]

# How many former owners of a byte are remembered, and how many readers a cell holds before it is cut.
OWNERS = 16
READERS = 16


class Access(NamedTuple):
    """One access: who, when on its own clock, which bytes."""

    actor: int
    tick: int
    start: int
    stop: int
    region: Region
    command: Command


class Hit(NamedTuple):
    """Two accesses that have no order, or (`clobbered`) a read of bytes that another owner has since written."""

    earlier: Access
    earlier_writes: bool
    later: Access
    later_writes: bool
    clobbered: bool = False


class Cell:
    """The last write of a byte range, and the reads since."""

    __slots__ = ("over", "reads", "stop", "write")

    def __init__(
        self, stop: int, write: Access | None, reads: list[Access], over: tuple[int, ...] = ()
    ) -> None:
        self.stop, self.write, self.reads, self.over = stop, write, reads, over


class History:
    """The last accesses of one buffer."""

    __slots__ = ("cells", "rows", "starts")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget every access."""
        self.starts: list[int] = []
        self.cells: list[Cell] = []
        self.rows: list[tuple[Access, bool]] = []

    def read(self, access: Access, clock: Clock, hits: list[Hit]) -> None:
        """Check a read against what was written before, and remember it."""
        if self.rows:
            self._check_rows(access, False, clock, hits)
        if access.region.step:
            self._check_cells(access, False, clock, hits)
            self._keep_rows(access, False)
            return
        starts, start, stop = self.starts, access.start, access.stop
        at = bisect_right(starts, start) - 1
        if at >= 0 and stop <= self.cells[at].stop:
            cell = self.cells[at]
            _read_cell(cell, access, clock, hits)
            if len(cell.reads) > READERS and (start > starts[at] or stop < cell.stop):
                self._cut(at, start)
                self._cut(bisect_right(starts, stop) - 1, stop)
            return
        self._read_many(max(at, 0), access, clock, hits)

    def write(self, access: Access, clock: Clock, hits: list[Hit]) -> None:
        """Check a write against all accesses before, and remember it in their place."""
        if self.rows:
            self._check_rows(access, True, clock, hits)
        if access.region.step:
            self._check_cells(access, True, clock, hits)
            self._keep_rows(access, True)
            return
        starts, cells, start, stop = self.starts, self.cells, access.start, access.stop
        at = bisect_left(starts, start)
        if at < len(starts) and starts[at] == start and cells[at].stop == stop:
            cell = cells[at]
            _write_cell(cell, access, clock, hits)
            cell.over = _owners_over(cell, access, cell.over)
            cell.write = access
            if cell.reads:
                cell.reads = []
            return
        self._write_many(at, access, clock, hits)

    def _read_many(self, at: int, access: Access, clock: Clock, hits: list[Hit]) -> None:
        starts, cells, here, stop = self.starts, self.cells, access.start, access.stop
        while here < stop:
            if at < len(starts) and starts[at] <= here:
                if cells[at].stop > here:
                    _read_cell(cells[at], access, clock, hits)
                    here = cells[at].stop
                at += 1
                continue
            gap_end = min(stop, starts[at]) if at < len(starts) else stop
            starts.insert(at, here)
            cells.insert(at, Cell(gap_end, None, [access]))
            here = gap_end
            at += 1

    def _write_many(self, at: int, access: Access, clock: Clock, hits: list[Hit]) -> None:
        starts, cells, start, stop = self.starts, self.cells, access.start, access.stop
        low = at - 1 if at and cells[at - 1].stop > start else at
        high = bisect_left(starts, stop, low)
        new_starts, new_cells = [start], [Cell(stop, access, [])]
        over: tuple[int, ...] = ()
        for index in range(low, high):
            cell = cells[index]
            _write_cell(cell, access, clock, hits)
            over = _owners_over(cell, access, over + cell.over)
        if low < high and starts[low] < start:
            left = cells[low]
            new_starts.insert(0, starts[low])
            new_cells.insert(0, _part(left, starts[low], start))
        if low < high and cells[high - 1].stop > stop:
            right = cells[high - 1]
            new_starts.append(stop)
            new_cells.append(_part(right, stop, right.stop))
        new_cells[1 if new_starts[0] < start else 0].over = over
        starts[low:high] = new_starts
        cells[low:high] = new_cells

    def _cut(self, at: int, where: int) -> None:
        if self.starts[at] < where < self.cells[at].stop:
            cell = self.cells[at]
            self.starts.insert(at + 1, where)
            self.cells[at : at + 1] = [
                _part(cell, self.starts[at], where),
                _part(cell, where, cell.stop),
            ]

    def _check_cells(self, access: Access, writes: bool, clock: Clock, hits: list[Hit]) -> None:
        at = max(bisect_right(self.starts, access.start) - 1, 0)
        for index in range(at, bisect_left(self.starts, access.stop)):
            cell = self.cells[index]
            if not rows_meet(access.region, self.starts[index], cell.stop):
                continue
            if cell.write is not None and _unordered(cell.write, access, clock):
                hits.append(Hit(cell.write, True, access, writes))
            if writes:
                for read in cell.reads:
                    if _unordered(read, access, clock) and rows_meet(access.region, read.start, read.stop):
                        hits.append(Hit(read, False, access, True))

    def _check_rows(self, access: Access, writes: bool, clock: Clock, hits: list[Hit]) -> None:
        covers = writes and not access.region.step
        covered = False
        for earlier, wrote in self.rows:
            if covers and access.start <= earlier.start and earlier.stop <= access.stop:
                covered = True
            if not (writes or wrote) or not _unordered(earlier, access, clock):
                continue
            if overlap(earlier.region, access.region):
                hits.append(Hit(earlier, wrote, access, writes))
        if covered:
            start, stop = access.start, access.stop
            self.rows = [row for row in self.rows if not (start <= row[0].start and row[0].stop <= stop)]

    def _keep_rows(self, access: Access, writes: bool) -> None:
        region, actor = access.region, access.actor
        kept = []
        for row in self.rows:
            same = row[0].region[1:5] == region[1:5]
            if same and (writes or (not row[1] and row[0].actor == actor)):
                continue
            kept.append(row)
        kept.append((access, writes))
        self.rows = kept


def _unordered(earlier: Access, later: Access, clock: Clock) -> bool:
    return earlier.actor != later.actor and earlier.tick > clock.get(earlier.actor, 0)


def _read_cell(cell: Cell, access: Access, clock: Clock, hits: list[Hit]) -> None:
    write = cell.write
    actor = access.actor
    if write is not None:
        if write.actor != actor and write.tick > clock.get(write.actor, 0):
            hits.append(Hit(write, True, access, False))
        elif cell.over:
            owner = access.region.owner
            writer = write.region.owner
            if owner and writer and writer != owner and owner in cell.over:
                hits.append(Hit(write, True, access, False, True))
    reads = cell.reads
    start, stop = access.start, access.stop
    for index, read in enumerate(reads):
        if read.actor == actor and start <= read.start and read.stop <= stop:
            reads[index] = access
            return
    reads.append(access)


def _write_cell(cell: Cell, access: Access, clock: Clock, hits: list[Hit]) -> None:
    write = cell.write
    actor = access.actor
    if write is not None and write.actor != actor and write.tick > clock.get(write.actor, 0):
        hits.append(Hit(write, True, access, True))
    start, stop = access.start, access.stop
    for read in cell.reads:
        if read.actor == actor or read.tick <= clock.get(read.actor, 0):
            continue
        if read.start < stop and start < read.stop:
            hits.append(Hit(read, False, access, True))


def _owners_over(cell: Cell, access: Access, over: tuple[int, ...]) -> tuple[int, ...]:
    owner = access.region.owner
    if owner and cell.write is not None:
        former = cell.write.region.owner
        if former and former != owner:
            over = (*over[-OWNERS:], former)
    if owner in over:
        over = tuple(one for one in over if one != owner)
    return over


def _part(cell: Cell, start: int, stop: int) -> Cell:
    reads = [read for read in cell.reads if read.start < stop and start < read.stop]
    return Cell(stop, cell.write, reads, cell.over)

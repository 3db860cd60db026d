"""The last accesses of a buffer, byte range by byte range, and the check of a new one against them.

An access is ordered after an earlier one if the clock of its actor has seen the earlier one's tick. What isn't
ordered is a race whatever order was run: the two could have come the other way round. This is FastTrack
(Flanagan and Freund, 2009) over byte ranges: a write forgets what it covers, since a later access that is
ordered after the write is ordered after everything the write was ordered after, and else races with the write.

Plain ranges live in `cells`, sorted and disjoint, each with one last write. Stepped regions live in `rows`,
by their shape.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from slipstream.device.soft.machine.regions import Region, overlap, rows_meet

if TYPE_CHECKING:
    from slipstream.device.soft.machine.commands import Command

Clock = dict[int, int]

# How many former owners of a byte are remembered, and how many readers a cell holds before it is cut.
OWNERS = 16
READERS = 16


# One access: who, when on its own clock, from byte, to byte, the region, the command. A plain tuple, taken apart
# by position: two or three are made for each command that runs.
Access = tuple[int, int, int, int, Region, "Command"]
ACTOR: Final = 0
TICK: Final = 1
START: Final = 2
STOP: Final = 3
REGION: Final = 4
COMMAND: Final = 5


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
        self.rows: dict[tuple[int, int, int, int], list[tuple[Access, bool]]] = {}

    def read(self, access: Access, clock: Clock, hits: list[Hit]) -> None:
        """Check a read against what was written before, and remember it."""
        _, _, start, stop, region, _ = access
        if self.rows:
            self._check_rows(access, False, clock, hits)
        if region[3]:
            self._check_cells(access, False, clock, hits)
            self._keep_rows(access, False)
            return
        starts = self.starts
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
        actor, _, start, stop, region, _ = access
        if self.rows:
            self._check_rows(access, True, clock, hits)
        if region[3]:
            self._check_cells(access, True, clock, hits)
            self._keep_rows(access, True)
            return
        starts, cells = self.starts, self.cells
        at = bisect_left(starts, start)
        if at < len(starts) and starts[at] == start and cells[at].stop == stop:
            cell = cells[at]
            reads = cell.reads
            if len(reads) == 1 and reads[0][0] == actor and cell.write is not None and cell.write[0] == actor:
                reads.clear()
            else:
                _write_cell(cell, access, clock, hits)
                if reads:
                    cell.reads = []
            if region[5]:
                cell.over = _owners_over(cell, access, cell.over)
            cell.write = access
            return
        self._write_many(at, access, clock, hits)

    def _read_many(self, at: int, access: Access, clock: Clock, hits: list[Hit]) -> None:
        starts, cells, here, stop = self.starts, self.cells, access[START], access[STOP]
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
        starts, cells, start, stop = self.starts, self.cells, access[START], access[STOP]
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
        region = access[REGION]
        at = max(bisect_right(self.starts, access[START]) - 1, 0)
        for index in range(at, bisect_left(self.starts, access[STOP])):
            cell = self.cells[index]
            if not rows_meet(region, self.starts[index], cell.stop):
                continue
            if cell.write is not None and _unordered(cell.write, access, clock):
                hits.append(Hit(cell.write, True, access, writes))
            if writes:
                for read in cell.reads:
                    if _unordered(read, access, clock) and rows_meet(region, read[START], read[STOP]):
                        hits.append(Hit(read, False, access, True))

    def _check_rows(self, access: Access, writes: bool, clock: Clock, hits: list[Hit]) -> None:
        actor, _, start, stop, region, _ = access
        for same in self.rows.values():
            for earlier, wrote in same:
                if earlier[0] == actor or earlier[1] <= clock.get(earlier[0], 0):
                    continue
                if (writes or wrote) and overlap(earlier[REGION], region):
                    hits.append(Hit(earlier, wrote, access, writes))
        if writes and not region.step:
            for shape in [shape for shape in self.rows if start <= shape[0] and shape[1] <= stop]:
                del self.rows[shape]

    def _keep_rows(self, access: Access, writes: bool) -> None:
        shape, actor = access[REGION][1:5], access[ACTOR]
        kept = [] if writes else [row for row in self.rows.get(shape, ()) if row[1] or row[0][ACTOR] != actor]
        self.rows[shape] = [*kept, (access, writes)]


def _unordered(earlier: Access, later: Access, clock: Clock) -> bool:
    return earlier[ACTOR] != later[ACTOR] and earlier[TICK] > clock.get(earlier[ACTOR], 0)


def _read_cell(cell: Cell, access: Access, clock: Clock, hits: list[Hit]) -> None:
    write = cell.write
    actor, _, start, stop, region, _ = access
    if write is not None:
        if write[0] != actor and write[1] > clock.get(write[0], 0):
            hits.append(Hit(write, True, access, False))
        elif cell.over:
            owner, writer = region.owner, write[REGION].owner
            if owner and writer and writer != owner and owner in cell.over:
                hits.append(Hit(write, True, access, False, True))
    reads = cell.reads
    for index, read in enumerate(reads):
        if read[0] == actor and start <= read[2] and read[3] <= stop:
            reads[index] = access
            return
    reads.append(access)


def _write_cell(cell: Cell, access: Access, clock: Clock, hits: list[Hit]) -> None:
    write = cell.write
    actor, _, start, stop, _, _ = access
    if write is not None and write[0] != actor and write[1] > clock.get(write[0], 0):
        hits.append(Hit(write, True, access, True))
    for read in cell.reads:
        if read[0] == actor or read[1] <= clock.get(read[0], 0):
            continue
        if read[2] < stop and start < read[3]:
            hits.append(Hit(read, False, access, True))


def _owners_over(cell: Cell, access: Access, over: tuple[int, ...]) -> tuple[int, ...]:
    owner = access[REGION].owner
    if owner and cell.write is not None:
        former = cell.write[REGION].owner
        if former and former != owner:
            over = (*over[-OWNERS:], former)
    if owner in over:
        over = tuple(one for one in over if one != owner)
    return over


def _part(cell: Cell, start: int, stop: int) -> Cell:
    reads = [read for read in cell.reads if read[START] < stop and start < read[STOP]]
    return Cell(stop, cell.write, reads, cell.over)

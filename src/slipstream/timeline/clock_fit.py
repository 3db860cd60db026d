"""How far apart two clocks are, by collectives in which both took part.

    clock a    [ stands ........ | moves ]            all begin to move when the last has come, and
    clock b         [ stands ... | moves ]            leave at nearly the same moment: so their ends differ by
                                          <- ->       as much as their clocks, however late one of them came

C collectives, R ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import numpy as np

from slipstream.timeline.collectives import group_numbers
from slipstream.timeline.table import Bool, Int64, Kind, Timeline

#: Collectives that nobody leaves before all have come, and that all leave together.
_TOGETHER: Final = re.compile(r"(?i)all_?reduce|all_?gather|reduce_?scatter|barrier|cross_device_reduce")
#: Nobody leaves these before all have come either, but who has more to send or receive leaves later.
_BY_LOAD: Final = re.compile(r"(?i)all_?to_?all")

#: Profilers write times in steps of up to this much, so two moments so close may be in either order.
STEP_NS: Final = 1_000
#: Ranks of one clock leave a collective up to so far apart, in one order each time. Measured: 7 us (all-reduces of
#: eight V100, a reduce-scatter of two 910B), and 15 us between two 910B whose clocks may differ.
SKEW_NS: Final = 20_000
#: And up to one in so many of the time that the collective moves, as over slow links a step of a ring takes long.
#: Measured where that is above a millisecond: one in 150, between the same two 910B.
STEPS: Final = 50
#: An offset is one if it is so many spreads from nothing: of eight ends that differ by chance, one set in 250 is.
SPREADS: Final = 3
#: So many collectives say what an offset is, where causality shows that there is one.
LEAST: Final = 3
#: So many are needed to say that there is one, where causality does not: of three, one set in six would look so.
LEAST_ALONE: Final = 8
#: Of so many collectives one may disagree: times get lost, and numbers go wrong.
_ONE_IN: Final = 20
#: A clock that runs faster than another by more than this is none: crystals are good to 100 ppm each.
_FASTEST: Final = 200e-6
#: A line is drawn through so many ends or more (of 16 that differ by chance, one in 75 halves the spread), and by
#: so many of them at most.
_LEAST_LINE: Final = 32
_MOST_LINE: Final = 200
#: Where orders fit alike the one with the least offset is believed if the next has so many times as much.
NO_LONGER: Final = 3
#: An offset of so many times as long as the trace is one of epochs: nobody begins to record so much later.
EPOCH: Final = 100
#: Of a list that was numbered by its order, so many other orders are tried.
_OTHER_ORDERS: Final = 64


@dataclass(frozen=True)
class Met:
    """Collectives whose members wait for each other.

    Attributes:
        ranks: R of them, ascending.
        start_ns, end_ns: int64 [C, R], 0 where a rank was not there.
        there: bool [C, R], whether a rank took part; two do at least.
        together: bool [C], whether all leave at once, whatever each of them had to move.
        in_turn: int64 [C], the list in whose order the collective got its number; -1 where the trace says it.
    """

    ranks: tuple[int, ...]
    start_ns: Int64
    end_ns: Int64
    there: Bool
    together: Bool
    in_turn: Int64

    def impossible(self, start_ns: Int64, end_ns: Int64) -> int:
        """Return how many collectives somebody left before another came, by other times, int64 [C, R]."""
        last = np.where(self.there, start_ns, _NEVER).max(axis=1)
        first = np.where(self.there, end_ns, -_NEVER).min(axis=1)
        return int((last - first > STEP_NS).sum())


_NEVER: Final = np.iinfo(np.int64).min // 4


def collect(line: Timeline, given: Bool) -> Met:
    """Return the collectives of a timeline by which clocks can be compared.

    Args:
        line: with `sequence` filled in.
        given: bool [N], whose number the trace says; the others have theirs from their order.
    """
    rows = np.flatnonzero((line.kind == Kind.COMM) & line.on_device & (line.sequence >= 0))
    how = _how_left(line, rows)
    rows, together = rows[how > 0], how[how > 0] == _LEAVES_TOGETHER
    group = group_numbers(line)[line.group[rows]]
    keys = np.stack((group, line.sequence[rows]))
    _, first, which = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    which = which.ravel()
    column = np.searchsorted(line.ranks, line.rank[rows])
    shape = (len(first), len(line.ranks))
    times = np.zeros(shape, np.int64)
    np.add.at(times, (which, column), 1)
    good = ((times <= 1).all(axis=1)) & ((times > 0).sum(axis=1) > 1)
    start, end = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    start[which, column], end[which, column] = line.start_ns[rows], line.end_ns[rows]
    in_turn = np.where(given[rows[first]], -1, group[first])
    return Met(line.ranks, start[good], end[good], times[good] > 0, together[first][good], in_turn[good])


_LEAVES_BY_LOAD: Final = 1
_LEAVES_TOGETHER: Final = 2


def _how_left(line: Timeline, rows: Int64) -> Int64:
    """How each of some collectives is left: together, by load, or (0) by nothing that is known."""

    def how(text: str) -> int:
        if _TOGETHER.search(text):
            return _LEAVES_TOGETHER
        return _LEAVES_BY_LOAD if _BY_LOAD.search(text) else 0

    by_name = {number: how(line.names[number]) for number in np.unique(line.name[rows]).tolist()}
    found = [by_name[number] for number in line.name[rows].tolist()]
    for place, row in enumerate(rows.tolist()):
        said = line.args(row).get("collective")  # NCCL's kernels of an all-to-all are called SendRecv
        if said is not None:
            found[place] = how(str(said))
    return np.array(found, np.int64)


@dataclass(frozen=True)
class Side:
    """What ranks with one clock did in the collectives.

    Attributes:
        there: bool [C], whether any of them took part.
        last_start_ns: int64 [C], when the last of them came.
        first_end_ns: int64 [C], when the first of them left.
        left_ns: int64 [C], when they left: the median of them.
    """

    there: Bool
    last_start_ns: Int64
    first_end_ns: Int64
    left_ns: Int64


def side_of(met: Met, columns: Sequence[int]) -> Side:
    """Return what the ranks of some columns did."""
    columns = list(columns)
    there = met.there[:, columns]
    any_there: Bool = np.any(there, axis=1)
    start = np.where(there, met.start_ns[:, columns], _NEVER)
    end = np.sort(np.where(there, met.end_ns[:, columns], -_NEVER), axis=1)
    middle = np.maximum(there.sum(axis=1) - 1, 0) // 2
    left = end[np.arange(len(end)), middle]
    return Side(any_there, start.max(axis=1), end[:, 0], left)


@dataclass(frozen=True)
class Line:
    """A clock's times on another one: at t it shows t + `at_ns` + `slope` x (t - `centre_ns`)."""

    at_ns: int = 0
    slope: float = 0.0
    centre_ns: int = 0

    def added(self, times_ns: Int64) -> Int64:
        """Return int64 of the same shape: what is added to times. It keeps their order."""
        if not self.slope:
            return np.full(times_ns.shape, self.at_ns, np.int64)
        more: Int64 = np.rint(self.slope * (times_ns - self.centre_ns)).astype(np.int64)
        return more + self.at_ns

    def then(self, other: Line) -> Line:
        """Return both, one after the other."""
        if not self.slope and not other.slope:
            return Line(self.at_ns + other.at_ns)
        # Products of two slopes are below a billionth of a billionth of the window.
        at = int(other.added(np.array([self.centre_ns + self.at_ns], np.int64))[0])
        return Line(self.at_ns + at, self.slope + other.slope, self.centre_ns)


class Verdict(Enum):
    """What collectives say of two clocks."""

    SAME = "they are one"
    APART = "they differ, by so much"
    UNKNOWN = "they may differ"


@dataclass(frozen=True)
class Fit:
    """What the collectives say.

    Attributes:
        verdict: of the two clocks.
        line: what brings the second clock's times to the first's.
        collectives: how many ends it rests on.
        spread_ns: of the differences of ends about the line: 1.48 x their median absolute deviation, which is
            the standard deviation where they are normal.
        impossible: how many collectives one side left before the other came, as the times are.
        why: of UNKNOWN.
    """

    verdict: Verdict
    line: Line
    collectives: int
    spread_ns: float
    impossible: int = 0
    why: str = field(default="", compare=False)


def fit(a: Side, b: Side, met: Met) -> Fit | None:
    """Compare two clocks, None where they met in nothing.

    The offset is the median of the differences of ends, within what causality allows: nobody leaves before all
    have come. A line, where it halves the spread, takes its place.

    - SAME, so nothing is done: causality holds as it is (at most one collective breaks it by more than
      `STEP_NS`), and the offset is below what ranks of one clock may be apart (`SKEW_NS` and `STEPS`) or below
      three spreads.
    - APART: with the offset causality holds, in all but one of 20; and either causality shows that there is one
      (`LEAST` collectives, of which two break it as they are), or the offset is above what ranks of one clock may
      be apart and above three spreads (`LEAST_ALONE` collectives). Where numbers were given by order, no other
      order explains the ends as well: else a rank may have begun to record later (`_fits_elsewhere`).
    - UNKNOWN, so nothing is done either: all else.

    A rank that is only late comes late and leaves with the others: the ends do not differ, whatever it costs them.
    """
    both = a.there & b.there
    if not both.any():
        return None
    use = both & met.together
    alone = int(use.sum()) >= LEAST  # else by what is left by load: that needs causality as well
    use = use if alone else both
    ends_a, ends_b = a.left_ns[use], b.left_ns[use]
    line, spread = _line(ends_a, ends_b)
    low, high = a.last_start_ns[both] - b.first_end_ns[both], a.first_end_ns[both] - b.last_start_ns[both]
    impossible = _outside(low, high, np.zeros(len(low), np.int64))
    line = _allowed(line, low, high, spread)
    still = _outside(low, high, line.added(b.left_ns[both]))
    count = len(ends_a)
    moved = int(np.abs(line.added(ends_b)).max())
    # Who came last stood for nobody: its stay is how long the collective moved, on whatever clock.
    moving = np.minimum(*(side.first_end_ns[both] - side.last_start_ns[both] for side in (a, b)))
    skew = max(SKEW_NS, int(np.median(moving)) // STEPS)

    def found(verdict: Verdict, why: str = "") -> Fit:
        return Fit(verdict, line, count, spread, impossible, why)

    shown = impossible >= 2
    if count < LEAST:
        return found(Verdict.UNKNOWN, f"they met in {count}")
    if not shown and moved <= max(skew, SPREADS * spread):
        return found(Verdict.SAME)
    if still * _ONE_IN > len(low):
        return found(Verdict.UNKNOWN, "they contradict each other")
    if not shown and (count < LEAST_ALONE or not alone):
        return found(Verdict.UNKNOWN, f"they met in {count}, and each may be so")
    why = _fits_elsewhere(a, b, both, met)
    return found(Verdict.UNKNOWN, why) if why else found(Verdict.APART)


def _outside(low: Int64, high: Int64, at: Int64) -> int:
    """How many collectives allow less, or more, than what is added."""
    return int(((low - at > STEP_NS) | (at - high > STEP_NS)).sum())


def spread_of(values: Int64) -> float:
    """Return 1.4826 x the median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _line(ends_a: Int64, ends_b: Int64) -> tuple[Line, float]:
    """What is added to b's ends to be a's, and the spread about it: a drift only where it halves the spread."""
    apart = ends_a - ends_b
    middle = _middle(apart)
    centre, spread = _middle(ends_b), spread_of(apart - middle)
    if len(apart) < _LEAST_LINE or not spread:
        return Line(middle, 0.0, centre), spread
    order = np.argsort(ends_b, kind="stable")
    some = order[np.linspace(0, len(order) - 1, min(len(order), _MOST_LINE)).astype(np.int64)]
    at, value = (ends_b[some] - ends_b[some[0]]).astype(np.float64), (apart[some] - middle).astype(np.float64)
    one, other = np.triu_indices(len(some), 1)
    later = at[other] > at[one]  # Theil-Sen: the median slope of all pairs
    one, other = one[later], other[later]
    if not len(one):
        return Line(middle, 0.0, centre), spread
    slope = float(np.median((value[other] - value[one]) / (at[other] - at[one])))
    rest = apart - middle - np.rint(slope * (ends_b - centre)).astype(np.int64)
    about = spread_of(rest)
    if abs(slope) > _FASTEST or about > spread / 2 or abs(slope) * float(np.ptp(ends_b)) < STEP_NS:
        return Line(middle, 0.0, centre), spread
    return Line(middle + _middle(rest), slope, centre), about


def _middle(values: Int64) -> int:
    """The median, exactly also where a float would not be."""
    return round(float(np.median(values - values[0]))) + int(values[0])


def _allowed(line: Line, low: Int64, high: Int64, spread: float) -> Line:
    """Keep an offset within what causality allows, where that is a matter of its spread."""
    if line.slope:
        return line
    least, most = int(low.max()) + 1, int(high.min()) - 1
    if least > most:
        return line
    held = min(max(line.at_ns, least), most)
    near = abs(held - line.at_ns) <= SPREADS * max(spread, STEP_NS)
    return replace(line, at_ns=held) if near else line


def _fits_elsewhere(a: Side, b: Side, both: Bool, met: Met) -> str:
    """Say why one side may lack the beginning of a list, and the other its end; "" if that is not so.

    It may be so where another order makes the ends fit better by half, or as well with less of an offset or one
    that is not much longer; and where a list is too short to try. It matters for collectives that were numbered by
    their order, and for clocks that share no moment: two runs of one program do not either, and nothing but the
    fit says that these are one. (No order makes their offset much less, so no other may fit as well.)
    """
    ends_a, ends_b = a.left_ns[both], b.left_ns[both]
    strangers = max(ends_a.min(), ends_b.min()) >= min(ends_a.max(), ends_b.max())
    lists = met.in_turn[both]
    why = "ranks share no moment, and those of two runs might look the same"
    if not strangers:
        why = "a rank whose trace begins later would look the same"
        named, counts = np.unique(lists[lists >= 0], return_counts=True)
        if not len(named):
            return ""
        longest = lists == named[np.argmax(counts)]
        ends_a, ends_b = ends_a[longest], ends_b[longest]
    ends_a, ends_b = np.sort(ends_a), np.sort(ends_b)
    count = len(ends_a)
    if count < LEAST_ALONE:
        return why
    offset, about = _about(ends_a - ends_b)
    # By how much b's list would have to begin later for there to be no offset.
    middle = int(np.searchsorted(ends_b, ends_a[count // 2]))
    near = middle - count // 2
    epochs = abs(offset) > EPOCH * float(np.ptp(ends_a))
    if middle in (0, count) and (lists >= 0).any() and not epochs:
        return why  # too much for enough of both lists to be left to compare
    orders = {*range(-_OTHER_ORDERS, _OTHER_ORDERS + 1), *range(near - 2, near + 3)} - {0}
    for later in orders:
        one, other = (ends_a[:-later], ends_b[later:]) if later > 0 else (ends_a[-later:], ends_b[:later])
        if len(one) < max(LEAST, count // 2):
            continue
        shifted, around = _about(one - other)
        better = around + STEP_NS < about / 2
        as_well = around <= 2 * about + STEP_NS
        if better or (as_well and abs(shifted) < NO_LONGER * abs(offset)):
            return why
    return ""


def _about(values: Int64) -> tuple[float, float]:
    """The median, and the mean distance from it, in which each outlier counts."""
    middle = float(np.median(values))
    return middle, float(np.abs(values - middle).mean())

"""What rounds take: measured as wholes, host work included, and guessed where a kind never ran. No torch.

A phase's own time says too little. Captures replay a head's small graphs with its weights still in the caches,
where a round finds them evicted by the target's; and a round with the head has more host work between its phases.
So what counts is the time from scheduling to settled tokens, by kind of round, and captures only say what a kind
that never ran is like beside one that did.

    time of a kind = its size x the machine's speed now

All kinds share the speed: a machine that slows down does not make the rounds that happen to run look worse than
those that do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher

#: Without a measured time: what a row more costs, and a head's forward, as shares of a plain verify.
_ROW_SHARE, _HEAD_SHARE = 1 / 6, 0.05

#: A round's time over that of its verify graph; of the head's graphs in a round over those in a capture. Measured:
#: 1.2, and 3 on a model of 135 M weights.
_HOST_FACTOR, _HEAD_FACTOR = 1.2, 3.0

#: How much a new time weighs: at most, by times already seen of its kind, and at least; of the speed, always.
_FIRST_WEIGHT, _LEAST_WEIGHT, _SPEED_WEIGHT = 0.5, 0.03, 0.1

#: A time above this multiple of what was expected is a busy machine's, and counts as this multiple.
_OUTLIER = 2.0

#: How much wider a round may be that says something of another.
_LOOK_WIDER = 4

#: From so many times on, a surprise is the machine's rather than the kind's.
_KNOWN = 12

#: A kind that never ran is tried where it would nearly pay: its guess is taken for so much less.
_CURIOSITY = 0.95

#: Every so many rounds, kinds that did not run since move this far down to their guess: what made them look dear
#: may have been a busy moment, and nothing else would ever show that.
_HEAL_ROUNDS, _HEAL = 64, 0.15


class PhaseCosts:
    """Each captured shape's time, in nanoseconds."""

    def __init__(self) -> None:
        self._time_ns: dict[BatchDescriptor, float] = {}

    def observe(self, key: BatchDescriptor, time_ns: int) -> None:
        """Take in one shape's time."""
        self._time_ns[key] = float(time_ns)

    def knows(self, key: BatchDescriptor) -> bool:
        """Return whether a shape was measured."""
        return key in self._time_ns

    def time_ns(self, key: BatchDescriptor) -> float:
        """Return the time of a shape; where it was never measured, a guess from one that was."""
        measured = self._time_ns.get(key)
        return measured if measured is not None else self._plain_ns(key.slots) * _share(key)

    def _plain_ns(self, num_reqs: int) -> float:
        """Return the time of a plain round, from that of any verify of as many requests; 1 where there is none."""
        for key, measured in self._time_ns.items():
            if key.phase == "verify" and key.num_reqs == num_reqs:
                return self._time_ns.get(BatchDescriptor("verify", num_reqs, 1), measured / _share(key))
        return 1.0


def _share(key: BatchDescriptor) -> float:
    """Return a guess of a shape's time over that of a plain round."""
    rows = 1 + (key.width - 1) * _ROW_SHARE
    if key.phase == "draft":
        return (key.width - 1) * _HEAD_SHARE
    return rows * _HEAD_SHARE if key.phase == "extend" else rows


class RoundKind(NamedTuple):
    """Rounds that take the same time.

    Attributes:
        bucket: captured request slots.
        width: rows a request of its verify.
        draft, extend: whether the head drafts, and whether it is kept up to date.
    """

    bucket: int
    width: int
    draft: bool = False
    extend: bool = False


@dataclass(slots=True)
class _Size:
    """What is known of a kind: its time at speed 1, how many times were seen, and whether one was lately."""

    ns: float
    seen: int
    lately: bool = True


class RoundPrices:
    """Times of rounds, learnt as they run.

    Args:
        costs: of the captured shapes.
        dispatcher: knows which shape a batch runs in.
    """

    def __init__(self, costs: PhaseCosts, dispatcher: Dispatcher) -> None:
        self._costs, self._dispatcher = costs, dispatcher
        self._sizes: dict[RoundKind, _Size] = {}
        self._times: dict[int, RoundTimes] = {}
        self._speed = 1.0
        self._rounds = 0
        self._head_factor = _HEAD_FACTOR

    def times(self, count: int) -> RoundTimes:
        """Return what rounds of `count` requests take; it follows what is observed."""
        known = self._times.get(count)
        if known is None:
            known = self._times[count] = RoundTimes(self, self._dispatcher, count)
        return known

    def knows(self, kind: RoundKind) -> bool:
        """Return whether rounds of this kind ran, or its verify was captured."""
        return kind in self._sizes or self._costs.knows(BatchDescriptor("verify", kind.bucket, kind.width))

    def time_ns(self, kind: RoundKind) -> float:
        """Return the time that a round of this kind is likely to take, in nanoseconds."""
        size = self._sizes.get(kind)
        return (_CURIOSITY * self._guess(kind) if size is None else size.ns) * self._speed

    def observe(self, kind: RoundKind, time_ns: float) -> None:
        """Take in one measured round."""
        size = self._sizes.get(kind)
        if size is None:
            plain = RoundKind(kind.bucket, 1)
            if not self.knows(kind) and plain not in self._sizes:
                # Nothing was captured and nothing ran: a guess has no unit until now.
                unit_ns = time_ns / self._speed / self._guess(kind)
                self._sizes[plain] = _Size(self._guess(plain) * unit_ns, 0)
            size = self._sizes[kind] = self._sizes.get(kind) or _Size(self._guess(kind), 0)
        expected = size.ns * self._speed
        surprise = min(time_ns, _OUTLIER * expected) / expected - 1
        weight = max(_FIRST_WEIGHT / (1 + 0.5 * size.seen), _LEAST_WEIGHT)
        if size.seen >= _KNOWN:  # a kind that is new says nothing of the machine
            self._speed *= 1 + _SPEED_WEIGHT * surprise
        size.ns *= 1 + weight * surprise
        size.seen += 1
        size.lately = True
        if kind.extend:
            self._learn_head_factor(kind, size)
        self._rounds += 1
        if self._rounds % _HEAL_ROUNDS == 0:
            self._heal()

    def _heal(self) -> None:
        for kind, size in self._sizes.items():
            if not size.lately:
                size.ns += _HEAL * min(self._guess(kind) - size.ns, 0.0)
            size.lately = False

    def _learn_head_factor(self, kind: RoundKind, size: _Size) -> None:
        expected = self._head_share(kind) * self._without_head(RoundKind(kind.bucket, 1))
        if expected > 0:
            factor = (size.ns - self._without_head(kind)) / expected
            self._head_factor += _SPEED_WEIGHT * (min(max(factor, 1.0), 10.0) - self._head_factor)

    def _guess(self, kind: RoundKind) -> float:
        """Return the size of a kind that never ran."""
        if not kind.extend:
            return self._verify_guess(kind)
        without = self._without_head(kind)
        plain = self._without_head(RoundKind(kind.bucket, 1))
        return without + self._head_factor * self._head_share(kind) * plain

    def _without_head(self, kind: RoundKind) -> float:
        size = self._sizes.get(RoundKind(kind.bucket, kind.width))
        return self._verify_guess(kind) if size is None else size.ns

    def _verify_guess(self, kind: RoundKind) -> float:
        """Return the size of a round without the head, from its capture, and from wider ones.

        A capture may meet a busy moment and look dear. But a row more costs about as much as the last one, so
        between a plain round and a wider one that ran or was captured lies a straight line.
        """
        bucket, width = kind.bucket, kind.width
        captured = {
            rows: self._costs.time_ns(key)
            for rows in range(1, width + _LOOK_WIDER)
            if self._costs.knows(key := BatchDescriptor("verify", bucket, rows)) or rows in (1, width)
        }
        plain = self._sizes.get(RoundKind(bucket, 1))
        plain_ns = captured[1] * _HOST_FACTOR if plain is None else plain.ns
        guess = plain_ns * captured[width] / captured[1]
        for rows in range(width + 1, width + _LOOK_WIDER):
            ran = self._sizes.get(RoundKind(bucket, rows))
            if ran is not None or rows in captured:
                wider = plain_ns * captured[rows] / captured[1] if ran is None else ran.ns
                guess = min(guess, plain_ns + (wider - plain_ns) * (width - 1) / (rows - 1))
        return guess

    def _head_share(self, kind: RoundKind) -> float:
        """Return the captured time of the head's part over that of a plain round's verify."""
        ns = self._costs.time_ns(BatchDescriptor("extend", kind.bucket, kind.width))
        if kind.draft:
            ns += self._costs.time_ns(BatchDescriptor("draft", kind.bucket, kind.width - 1))
        return ns / self._costs.time_ns(BatchDescriptor("verify", kind.bucket, 1))


class RoundTimes:
    """What rounds of one batch take, in nanoseconds.

    Args:
        prices: of all rounds.
        dispatcher: knows which shape a batch runs in.
        count: requests.
    """

    def __init__(self, prices: RoundPrices, dispatcher: Dispatcher, count: int) -> None:
        self.count = count
        self._prices, self._dispatcher = prices, dispatcher
        self._kinds: dict[tuple[int, bool, bool], RoundKind] = {}

    def kind(self, width: int, *, draft: bool = False, extend: bool = False) -> RoundKind:
        """Return the kind of a round of this width, in which the head drafts or is kept up to date or neither."""
        known = self._kinds.get((width, draft, extend))
        if known is None:
            bucket = self._dispatcher.dispatch("verify", self.count, width).bucket
            known = self._kinds[width, draft, extend] = RoundKind(bucket, width, draft and width > 1, extend)
        return known

    def round_ns(self, width: int, *, draft: bool = False, extend: bool = False) -> float:
        """Return the time of such a round."""
        return self._prices.time_ns(self.kind(width, draft=draft, extend=extend))

    def chance_needed(self, widths: Sequence[int]) -> float:
        """Return how likely each draft of all requests has to hold for any wide round to pay."""
        plain_ns = self.round_ns(1)
        return min((self.round_ns(width) / plain_ns - 1) / (width - 1) for width in widths if width > 1)

    @property
    def alone_ns(self) -> float:
        """The time of a plain round of a request alone; where none ran yet, that of this batch."""
        alone = self._prices.times(1)
        return (alone if self._prices.knows(alone.kind(1)) else self).round_ns(1)

    @property
    def plain_rate(self) -> float:
        """Tokens a nanosecond of plain rounds."""
        return self.count / self.round_ns(1)

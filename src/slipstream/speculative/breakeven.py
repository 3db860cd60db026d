"""Which round pays: from measured times and what drafts are likely to bring, for the batch at hand. No torch.

    plain round      B tokens               in verify(B, 1)
    host's drafts    B + expected           in verify(B, width)
    head's drafts    B + expected           in draft(B, width - 1) + verify(B, width) + extend(B, width)

A head drafts well only if it is kept up to date, which costs its extend in every round, drafts or not. So it is
first decided whether that pays in the long run, and then how wide the next round is. The text is the same whatever
is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher

#: Without a measured time: what a row more costs, and a head's forward, as shares of a plain round (docs/log.md).
_ROW_SHARE, _HEAD_SHARE = 1 / 6, 0.08

#: How much a new time weighs against the running mean.
_WEIGHT = 0.05

#: Drafts have to beat the plain round by this, so that noise in the times cannot lose by them; a head that was
#: left out by more, since it has to be brought up to date first.
MARGIN, MARGIN_BEHIND = 1.02, 1.05


class PhaseCosts:
    """Running mean of each shape's time, in nanoseconds; captures give the first value."""

    def __init__(self) -> None:
        self._mean_ns: dict[BatchDescriptor, float] = {}

    def observe(self, key: BatchDescriptor, time_ns: int) -> None:
        """Take in one measured time. A single slow one, as when the machine was busy, hardly counts."""
        mean = self._mean_ns.get(key)
        if mean is None:
            self._mean_ns[key] = float(time_ns)
        else:
            self._mean_ns[key] = mean + _WEIGHT * (min(time_ns, 2 * mean) - mean)

    def time_ns(self, key: BatchDescriptor) -> float:
        """Return the time of a shape; where it was never measured, a guess from one that was."""
        measured = self._mean_ns.get(key)
        return measured if measured is not None else self._plain_ns(key.num_reqs) * _share(key)

    def _plain_ns(self, num_reqs: int) -> float:
        """Return the time of a plain round, from that of any verify of as many requests; 1 where there is none."""
        for key, mean in self._mean_ns.items():
            if key.phase == "verify" and key.num_reqs == num_reqs:
                plain = self._mean_ns.get(BatchDescriptor("verify", num_reqs, 1))
                return plain if plain is not None else mean / _share(key)
        return 1.0


def _share(key: BatchDescriptor) -> float:
    """Return a guess of a shape's time over that of a plain round."""
    rows = 1 + (key.width - 1) * _ROW_SHARE
    if key.phase == "draft":
        return (key.width - 1) * _HEAD_SHARE
    return rows * _HEAD_SHARE if key.phase == "extend" else rows


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one request's drafts are likely to bring.

    Attributes:
        ngram, head: by drafter, the chance that the first draft holds, the first two, and so on; empty where that
            drafter has none for this request.
        usual: of the head in this request, shares of rounds with their chances.
    """

    ngram: Sequence[float] = ()
    head: Sequence[float] = ()
    usual: Sequence[tuple[float, Sequence[float]]] = ()

    def expected(self, width: int, *, head: bool) -> float:
        """Return how many drafts of a round of this width are likely to hold, by the better drafter."""
        by_ngram = sum(self.ngram[: width - 1])
        return max(by_ngram, sum(self.head[: width - 1])) if head else by_ngram

    def prefers_head(self, width: int) -> bool:
        """Return whether the head's drafts are likely to bring more than ngram's."""
        return sum(self.head[: width - 1]) > sum(self.ngram[: width - 1])


@dataclass(frozen=True, slots=True)
class Choice:
    """One kind of round.

    Attributes:
        width: rows a request of its verify; 1 is plain decoding.
        head: whether the NextN head drafts, for requests that ngram does not draft better for.
    """

    width: int
    head: bool


class RoundTimes:
    """What rounds of one batch take, in nanoseconds.

    Args:
        costs: measured times.
        dispatcher: knows which shape a batch runs in.
        count: requests.
    """

    def __init__(self, costs: PhaseCosts, dispatcher: Dispatcher, count: int) -> None:
        self.count = count
        self._costs, self._dispatcher = costs, dispatcher

    def round_ns(self, width: int, *, draft: bool = False, extend: bool = False) -> float:
        """Return the time of a round: its verify, and where they are part of it draft and extend."""
        phases = [("verify", width)] + [("draft", width - 1)] * draft + [("extend", width)] * extend
        return sum(
            self._costs.time_ns(self._dispatcher.dispatch(phase, self.count, rows).key)
            for phase, rows in phases
        )

    @property
    def plain_rate(self) -> float:
        """Tokens a nanosecond of plain rounds."""
        return self.count / self.round_ns(1)


def rate_with_head(times: RoundTimes, outlooks: Sequence[Outlook], widths: Sequence[int]) -> float:
    """Return the tokens a nanosecond that rounds with the head are likely to give in the long run.

    Alone, a request's rounds are as wide as its head is confident; together, as their heads are on average.
    """
    if len(outlooks) == 1:
        scenes = [(share, [chances]) for share, chances in outlooks[0].usual]
    else:
        scenes = [(1.0, [_mean(outlook.usual) for outlook in outlooks])]
    if not any(chances for _, each in scenes for chances in each):
        return 0.0
    took = {width: times.round_ns(width, draft=width > 1, extend=True) for width in widths}
    options = [
        (share, [(len(outlooks) + sum(sum(chances[: w - 1]) for chances in each), took[w]) for w in widths])
        for share, each in scenes
    ]
    # What a round is worth depends on what its time would bring otherwise, which is the rate: from a guess, twice.
    rate = times.plain_rate
    for _ in range(2):
        tokens = spent = 0.0
        for share, rounds in options:
            got, ns = max(rounds, key=lambda each: each[0] - rate * each[1])
            tokens, spent = tokens + share * got, spent + share * ns
        rate = tokens / spent
    return rate


def _mean(usual: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Return the chances of a request's head on average."""
    columns = zip(*([share * chance for chance in chances] for share, chances in usual), strict=True)
    return [sum(column) for column in columns]


def choose_round(
    times: RoundTimes, outlooks: Sequence[Outlook], widths: Sequence[int], rate: float | None = None
) -> Choice:
    """Return the round that pays best.

    Args:
        times: what rounds of this batch take.
        outlooks: of all requests of the batch, those without drafts included.
        widths: what may be verified.
        rate: where the head is kept up to date, the tokens a nanosecond that this is likely to give; every round
            then has its extend, and what counts is how many tokens more it brings than its time would bring
            otherwise. None without the head: then the round with the most tokens a nanosecond is taken.
    """
    count = len(outlooks)
    if rate is not None:
        kinds = [(width, draft) for width in widths for draft in (False, True)[: 1 + (width > 1)]]
        useful = [
            (width, draft)
            for width, draft in kinds
            if not draft or any(outlook.prefers_head(width) for outlook in outlooks)
        ]

        def gain(kind: tuple[int, bool]) -> float:
            width, draft = kind
            tokens = count + sum(outlook.expected(width, head=draft) for outlook in outlooks)
            return tokens - rate * times.round_ns(width, draft=draft, extend=True)

        return Choice(*max(useful, key=gain))
    best, best_rate = Choice(1, head=False), times.plain_rate * MARGIN
    for width in widths:
        expected = sum(outlook.expected(width, head=False) for outlook in outlooks)
        if width > 1 and expected > 0 and (count + expected) / times.round_ns(width) > best_rate:
            best, best_rate = Choice(width, head=False), (count + expected) / times.round_ns(width)
    return best

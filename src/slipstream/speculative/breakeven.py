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

from slipstream.speculative.prices import RoundTimes

#: Drafts have to beat the plain round by this, so that noise in the times cannot lose by them.
MARGIN = 1.02


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


@dataclass(frozen=True, slots=True)
class HostUse:
    """How much of a batch's text ngram drafts, and what its rounds bring.

    Attributes:
        share: of rounds, where all other rounds were plain.
        accepted: of its drafts in such a round, a request.
        width: rows a request of such a round.
    """

    share: float = 0.0
    accepted: float = 0.0
    width: int = 1

    def rate(self, times: RoundTimes, with_head: float | None = None) -> float:
        """Return the tokens a nanosecond that this text is likely to give.

        Args:
            times: what rounds of the batch take.
            with_head: tokens a nanosecond of the text that ngram does not draft, as `rate_with_head` gives them;
                the head's extend is then in ngram's rounds as well. None for plain rounds there.
        """
        plain = times.plain_rate if with_head is None else with_head
        by_host_ns = times.round_ns(self.width, extend=with_head is not None)
        spent = self.share * by_host_ns + (1 - self.share) * times.count / plain
        return times.count * (1 + self.share * self.accepted) / spent


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
    if rate is None:
        return _without_head(times, outlooks, widths)
    best, best_gain = Choice(1, head=False), count - rate * times.round_ns(1, extend=True)
    for width in widths:
        for draft in (False, True):
            if width == 1 or (draft and not any(outlook.prefers_head(width) for outlook in outlooks)):
                continue
            tokens = count + sum(outlook.expected(width, head=draft) for outlook in outlooks)
            gain = tokens - rate * times.round_ns(width, draft=draft, extend=True)
            if gain > best_gain:
                best, best_gain = Choice(width, draft), gain
    return best


def _without_head(times: RoundTimes, outlooks: Sequence[Outlook], widths: Sequence[int]) -> Choice:
    count = len(outlooks)
    best, best_rate = Choice(1, head=False), times.plain_rate * MARGIN
    if not any(outlook.ngram for outlook in outlooks):
        return best
    for width in widths:
        expected = sum(sum(outlook.ngram[: width - 1]) for outlook in outlooks)
        if width > 1 and expected > 0 and (count + expected) > best_rate * times.round_ns(width):
            best, best_rate = Choice(width, head=False), (count + expected) / times.round_ns(width)
    return best

"""Which round pays: from measured times and what drafts are likely to bring, for the batch at hand. No torch.

    plain round      B tokens               in verify(B, 1)
    host's drafts    B + expected           in verify(B, width)
    head's drafts    B + expected           in draft(B, width - 1) + verify(B, width) + extend(B, width)

The round with the most tokens a second is taken. The text is the same whatever is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher

#: Without a measured time: what a row more costs, and a head's forward, as shares of a plain round (docs/log.md).
_ROW_SHARE, _HEAD_SHARE = 1 / 6, 0.08

#: Without a measured time: bringing one request's head up to date.
_CATCH_UP_SHARE = 0.2

#: How much a new time weighs against the running mean.
_WEIGHT = 0.05

#: Drafts have to beat the plain round by this, so that noise in the times cannot lose by them.
_MARGIN = 1.02

#: Rounds that a head which was brought up to date is likely to stay in use: they share that cost.
_ROUNDS_IN_USE = 4

#: The shape that the time of bringing one request's head up to date is kept under.
CATCH_UP = BatchDescriptor("catch-up", 1, 1)


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
    return {"extend": rows * _HEAD_SHARE, "catch-up": _CATCH_UP_SHARE}.get(key.phase, rows)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one request's drafts are likely to bring.

    Attributes:
        ngram, head: by drafter, the chance that the first draft holds, the first two, and so on; empty where that
            drafter has none for this request.
        behind: whether its head has to be brought up to date first.
    """

    ngram: Sequence[float] = ()
    head: Sequence[float] = ()
    behind: bool = False

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
        head: whether the NextN head drafts for requests that ngram does not draft for.
    """

    width: int
    head: bool


def choose_round(
    costs: PhaseCosts,
    dispatcher: Dispatcher,
    outlooks: Sequence[Outlook],
    widths: Sequence[int],
    *,
    head: bool,
) -> Choice:
    """Return the round that is likely to give the most tokens a second.

    Args:
        costs: measured times.
        dispatcher: knows which shape a batch runs in.
        outlooks: of all requests of the batch, those without drafts included.
        widths: what may be verified.
        head: whether there is a head to draft with.
    """
    count = len(outlooks)

    def time_ns(phase: str, width: int) -> float:
        return costs.time_ns(dispatcher.dispatch(phase, count, width).key)

    best, best_rate = Choice(1, head=False), count / time_ns("verify", 1)
    best_rate *= _MARGIN
    behind = sum(outlook.behind for outlook in outlooks) if head else 0
    for width in widths:
        if width == 1:
            continue
        verify_ns = time_ns("verify", width)
        kinds = [(False, verify_ns)]
        if head and any(outlook.prefers_head(width) for outlook in outlooks):
            catch_up_ns = costs.time_ns(CATCH_UP) * behind / _ROUNDS_IN_USE if behind else 0.0
            around_ns = time_ns("draft", width - 1) + time_ns("extend", width) + catch_up_ns
            kinds.append((True, verify_ns + around_ns))
        for with_head, round_ns in kinds:
            expected = sum(outlook.expected(width, head=with_head) for outlook in outlooks)
            if expected > 0 and (count + expected) / round_ns > best_rate:
                best, best_rate = Choice(width, with_head), (count + expected) / round_ns
    return best

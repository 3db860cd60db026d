"""Whether the NextN heads of a batch are kept up to date, at a loss that is bounded. No torch.

A head drafts only if it has seen the whole text, and seeing it costs an extend in every round. So the head is a
bet, and three rules bound what it may lose against rounds without it:

1. It is kept where it is likely to pay in the long run (`breakeven.rate_with_head`), ngram's rounds counted.
2. Each request has an account of what rounds with the head took beyond what the same tokens take without it. Over
   its budget, a plain round and a small share of the request's time, the head is out for this request.
3. While it is out it is judged now and then by rows that it catches up with, for another small share of time.

A head that is out keeps its rows for a while (`speculative.lag`). When the room is full they are worth a catch-up,
or the head has lost this request's thread and costs nothing any more. What heads are worth by their confidence is
learnt over all requests (`speculative.confidence`), so that a new request starts with what others have shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.speculative.breakeven import MARGIN, HostUse, Outlook, rate_with_head
from slipstream.speculative.confidence import HeadRecord, HeadWorth
from slipstream.speculative.prices import RoundTimes

#: What an account may be overdrawn by: plain rounds, and a share of the request's time. Earlier gains pay for
#: later losses up to so many plain rounds.
_BUDGET_ROUNDS, _BUDGET_SHARE, _SAVINGS_ROUNDS = 1.0, 0.007, 3.0

#: A head that gained lately, in any request, may be unlucky for longer: a share of those gains, up to so many
#: plain rounds, is added to the budget. Losses use them up. One that lost lately, whatever was expected of it, has
#: a smaller budget and has to promise more: for each plain round lost, which is forgotten slowly.
_TRUST_SHARE, _TRUST_ROUNDS = 0.25, 1.2
_DISTRUST_SHARE, _DISTRUST_ROUNDS, _DISTRUST_MARGIN, _DISTRUST_MEMORY = 0.2, 0.8, 0.02, 0.998

#: Of the time without the head, what judging it may cost; and how much of that may be saved up, in plain rounds.
_PROBE_SHARE, _PROBE_SAVINGS = 0.007, 1.5

#: Rows that a head has to be behind to be judged by: fewer teach too little for a catch-up's fixed cost.
PROBE_ROWS = 12

#: Before catch-ups were measured: their cost in plain rounds of a lone request, fixed and a row.
_CATCH_UP_FIXED, _CATCH_UP_ROW = 0.4, 0.015

#: A head that is behind has to repay the catch-up within so many rounds, and to beat those without it by more.
_REPAID_ROUNDS, _MARGIN_BEHIND = 32, 1.05

#: Rounds for which a verdict stands, twice as many where the head is out: it takes a hundredth of a round.
_VERDICT_ROUNDS = 6

#: Where every draft of every request has to hold with a greater chance than this, no head is kept or judged.
TOO_DEAR = 0.5

#: How much of the past ngram's record keeps a round.
_HOST_MEMORY = 0.95


@dataclass(slots=True)
class Standing:
    """One request's head.

    Attributes:
        record: its confidences.
        excess_ns: what rounds with the head took beyond what their tokens take without it.
        plain_ns: what all its tokens so far would have taken plainly.
        out: whether the account is overdrawn.
        share, accepted, width: as of `HostUse`, lately.
    """

    record: HeadRecord
    excess_ns: float = 0.0
    plain_ns: float = 0.0
    out: bool = False
    share: float = 0.0
    accepted: float = 1.0
    width: float = 2.0


@dataclass(frozen=True, slots=True)
class Stance:
    """What is done about the heads of a batch before a round.

    Attributes:
        rate: tokens a nanosecond that rounds with the head are likely to give; None where it is left out.
        catch_up: rows of the batch whose heads are brought up to date.
        lose: rows of the batch whose heads lose the thread.
    """

    rate: float | None = None
    catch_up: Sequence[int] = ()
    lose: Sequence[int] = ()


LEFT_OUT = Stance()


@dataclass(slots=True)
class _Verdict:
    """What was found for a batch, and for how many more rounds that stands.

    Attributes:
        rate: with heads, where they pay.
        dear: whether rows are too dear for any head.
    """

    ids: tuple[int, ...]
    rate: float | None = None
    dear: bool = False
    rounds_left: int = 0


class HeadKeeper:
    """The heads of an engine's greedy requests.

    Args:
        num_steps: most drafts a round.
        widths: rows a request that may be verified.
        room: rows that may be kept for a head that is behind, a round's included.
    """

    def __init__(self, num_steps: int, widths: Sequence[int], room: int) -> None:
        self.worth = HeadWorth()
        self._num_steps, self._widths = num_steps, widths
        self._room = room - max(widths)
        self._standings: dict[int, Standing] = {}
        self._gains = 0.0  # plain rounds that heads saved lately over all requests, or lost
        self._credit = 0.0  # plain rounds that may be spent on judging
        self._catch_up_factor = 1.0
        self._probing: tuple[int, ...] = ()
        self._verdict = _Verdict(())

    def join(self, request_id: int) -> None:
        """Begin with a request's head: its account is empty, unless it has one."""
        if request_id not in self._standings:
            self._standings[request_id] = Standing(self.worth.record())

    def leave(self, request_id: int) -> None:
        """Forget a request."""
        self._standings.pop(request_id, None)

    def record(self, request_id: int) -> HeadRecord | None:
        """Return a request's confidences; None where no head drafts for it."""
        standing = self._standings.get(request_id)
        return standing.record if standing is not None else None

    def decide(self, ids: tuple[int, ...], behind: Sequence[int | None], times: RoundTimes) -> Stance:
        """Return what is done about the heads before the next round.

        Args:
            ids: the batch's requests.
            behind: rows that each head has not seen; None where it has lost the thread.
            times: what rounds of this batch take.
        """
        self._probing = ()
        heads = [self._standings.get(i) if b is not None else None for i, b in zip(ids, behind, strict=True)]
        if not any(heads):
            return LEFT_OUT
        verdict = self._current(ids, heads, behind, times)
        late = [row for row, count in enumerate(behind) if count]
        if verdict.rate is not None:
            catch_up = [row for row in late if (head := heads[row]) is not None and not head.out]
            # The others' next rows go to the head as well: what lies before can no more be given to it.
            return Stance(
                verdict.rate, catch_up, self._lose(heads, [row for row in late if row not in catch_up])
            )
        if verdict.dear:
            # Even rows that are only kept cost such a batch, round by round, what a few at its end may win back.
            for request_id in ids:
                self.leave(request_id)
            return Stance(None, (), [row for row, count in enumerate(behind) if count is not None])
        self._credit = min(self._credit + _PROBE_SHARE, _PROBE_SAVINGS)
        catch_up, lose = [], []
        for row in late:
            head, count = heads[row], behind[row] or 0
            full = count > self._room
            if head is not None and self._may_probe(count, times):
                self._probing = (row,)
                catch_up.append(row)
            elif full and head is not None and not head.out and self._promises(head, times):
                catch_up.append(row)
            elif full:
                lose.append(row)
        return Stance(None, catch_up, self._lose(heads, lose))

    @staticmethod
    def _lose(heads: Sequence[Standing | None], rows: list[int]) -> list[int]:
        """Note that these heads guess nothing any more; return the rows."""
        for row in rows:
            head = heads[row]
            if head is not None:
                head.record.confidence = None
        return rows

    def _may_probe(self, count: int, times: RoundTimes) -> bool:
        """Return whether a head that is out may be judged by so many rows."""
        if count < PROBE_ROWS or self._probing or self._credit < _PROBE_SAVINGS / 6:
            return False
        return self._catch_up_ns(count, times) <= self._credit * times.round_ns(1)

    def settle_catch_up(self, request_id: int, row: int, count: int, time_ns: int, times: RoundTimes) -> None:
        """Take in what a catch-up of `count` rows took, and charge it."""
        plain_ns, expected = times.round_ns(1), self._catch_up_ns(count, times)
        counted = min(time_ns, 2 * expected)
        self._catch_up_factor *= 1 + 0.2 * (counted / expected - 1)
        standing = self._standings.get(request_id)
        if row in self._probing:
            self._credit -= counted / plain_ns
        elif standing is not None:
            self._charge(standing, counted, plain_ns)

    def settle(self, ids: Sequence[int], outcome: Outcome, times: RoundTimes) -> None:
        """Take in one round: what the head cost or saved goes to the accounts."""
        if not self._standings:
            return
        plain_ns, count = times.round_ns(1), times.count
        if self._gains < 0:
            self._gains *= _DISTRUST_MEMORY
        excess_ns = 0.0
        if outcome.extend:
            tokens = sum(outcome.tokens)
            without = tokens / count * plain_ns if outcome.draft else times.round_ns(outcome.width)
            excess_ns = (outcome.time_ns - without) / count
        for request_id, tokens, accepted in zip(ids, outcome.tokens, outcome.by_host, strict=True):
            standing = self._standings.get(request_id)
            if standing is None:
                continue
            standing.plain_ns += tokens / count * plain_ns
            if excess_ns:
                self._charge(standing, excess_ns, plain_ns)
            by_host = accepted is not None
            # As if other rounds were plain, one a token: how wide the head makes them must not change the share.
            keep = _HOST_MEMORY if by_host else _HOST_MEMORY**tokens
            standing.share = standing.share * keep + (1 - keep) * by_host
            if accepted is not None:
                standing.accepted += 0.1 * (accepted - standing.accepted)
                standing.width += 0.1 * (outcome.width - standing.width)

    def _charge(self, standing: Standing, excess_ns: float, plain_ns: float) -> None:
        standing.excess_ns = max(standing.excess_ns + excess_ns, -_SAVINGS_ROUNDS * plain_ns)
        most, least = _TRUST_ROUNDS / _TRUST_SHARE, -_DISTRUST_ROUNDS / _DISTRUST_SHARE
        self._gains = min(max(self._gains - excess_ns / plain_ns, least), most)
        trusted = (_TRUST_SHARE if self._gains > 0 else _DISTRUST_SHARE) * self._gains
        if standing.excess_ns > (_BUDGET_ROUNDS + trusted) * plain_ns + _BUDGET_SHARE * standing.plain_ns:
            standing.out = True

    def _judge(
        self,
        ids: tuple[int, ...],
        heads: Sequence[Standing | None],
        behind: Sequence[int | None],
        times: RoundTimes,
    ) -> _Verdict:
        """Return whether heads pay for this batch in the long run."""
        if all(head is None or head.out for head in heads):
            return _Verdict(ids)
        outlooks = [Outlook(usual=self._usual(head)) for head in heads]
        host = _host_use(heads)
        rate = rate_with_head(times, outlooks, self._widths)
        late = sum(self._catch_up_ns(count, times) for count in behind if count)
        margin = max(_MARGIN_BEHIND, 1 + late / times.round_ns(1) / _REPAID_ROUNDS) if late else MARGIN
        margin += _DISTRUST_MARGIN * max(-self._gains, 0.0)
        pays = rate > 0 and host.rate(times, rate) > margin * host.rate(times)
        return _Verdict(ids, rate if pays else None)

    def _current(
        self,
        ids: tuple[int, ...],
        heads: Sequence[Standing | None],
        behind: Sequence[int | None],
        times: RoundTimes,
    ) -> _Verdict:
        """Return the verdict that stands, or a new one."""
        verdict = self._verdict
        if verdict.ids == ids and verdict.rounds_left > 0:
            verdict.rounds_left -= 1
            over = verdict.rate is not None and all(head is None or head.out for head in heads)
            if not over:
                return verdict
        if times.chance_needed(self._widths) > TOO_DEAR:
            verdict = _Verdict(ids, dear=True)
        else:
            verdict = self._judge(ids, heads, behind, times)
        verdict.rounds_left = _VERDICT_ROUNDS if verdict.rate is not None else 2 * _VERDICT_ROUNDS
        self._verdict = verdict
        return verdict

    def _promises(self, standing: Standing, times: RoundTimes) -> bool:
        """Return whether the head would pay for this request where ngram had nothing to draft."""
        usual = [Outlook(usual=self._usual(standing))] + [Outlook()] * (times.count - 1)
        return rate_with_head(times, usual, self._widths) > _MARGIN_BEHIND * times.plain_rate

    def _usual(self, standing: Standing | None) -> list[tuple[float, list[float]]]:
        if standing is None or standing.out:
            return []
        return self.worth.usual(standing.record, self._num_steps)

    def _catch_up_ns(self, count: int, times: RoundTimes) -> float:
        return self._catch_up_factor * (_CATCH_UP_FIXED + _CATCH_UP_ROW * count) * times.alone_ns


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round took and brought.

    Attributes:
        width: rows a request of its verify.
        draft, extend: whether the head drafted, and whether it was kept up to date.
        time_ns: what a round of this kind takes; a busy moment is not the head's doing.
        tokens: each request's.
        by_host: how many of each request's ngram drafts held; None where it had none.
    """

    width: int
    draft: bool
    extend: bool
    time_ns: float
    tokens: Sequence[int]
    by_host: Sequence[int | None]


def _host_use(heads: Sequence[Standing | None]) -> HostUse:
    """Return how the batch uses ngram, on average over the requests that are known."""
    known = [head for head in heads if head is not None]
    share = sum(head.share for head in known) / len(known)
    accepted = sum(head.accepted for head in known) / len(known)
    width = round(sum(head.width for head in known) / len(known))
    return HostUse(share, accepted, max(width, 2))

"""Who drafts in the next round, and how far: the host's part of drafting. No torch.

none     plain rounds
ngram    rounds of the full width where ngram's drafts pay for their rows, else plain ones
nextn    the head drafts every round, at the full width
auto     any width, ngram or the head request by request, plain where neither pays
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.engine.request import Request
from slipstream.graph.dispatch import Dispatcher
from slipstream.plan import EnginePlan
from slipstream.speculative.breakeven import Choice, Outlook, choose_round
from slipstream.speculative.confidence import HeadRecord
from slipstream.speculative.keeper import LEFT_OUT, TOO_DEAR, HeadKeeper, Outcome, Stance
from slipstream.speculative.lag import LIMIT
from slipstream.speculative.ngram import NOTHING, NgramDrafter, Proposal
from slipstream.speculative.prices import PhaseCosts, RoundPrices


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a round verifies.

    Attributes:
        width: rows a request.
        head: whether the head drafts.
        extend: whether the head sees what the round accepts; so where it drafts.
        by_host: each request's ngram drafts, at most width - 1; empty where it has none or the head's are better.
    """

    width: int
    head: bool
    extend: bool
    by_host: list[list[int]]

    @property
    def mixed(self) -> bool:
        """Whether some requests take the host's drafts beside others that take the head's."""
        return self.head and any(self.by_host)

    def count(self, row: int) -> int:
        """Return how many drafts the request in this row has."""
        return self.width - 1 if self.by_head(row) else len(self.by_host[row])

    def by_head(self, row: int) -> bool:
        """Return whether the request in this row takes the head's drafts."""
        return self.head and not self.by_host[row]

    @property
    def kind(self) -> str:
        """The round's name in statistics."""
        if self.mixed:
            return "mixed"
        return "head" if self.head else "ngram" if any(self.by_host) else "plain"


#: Where rows are dear (`keeper.TOO_DEAR`) and no draft was worth them, so many rounds pass without looking: at
#: first, and at most. Looking costs a batch's host some percents of a round.
_FIRST_REST, _LONGEST_REST = 1, 32


@dataclass(slots=True)
class _Rest:
    """Rounds that pass without looking for drafts, more each time that none was worth it; of one size of batch."""

    count: int = 0
    length: int = 0
    left: int = 0

    def takes(self, count: int) -> bool:
        """Return whether this round of `count` requests passes so."""
        self.left -= 1
        return self.left >= 0 and count == self.count

    def note(self, count: int, worth: bool) -> None:
        """Take in whether looking was worth it."""
        before = self.length if count == self.count else 0
        self.length = 0 if worth else min(max(2 * before, _FIRST_REST), _LONGEST_REST)
        self.count, self.left = count, self.length


class Drafting:
    """The drafters of an engine's greedy requests.

    Args:
        plan: says who may draft.
        dispatcher, costs: of the engine; they say what a round would take.
        head: whether there is a head.
    """

    def __init__(self, plan: EnginePlan, dispatcher: Dispatcher, costs: PhaseCosts, *, head: bool) -> None:
        self._plan = plan
        self.prices = RoundPrices(costs, dispatcher)
        self._widths = verify_widths(plan)
        self._ngrams: dict[int, NgramDrafter] = {}
        self._rest = _Rest()
        self._keeper: HeadKeeper | None = None
        if head and plan.draft == "auto":
            self._keeper = HeadKeeper(plan.num_steps, self._widths, LIMIT)

    def join(self, request: Request) -> None:
        """Begin to draft for a greedy request."""
        if self._plan.draft in ("ngram", "auto"):
            drafter = self._ngrams[request.request_id] = NgramDrafter()
            drafter.extend(request.prompt_ids)
        if self._keeper is not None:
            self._keeper.join(request.request_id)

    def leave(self, request_id: int) -> None:
        """Forget a request."""
        self._ngrams.pop(request_id, None)
        if self._keeper is not None:
            self._keeper.leave(request_id)

    def extend(self, request_id: int, tokens: list[int]) -> None:
        """Take in tokens that are now part of a request's text."""
        drafter = self._ngrams.get(request_id)
        if drafter is not None:
            drafter.extend(tokens)

    def follows(self, request_id: int, count: int) -> bool:
        """Return whether the head of a request is to see its prompt, where so many requests run.

        Not where rows are dear for so many: no head would be kept (`keeper.TOO_DEAR`).
        """
        if self._keeper is None:
            return True
        if self._dear(count):
            self._keeper.leave(request_id)
            return False
        self._keeper.join(request_id)
        return True

    def _dear(self, count: int) -> bool:
        """Return whether all drafts of so many requests would have to hold too often for any wide round to pay."""
        return self.prices.times(count).chance_needed(self._widths) > TOO_DEAR

    def decide_heads(self, requests: Sequence[Request], behind: Sequence[int | None]) -> Stance:
        """Return whether the batch's heads are kept up to date in the next round, and what that takes.

        Args:
            requests: the batch.
            behind: rows that each head has not seen; None where it has lost the thread.
        """
        if self._keeper is None:
            return LEFT_OUT
        ids = tuple(request.request_id for request in requests)
        return self._keeper.decide(ids, behind, self.prices.times(len(requests)))

    def choose(self, requests: Sequence[Request], rate: float | None) -> Drafts:
        """Return what the next round of these requests verifies.

        Args:
            requests: the batch.
            rate: as `decide_heads` gave it; where it is not None, heads that may draft are up to date.
        """
        by_host: list[list[int]] = [[] for _ in requests]
        if self._plan.draft in ("none", "nextn"):
            head = self._plan.draft == "nextn"
            return Drafts(self._plan.width, head, head, by_host)
        if rate is None and self._rest.takes(len(requests)):
            return Drafts(1, False, False, by_host)
        times = self.prices.times(len(requests))
        dear = rate is None and self._dear(len(requests))
        wanted = [self._wanted(request) for request in requests]
        proposals = [self._propose(request, count) for request, count in zip(requests, wanted, strict=True)]
        outlooks = [
            Outlook(proposal.chances, self._chances(request, count) if rate is not None else ())
            for request, proposal, count in zip(requests, proposals, wanted, strict=True)
        ]
        choice = Choice(1, head=False)
        if any(outlook.ngram or outlook.head for outlook in outlooks):
            choice = choose_round(times, outlooks, self._widths, rate)
        self._rest.note(len(requests), choice.width > 1 or not dear)
        for row, (proposal, outlook) in enumerate(zip(proposals, outlooks, strict=True)):
            if not (choice.head and outlook.prefers_head(choice.width)):
                by_host[row] = proposal.drafts[: choice.width - 1]
        return Drafts(choice.width, choice.head, rate is not None, by_host)

    def settle(
        self, requests: Sequence[Request], drafts: Drafts, settled: Sequence[list[int]], time_ns: int
    ) -> None:
        """Take in a round: what it took, and what it accepted. What ngram's drafts were worth, the text shows.

        Args:
            requests: the batch; those that ended in this round included.
            drafts: what was verified.
            settled: each request's new tokens.
            time_ns: of the whole round without catch-ups.
        """
        if len(self._widths) == 1:
            return  # there is nothing to choose
        times = self.prices.times(len(requests))
        kind = times.kind(drafts.width, draft=drafts.head, extend=drafts.extend)
        self.prices.observe(kind, time_ns)
        keeper = self._keeper
        if keeper is None:
            return
        for row, (request, tokens) in enumerate(zip(requests, settled, strict=True)):
            record = keeper.record(request.request_id)
            if record is not None and record.confidence is not None and drafts.by_head(row):
                keeper.worth.learn(record.confidence, drafts.count(row), len(tokens) - 1)
        counts = [len(tokens) for tokens in settled]
        by_host = [count - 1 if drafts.by_host[row] else None for row, count in enumerate(counts)]
        outcome = Outcome(
            drafts.width, drafts.head, drafts.extend, self.prices.time_ns(kind), counts, by_host
        )
        keeper.settle([request.request_id for request in requests], outcome, times)

    def settle_catch_up(self, requests: Sequence[Request], row: int, count: int, time_ns: int) -> None:
        """Take in what it took to bring the head of the request in this row up to date with `count` rows."""
        if self._keeper is not None:
            times = self.prices.times(len(requests))
            self._keeper.settle_catch_up(requests[row].request_id, row, count, time_ns, times)

    def note_confidence(self, request_id: int, confidence: float) -> None:
        """Take in how sure a request's head is of its next first draft."""
        record = self._record(request_id)
        if self._keeper is not None and record is not None:
            self._keeper.worth.note(record, confidence)

    def judge(self, request_id: int, confidence: float, *, held: bool) -> None:
        """Take in a draft that nobody verified, held against the text that came."""
        self.note_confidence(request_id, confidence)
        if self._keeper is not None:
            self._keeper.worth.learn(confidence, 1, int(held))

    def _record(self, request_id: int) -> HeadRecord | None:
        return self._keeper.record(request_id) if self._keeper is not None else None

    def _wanted(self, request: Request) -> int:
        """Return how many drafts a request can use: none for its last token."""
        left = request.sampling.max_tokens - len(request.output_ids)
        return max(min(self._plan.num_steps, left - 1), 0)

    def _propose(self, request: Request, count: int) -> Proposal:
        ngram = self._ngrams.get(request.request_id)
        return ngram.propose(count) if ngram is not None and count > 0 else NOTHING

    def _chances(self, request: Request, count: int) -> Sequence[float]:
        record = self._record(request.request_id)
        if self._keeper is None or record is None or record.confidence is None:
            return ()
        return self._keeper.worth.chances(record.confidence, count)


def verify_widths(plan: EnginePlan) -> tuple[int, ...]:
    """Return the widths that rounds of this plan may verify, largest first."""
    if plan.draft == "ngram":
        return plan.width, 1  # a round without drafts is plain decoding
    return tuple(range(plan.width, 0, -1)) if plan.draft == "auto" else (plan.width,)

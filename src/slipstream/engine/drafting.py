"""Who drafts in the next round, and how far: the host's part of drafting. No torch.

none     plain rounds
ngram    rounds of the full width where ngram's drafts pay for their rows, else plain ones
nextn    the head drafts every round, at the full width
auto     any width, ngram or the head request by request, plain where neither pays
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.engine.request import Request
from slipstream.graph.dispatch import Dispatcher
from slipstream.plan import EnginePlan
from slipstream.speculative.breakeven import (
    MARGIN,
    MARGIN_BEHIND,
    Choice,
    Outlook,
    PhaseCosts,
    RoundTimes,
    choose_round,
    rate_with_head,
)
from slipstream.speculative.confidence import HeadRecord, HeadWorth
from slipstream.speculative.ngram import NOTHING, NgramDrafter, Proposal


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


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Whether the head pays for a batch: its rate or None, and for how many more rounds that stands."""

    ids: tuple[int, ...]
    rate: float | None
    rounds_left: int


#: Rounds for which it stands: to decide it takes as long as a hundredth of a round.
_VERDICT_ROUNDS = 6


class Drafting:
    """The drafters of an engine's greedy requests.

    Args:
        plan: says who may draft.
        dispatcher, costs: of the engine; they say what a round would take.
        head: whether there is a head.
    """

    def __init__(self, plan: EnginePlan, dispatcher: Dispatcher, costs: PhaseCosts, *, head: bool) -> None:
        self._plan, self._dispatcher, self._costs = plan, dispatcher, costs
        self._may_choose_head = head and plan.draft == "auto"
        self._widths = verify_widths(plan)
        self._ngrams: dict[int, NgramDrafter] = {}
        self._heads: dict[int, HeadRecord] = {}
        self._worth = HeadWorth()
        self._verdict = _Verdict((), None, 0)

    def join(self, request: Request) -> None:
        """Begin to draft for a greedy request."""
        if self._plan.draft in ("ngram", "auto"):
            drafter = self._ngrams[request.request_id] = NgramDrafter()
            drafter.extend(request.prompt_ids)
        if self._may_choose_head:
            self._heads[request.request_id] = self._worth.record()

    def leave(self, request_id: int) -> None:
        """Forget a request."""
        self._ngrams.pop(request_id, None)
        self._heads.pop(request_id, None)

    def extend(self, request_id: int, tokens: list[int]) -> None:
        """Take in tokens that are now part of a request's text."""
        drafter = self._ngrams.get(request_id)
        if drafter is not None:
            drafter.extend(tokens)

    def rate_with_head(self, requests: Sequence[Request], *, behind: bool) -> float | None:
        """Return the tokens a nanosecond that the head is likely to give, or None where it is better left out.

        Args:
            requests: the batch.
            behind: whether heads would have to be brought up to date first.
        """
        ids = tuple(request.request_id for request in requests)
        if not self._may_choose_head or not any(request_id in self._heads for request_id in ids):
            return None
        if self._verdict.ids == ids and self._verdict.rounds_left > 0:
            self._verdict = replace(self._verdict, rounds_left=self._verdict.rounds_left - 1)
            return self._verdict.rate
        times = RoundTimes(self._costs, self._dispatcher, len(requests))
        outlooks = [Outlook(usual=self._usual(request)) for request in requests]
        rate = rate_with_head(times, outlooks, self._widths)
        pays = rate > times.plain_rate * (MARGIN_BEHIND if behind else MARGIN)
        self._verdict = _Verdict(ids, rate if pays else None, _VERDICT_ROUNDS)
        return self._verdict.rate

    def choose(self, requests: Sequence[Request], rate: float | None) -> Drafts:
        """Return what the next round of these requests verifies.

        Args:
            requests: the batch.
            rate: as `rate_with_head` gave it; where it is not None, all heads are up to date.
        """
        by_host: list[list[int]] = [[] for _ in requests]
        if self._plan.draft in ("none", "nextn"):
            head = self._plan.draft == "nextn"
            return Drafts(self._plan.width, head, head, by_host)
        wanted = [self._wanted(request) for request in requests]
        proposals = [self._propose(request, count) for request, count in zip(requests, wanted, strict=True)]
        outlooks = [
            Outlook(proposal.chances, self._chances(request, count) if rate is not None else ())
            for request, proposal, count in zip(requests, proposals, wanted, strict=True)
        ]
        choice = Choice(1, head=False)
        if any(outlook.ngram or outlook.head for outlook in outlooks):
            times = RoundTimes(self._costs, self._dispatcher, len(requests))
            choice = choose_round(times, outlooks, self._widths, rate)
        for row, (proposal, outlook) in enumerate(zip(proposals, outlooks, strict=True)):
            if not (choice.head and outlook.prefers_head(choice.width)):
                by_host[row] = proposal.drafts[: choice.width - 1]
        return Drafts(choice.width, choice.head, rate is not None, by_host)

    def learn(self, requests: Sequence[Request], drafts: Drafts, settled: Sequence[list[int]]) -> None:
        """Take in what a round accepted of the head's drafts. What ngram's were worth, the text shows."""
        for row, (request, tokens) in enumerate(zip(requests, settled, strict=True)):
            record = self._heads.get(request.request_id)
            if record is not None and record.confidence is not None and drafts.by_head(row):
                self._worth.learn(record.confidence, drafts.count(row), len(tokens) - 1)

    def note_confidence(self, request_id: int, confidence: float) -> None:
        """Take in how sure a request's head is of its next first draft."""
        record = self._heads.get(request_id)
        if record is not None:
            self._worth.note(record, confidence)

    def judge(self, request_id: int, confidence: float, *, held: bool) -> None:
        """Take in a draft that nobody verified, held against the text that came."""
        record = self._heads.get(request_id)
        if record is not None:
            self._worth.note(record, confidence)
            self._worth.learn(confidence, 1, int(held))

    def _wanted(self, request: Request) -> int:
        """Return how many drafts a request can use: none for its last token."""
        left = request.sampling.max_tokens - len(request.output_ids)
        return max(min(self._plan.num_steps, left - 1), 0)

    def _propose(self, request: Request, count: int) -> Proposal:
        ngram = self._ngrams.get(request.request_id)
        return ngram.propose(count) if ngram is not None and count > 0 else NOTHING

    def _chances(self, request: Request, count: int) -> Sequence[float]:
        record = self._heads.get(request.request_id)
        if record is None or record.confidence is None:
            return ()
        return self._worth.chances(record.confidence, count)

    def _usual(self, request: Request) -> list[tuple[float, list[float]]]:
        record = self._heads.get(request.request_id)
        return self._worth.usual(record, self._plan.num_steps) if record is not None else []


def verify_widths(plan: EnginePlan) -> tuple[int, ...]:
    """Return the widths that rounds of this plan may verify, largest first."""
    if plan.draft == "ngram":
        return plan.width, 1  # a round without drafts is plain decoding
    return tuple(range(plan.width, 0, -1)) if plan.draft == "auto" else (plan.width,)

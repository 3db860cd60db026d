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
from slipstream.speculative.breakeven import Choice, Outlook, PhaseCosts, choose_round
from slipstream.speculative.ngram import NOTHING, NgramDrafter, Proposal
from slipstream.speculative.survival import Survival

#: A head's chances before anything was seen of it, how much that weighs, and how long a request's and all
#: requests' outcomes are remembered: what a head is worth differs by text, and less by the place in it.
_HEAD_PRIOR, _HEAD_PRIOR_WEIGHT = (0.5, 0.5), 4.0
_HEAD_MEMORY, _ALL_HEADS_MEMORY = 0.9, 0.98


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a round verifies.

    Attributes:
        width: rows a request.
        head: whether the head drafts, and is extended behind verify.
        by_host: each request's ngram drafts, at most width - 1; empty where it has none or the head's are better.
    """

    width: int
    head: bool
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
        self._heads: dict[int, Survival] = {}
        self._all_heads = Survival(_HEAD_PRIOR, _HEAD_PRIOR_WEIGHT, _ALL_HEADS_MEMORY)

    def join(self, request: Request) -> None:
        """Begin to draft for a greedy request."""
        if self._plan.draft in ("ngram", "auto"):
            drafter = self._ngrams[request.request_id] = NgramDrafter()
            drafter.extend(request.prompt_ids)
        if self._may_choose_head:
            prior = self._all_heads.conditional
            self._heads[request.request_id] = Survival(prior, _HEAD_PRIOR_WEIGHT, _HEAD_MEMORY)

    def leave(self, request_id: int) -> None:
        """Forget a request."""
        self._ngrams.pop(request_id, None)
        self._heads.pop(request_id, None)

    def extend(self, request_id: int, tokens: list[int]) -> None:
        """Take in tokens that are now part of a request's text."""
        drafter = self._ngrams.get(request_id)
        if drafter is not None:
            drafter.extend(tokens)

    def choose(self, requests: Sequence[Request], behind: Sequence[bool]) -> Drafts:
        """Return what the next round of these requests verifies.

        Args:
            requests: the batch.
            behind: for each, whether its head would have to be brought up to date first.
        """
        none: list[list[int]] = [[] for _ in requests]
        if self._plan.draft in ("none", "nextn"):
            return Drafts(self._plan.width, self._plan.draft == "nextn", none)
        proposals, outlooks = [], []
        for request, lags in zip(requests, behind, strict=True):
            proposal, outlook = self._outlook(request, lags)
            proposals.append(proposal)
            outlooks.append(outlook)
        choice = Choice(1, head=False)
        if any(outlook.ngram or outlook.head for outlook in outlooks):
            choice = choose_round(
                self._costs, self._dispatcher, outlooks, self._widths, head=self._may_choose_head
            )
        for row, (proposal, outlook) in enumerate(zip(proposals, outlooks, strict=True)):
            if not (choice.head and outlook.prefers_head(choice.width)):
                none[row] = proposal.drafts[: choice.width - 1]
        return Drafts(choice.width, choice.head, none)

    def learn(self, requests: Sequence[Request], drafts: Drafts, settled: Sequence[list[int]]) -> None:
        """Take in what a round accepted of the head's drafts. What ngram's were worth, the text shows."""
        for row, (request, tokens) in enumerate(zip(requests, settled, strict=True)):
            if drafts.by_head(row):
                self.learn_head(request.request_id, drafts.count(row), len(tokens) - 1)

    def learn_head(self, request_id: int, drafted: int, accepted: int) -> None:
        """Take in one outcome of the head's drafts: of `drafted` the first `accepted` held."""
        own = self._heads.get(request_id)
        if own is not None:
            own.learn(drafted, accepted)
            self._all_heads.learn(drafted, accepted)

    def _outlook(self, request: Request, behind: bool) -> tuple[Proposal, Outlook]:
        left = request.sampling.max_tokens - len(request.output_ids)
        wanted = min(self._plan.num_steps, left - 1)
        if wanted < 1:
            return NOTHING, Outlook(behind=behind)
        ngram, head = self._ngrams.get(request.request_id), self._heads.get(request.request_id)
        proposal = ngram.propose(wanted) if ngram is not None else NOTHING
        chances = head.chances(wanted) if head is not None else ()
        return proposal, Outlook(proposal.chances, chances, behind)


def verify_widths(plan: EnginePlan) -> tuple[int, ...]:
    """Return the widths that rounds of this plan may verify, largest first."""
    if plan.draft == "ngram":
        return plan.width, 1  # a round without drafts is plain decoding
    return tuple(range(plan.width, 0, -1)) if plan.draft == "auto" else (plan.width,)

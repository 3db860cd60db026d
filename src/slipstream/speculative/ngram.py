"""The n-gram drafter (prompt lookup): what followed the newest tokens the last time they stood together.

Host only, no torch. It accepts drafts today, without training, wherever a text repeats itself or its prompt.

A wrong draft is not free: a verify round of 4 rows takes longer than a plain one of 1. So the drafter keeps count
of what its matches of each length were worth in this text, and a proposal says how many of its drafts are likely
to hold; whether that pays for the rows is decided by measured times (`speculative.breakeven`).

Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Lengths of a match, longest first: longer ones are rarer and right more often.
_MATCH_LENGTHS = (5, 4, 3, 2)

#: What a match is believed to bring before anything was seen, and how many rounds that belief weighs.
_PRIOR_ACCEPTED = {5: 1.8, 4: 1.5, 3: 1.2, 2: 0.7}
_PRIOR_ROUNDS = 2.0

#: How much of the past each new outcome keeps: texts change from copying to writing and back.
_MEMORY = 0.9


#: How far a match length that is passed over drifts back to its prior each time: after some 50 such rounds it is
#: tried again, because the text may have changed.
_FORGIVE = 0.015


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts for one request.

    Attributes:
        drafts: tokens in order, or none.
        expected: how many of them are likely to hold.
    """

    drafts: list[int]
    expected: float


NOTHING = Proposal([], 0.0)


@dataclass(slots=True)
class _Worth:
    """Decayed sums of what a match length brought."""

    accepted: float
    rounds: float = _PRIOR_ROUNDS

    @property
    def mean(self) -> float:
        return self.accepted / self.rounds


def _priors() -> dict[int, _Worth]:
    return {length: _Worth(_PRIOR_ACCEPTED[length] * _PRIOR_ROUNDS) for length in _MATCH_LENGTHS}


@dataclass(slots=True)
class NgramDrafter:
    """Prompt lookup for one request."""

    _tokens: list[int] = field(default_factory=list)
    _follows: dict[tuple[int, ...], int] = field(default_factory=dict)
    _worth: dict[int, _Worth] = field(default_factory=_priors)
    _proposed: int = 0  # match length of the last proposal

    def extend(self, tokens: list[int]) -> None:
        """Take in tokens that are now part of the text."""
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens) - 1
            # What precedes `end` is now followed by it. The newest occurrence wins.
            for length in _MATCH_LENGTHS:
                if end >= length:
                    self._follows[tuple(self._tokens[end - length : end])] = end

    def propose(self, num_steps: int) -> Proposal:
        """Return `num_steps` drafts and what they are likely to bring; no drafts where nothing matches."""
        self._proposed = 0
        for length in _MATCH_LENGTHS:
            start = self._follows.get(tuple(self._tokens[-length:])) if len(self._tokens) > length else None
            if start is not None:
                self._proposed = length
                return Proposal(self._continue(start, num_steps), self._worth[length].mean)
        return NOTHING

    def _continue(self, start: int, num_steps: int) -> list[int]:
        """Return what stands from `start` on; past the text's end the continuation repeats with its period."""
        period = len(self._tokens) - start
        return [self._tokens[start + step % period] for step in range(num_steps)]

    def learn(self, accepted: int) -> None:
        """Take in how many of the drafts just proposed held, where they were verified."""
        worth = self._worth.get(self._proposed)
        if worth is not None:
            worth.accepted = worth.accepted * _MEMORY + accepted
            worth.rounds = worth.rounds * _MEMORY + 1

    def pass_over(self) -> None:
        """Note that the drafts just proposed were not verified: slowly, forget what spoke against them."""
        worth = self._worth.get(self._proposed)
        if worth is not None:
            prior = _PRIOR_ACCEPTED[self._proposed]
            worth.accepted += (prior - worth.mean) * _FORGIVE * worth.rounds

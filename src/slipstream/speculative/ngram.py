"""The n-gram drafter (prompt lookup): what followed the newest tokens the last time they stood together.

Host only, no torch. It accepts drafts today, without training, wherever a text repeats itself or its prompt.

A wrong draft is not free: a verify round of 4 rows takes longer than a plain one of 1. So the drafter keeps count
of what its matches of each length were worth in this text, and a proposal says how likely its drafts are to hold;
whether that pays for the rows is decided by measured times (`speculative.breakeven`). Drafts that were not
verified teach as much as those that were: the text goes on, and shows what they would have brought.

Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.speculative.survival import Survival

#: By length of a match, longest first (longer ones are rarer and right more often): the chance that the first
#: draft holds, and that a later one does behind one that held, before anything was seen.
_PRIOR = {5: (0.75, 0.8), 4: (0.68, 0.75), 3: (0.58, 0.7), 2: (0.4, 0.6)}

#: How many outcomes that belief is worth.
_PRIOR_WEIGHT = 2.0

#: How much of the past each new outcome keeps: texts change from copying to writing and back.
_MEMORY = 0.9


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts for one request.

    Attributes:
        drafts: tokens in order, or none.
        chances: how likely the first of them is to hold, the first two, and so on.
    """

    drafts: list[int]
    chances: list[float]

    @property
    def expected(self) -> float:
        """How many of the drafts are likely to hold."""
        return sum(self.chances)


NOTHING = Proposal([], [])


@dataclass(frozen=True, slots=True)
class _Open:
    """Drafts whose worth is not known yet: a match of `length`, proposed where the text had `start` tokens."""

    start: int
    length: int
    drafts: list[int]


def _worth() -> dict[int, Survival]:
    return {length: Survival(prior, _PRIOR_WEIGHT, _MEMORY) for length, prior in _PRIOR.items()}


@dataclass(slots=True)
class NgramDrafter:
    """Prompt lookup for one request."""

    _tokens: list[int] = field(default_factory=list)
    _indexed: int = 0
    _follows: dict[tuple[int, ...], int] = field(default_factory=dict)
    _worth: dict[int, Survival] = field(default_factory=_worth)
    _open: list[_Open] = field(default_factory=list)

    def extend(self, tokens: list[int]) -> None:
        """Take in tokens that are now part of the text."""
        self._tokens += tokens

    def _catch_up(self) -> None:
        """Index what is new in the text, and learn from it what earlier drafts were worth."""
        for end in range(self._indexed, len(self._tokens)):
            # What precedes `end` is now followed by it. The newest occurrence wins.
            for length in _PRIOR:
                if end >= length:
                    self._follows[tuple(self._tokens[end - length : end])] = end
        self._indexed = len(self._tokens)
        if self._open:
            self._open = [draft for draft in self._open if not self._settle(draft)]

    def propose(self, num_steps: int) -> Proposal:
        """Return `num_steps` drafts and how likely they are to hold; no drafts where nothing matches."""
        self._catch_up()
        for length in _PRIOR:
            start = self._follows.get(tuple(self._tokens[-length:])) if len(self._tokens) > length else None
            if start is not None:
                drafts = self._continue(start, num_steps)
                self._open.append(_Open(len(self._tokens), length, drafts))
                return Proposal(drafts, self._worth[length].chances(num_steps))
        return NOTHING

    def _continue(self, start: int, num_steps: int) -> list[int]:
        """Return what stands from `start` on; past the text's end the continuation repeats with its period."""
        period = len(self._tokens) - start
        return [self._tokens[start + step % period] for step in range(num_steps)]

    def _settle(self, proposed: _Open) -> bool:
        """Learn what drafts were worth, where the text that is there now says so; return whether it does."""
        text = self._tokens[proposed.start : proposed.start + len(proposed.drafts)]
        held = 0
        while held < len(text) and text[held] == proposed.drafts[held]:
            held += 1
        if held == len(text) < len(proposed.drafts):
            return False
        self._worth[proposed.length].learn(len(proposed.drafts), held)
        return True

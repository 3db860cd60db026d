"""How likely drafts are to hold, by position, learnt as they are tried. No torch.

A draft is seen to hold or fall only where all before it held, so what is counted is each position's chance behind
a draft that held; the chance that the first k hold is a product of these. A position that was hardly tried is
believed to be as much better or worse than expected as the one before it: else narrow rounds, which do not try it,
would never become wide.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Positions that learn apart; those behind them share the last one's chance.
_POSITIONS = 4


class Survival:
    """Decayed counts by position.

    Args:
        prior: each position's chance before anything was seen; the last one goes on.
        weight: how many outcomes this belief is worth.
        memory: how much of the past each new outcome keeps: texts change.
    """

    def __init__(self, prior: Sequence[float], weight: float, memory: float) -> None:
        self._memory = memory
        self._prior = [prior[min(position, len(prior) - 1)] for position in range(_POSITIONS)]
        self._belief = [weight] * _POSITIONS  # what the prior still weighs
        self._held, self._tried = [0.0] * _POSITIONS, [0.0] * _POSITIONS
        self._known: dict[int, list[float]] = {}  # chances by number of steps, until the next outcome

    def learn(self, drafted: int, accepted: int) -> None:
        """Take in one outcome: of `drafted` drafts the first `accepted` held."""
        self._known = {}
        for position in range(min(drafted, accepted + 1)):
            at = min(position, _POSITIONS - 1)
            self._belief[at] *= self._memory
            self._held[at] = self._held[at] * self._memory + (position < accepted)
            self._tried[at] = self._tried[at] * self._memory + 1

    @property
    def conditional(self) -> list[float]:
        """Each position's chance behind a draft that held."""
        chances: list[float] = []
        surprise = 0.0  # how much better the position before is than was expected of it
        for at in range(_POSITIONS):
            believed = min(max(self._prior[at] + surprise, 0.0), 1.0)
            weight = self._belief[at]
            chances.append((self._held[at] + weight * believed) / (self._tried[at] + weight))
            surprise = chances[at] - self._prior[at]
        return chances

    def chances(self, num_steps: int) -> list[float]:
        """Return the chance that the first draft holds, the first two, and so on up to `num_steps`."""
        known = self._known.get(num_steps)
        if known is None:
            conditional, chance, known = self.conditional, 1.0, []
            for position in range(num_steps):
                chance *= conditional[min(position, _POSITIONS - 1)]
                known.append(chance)
            self._known[num_steps] = known
        return list(known)

"""What a head's confidence in its first draft says of how far its drafts will hold. No torch.

Confidence is the probability that the head gives its first draft. It is known before the round and costs nothing,
and rounds differ in it far more than texts do: so chances are learnt by confidence, from all requests, and each
request keeps count of how often its head is how confident.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from slipstream.speculative.survival import Survival

#: Confidences between which chances are learnt apart.
_EDGES = (0.1, 0.25, 0.45, 0.65, 0.85)

#: The first draft's chance in each of these before anything was seen; a head is a little surer than it is right.
_PRIOR = (0.03, 0.14, 0.3, 0.48, 0.68, 0.88)

#: What the belief weighs, in outcomes, and how much of the past each new outcome keeps.
_PRIOR_WEIGHT, _MEMORY = 6.0, 0.98

#: The same for how often each confidence is met in a request.
_SHARES_WEIGHT, _SHARES_MEMORY = 6.0, 0.95


@dataclass(slots=True)
class HeadRecord:
    """One request's head.

    Attributes:
        confidence: in its next first draft; None while it is behind.
        counts: how often each confidence was met lately.
    """

    confidence: float | None
    counts: list[float]

    def note(self, confidence: float) -> None:
        """Take in a confidence that was met; it is that of the next draft until another follows."""
        self.confidence = confidence
        self.counts = [count * _SHARES_MEMORY for count in self.counts]
        self.counts[bisect_right(_EDGES, confidence)] += 1


class HeadWorth:
    """What the drafts of an engine's head are worth, by confidence."""

    def __init__(self) -> None:
        self._survival = [Survival((chance, 0.3 + 0.4 * chance), _PRIOR_WEIGHT, _MEMORY) for chance in _PRIOR]
        self._all = HeadRecord(None, [1.0] * len(_PRIOR))

    def record(self) -> HeadRecord:
        """Return the record of a new request: what is usual until its own confidences are seen."""
        total = sum(self._all.counts)
        return HeadRecord(None, [count / total * _SHARES_WEIGHT for count in self._all.counts])

    def note(self, record: HeadRecord, confidence: float) -> None:
        """Take in a confidence that a request's head has in its next draft."""
        record.note(confidence)
        self._all.note(confidence)

    def learn(self, confidence: float, drafted: int, accepted: int) -> None:
        """Take in one outcome: of `drafted` drafts the first `accepted` held."""
        self._survival[bisect_right(_EDGES, confidence)].learn(drafted, accepted)

    def chances(self, confidence: float, num_steps: int) -> list[float]:
        """Return the chance that the first draft holds, the first two, and so on up to `num_steps`."""
        return self._survival[bisect_right(_EDGES, confidence)].chances(num_steps)

    def usual(self, record: HeadRecord, num_steps: int) -> list[tuple[float, list[float]]]:
        """Return for each confidence how large its share of a request's rounds is, and the chances then."""
        total = sum(record.counts)
        return [
            (count / total, survival.chances(num_steps))
            for count, survival in zip(record.counts, self._survival, strict=True)
        ]

"""What a question of a round is answered from, and what an answer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.timeline import markers
from slipstream.timeline.breakdown import Join, Stretch
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.overlap import Share
from slipstream.timeline.rounds import Round, RoundKind, Rounds, Route
from slipstream.timeline.table import Source

QUESTIONS = (
    "draft: eager or replay, and how many forwards",
    "draft: bucket and padding",
    "the seam between draft and verify",
    "verify: width, rows, padded rows, and what they cost",
    "does the extend plan overlap verify and accept",
    "which branch a join waits for",
    "communication: total, covered, exposed",
    "did one rank's route change the others'",
    "extend: eager or replay, and what its graph saves",
)

Value = int | float | str | list[str]


@dataclass(frozen=True)
class Answer:
    """The answer to one question.

    Attributes:
        question: 1 to 9.
        text: in words; of a question that has no answer, "not in this trace, because ...".
        values: in numbers, `_ns` in nanoseconds.
        source: GIVEN if the trace says it, INFERRED if any of it was concluded, USER if any of it is an option's.
        known: whether there is an answer.
    """

    question: int
    text: str
    values: Mapping[str, Value] = field(default_factory=dict)
    source: Source = Source.GIVEN
    known: bool = True


@dataclass(frozen=True)
class Across:
    """What only several rounds or ranks tell of one.

    Attributes:
        ns_per_row: of each phase, how much longer a row more makes it, from rounds with different rows.
        routed: (phase, route) -> the median of its span, and how many.
        peers: of each round number, the same round on every rank.
        late: of each round number and rank, (others' wait for it in collectives, its own wait for others).
    """

    ns_per_row: Mapping[str, float]
    routed: Mapping[tuple[str, Route], tuple[float, int]]
    peers: Mapping[int, Sequence[Round]]
    late: Mapping[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Facts:
    """One round, as the nine functions below see it."""

    deps: Dependencies
    rounds: Rounds
    item: Round
    parts: Sequence[Stretch]
    comm: Sequence[Share]
    joins: Sequence[Join]
    across: Across

    def missing(self, question: int, why: str) -> Answer:
        """Return the answer of a question that has none."""
        return Answer(question, f"not in this trace, because {why}", known=False)

    def without(self, question: int, phase: str) -> Answer:
        """Return the answer of a question on a phase that the round does not have."""
        if self.item.kind is RoundKind.DECODE:
            return self.missing(question, f"this is a plain decoding step: it has no {phase}")
        if self.item.kind is RoundKind.PREFILL:
            return self.missing(question, f"this is a prefill: it has no {phase}")
        verify = self.item.phase(markers.VERIFY)
        if verify is not None and verify.facts.get("width") == 1:
            return self.missing(
                question, f"nothing was drafted (verify has one row a request): it has no {phase}"
            )
        return self.missing(question, f"no work of this round is known to be its {phase}")

    @property
    def source(self) -> Source:
        """How the phases are known."""
        return self.rounds.source

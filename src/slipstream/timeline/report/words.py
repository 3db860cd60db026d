"""What dependencies, rounds and the host's operations are called; the same words in every report."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.timeline.breakdown import short_name
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.host import BETWEEN
from slipstream.timeline.path import NO_EDGE
from slipstream.timeline.rounds import RoundKind
from slipstream.timeline.wording import counted

#: What dependencies are called, as in "91 % stream order".
EDGES = {
    int(EdgeKind.LAUNCH): "launches",
    int(EdgeKind.STREAM): "stream order",
    int(EdgeKind.EVENT): "recorded events",
    int(EdgeKind.EVENT_INFERRED): "inferred events",
    int(EdgeKind.GRAPH): "a graph's topology",
    int(EdgeKind.HOST): "the host's order",
    int(EdgeKind.COLLECTIVE): "other ranks in collectives",
    NO_EDGE: "nothing before it",
}

CONFIDENCES = {
    Confidence.GIVEN: "in the trace",
    Confidence.INFERRED: "inferred by a rule",
    Confidence.GUESSED: "guessed from times",
}

#: One round of a kind, and several.
ROUNDS = {
    RoundKind.ROUND: ("round", "rounds"),
    RoundKind.DECODE: ("decoding step", "decoding steps"),
    RoundKind.PREFILL: ("prefill", "prefills"),
    RoundKind.WARM_UP: ("warm-up round", "warm-up rounds"),
    RoundKind.CLIPPED: ("clipped round", "clipped rounds"),
    RoundKind.STRETCH: ("stretch", "stretches"),
    RoundKind.WHOLE: ("whole trace", "whole traces"),
}


def host_name(name: str) -> str:
    """Return what the host did, as people call it."""
    return "code not in the trace" if name == BETWEEN else short_name(name).strip()


def rounds_of(kinds: Iterable[RoundKind]) -> str:
    """Return how many rounds there are of each kind, most first: "53 rounds, 1 prefill"."""
    kinds = list(kinds)
    if kinds == [RoundKind.WHOLE]:
        return "not cut into rounds"
    numbers: dict[RoundKind, int] = {}
    for kind in kinds:
        numbers[kind] = numbers.get(kind, 0) + 1
    ordered = sorted(numbers.items(), key=lambda item: -item[1])
    return ", ".join(counted(number, *ROUNDS[kind]) for kind, number in ordered)

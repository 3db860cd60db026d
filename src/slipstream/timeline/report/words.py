"""Times, shares and names as people read them; the same words in every report."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.timeline.breakdown import short_name
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.host import BETWEEN
from slipstream.timeline.path import NO_EDGE
from slipstream.timeline.rounds import RoundKind

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
    RoundKind.WHOLE: ("trace not cut into rounds", "traces not cut into rounds"),
}


def host_name(name: str) -> str:
    """Return what the host did, as people call it."""
    return "code not in the trace" if name == BETWEEN else short_name(name).strip()


def duration(ns: float) -> str:
    """Return a time.

    >>> duration(20_797_940), duration(118_400), duration(1_484_000_000)
    ('20.80 ms', '118.4 us', '1.48 s')
    """
    size = abs(ns)
    if size >= 0.9995e9:
        return f"{ns / 1e9:.2f} s"
    if size >= 0.99995e6:
        return f"{ns / 1e6:.2f} ms"
    return f"{ns / 1e3:.1f} us"


def percent(share: float) -> str:
    """Return a share; nothing is 0 and everything 100, and only they are.

    >>> percent(0.0004), percent(0.123), percent(0.99996)
    ('under 0.1 %', '12.3 %', 'over 99.9 %')
    """
    if 0 < share < 0.0005:
        return "under 0.1 %"
    if 0.9995 <= share < 1:
        return "over 99.9 %"
    text = f"{100 * share:.1f}"
    return f"{text.removesuffix('.0')} %"


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a number of things.

    >>> counted(1, "round"), counted(3905, "row")
    ('1 round', '3,905 rows')
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def rounds_of(kinds: Iterable[RoundKind]) -> str:
    """Return how many rounds there are of each kind, most first: "53 rounds, 1 prefill"."""
    numbers: dict[RoundKind, int] = {}
    for kind in kinds:
        numbers[kind] = numbers.get(kind, 0) + 1
    ordered = sorted(numbers.items(), key=lambda item: -item[1])
    return ", ".join(counted(number, *ROUNDS[kind]) for kind, number in ordered)


def listed(items: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = [*items] or [""]
    return f"{', '.join(first)} and {last}" if first else last

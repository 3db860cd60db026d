"""Graph modes and routes. Pure: no torch."""

from __future__ import annotations

from enum import Enum


class GraphMode(Enum):
    """What is captured. Names and meanings are vLLM's.

    FULL captures a phase as one graph; PIECEWISE splits it at attention, which runs eagerly between the pieces.
    The last two are pairs: one mode for uniform decode (every request has the same rows), one for mixed batches.
    Only NONE, PIECEWISE and FULL ever reach a runner.
    """

    NONE = "none"
    PIECEWISE = "piecewise"
    FULL = "full"
    FULL_DECODE_ONLY = "full_decode_only"
    FULL_AND_PIECEWISE = "full_and_piecewise"

    @property
    def decode(self) -> GraphMode:
        """The mode of uniform decode batches."""
        return _PAIRS.get(self, (self, self))[0]

    @property
    def mixed(self) -> GraphMode:
        """The mode of all other batches."""
        return _PAIRS.get(self, (self, self))[1]

    @property
    def is_pair(self) -> bool:
        """Whether uniform decode has graphs of its own."""
        return self in _PAIRS

    @property
    def runtime_modes(self) -> frozenset[GraphMode]:
        """The modes that a batch may be dispatched to, NONE included."""
        return frozenset((self.decode, self.mixed, GraphMode.NONE))

    @property
    def has_full(self) -> bool:
        """Whether anything is captured whole."""
        return GraphMode.FULL in self.runtime_modes

    @property
    def has_piecewise(self) -> bool:
        """Whether anything is captured in pieces."""
        return GraphMode.PIECEWISE in self.runtime_modes


_PAIRS = {
    GraphMode.FULL_DECODE_ONLY: (GraphMode.FULL, GraphMode.NONE),
    GraphMode.FULL_AND_PIECEWISE: (GraphMode.FULL, GraphMode.PIECEWISE),
}


class AttentionSupport(Enum):
    """Which batches an attention backend can have in a captured graph; a model's level is its backends' least."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


class Route(Enum):
    """How a phase ran."""

    EAGER = "eager"
    REPLAY = "replay"

"""Graph modes and routes. Pure: no torch."""

from __future__ import annotations

from enum import Enum


class GraphMode(Enum):
    """What is captured. Names and meanings follow vLLM's; the modes between these two come later."""

    NONE = "none"
    FULL = "full"


class Route(Enum):
    """How a phase ran."""

    EAGER = "eager"
    REPLAY = "replay"

"""Why a step was not replayed. Pure: no torch."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """The kinds of reasons that a table or a counter tells apart; a `Dispatch` has the words beside it."""

    CAPTURED = "captured"
    TOO_LARGE = "too large"
    NOT_UNIFORM = "not uniform"
    WIDTH_DIFFERS = "width differs"
    NOT_CAPTURED = "not captured"
    RANK_DISAGREED = "rank disagreed"
    DISABLED = "disabled"
    FAILED = "capture failed"

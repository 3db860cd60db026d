"""What one schedule of a program showed, as plain data that goes from process to process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """Why a schedule did not come to its end.

    Attributes:
        kind: "raised" (the program raised, or exited with a failure), "lacks" (the software NPU lacks what it
            uses), "timeout" (it was stopped), "died" (its process ended without a result).
        text: one or two lines.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Orders:
    """What trying the orders of the recorded program came to.

    Attributes:
        tried: orders run to their end.
        complete: whether no order is left that could differ.
    """

    tried: int
    complete: bool


@dataclass(frozen=True)
class Outcome:
    """What one schedule showed.

    Attributes:
        seed: of the schedule; None for program order.
        commands: how many commands ran.
        findings: `Finding.as_dict()` of each.
        problem: why it did not come to its end, if so.
        output: what the program printed; in program order only.
        orders: of the recorded program, if they were tried: this outcome holds their findings.
        notes: what the reader should know besides.
    """

    seed: int | None
    commands: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)
    problem: Problem | None = None
    output: str = ""
    orders: Orders | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """How people call the schedule."""
        if self.orders is not None:
            return "the recorded orders"
        return "program order" if self.seed is None else f"seed {self.seed}"

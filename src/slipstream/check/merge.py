"""Findings of many schedules, each once: the same kind at the same places is the same finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.check.outcome import Outcome

_NUMBER = re.compile(r"(?<=replay) \d+| #\d+")


@dataclass
class Merged:
    """One finding, and the schedules that showed it.

    Attributes:
        finding: as the first schedule gave it, `Finding.as_dict()`.
        in_program_order: whether program order showed it.
        in_orders: whether the recorded orders showed it.
        seeds: the seeds that showed it.
    """

    finding: dict[str, Any]
    in_program_order: bool = False
    in_orders: bool = False
    seeds: list[int] = field(default_factory=list)

    @property
    def schedules(self) -> int:
        """How many schedules showed it; the recorded orders are none."""
        return len(self.seeds) + self.in_program_order

    @property
    def first_seed(self) -> int | None:
        """The first seed that showed it."""
        return self.seeds[0] if self.seeds else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **self.finding,
            "schedules": self.schedules,
            "program_order": self.in_program_order,
            "first_seed": self.first_seed,
            "exhaustive": self.in_orders,
        }


class Findings:
    """Collects the findings of outcomes, in the order in which they first came."""

    def __init__(self) -> None:
        self._known: dict[object, Merged] = {}

    def add(self, outcome: Outcome) -> None:
        """Add what one schedule found."""
        for finding in outcome.findings:
            merged = self._known.setdefault(_key(finding), Merged(finding))
            if outcome.orders is not None:
                merged.in_orders = True
            elif outcome.seed is None:
                merged.in_program_order = True
            elif outcome.seed not in merged.seeds:
                merged.seeds.append(outcome.seed)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def merged(self) -> list[Merged]:
        """All of them."""
        return list(self._known.values())


def _key(finding: Mapping[str, Any]) -> tuple[object, ...]:
    # Of an op only what it is: which stream or replay it ran in is another in every round of a loop.
    ops = tuple(_NUMBER.sub("", op.split(" on ", 1)[0]) for op in finding["ops"])
    stacks = tuple(tuple(stack) for stack in finding["stacks"])
    if finding["kind"] == "hang":
        # The rest is who waits besides, which differs by where the host stood.
        ops, stacks = ops[:1], stacks[:1]
    return (finding["kind"], ops, stacks) if stacks else (finding["kind"], ops, finding["title"])

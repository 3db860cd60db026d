"""What differs from what was asked, as data. Pure: no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that a rule of the graph system changed. `plan.py` makes `Decision`s of them.

    Attributes:
        what: the setting.
        asked: its value before.
        got: its value now.
        why: the reason, one sentence.
        rule: the rule's name.
    """

    what: str
    asked: str
    got: str
    why: str
    rule: str

"""What the machine finds, as things to read: findings, the order of a run, the report."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from slipstream.device.soft.machine.places import Place

KINDS = (
    "race",
    "hang",
    "lost-opening",
    "stale-address",
    "lifetime",
    "task-count",
    "update-mixed",
    "host-buffer",
    "collective",
    "reset-running",
)

#: What tells apart the replays of a graph, and what one line made again and again.
_NUMBER = re.compile(r"(?<=replay) \d+| #\d+")


@dataclass(frozen=True)
class Finding:
    """One defect of the program, found in one order of its commands.

    Attributes:
        kind: one of `KINDS`.
        title: one line.
        streams: the streams (or hosts) that take part.
        ops: their ops, in the order of issue; then the replays that they belong to, if they were captured.
        buffer: the tensor, buffer or gate, if one is concerned.
        places: where each op was issued, as stacks of user code.
        missing: what would mend it, in words of the torch API.
        order: the smallest order that shows it, one step a line.
        code: what a device would say, if it would say anything.
    """

    kind: str
    title: str
    streams: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    buffer: str | None = None
    places: tuple[Place, ...] = ()
    missing: str = ""
    order: tuple[str, ...] = ()
    code: int | None = None

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks as text, one for each op, innermost frame first."""
        return tuple(str(place) for place in self.places)

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two findings the same one, of one run or of several: their kind and where they come from."""
        ops, streams = (tuple(_NUMBER.sub("", text) for text in texts) for texts in (self.ops, self.streams))
        return (self.kind, ops, streams, tuple(id(place) for place in self.places))

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return {
            "kind": self.kind,
            "title": self.title,
            "streams": list(self.streams),
            "ops": list(self.ops),
            "buffer": self.buffer,
            "stacks": [place.lines() for place in self.places],
            "missing": self.missing,
            "order": list(self.order),
            "code": self.code,
        }

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.title}" + (f" (a device may say {self.code})" if self.code else "")]
        for op, place in zip(self.ops, self.places, strict=False):
            lines.append(f"  {op}")
            lines += [f"    {line}" for line in place.lines()]
        if self.order:
            lines.append("  the smallest order that shows it:")
            lines += [f"    {number}. {step}" for number, step in enumerate(self.order, 1)]
        if self.missing:
            lines.append(f"  to mend it: {self.missing}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Schedule:
    """The order that a run took, enough to take it again with `Replayed(schedule.choices)`.

    Attributes:
        kind: "program order", "seeded" or "replayed".
        seed: of a seeded run.
        choices: what was chosen, one number a choice; empty for program order, which has none.
    """

    kind: str
    seed: int | None = None
    choices: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplayCount:
    """What one replay used: tasks captured in its graph, of them updated since the last replay, gates opened.

    `waits` is the number of gate waits that the graph holds: in a good replay it is `opened`.
    """

    graph: str
    number: int
    captured: int
    updated: int
    waits: int
    opened: int
    finished: bool


@dataclass(frozen=True)
class Report:
    """Everything that a run has to say.

    Attributes:
        findings: the defects, in the order found.
        commands: how many commands ran.
        replays: the counts of every replay of a graph that holds tasks or gates.
        schedule: the order that was run.
    """

    findings: tuple[Finding, ...]
    commands: int
    replays: tuple[ReplayCount, ...] = ()
    schedule: Schedule = field(default_factory=lambda: Schedule("program order"))

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def kinds(self) -> set[str]:
        """Return the kinds of the findings."""
        return {finding.kind for finding in self.findings}

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "commands": self.commands,
            "replays": [count.__dict__ for count in self.replays],
            "schedule": {
                "kind": self.schedule.kind,
                "seed": self.schedule.seed,
                "choices": list(self.schedule.choices),
            },
        }

    def __str__(self) -> str:
        head = f"{self.commands} commands, {len(self.findings)} finding{'s' * (len(self.findings) != 1)}"
        return "\n\n".join([head, *map(str, self.findings)])

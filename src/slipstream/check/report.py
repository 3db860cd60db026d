"""What a check came to, as text for people and as plain data."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipstream.check.merge import Findings, Merged
from slipstream.check.outcome import Orders, Outcome, Problem
from slipstream.check.request import CheckRequest

#: Findings that people are shown; where there are so many, the first ones are mended first.
MOST_SHOWN = 20


@dataclass(frozen=True)
class CheckReport:
    """What all schedules showed.

    Attributes:
        request: what was asked.
        findings: each once.
        schedules: how many were run, program order among them.
        commands: that ran in program order.
        problem: what stopped the check, with the schedule; None if all was run.
        consequences: what the program raised under seeds after something was found, with the first seed and how
            many raised it.
        orders: of the recorded program, if they were tried.
        notes: what the reader should know besides.
    """

    request: CheckRequest
    findings: tuple[Merged, ...]
    schedules: int
    commands: int
    problem: tuple[str, Problem] | None
    consequences: tuple[tuple[str, int, int], ...]
    orders: Orders | None
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 2 the program could not be checked."""
        if self.problem is not None:
            return 2
        return 1 if self.findings else 0

    def data(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "program": self.request.name,
            "clean": self.exit_code == 0,
            "schedules": self.schedules,
            "seed": self.request.seed,
            "commands": self.commands,
            "findings": [
                {**merged.as_dict(), "again": again(self.request, merged)} for merged in self.findings
            ],
            "problem": None
            if self.problem is None
            else {"schedule": self.problem[0], "kind": self.problem[1].kind, "text": self.problem[1].text},
            "raised": [
                {"text": text, "first_seed": seed, "schedules": count}
                for text, seed, count in self.consequences
            ],
            "orders": None
            if self.orders is None
            else {"tried": self.orders.tried, "complete": self.orders.complete},
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Return the report that people read."""
        parts = [
            "\n".join(finding_text(merged, f"{_shown(merged, self)}; again: {again(self.request, merged)}"))
            for merged in self.findings[:MOST_SHOWN]
        ]
        rest = Counter(merged.finding["kind"] for merged in self.findings[MOST_SHOWN:])
        if rest:
            kinds = ", ".join(f"{count} {kind}" for kind, count in rest.items())
            parts.append(f"{_count(rest.total(), 'finding')} more ({kinds}); --json has all of them")
        for said, seed, count in self.consequences:
            parts.append(
                f"beside what was found, the program raised in {_count(count, 'schedule')}, first under "
                f"seed {seed}:\n  {said}"
            )
        parts += self.notes
        parts.append(self.summary())
        return "\n\n".join(parts)

    def summary(self) -> str:
        """Return the last line."""
        found = _count(len(self.findings), "finding") if self.findings else "nothing found"
        tried = f"{_count(self.schedules, 'schedule')} of {_count(self.commands, 'command')}"
        orders = ""
        if self.orders is not None:
            left = "all that can differ" if self.orders.complete else "more are left: raise --exhaustive"
            orders = f", {_count(self.orders.tried, 'recorded order')} ({left})"
        return f"{self.request.name}: {found} in {tried}{orders}"


def collect(request: CheckRequest, outcomes: list[Outcome]) -> CheckReport:
    """Return the report of what the schedules showed."""
    findings = Findings()
    problem, raised = None, Counter[str]()
    first: dict[str, int] = {}
    for outcome in outcomes:
        findings.add(outcome)
        if outcome.problem is None:
            continue
        if outcome.seed is not None and outcome.problem.kind == "raised" and len(findings):
            raised[outcome.problem.text] += 1
            first.setdefault(outcome.problem.text, outcome.seed)
        else:
            problem = (outcome.label, outcome.problem)
    plain = [outcome for outcome in outcomes if outcome.orders is None]
    return CheckReport(
        request,
        tuple(findings.merged),
        len(plain),
        plain[0].commands if plain else 0,
        problem,
        tuple((text, first[text], count) for text, count in raised.items()),
        next((outcome.orders for outcome in outcomes if outcome.orders is not None), None),
        tuple(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
    )


def again(request: CheckRequest, merged: Merged) -> str:
    """Return the shortest command that shows a finding again."""
    words = ["slipstream", "check"]
    words += ["--round"] if request.path is None else [request.path]
    if merged.in_program_order:
        words += ["--schedules", "0"]
    elif merged.first_seed is not None:
        words += ["--schedules", "1", "--seed", str(merged.first_seed)]
    else:
        words += ["--schedules", "0", "--exhaustive", str(request.exhaustive)]
    return shlex.join([*words, *(["--", *request.arguments] if request.arguments else [])])


def finding_text(merged: Merged, shown: str) -> Iterator[str]:
    """Yield the lines of a finding; `shown` says by what."""
    finding = merged.finding
    code = f" (a device may say {finding['code']})" if finding["code"] else ""
    yield f"{finding['kind']}: {finding['title']}{code}"
    for op, stack in zip(finding["ops"], finding["stacks"], strict=False):
        yield f"  {op}"
        yield from (f"    {line}" for line in stack)
    if finding["order"]:
        yield "  the smallest order that shows it:"
        yield from (f"    {number}. {step}" for number, step in enumerate(finding["order"], 1))
    if finding["missing"]:
        yield f"  to mend it: {finding['missing']}"
    yield f"  shown by {shown}"


def _shown(merged: Merged, report: CheckReport) -> str:
    if not merged.schedules:
        return "an order of the recorded program"
    words = []
    if merged.in_program_order:
        words.append("program order")
    if report.schedules > 1:
        seeds = f"{len(merged.seeds)} of {_count(report.schedules - 1, 'seed')}"
        words.append(
            seeds if merged.in_program_order or not merged.seeds else f"{seeds}, first {merged.first_seed}"
        )
    return " and ".join(words)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

"""The registry of the scenarios: what each must be found as, and running one.

A scenario is a function of `mended: bool`. It uses `mended` once: there stands the line that mends it. Its
docstring begins with the thread, as in "sglang #40025: ...".
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from slipstream.device import soft
from slipstream.device.soft.machine import Finding, Limits, ProgramOrder, Scheduler, Seeded
from slipstream.device.soft.machine.errors import StreamSyncTimeout

Program = Callable[[bool], Any]

HERE = Path(__file__).parent

#: Beside the kinds of findings.
REFUSED, VALUES = "refused", "other values"

#: The parts of the table, in its order, by the module that holds them.
PARTS = {
    "captures": "Capture: streams, illegal operations, joins",
    "hangs": "Hangs and openings",
    "ranks": "Ranks",
    "updates": "Updates of tasks",
    "plans": "Plan streams and other streams beside the round",
    "hosts": "The host and its buffers",
    "lifetimes": "Lifetime and addresses",
    "values": "Wrong values without a wrong order: no finding, the differential run shows them",
}


@dataclass(frozen=True)
class Scenario:
    """One failure.

    Attributes:
        program: the program; True mends it.
        kind: of the finding; `REFUSED` where the device says no at once, `VALUES` where only the values are wrong.
        code: of the refusal (None: torch_npu's own check), or what a device may say where there is a finding.
        says: what the text of the finding or of the refusal must hold, with streams by their variables' names.
        streams: the streams that the finding must name, by their variables' names.
        buffer: the tensor, buffer or gate that it must name, likewise.
        mend: the missing edge, as the finding must say it; the mending line itself if None.
        options: of `soft.install`.
    """

    program: Program
    kind: str
    code: int | None = None
    says: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    buffer: str | None = None
    mend: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.program.__name__

    @property
    def part(self) -> str:
        return self.program.__module__.rsplit(".", 1)[-1]

    @cached_property
    def thread(self) -> str:
        return self._docstring[0]

    @cached_property
    def what(self) -> str:
        return self._docstring[1]

    @cached_property
    def _docstring(self) -> tuple[str, str]:
        first = re.sub(r"\s+", " ", inspect.getdoc(self.program).split("\n\n")[0])  # type: ignore[union-attr]
        thread, what = first.split(": ", 1)
        return thread, what[0].upper() + what[1:].rstrip(".")

    @cached_property
    def mending(self) -> list[str]:
        """What stands where `mended` is asked for: one line, if the scenario is written well."""
        tree = ast.parse(textwrap.dedent(inspect.getsource(self.program)))
        lines = []
        for statement in (node for node in ast.walk(tree) if isinstance(node, ast.stmt)):
            if isinstance(statement, ast.If) and _asks(statement):
                lines += [ast.unparse(one) for one in statement.body]
            elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "not mended":
                lines += [f"no {ast.unparse(one)}" for one in statement.body]
            elif not isinstance(statement, ast.FunctionDef):
                # Of a statement with a body, what stands before the body.
                parts = [part for _, part in ast.iter_fields(statement) if isinstance(part, ast.expr)]
                if any(
                    isinstance(node, ast.IfExp) and _asks(node) for part in parts for node in ast.walk(part)
                ):
                    lines.append(ast.unparse(_Mended().visit(statement)).split("\n")[0])
        return lines

    @property
    def found(self) -> str:
        """How the table says what is found."""
        if self.kind == REFUSED:
            return f"refused: {self.code or 'torch_npu itself'}"
        return self.kind + (f" ({self.code})" if self.code else "")


def _asks(node: ast.If | ast.IfExp) -> bool:
    return ast.unparse(node.test) == "mended"


class _Mended(ast.NodeTransformer):
    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return node.body if _asks(node) else node


SCENARIOS: list[Scenario] = []


def finds(kind: str, **about: Any) -> Callable[[Program], Program]:
    """Register a program in which the checker must find `kind`; `about` are the fields of `Scenario`."""
    return _registering(kind=kind, **about)


def refused(code: int | None = None, **about: Any) -> Callable[[Program], Program]:
    """Register a program that the device must refuse, with Ascend's code, or None for torch_npu's own check."""
    return _registering(kind=REFUSED, code=code, **about)


def gives_other_values(**about: Any) -> Callable[[Program], Program]:
    """Register a program in which nothing is out of order, and which returns other values than the mended one."""
    return _registering(kind=VALUES, **about)


def _registering(**about: Any) -> Callable[[Program], Program]:
    options = {name: about.pop(name) for name in ("limits", "ranks") if name in about}

    def register(program: Program) -> Program:
        SCENARIOS.append(Scenario(program, options=options, **about))
        return program

    return register


def few_streams(usable: int) -> Limits:
    """Return the limits of a device on which so many streams can be used; a real one has 1800 of 2048."""
    return Limits(streams=usable + 4, reserved_streams=4)


@dataclass(frozen=True)
class Outcome:
    """What one run of a program showed."""

    findings: tuple[Finding, ...]
    error: BaseException | None
    value: Any

    @property
    def refusals(self) -> list[BaseException]:
        """What was raised, the last first: where the end of a capture raises too, its cause stands behind it."""
        chain, at = [], self.error
        while at is not None:
            chain.append(at)
            at = at.__cause__ or at.__context__
        return chain


def orders(seeds: int) -> list[Scheduler]:
    """Return program order and seeded orders."""
    return [ProgramOrder(), *(Seeded(seed) for seed in range(seeds))]


def run(scenario: Scenario, mended: bool, scheduler: Scheduler) -> Outcome:
    """Run a scenario on a software NPU of its own."""
    value: Any = None
    error: BaseException | None = None
    with soft.installed(scheduler, **scenario.options) as machine:
        try:
            value = scenario.program(mended)
        except RuntimeError as raised:
            error = raised
        findings = machine.finish().findings
    hung = isinstance(error, StreamSyncTimeout) and any(
        one.kind in ("hang", "collective") for one in findings
    )
    outcome = Outcome(findings, None if hung else error, value)
    for refusal in outcome.refusals:
        refusal.with_traceback(None)  # the frames hold tensors
    return outcome


_MADE = re.compile(
    r"(?:external event|event|stream|graph|pinned tensor)(?: #\d+)? made at (?P<file>\w+\.py):(?P<line>\d+)"
)
_TENSOR = re.compile(r"\w+\[[\d, ]*\] of [\w:. ]+ at (?P<file>\w+\.py):(?P<line>\d+)")


def by_variable(text: str) -> str:
    """Return a text of the checker with streams, gates, graphs and tensors by the variables that hold them."""
    for pattern in (_MADE, _TENSOR):
        text = pattern.sub(lambda match: _variable(match["file"], int(match["line"])) or match[0], text)
    return re.sub(r"(?:self\.)?(\w+)(?: #\d+)? \(\w+\.py:\d+\)", r"\1", text)


def _variable(file: str, line: int) -> str | None:
    source = linecache.getline(str(HERE / file), line).strip()
    found = re.match(r"(?:self\.)?(\w+)(?:: [^=]+)? = ", source)
    return found[1] if found else None


def table() -> str:
    """Return the README of this folder."""
    lines = [(HERE / "head.md").read_text().rstrip(), ""]
    for part, title in PARTS.items():
        lines += [f"## {title}", "", "| thread | program | what goes wrong | found as | mended by |"]
        lines.append("|---|---|---|---|---|")
        for one in (s for s in SCENARIOS if s.part == part):
            program = f"[{one.name}]({part}.py)"
            lines.append(f"| {one.thread} | {program} | {one.what} | {one.found} | `{one.mending[0]}` |")
        lines.append("")
    return "\n".join(lines)

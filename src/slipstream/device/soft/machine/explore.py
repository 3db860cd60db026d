"""Every order of a recorded program that can differ, each once.

Two orders that differ only in commands that have nothing to do with each other show the same. What matters is
the order of openings and waits at one gate: everything else is ordered by the program, or is a race, and a race
is seen from any order. So most programs have one order to try. `values` lets the order of accesses matter too,
for seeing what a race does to the values.

Commands without a rival left run at once (a persistent set of one); among the others, sleep sets keep an order
from being tried twice (Godefroid, 1996).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.device.soft.machine.commands import OPEN, TAKE, Actor, Command
from slipstream.device.soft.machine.engine import Engine
from slipstream.device.soft.machine.findings import Finding
from slipstream.device.soft.machine.program import Program, rivals
from slipstream.device.soft.machine.reporter import Reporter
from slipstream.device.soft.machine.schedulers import ProgramOrder


@dataclass(frozen=True)
class Exploration:
    """What all orders of a program show.

    Attributes:
        findings: of all orders.
        orders: how many were run to their end.
        pruned: how many were given up as the same as one that was run.
        complete: False if the bound was hit, so that orders are left that were not tried.
    """

    findings: tuple[Finding, ...]
    orders: int
    pruned: int
    complete: bool

    @property
    def clean(self) -> bool:
        """Whether nothing was found, in whatever was tried."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Return the exploration as plain JSON values."""
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "orders": self.orders,
            "pruned": self.pruned,
            "complete": self.complete,
        }

    def kinds(self) -> set[str]:
        """Return the kinds of the findings."""
        return {finding.kind for finding in self.findings}


class _Choice:
    """A point where the order matters: the commands that could run, and which is tried now."""

    def __init__(self, options: Sequence[Command], asleep: set[Command]) -> None:
        self.options, self.asleep, self.at = options, asleep, 0


def explore(
    program: Program,
    bound: int = 10_000,
    values: bool = False,
    before: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Exploration:
    """Try every order of a program that can differ.

    Args:
        program: of `Machine.program()`.
        bound: how many orders at most.
        values: whether the order of conflicting accesses matters too.
        before, after: called before and after each order; if one is given, the kernels' `run` is called.
        progress: called after each order with how many were tried.
    """
    reporter = Reporter()
    against = rivals(program, values)
    path: list[_Choice] = []
    orders = pruned = 0
    while True:
        if before is not None:
            before()
        engine = program.start(ProgramOrder(), reporter, before is not None or after is not None)
        if _follow(engine, path, against):
            orders += 1
            program.finish(engine)
            if after is not None:
                after()
        else:
            pruned += 1
        if progress is not None:
            progress(orders + pruned)
        while path and path[-1].at + 1 == len(path[-1].options):
            path.pop()
        if not path or orders + pruned >= bound:
            return Exploration(tuple(reporter.findings), orders, pruned, not path)
        path[-1].at += 1


def _follow(engine: Engine, path: list[_Choice], against: dict[Command, set[Command]]) -> bool:
    """Run one order: the path's choices, then the first option of each new choice. False if it is a known one."""
    asleep: set[Command] = set()
    depth = 0
    while True:
        _run_free(engine, asleep, against)
        heads = [actor.queue[0] for actor in engine.ready]
        if not heads:
            return True
        if depth == len(path):
            options = [head for head in heads if head not in asleep]
            if not options:
                return False
            path.append(_Choice(options, asleep))
        choice = path[depth]
        depth += 1
        chosen = choice.options[choice.at]
        enemies = against[chosen]
        asleep = {one for one in (*choice.asleep, *choice.options[: choice.at]) if one not in enemies}
        engine.run(chosen.actor)


def _run_free(engine: Engine, asleep: set[Command], against: dict[Command, set[Command]]) -> None:
    """Run everything whose place in the order doesn't matter."""
    while True:
        free = next((actor for actor in engine.ready if _free(actor, asleep, against)), None)
        if free is None:
            return
        engine.run(free)


def _free(actor: Actor, asleep: set[Command], against: dict[Command, set[Command]]) -> bool:
    command = actor.queue[0]
    enemies = against.get(command)
    if enemies is None:
        return True
    if command in asleep:
        return False
    left = [one for one in enemies if not one.done]
    if not left:
        return True
    # A wait cannot come before the only opening of its closed gate.
    return (
        command.kind == OPEN
        and command.gate is not None
        and not command.gate.is_open
        and all(one.kind == TAKE for one in left)
    )

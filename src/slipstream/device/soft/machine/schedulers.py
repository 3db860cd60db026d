"""Who runs next. A scheduler picks among the actors that can go on, after each host call.

    ProgramOrder()      everything at once, as eager PyTorch would: the order in which it was issued
    Seeded(seed)        random, of one of five temperaments, by the seed
    Replayed(choices)   an order that a report gave

The exhaustive one is `explore`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slipstream.device.soft.machine.errors import DivergedError
from slipstream.device.soft.machine.findings import Schedule

if TYPE_CHECKING:
    from slipstream.device.soft.machine.commands import Actor
    from slipstream.device.soft.machine.engine import Engine

# A change of host is written as this minus the rank.
HOST_SWITCH = -2


class Scheduler:
    """Base: program order.

    Attributes:
        records: whether the engine should write down what is chosen.
    """

    records = False

    def after_call(self, engine: Engine) -> None:
        """Run as many commands as it likes; the host goes on afterwards."""
        ready = engine.ready
        while ready:
            engine.run(ready[0] if len(ready) == 1 else min(ready, key=_head))

    def while_blocked(self, engine: Engine) -> None:
        """Run one command. `engine.ready` isn't empty."""
        engine.run(min(engine.ready, key=_head))

    def next_host(self, engine: Engine, able: Sequence[int], current: int, blocked: bool) -> int:
        """Return the rank whose host goes on, one of `able`."""
        return current if not blocked and current in able else min(able)

    def schedule(self, engine: Engine) -> Schedule:
        """Return the order taken, for the report."""
        return Schedule("program order")


def _head(actor: Actor) -> int:
    return actor.queue[0].index


class ProgramOrder(Scheduler):
    """Every command as soon as it can run, in the order of issue."""


TEMPERAMENTS = ("even", "starved", "host ahead", "priorities", "eager")


class Seeded(Scheduler):
    """A random order. Equal seeds give equal orders of equal programs.

    Temperaments, by `seed % 5`: even (any, for a random while), starved (one actor runs only when no other
    can), host ahead (nothing runs until the host waits), priorities (random priorities with rare changes, as
    in PCT by Burckhardt and others, 2010), eager (almost everything at once, in a random order).
    """

    records = True

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.temperament = TEMPERAMENTS[seed % len(TEMPERAMENTS)]
        self._random = random.Random(seed)
        self._go_on = {"even": 0.6, "starved": 0.85, "host ahead": 0.0, "priorities": 0.0, "eager": 0.97}[
            self.temperament
        ]
        self._victim = -1
        self._priorities: dict[int, float] = {}
        self._host = self._random.random()

    def after_call(self, engine: Engine) -> None:
        ready, draw = engine.ready, self._random.random
        if self.temperament == "priorities":
            while ready:
                actor = self._first(engine)
                if self._priorities[actor.id] < self._host:
                    break
                engine.run(actor)
            if draw() < 0.02:
                self._host = draw()
            return
        while ready and draw() < self._go_on:
            engine.run(self._pick(engine))

    def while_blocked(self, engine: Engine) -> None:
        engine.run(self._first(engine) if self.temperament == "priorities" else self._pick(engine))

    def next_host(self, engine: Engine, able: Sequence[int], current: int, blocked: bool) -> int:
        if not blocked and current in able and self._random.random() < 0.7:
            return current
        return able[int(self._random.random() * len(able))]

    def schedule(self, engine: Engine) -> Schedule:
        return Schedule("seeded", self.seed, tuple(engine.choices or ()))

    def _pick(self, engine: Engine) -> Actor:
        ready = engine.ready
        count = len(ready)
        if count == 1:
            return ready[0]
        if self.temperament == "starved":
            if self._victim < 0 or self._random.random() < 0.01:
                self._victim = ready[int(self._random.random() * count)].id
            others = [actor for actor in ready if actor.id != self._victim]
            return others[int(self._random.random() * len(others))]
        return ready[int(self._random.random() * count)]

    def _first(self, engine: Engine) -> Actor:
        priorities = self._priorities
        for actor in engine.ready:
            if actor.id not in priorities:
                priorities[actor.id] = self._random.random()
        first = max(engine.ready, key=lambda actor: priorities[actor.id])
        if self._random.random() < 0.03:
            priorities[first.id] = min(priorities.values()) * 0.9
        return first


class Replayed(Scheduler):
    """The order that a report gave: `Replayed(report.schedule.choices)`, of the same program.

    Raises (while it runs):
        DivergedError: the program issues other commands than it did then.
    """

    records = True

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = list(choices)
        self._at = 0

    def after_call(self, engine: Engine) -> None:
        try:
            while self._at < len(self._choices) and self._choices[self._at] >= 0:
                self._run(engine)
        finally:
            self._at += 1

    def while_blocked(self, engine: Engine) -> None:
        if self._at >= len(self._choices):
            engine.run(min(engine.ready, key=_head))
            return
        self._run(engine)

    def next_host(self, engine: Engine, able: Sequence[int], current: int, blocked: bool) -> int:
        if self._at >= len(self._choices):
            return super().next_host(engine, able, current, blocked)
        rank = HOST_SWITCH - self._choices[self._at]
        if rank not in able:
            raise DivergedError(f"choice {self._at} gives the turn to rank {rank}, which cannot go on here")
        self._at += 1
        return rank

    def schedule(self, engine: Engine) -> Schedule:
        return Schedule("replayed", None, tuple(engine.choices or ()))

    def _run(self, engine: Engine) -> None:
        ident = self._choices[self._at]
        for actor in engine.ready:
            if actor.id == ident:
                self._at += 1
                engine.run(actor)
                return
        name = engine.actors[ident].name if 0 <= ident < len(engine.actors) else f"number {ident}"
        raise DivergedError(
            f"choice {self._at} lets {name} go on, but it cannot here: the program issued other commands than "
            "when this order was reported"
        )


def follow(schedule: Schedule) -> Scheduler:
    """Return the scheduler that takes a reported order again."""
    return ProgramOrder() if schedule.kind == "program order" else Replayed(schedule.choices)

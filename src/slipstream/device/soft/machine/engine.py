"""The engine: queues of commands, what can go on, and running one command with its clock and its checks.

An actor's head can go on when every record that it waits for has run, its gate is open, or all ranks of its
collective are there. `ready` holds the actors that can; a scheduler picks from it and calls `run`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from slipstream.device.soft.machine.commands import (
    COLLECTIVE,
    HOST,
    KERNEL,
    OPEN,
    RECORD,
    SYNC,
    TAKE,
    UPDATE,
    WAIT,
    Actor,
    Command,
    join,
)
from slipstream.device.soft.machine.history import Clock, Hit

if TYPE_CHECKING:
    from slipstream.device.soft.machine.reporter import Reporter
    from slipstream.device.soft.machine.schedulers import Scheduler

# How many updates that were replaced before they were used are remembered for each task.
WASTED = 100

# Marks the end of the commands that ran after one host call, in the choices of an order.
HOST_GOES_ON = -1


class Engine:
    """Runs commands. Knows nothing of capture, of the torch API or of who issues."""

    def __init__(self, scheduler: Scheduler, reporter: Reporter, keep: bool = False) -> None:
        self.scheduler, self.reporter = scheduler, reporter
        self.actors: list[Actor] = []
        self.ready: list[Actor] = []
        self.hits: list[Hit] = []
        self.issued = self.ran = 0
        self.choices: array[int] | None = array("i") if scheduler.records else None
        self.kept: list[Command] | None = [] if keep else None
        self.keeps_runs = keep  # for another run of the same commands
        self.calls = True  # whether `run` of a kernel is called

    def actor(self, name: str, is_host: bool = False) -> Actor:
        """Return a new actor, whose clock begins at nothing."""
        actor = Actor(len(self.actors), name, is_host)
        self.actors.append(actor)
        return actor

    def issue(self, command: Command, known: Clock, host: Actor) -> None:
        """Put a command at the end of its actor's queue. `known` is what the issuing host knows."""
        actor = command.actor
        command.known, command.host = known, host
        command.index = self.issued = self.issued + 1
        queue = actor.queue
        queue.append(command)
        actor.last = command
        if len(queue) == 1:
            self.refresh(actor)
        if self.kept is not None:
            self.kept.append(command)

    def only_keep(self, command: Command, host: Actor) -> None:
        """Keep a command for later runs; it doesn't run now."""
        assert self.kept is not None
        command.host = host
        command.index = self.issued = self.issued + 1
        command.actor.last = command
        self.kept.append(command)

    def after_call(self) -> None:
        """Let the scheduler run what it likes before the host goes on."""
        if self.ready or self.choices is not None:
            try:
                self.scheduler.after_call(self)
            finally:  # a kernel may raise; the order has to be one that can be followed all the same
                if self.choices is not None:
                    self.choices.append(HOST_GOES_ON)

    def refresh(self, actor: Actor) -> None:
        """Find out whether the head of the actor's queue can run, and else who must tell when it can."""
        head = actor.queue[0]
        for dep in head.deps:
            if not dep.done:
                if dep.waiters is None:
                    dep.waiters = [actor]
                else:
                    dep.waiters.append(actor)
                return
        kind = head.kind
        if kind == TAKE:
            gate = head.gate
            assert gate is not None
            if actor not in gate.waiting:
                gate.waiting.append(actor)
            if not gate.is_open:
                return
        elif kind == COLLECTIVE:
            assert head.meeting is not None
            if not head.meeting.arrive(actor):
                return
            actor = head.meeting.leader()
        if actor.slot < 0:
            actor.slot = len(self.ready)
            self.ready.append(actor)

    def run(self, actor: Actor) -> None:
        """Run the head of the queue of an actor that is in `ready`."""
        if self.choices is not None:
            self.choices.append(actor.id)
        command = actor.queue[0]
        kind = command.kind
        if kind == COLLECTIVE:
            self._meet(command)
            return
        queue = actor.queue
        queue.popleft()
        clock = self._arrive(command)
        if kind == KERNEL:
            if command.node is not None and command.node.task is not None:
                command.node.task.runs(command)
            if command.reads or command.writes:
                self._access(command, clock)
        elif kind == HOST:
            self._access(command, clock)
        elif kind == TAKE:
            self._take(command, clock)
        elif kind == OPEN:
            self._open(command, clock)
        elif kind == UPDATE:
            self._access(command, clock)
            _update(command)
        elif kind == WAIT:
            actor.last_wait = command
        if kind in (RECORD, SYNC, HOST):
            command.clock = dict(clock)
        command.done = True
        if command.waiters is not None or command.replay is not None:
            self._finish(command)
        # The usual next head waits for nothing, so the actor stays where it is among the ready ones.
        if not queue or queue[0].deps or queue[0].kind in (TAKE, COLLECTIVE):
            self._next(actor)
        run = command.run
        if run is not None:
            if not self.keeps_runs:
                command.run = None
            if self.calls:
                run()

    def access(self, command: Command, clock: Clock) -> None:
        """Check and remember the accesses of a command that isn't in a queue: the host's own."""
        self._access(command, clock)

    def _arrive(self, command: Command) -> Clock:
        actor = command.actor
        clock = actor.clock
        if command.known is not actor.known:
            join(clock, command.known)
            actor.known = command.known
        for dep in command.deps:
            assert dep.clock is not None
            join(clock, dep.clock)
        clock[actor.id] = command.tick = actor.tick = actor.tick + 1
        self.ran += 1
        return clock

    def _access(self, command: Command, clock: Clock) -> None:
        ident, tick, hits = command.actor.id, command.tick, self.hits
        for region in command.reads:
            region[0].history.read((ident, tick, region[1], region[2], region, command), clock, hits)
        for region in command.writes:
            region[0].history.write((ident, tick, region[1], region[2], region, command), clock, hits)
        if hits:
            self.reporter.hits(hits)
            hits.clear()

    def _open(self, command: Command, clock: Clock) -> None:
        gate = command.gate
        assert gate is not None
        taken = gate.taken_by
        if gate.is_open or (taken is not None and taken.tick > clock.get(taken.actor.id, 0)):
            self.reporter.lost_opening(gate, command)
        gate.past.append(f"{command.actor.name} opens {gate.name}" + " (it is open: lost)" * gate.is_open)
        gate.is_open, gate.clock, gate.opened_by = True, dict(clock), command
        for actor in gate.waiting:
            if actor.slot < 0:
                actor.slot = len(self.ready)
                self.ready.append(actor)

    def _take(self, command: Command, clock: Clock) -> None:
        gate = command.gate
        assert gate is not None
        join(clock, gate.clock)
        gate.is_open, gate.taken_by = False, command
        gate.past.append(f"{command.actor.name} waits for {gate.name} and takes the opening")
        gate.waiting.remove(command.actor)
        for other in gate.waiting:
            self._not_ready(other)
        command.actor.last_wait = command
        if command.replay is not None:
            command.replay.opened += 1

    def _meet(self, command: Command) -> None:
        meeting = command.meeting
        assert meeting is not None
        commands = meeting.in_order()
        clocks = []
        for one in commands:
            one.actor.queue.popleft()
            clocks.append(self._arrive(one))
        for clock in clocks:
            for other in clocks:
                if other is not clock:
                    join(clock, other)
        for one, clock in zip(commands, clocks, strict=True):
            self._access(one, clock)
        for one in commands:
            self._finish(one)
            self._next(one.actor)
        if commands[0].run is not None and self.calls:
            meeting.execute(commands[0].run)

    def _finish(self, command: Command) -> None:
        command.done = True
        if command.waiters is not None:
            waiters, command.waiters = command.waiters, None
            for actor in waiters:
                self.refresh(actor)
        replay = command.replay
        if replay is not None and replay.end is command:
            replay.finish()

    def _next(self, actor: Actor) -> None:
        """Take the actor out of `ready`, and in again if its new head can run."""
        self._not_ready(actor)
        if actor.queue:
            self.refresh(actor)

    def _not_ready(self, actor: Actor) -> None:
        slot = actor.slot
        if slot < 0:
            return
        last = self.ready.pop()
        if last is not actor:
            self.ready[slot] = last
            last.slot = slot
        actor.slot = -1

    def blocked(self) -> list[Command]:
        """Return what stands at the head of each actor that cannot go on."""
        return [actor.queue[0] for actor in self.actors if actor.queue and actor.slot < 0]


def _update(command: Command) -> None:
    assert command.change is not None
    node, new = command.change
    node.reads, node.writes, node.run = new.reads, new.writes, new.run
    task = node.task
    assert task is not None
    if node is task.nodes[0]:
        if task.fresh and task.updated_by is not None and len(task.wasted) < WASTED:
            task.wasted.append(task.updated_by)
        task.fresh, task.updated_by = True, command

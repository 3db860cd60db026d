"""Simulated ranks: one host each, in one process, and the collectives at which they meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slipstream.device.soft.machine.commands import Actor, Command
from slipstream.device.soft.machine.history import Clock
from slipstream.device.soft.machine.schedulers import HOST_SWITCH

if TYPE_CHECKING:
    from slipstream.device.soft.machine.engine import Engine
    from slipstream.device.soft.machine.reporter import Reporter


class Meeting:
    """The n-th collective of a group: it runs when every rank's stream has got there."""

    def __init__(self, group: tuple[int, ...], number: int) -> None:
        self.group, self.number = group, number
        self.commands: dict[int, Command] = {}
        self.payloads: dict[int, Any] = {}
        self.arrived: set[int] = set()

    def arrive(self, actor: Actor) -> bool:
        """Note that the actor's stream has got there; return whether all have."""
        self.arrived.add(actor.host)
        return len(self.arrived) == len(self.group)

    def in_order(self) -> list[Command]:
        """Return the commands by rank."""
        return [self.commands[rank] for rank in self.group]

    def leader(self) -> Actor:
        """Return the lowest rank's actor, which stands for all in the list of those that can go on."""
        return self.commands[self.group[0]].actor

    def missing(self) -> list[int]:
        """Return the ranks that have not issued it."""
        return [rank for rank in self.group if rank not in self.commands]

    def execute(self, run: Callable[..., object]) -> None:
        """Do its work, once for all ranks: `run` gets every rank's payload."""
        run([self.payloads[rank] for rank in self.group])


class Meetings:
    """The collectives of every group, matched by their number in the order of issue."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._counts: dict[tuple[tuple[int, ...], int], int] = {}
        self._meetings: dict[tuple[tuple[int, ...], int], Meeting] = {}

    def meet(self, command: Command, rank: int, group: tuple[int, ...], payload: Any) -> None:
        """Let the command be its rank's next collective of the group."""
        number = self._counts.get((group, rank), 0)
        self._counts[group, rank] = number + 1
        meeting = self._meetings.get((group, number))
        if meeting is None:
            meeting = self._meetings[group, number] = Meeting(group, number + 1)
        for other_rank, other in meeting.commands.items():
            if other.op != command.op:
                self._reporter.collective_order(meeting, other_rank, other, rank, command)
                break
        meeting.commands[rank], meeting.payloads[rank] = command, payload
        command.meeting = meeting
        if not meeting.missing():
            del self._meetings[group, number]


class Host:
    """One rank's host: what it knows to be finished, and what it did last on its own.

    Attributes:
        clock: a snapshot; a new one takes its place when the host learns something.
        own: its last own command (an access, a synchronisation), kept for recorded programs.
    """

    def __init__(self, rank: int, actor: Actor, default: int, meetings: Meetings) -> None:
        self.rank, self.actor, self.default = rank, actor, default
        self.clock: Clock = {}
        self.own: Command | None = None
        self.waits_for: Command | None = None
        self.finished = False
        self._meetings = meetings

    def meet(self, command: Command, group: tuple[int, ...], payload: Any) -> None:
        """Match a collective with those of the other ranks."""
        self._meetings.meet(command, self.rank, group, payload)

    def learn(self, clock: Clock) -> None:
        """Let the host know what `clock` knows."""
        mine = dict(self.clock)
        for actor, tick in clock.items():
            if tick > mine.get(actor, 0):
                mine[actor] = tick
        self.clock = mine


class Baton:
    """Lets the hosts of several ranks run in turn, each in a thread of its own, changing at machine calls only."""

    def __init__(self, engine: Engine, hosts: Sequence[Host]) -> None:
        self._engine, self._hosts = engine, hosts
        self._turns = {host.rank: threading.Semaphore(0) for host in hosts}
        self.current = hosts[0].rank

    def able(self) -> list[int]:
        """Return the ranks whose host can go on."""
        return [
            host.rank
            for host in self._hosts
            if not host.finished and (host.waits_for is None or host.waits_for.done)
        ]

    def maybe_pass(self, blocked: bool = False) -> bool:
        """Ask the scheduler whose turn it is, and wait until it is this one's again. False if nobody's."""
        able = self.able()
        if not able:
            return False
        self._hand(able, blocked)
        return True

    def hand_on_to_any(self) -> bool:
        """Let some other host that isn't finished find out that nothing moves. False if there is none."""
        others = [host.rank for host in self._hosts if not host.finished and host.rank != self.current]
        if others:
            self._switch(others[0])
        return bool(others)

    def _hand(self, able: list[int], blocked: bool) -> None:
        if len(able) == 1 and able[0] == self.current:
            return
        rank = self._engine.scheduler.next_host(self._engine, able, self.current, blocked)
        if self._engine.choices is not None:
            self._engine.choices.append(HOST_SWITCH - rank)
        if rank != self.current:
            self._switch(rank)

    def _switch(self, rank: int) -> None:
        mine = self.current
        self.current = rank
        self._turns[rank].release()
        if not self._host(mine).finished:
            self._turns[mine].acquire()

    def _host(self, rank: int) -> Host:
        return next(host for host in self._hosts if host.rank == rank)

    def run(self, programs: Sequence[Callable[[], object]]) -> list[BaseException]:
        """Run one program a rank to its end; return what they raised, in the order of the ranks."""
        raised: dict[int, BaseException] = {}

        def body(host: Host, program: Callable[[], object]) -> None:
            self._turns[host.rank].acquire()
            try:
                program()
            except BaseException as error:
                raised[host.rank] = error
            host.finished = True
            able = self.able()
            if able:
                self._hand(able, True)
            else:
                self.hand_on_to_any()

        threads = [
            threading.Thread(target=body, args=pair, daemon=True, name=f"rank {pair[0].rank}")
            for pair in zip(self._hosts, programs, strict=True)
        ]
        for thread in threads:
            thread.start()
        self._turns[self.current].release()
        for thread in threads:
            thread.join()
        return [raised[rank] for rank in sorted(raised)]

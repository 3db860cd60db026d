"""Calls in which the host itself does something: accesses, waits, and the turns of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from slipstream.device.soft.machine import errors
from slipstream.device.soft.machine.commands import HOST, SYNC, Command, Event
from slipstream.device.soft.machine.core import Core
from slipstream.device.soft.machine.places import Place
from slipstream.device.soft.machine.ranks import Baton, Host
from slipstream.device.soft.machine.regions import Region

#: So often a host may ask `query()` in vain, with no other call between, before it is called a hang.
PATIENCE = 1000


class HostCalls(Core):
    """The hosts' accesses and waits."""

    def host_access(self, reads: Sequence[Region], writes: Sequence[Region], what: str) -> None:
        """Let the host read or write memory, without waiting for anything."""
        host = self._host
        command = Command(HOST, host.actor, what, reads, writes, None, self._place())
        self._own(command)
        if self.executes:
            self._engine.access(command, host.clock)
        self._after_call()

    def synchronize(self, stream: int | None = None) -> None:
        """Let the host wait for all that was issued to a stream, or to all streams of its rank.

        Raises:
            StreamCaptured, CaptureForbids: a capture forbids it.
            StreamSyncTimeout: nothing can ever move the stream on; the finding says why.
        """
        self._captures.forbid_synchronise(stream)
        place = self._place()
        actors = (
            [self._streams[stream]]
            if stream is not None
            else [actor for actor in self._streams if actor.host == self._host.rank]
        )
        markers = [marker for actor in actors if (marker := self._marker(actor, "synchronize")) is not None]
        name = actors[0].name if stream is not None else "all streams"
        self._host_waits(markers, f"synchronize() of {name}", place, errors.StreamSyncTimeout)

    def synchronize_event(self, event: Event) -> None:
        """Let the host wait for the latest record of the event; nothing if there is none.

        Raises:
            EventCaptured: it was recorded inside a capture.
            CaptureForbids: a capture forbids it.
            EventSyncTimeout: nothing can ever reach it; the finding says why.
        """
        self._captures.forbid_event(event)
        if event.record is not None:
            place = self._place()
            self._host_waits([event.record], f"synchronize() of {event.name}", place, errors.EventSyncTimeout)

    def query(self, what: int | Event) -> bool:
        """Return whether a stream, or the latest record of an event, has finished. True is knowledge of it.

        The host may ask while a gate is closed that it opens later. Only one that does nothing else but ask hangs.

        Raises:
            StreamSyncTimeout: nothing can move on, and the host has asked `PATIENCE` times with no call between.
        """
        if isinstance(what, Event):
            self._captures.forbid_event(what)
            target = what.record
        else:
            self._captures.forbid_synchronise(what)
            target = self._marker(self._streams[what], "query")
        if target is not None and not target.done and self.executes:
            self._after_call()
            if not target.done and self._engine.ready:
                self._engine.scheduler.while_blocked(self._engine)
            if (
                not target.done
                and not self._engine.ready
                and not self._others_move()
                and self._in_vain(target)
            ):
                self._stands_still(Command(SYNC, self._host.actor, "query()", place=self._place()))
                raise errors.StreamSyncTimeout("query() will never be true: the finding says why")
        if target is None:
            return True
        if not target.done and self.executes:
            return False
        if target.clock is not None:
            self._host.learn(target.clock)
        self._own(Command(SYNC, self._host.actor, "query()", place=self._place(), deps=(target,)))
        return True

    def _in_vain(self, target: Command) -> bool:
        """Return whether the host has asked this once too often, with nothing issued and nothing run meanwhile."""
        asked = (target, self._engine.issued, self._engine.ran)
        self._asked, self._times_asked = asked, self._times_asked + 1 if asked == self._asked else 1
        return self._times_asked >= PATIENCE

    def sync_copy(self, stream: int, what: str) -> None:
        """Check that a blocking copy (`.item()`, `.cpu()`) is allowed now.

        Raises:
            CaptureForbids: a capture forbids it.
        """
        self._captures.forbid_copy(stream, what)

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        """Issue as that rank's host inside the block. Several ranks that wait for each other need `run_ranks`."""
        while len(self._hosts) <= rank:
            self._new_host(len(self._hosts))
        former, self._host = self._host, self._hosts[rank]
        try:
            yield
        finally:
            self._host = former

    def run_ranks(self, programs: Sequence[Callable[[], object]]) -> None:
        """Run one program a rank, in turns that change at machine calls only.

        Raises:
            BaseException: what the lowest rank that failed raised.
        """
        while len(self._hosts) < len(programs):
            self._new_host(len(self._hosts))
        hosts = self._hosts[: len(programs)]
        for host in hosts:
            host.finished, host.waits_for = False, None
        self._baton = Baton(self._engine, hosts)
        former = self._host

        def in_turn(host: Host, program: Callable[[], object]) -> Callable[[], object]:
            def run() -> object:
                self._host = host
                return program()

            return run

        try:
            raised = self._baton.run([in_turn(*pair) for pair in zip(hosts, programs, strict=True)])
        finally:
            self._baton, self._host = None, former
        if raised:
            raise raised[0]

    def _host_waits(
        self, targets: Sequence[Command], what: str, place: Place, error: type[errors.SoftError]
    ) -> None:
        engine, host = self._engine, self._host
        self._after_call()
        for target in targets:
            while not target.done and self.executes:
                if engine.ready:
                    engine.scheduler.while_blocked(engine)
                    continue
                host.waits_for = target
                moved = self._baton is not None and (
                    self._baton.maybe_pass(True) or self._baton.hand_on_to_any()
                )
                self._host, host.waits_for = host, None
                if target.done or engine.ready or (moved and self._others_move()):
                    continue
                self._stands_still(Command(SYNC, host.actor, what, place=place))
                raise error(f"{what} at {place.where} will never return: the finding says why")
        for target in targets:
            if target.clock is not None:
                host.learn(target.clock)
        self._own(Command(SYNC, host.actor, what, place=place, deps=tuple(targets)))

    def _others_move(self) -> bool:
        """Return whether another rank's host can still go on."""
        return self._baton is not None and any(rank != self._host.rank for rank in self._baton.able())

    def _stands_still(self, host: Command) -> None:
        self._reporter.hang(self._engine.blocked(), self._engine.actors, host)

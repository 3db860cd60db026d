"""The software NPU's public face."""

from __future__ import annotations

from slipstream.device.soft.machine.findings import Report, Schedule
from slipstream.device.soft.machine.graph_calls import GraphCalls
from slipstream.device.soft.machine.host_calls import HostCalls
from slipstream.device.soft.machine.program import Program, settle
from slipstream.device.soft.machine.stream_calls import StreamCalls


class Machine(StreamCalls, HostCalls, GraphCalls):
    """A device with streams, and the hosts that issue to it.

    Streams are numbers, 0 is rank 0's default stream. Every call is one host call: afterwards the scheduler may
    let commands run. What a device would refuse is raised (`errors.SoftError`), what it would silently get
    wrong is found (`findings`, `finish`).

    Args:
        scheduler: who runs next; program order if None.
        limits: of the device.
        stacks: whether to note where in the user's code each call was made.
        keep: whether to keep every command, for `program()`.
        ranks: how many simulated ranks; each has a host and a default stream.
        executes: False, with `keep`, only notes what is issued: host waits return at once, nothing is checked,
            and `program()` is what can be run. For programs whose host needs no values.
    """

    @property
    def schedule(self) -> Schedule:
        """The order taken so far; `follow` takes it again."""
        return self._engine.scheduler.schedule(self._engine)

    def finish(self) -> Report:
        """Run all that is left, and return the report."""
        engine = self._engine
        while engine.ready:
            engine.scheduler.while_blocked(engine)
        blocked = engine.blocked()
        if blocked:
            self._reporter.hang(blocked, engine.actors, None)
        counts = settle(self._reporter, self._graphs)
        return Report(tuple(self.findings), engine.ran, counts, self.schedule)

    def program(self) -> Program:
        """Return what was issued, to be run in other orders. The machine cannot be used any more.

        Raises:
            ValueError: the machine was made without `keep=True`.
        """
        if self._engine.kept is None:
            raise ValueError("the machine keeps no commands; make it with Machine(keep=True)")
        return Program(self._engine.kept, self._engine.actors, self._graphs)

"""What all parts of a machine share: its streams and hosts, how a command is issued, what the host does itself."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.device.soft.machine import errors
from slipstream.device.soft.machine.capture import Captures
from slipstream.device.soft.machine.commands import RECORD, Actor, Command, Event, Gate
from slipstream.device.soft.machine.engine import Engine
from slipstream.device.soft.machine.findings import Finding
from slipstream.device.soft.machine.graphs import Graph
from slipstream.device.soft.machine.history import History
from slipstream.device.soft.machine.places import NOWHERE, Place, here
from slipstream.device.soft.machine.ranks import Baton, Host, Meetings
from slipstream.device.soft.machine.regions import Buffer
from slipstream.device.soft.machine.reporter import Reporter
from slipstream.device.soft.machine.schedulers import ProgramOrder, Scheduler


@dataclass(frozen=True)
class Limits:
    """What the device has.

    Attributes:
        streams: hardware streams.
        reserved_streams: of them, those that the driver and the communication library keep.
    """

    streams: int = 2048
    reserved_streams: int = 248


class Core:
    """The state of a machine. `Machine` adds the calls."""

    def __init__(
        self,
        scheduler: Scheduler | None = None,
        limits: Limits | None = None,
        stacks: bool = True,
        keep: bool = False,
        ranks: int = 1,
        executes: bool = True,
    ) -> None:
        self._reporter = Reporter()
        self._engine = Engine(scheduler or ProgramOrder(), self._reporter, keep)
        self.limits = limits or Limits()
        self.stacks, self.executes = stacks, executes or not keep
        self._streams: list[Actor] = []
        self._meetings = Meetings(self._reporter)
        self._captures = Captures(self)
        self._baton: Baton | None = None
        self._graphs: list[Graph] = []
        self._asked: object = None  # what `query` asked last in vain, and how often
        self._times_asked = 0
        self._hosts: list[Host] = []
        for rank in range(ranks):
            self._new_host(rank)
        self._host = self._hosts[0]

    @property
    def findings(self) -> list[Finding]:
        """What was found so far."""
        return self._reporter.findings

    @property
    def current_host(self) -> int:
        """The rank whose host is running."""
        return self._host.rank

    @property
    def default_stream(self) -> int:
        """The default stream of the current rank."""
        return self._host.default

    @property
    def streams_used(self) -> int:
        """Hardware streams in use: those made, and those that captured graphs hold."""
        return len(self._streams) + sum(graph.streams for graph in self._graphs)

    def stream(self, name: str) -> int:
        """Return a new stream of the current rank.

        Raises:
            OutOfStreams: none is left.
        """
        if self.streams_used >= self.limits.streams - self.limits.reserved_streams:
            raise errors.OutOfStreams(
                f"stream {name!r} cannot be made: {len(self._streams)} streams and the graphs' "
                f"{self.streams_used - len(self._streams)} use up the {self.limits.streams} less a reserve of "
                f"{self.limits.reserved_streams}; capture fewer sizes, or reset graphs that aren't needed"
            )
        return self._new_stream(name)

    def stream_name(self, stream: int) -> str:
        """Return how findings call the stream."""
        return self._streams[stream].name

    def event(self, name: str = "event") -> Event:
        """Return a new event, not recorded yet."""
        return Event(name)

    def gate(self, name: str = "gate") -> Gate:
        """Return a new gate, closed."""
        return Gate(name)

    def graph(self, name: str = "graph") -> Graph:
        """Return a new graph, nothing captured yet."""
        graph = Graph(name)
        self._graphs.append(graph)
        return graph

    def buffer(self, name: str, num_bytes: int, where: str = "device") -> Buffer:
        """Return a new piece of memory; `where` is "device" or "host"."""
        if where not in ("device", "host"):
            raise ValueError(f"a buffer lies on the 'device' or on the 'host', not {where!r}")
        return Buffer(name, num_bytes, where, History())

    def actor_of(self, stream: int) -> Actor:
        """Return what runs the stream."""
        return self._streams[stream]

    def is_default(self, actor: Actor) -> bool:
        """Return whether it is some rank's default stream."""
        return any(actor.stream == host.default for host in self._hosts)

    def graph_actor(self, name: str, like: Actor) -> Actor:
        """Return a new actor for a side stream of a graph."""
        actor = self._engine.actor(name)
        actor.host, actor.captured_as = like.host, like.name
        return actor

    def _new_host(self, rank: int) -> None:
        actor = self._engine.actor("the host" if rank == 0 else f"host {rank}", is_host=True)
        actor.host = rank
        host = Host(rank, actor, len(self._streams), self._meetings)
        self._hosts.append(host)
        former = getattr(self, "_host", host)
        self._host = host
        self._new_stream("default" if rank == 0 else f"default{rank}")
        self._host = former

    def _new_stream(self, name: str) -> int:
        actor = self._engine.actor(name)
        actor.stream, actor.host = len(self._streams), self._host.rank
        self._streams.append(actor)
        return actor.stream

    def _place(self) -> Place:
        return here() if self.stacks else NOWHERE

    def _issue(self, command: Command) -> None:
        host = self._host
        if self._engine.kept is not None:
            command.after = host.own
            if not self.executes:
                self._engine.only_keep(command, host.actor)
                return
        self._engine.issue(command, host.clock, host.actor)

    def _after_call(self) -> None:
        self._engine.after_call()
        if self._baton is not None:
            host = self._host
            self._baton.maybe_pass()
            self._host = host

    def _own(self, command: Command) -> None:
        """Let the host do something of its own, which takes a tick of its clock."""
        host, engine, actor = self._host, self._engine, self._host.actor
        engine.issued += 1
        command.index = engine.issued
        if engine.kept is not None:
            command.after, host.own = host.own, command
        actor.tick += 1
        command.tick = actor.tick
        host.clock = command.clock = {**host.clock, actor.id: actor.tick}
        command.done = True
        if engine.kept is not None:
            engine.kept.append(command)

    def _marker(self, actor: Actor, op: str) -> Command | None:
        """Return a record at the end of what was issued to the stream; None if nothing was."""
        last = actor.last
        if last is None or last.kind == RECORD:
            return last
        marker = Command(RECORD, actor, op, place=self._place())
        self._issue(marker)
        return marker

"""The software NPU's public face: streams, events, gates, kernels, graphs, tasks, ranks; and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slipstream.device.soft.machine import errors
from slipstream.device.soft.machine.capture import Captures
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
    Event,
    Gate,
    Run,
)
from slipstream.device.soft.machine.engine import Engine
from slipstream.device.soft.machine.findings import Finding, ReplayCount, Report
from slipstream.device.soft.machine.graphs import Graph, Replay, Task, launch
from slipstream.device.soft.machine.history import History
from slipstream.device.soft.machine.places import NOWHERE, Place, here
from slipstream.device.soft.machine.ranks import Baton, Host, Meetings
from slipstream.device.soft.machine.regions import Buffer, Region
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


@dataclass
class _Update:
    """An update in progress on a stream."""

    task: Task
    place: Place
    kernels: list[Command]


class Machine:
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
    """

    def __init__(
        self,
        scheduler: Scheduler | None = None,
        limits: Limits | None = None,
        stacks: bool = True,
        keep: bool = False,
        ranks: int = 1,
    ) -> None:
        self._reporter = Reporter()
        self._engine = Engine(scheduler or ProgramOrder(), self._reporter, keep)
        self.limits = limits or Limits()
        self.stacks = stacks
        self._streams: list[Actor] = []
        self._meetings = Meetings(self._reporter)
        self._captures = Captures(self)
        self._baton: Baton | None = None
        self._graphs: list[Graph] = []
        self._hosts: list[Host] = []
        for rank in range(ranks):
            self._new_host(rank)
        self._host = self._hosts[0]

    # --- what there is ----------------------------------------------------------------------------------

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

    # --- commands ---------------------------------------------------------------------------------------

    def kernel(
        self,
        stream: int,
        op: str,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        run: Run | None = None,
        updatable: bool = True,
    ) -> None:
        """Issue a kernel. `run` is called when it runs; what it raises goes to whoever let it run.

        Args:
            updatable: whether the op may be part of a task group.

        Raises:
            NotUpdatable: it may not, and the stream captures a group.
        """
        actor = self._streams[stream]
        command = Command(KERNEL, actor, op, reads, writes, run, here() if self.stacks else NOWHERE)
        if actor.capture is not None:
            self._captures.kernel(command, updatable)
            return
        if actor.update is not None:
            actor.update.kernels.append(command)
            return
        self._issue(command)
        self._after_call()

    def record(self, stream: int, event: Event) -> None:
        """Let the event mark the point that the stream has reached."""
        actor = self._streams[stream]
        command = Command(RECORD, actor, f"record of {event.name}", place=self._place())
        command.event = event
        if actor.capture is not None:
            actor.capture.record(command, event)
            return
        event.record, event.captured = command, None
        self._issue(command)
        self._after_call()

    def wait(self, stream: int, event: Event) -> None:
        """Let what the stream does next wait for the latest record of the event; nothing if there is none.

        Raises:
            CaptureDependency, CaptureConflict, DefaultStreamDependency, EventCaptured: see `errors`.
        """
        actor = self._streams[stream]
        command = Command(WAIT, actor, f"wait for {event.name}", place=self._place())
        command.event = event
        if actor.capture is not None or event.captured is not None:
            self._captures.wait(command, event)
            return
        if event.record is None:
            return
        command.deps = (event.record,)
        self._issue(command)
        self._after_call()

    def open(self, stream: int, gate: Gate) -> None:
        """Open the gate when the stream gets here."""
        self._gate_command(OPEN, stream, gate, f"opening of {gate.name}")

    def wait_gate(self, stream: int, gate: Gate) -> None:
        """Hold the stream until the gate is open, then close it."""
        self._gate_command(TAKE, stream, gate, f"wait for {gate.name}")

    def collective(
        self,
        stream: int,
        group: Sequence[int],
        name: str,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        run: Callable[[list[Any]], object] | None = None,
        payload: Any = None,
    ) -> None:
        """Issue this rank's part of a collective; it runs when every rank of the group has got there.

        Args:
            group: the ranks.
            run: called once, the lowest rank's, with every rank's payload in the order of the ranks.
            payload: whatever `run` needs of this rank.
        """
        actor = self._streams[stream]
        ranks = tuple(sorted(group))
        if self._host.rank not in ranks:
            raise ValueError(f"rank {self._host.rank} is not part of the group {list(ranks)}")
        command = Command(COLLECTIVE, actor, name, reads, writes, run, self._place())  # type: ignore[arg-type]
        if actor.capture is not None:
            self._captures.kernel(command, False).group = (ranks, payload)
            return
        self._host.meet(command, ranks, payload)
        self._issue(command)
        self._after_call()

    # --- the host ---------------------------------------------------------------------------------------

    def host_access(self, reads: Sequence[Region], writes: Sequence[Region], what: str) -> None:
        """Let the host read or write memory, without waiting for anything."""
        host = self._host
        command = Command(HOST, host.actor, what, reads, writes, None, self._place())
        self._own(command)
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
        markers = []
        for actor in actors:
            if actor.last is not None:
                marker = Command(RECORD, actor, "synchronize", place=place)
                self._issue(marker)
                markers.append(marker)
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

        Raises:
            StreamSyncTimeout: it hasn't, and nothing can ever move on.
        """
        if isinstance(what, Event):
            self._captures.forbid_event(what)
            target = what.record
        else:
            self._captures.forbid_synchronise(what)
            target = self._streams[what].last
        if target is not None and not target.done:
            self._after_call()
            if not target.done and self._engine.ready:
                self._engine.scheduler.while_blocked(self._engine)
            if not target.done and not self._engine.ready and self._baton is None:
                self._stands_still(Command(SYNC, self._host.actor, "query()", place=self._place()))
                raise errors.StreamSyncTimeout("query() will never be true: the finding says why")
        if target is None:
            return True
        if not target.done:
            return False
        clock = target.clock if target.clock is not None else target.actor.clock
        self._host.learn(clock)
        return True

    def sync_copy(self, stream: int, what: str) -> None:
        """Check that a blocking copy (`.item()`, `.cpu()`) is allowed now.

        Raises:
            CaptureForbids: a capture forbids it.
        """
        self._captures.forbid_copy(stream, what)

    # --- graphs -----------------------------------------------------------------------------------------

    def begin_capture(self, stream: int, graph: Graph, mode: str = "global") -> None:
        """Begin to capture what is issued to the stream, and to streams that join it through events.

        Raises:
            GraphCheck, StreamCaptured, OutOfResources: see `errors`.
        """
        self._captures.begin(self._streams[stream], graph, mode, self._place())

    def end_capture(self, stream: int) -> Graph:
        """End the capture, on the stream on which it was begun.

        Raises:
            UnjoinedStream, CaptureUnmatched, CaptureInvalidated, StreamNotCaptured, TaskGroupStatus: see `errors`.
        """
        return self._captures.end(self._streams[stream])

    def is_capturing(self, stream: int) -> Graph | None:
        """Return the graph that the stream is being captured into, if it is."""
        capture = self._streams[stream].capture
        return capture.graph if capture is not None else None

    def bind_inputs(self, graph: Graph, inputs: Mapping[str, Region]) -> None:
        """Note where the inputs of a graph lie at capture, by name (or position); `replay` compares."""
        graph.inputs, graph.input_place = dict(inputs), self._place()

    def replay(self, stream: int, graph: Graph, inputs: Mapping[str, Region] | None = None) -> None:
        """Replay the graph on a stream. `inputs` are where its inputs lie now, by the names of `bind_inputs`.

        Raises:
            GraphCheck, GraphCaptured, StreamCaptured: see `errors`.
        """
        actor, place = self._streams[stream], self._place()
        self._captures.check_replay(actor, graph)
        for name, region in (inputs or {}).items():
            old = graph.inputs.get(name)
            if old is not None and (old.buffer is not region.buffer or old[1:5] != region[1:5]):
                self._reporter.stale_address(graph, name, old, region, place)
        launch(self._engine, self._host, graph, actor, Replay(graph, actor, place, self._reporter))
        self._after_call()

    def reset(self, graph: Graph) -> None:
        """Drop what the graph holds; it can be captured anew.

        Raises:
            GraphCaptured: it is being captured.
            GraphRunning: a replay of it hasn't finished.
        """
        self._captures.check_reset(graph)
        last = graph.last
        if last is not None and last.end is not None:
            if not last.done or last.end.tick > self._host.clock.get(last.actor.id, 0):
                self._reporter.reset_running(graph, last, self._place())
            if not last.done:
                raise errors.GraphRunning(
                    f"{graph.name} is running (replayed at {last.place.where}); "
                    f"synchronise {last.actor.name} before the reset"
                )
        graph.clear()

    # --- tasks ------------------------------------------------------------------------------------------

    def begin_task(self, stream: int) -> None:
        """Begin a task group: the kernels captured until `end_task` can be updated.

        Raises:
            StreamNotCaptured: the stream isn't capturing.
            TaskGroupStatus: a group is open.
        """
        self._captures.begin_task(self._streams[stream], self._place())

    def end_task(self, stream: int) -> Task:
        """End the task group and return its handle.

        Raises:
            StreamNotCaptured, TaskGroupStatus: see `errors`.
        """
        return self._captures.end_task(self._streams[stream])

    def begin_update(self, stream: int, task: Task) -> None:
        """Begin an update: the kernels issued to the stream until `end_update` take the place of the task's.

        Raises:
            StreamCaptured: the stream is capturing.
            TaskGroupStatus: an update is open on it.
            UpdateFailed: the task's graph isn't captured any more.
        """
        actor = self._streams[stream]
        self._captures.check_update(actor, task)
        actor.update = _Update(task, self._place(), [])

    def end_update(self, stream: int) -> None:
        """End the update.

        Raises:
            TaskGroupStatus: none is open.
            UpdateFailed: the kernels aren't as many, or other ops, than the task's.
        """
        actor = self._streams[stream]
        update = actor.update
        actor.update = None
        self._captures.check_end_update(actor, update)
        for node, kernel in zip(update.task.nodes, update.kernels, strict=True):
            command = Command(
                UPDATE, actor, f"update of {kernel.op}", (), (update.task.region,), None, kernel.place
            )
            command.change = (node, kernel)
            self._issue(command)
        self._after_call()

    # --- ranks ------------------------------------------------------------------------------------------

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

    # --- the end ----------------------------------------------------------------------------------------

    def finish(self) -> Report:
        """Run all that is left, and return the report."""
        engine = self._engine
        while engine.ready:
            engine.scheduler.while_blocked(engine)
        blocked = engine.blocked()
        if blocked:
            self._reporter.hang(blocked, engine.actors, None)
        replays = [replay for graph in self._graphs for replay in graph.replays]
        self._find_mixed(replays)
        counts = tuple(
            ReplayCount(r.graph.name, r.number, r.captured, r.updated, r.waits, r.opened, r.done)
            for r in replays
            if r.captured or r.waits
        )
        return Report(tuple(self.findings), engine.ran, counts, engine.scheduler.schedule(engine))

    # --- for the layer's own files ----------------------------------------------------------------------

    def actor_of(self, stream: int) -> Actor:
        """Return what runs the stream."""
        return self._streams[stream]

    def is_default(self, actor: Actor) -> bool:
        """Return whether it is some rank's default stream."""
        return any(actor.stream == host.default for host in self._hosts)

    def graph_actor(self, name: str, like: Actor) -> Actor:
        """Return a new actor for a side stream of a graph."""
        actor = self._engine.actor(name)
        actor.host = like.host
        return actor

    # --- inside -----------------------------------------------------------------------------------------

    def _find_mixed(self, replays: Sequence[Replay]) -> None:
        """Find replays without updates beside updates without a replay."""
        unused = [
            (graph, task.updated_by)
            for graph in self._graphs
            for task in graph.tasks
            if task.fresh and task.updated_by is not None
        ]
        for replay in replays:
            if replay.updated >= replay.captured:
                continue
            for graph, update in unused:
                if graph is not replay.graph and update.index > replay.index:
                    self._reporter.update_mixed(replay, graph, update)
                    break

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
        command.after = host.own
        self._engine.issue(command, host.clock, host.actor)

    def _after_call(self) -> None:
        self._engine.after_call()
        if self._baton is not None:
            host = self._host
            self._baton.maybe_pass()
            self._host = host

    def _gate_command(self, kind: int, stream: int, gate: Gate, op: str) -> None:
        actor = self._streams[stream]
        command = Command(kind, actor, op, place=self._place())
        command.gate = gate
        if actor.capture is not None:
            actor.capture.add(command)
            return
        self._issue(command)
        self._after_call()

    def _own(self, command: Command) -> None:
        """Let the host do something of its own, which takes a tick of its clock."""
        host, engine, actor = self._host, self._engine, self._host.actor
        engine.issued += 1
        command.index = engine.issued
        command.after, host.own = host.own, command
        actor.tick += 1
        command.tick = actor.tick
        host.clock = command.clock = {**host.clock, actor.id: actor.tick}
        command.done = True
        if engine.kept is not None:
            engine.kept.append(command)

    def _host_waits(
        self, targets: Sequence[Command], what: str, place: Place, error: type[errors.SoftError]
    ) -> None:
        engine, host = self._engine, self._host
        self._after_call()
        for target in targets:
            while not target.done:
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
            assert target.clock is not None
            host.learn(target.clock)
        self._own(Command(SYNC, host.actor, what, place=place, deps=tuple(targets)))

    def _others_move(self) -> bool:
        """Return whether another rank's host can still go on."""
        return self._baton is not None and any(rank != self._host.rank for rank in self._baton.able())

    def _stands_still(self, host: Command) -> None:
        self._reporter.hang(self._engine.blocked(), self._engine.actors, host)

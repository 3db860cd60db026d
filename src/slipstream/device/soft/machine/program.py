"""A recorded program: what a run issued, to be run again in other orders without the user's code.

The host calls are as they were in the recorded run. A host's own commands (accesses, synchronisations) are
commands of the host, and everything that it issued later comes after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream.device.soft.machine.commands import (
    _NOTHING,
    COLLECTIVE,
    OPEN,
    SYNC,
    TAKE,
    Actor,
    Command,
    Gate,
    Node,
)
from slipstream.device.soft.machine.engine import Engine
from slipstream.device.soft.machine.findings import ReplayCount, Report
from slipstream.device.soft.machine.graphs import Graph, Replay
from slipstream.device.soft.machine.regions import Buffer, Region, overlap
from slipstream.device.soft.machine.reporter import Reporter
from slipstream.device.soft.machine.schedulers import ProgramOrder, Scheduler


class Program:
    """What a machine with `keep=True` was told to do. `Machine.program()` returns it; the machine is spent then.

    Attributes:
        commands: every command, the hosts' own among them, in the order of issue.
    """

    def __init__(self, commands: Sequence[Command], actors: Sequence[Actor], graphs: Sequence[Graph]) -> None:
        self.commands, self.actors, self.graphs = list(commands), list(actors), list(graphs)
        self._deps = [
            (*command.deps, command.after) if command.after is not None else command.deps
            for command in self.commands
        ]
        self._gates: set[Gate] = {command.gate for command in self.commands if command.gate is not None}
        self._changes: dict[Node, list[Command]] = {}
        for command in self.commands:
            if command.change is not None:
                self._changes.setdefault(command.change[0], []).append(command.change[1])
        self._buffers = {id(region[0]): region[0] for c in self.commands for region in self.regions(c)}

    def regions(self, command: Command) -> Iterator[Region]:
        """Return everything that the command may touch, its task's parameters and updates included."""
        yield from self.reads(command)
        yield from self.writes(command)

    def reads(self, command: Command) -> Iterator[Region]:
        """Return all that the command may read."""
        yield from command.reads
        if command.node is not None and command.node.task is not None:
            yield command.node.task.region
            for change in self._changes.get(command.node, ()):
                yield from change.reads

    def writes(self, command: Command) -> Iterator[Region]:
        """Return all that the command may write."""
        yield from command.writes
        if command.node is not None and command.node.task is not None:
            for change in self._changes.get(command.node, ()):
                yield from change.writes

    def run(
        self, scheduler: Scheduler | None = None, reporter: Reporter | None = None, call: bool = False
    ) -> Report:
        """Run it once more, to its end.

        Args:
            scheduler: who runs next.
            reporter: collects the findings; a new one if None.
            call: whether to call the kernels' `run`.
        """
        engine = self.start(scheduler or ProgramOrder(), reporter or Reporter(), call)
        while engine.ready:
            engine.scheduler.while_blocked(engine)
        return self.finish(engine)

    def start(self, scheduler: Scheduler, reporter: Reporter, call: bool = False) -> Engine:
        """Return an engine that holds all commands, none of them run."""
        self._reset(reporter)
        engine = Engine(scheduler, reporter, keep=True)
        engine.kept, engine.calls = None, call
        engine.actors, engine.issued = self.actors, len(self.commands)
        for command, deps in zip(self.commands, self._deps, strict=True):
            command.deps, command.known = deps, _NOTHING
            command.done, command.tick = False, 0
            command.clock = command.waiters = None
            if command.kind == COLLECTIVE and command.meeting is not None:
                command.meeting.arrived.clear()
            command.actor.queue.append(command)
        for actor in self.actors:
            if actor.queue:
                engine.refresh(actor)
        return engine

    def finish(self, engine: Engine) -> Report:
        """Return the report of an engine that has nothing left to run."""
        blocked = engine.blocked()
        if blocked:
            host = next((command for command in blocked if command.kind == SYNC), None)
            engine.reporter.hang(blocked, engine.actors, host)
        counts = settle(engine.reporter, self.graphs)
        return Report(tuple(engine.reporter.findings), engine.ran, counts, engine.scheduler.schedule(engine))

    def _reset(self, reporter: Reporter) -> None:
        for actor in self.actors:
            actor.queue.clear()
            actor.clock, actor.known, actor.tick, actor.slot = {}, _NOTHING, 0, -1
            actor.last_wait = None
        for gate in self._gates:
            gate.clear()
        for buffer in self._buffers.values():
            buffer.history.clear()
        for node in self._changes:
            assert node.first is not None
            node.reads, node.writes, node.run = node.first
        for graph in self.graphs:
            for task in graph.tasks:
                task.fresh, task.updated_by = False, None
                task.wasted.clear()
                task.region.buffer.history.clear()
            for replay in graph.replays:
                replay.updated = replay.opened = 0
                replay.done, replay.reporter = False, reporter


def settle(reporter: Reporter, graphs: Sequence[Graph]) -> tuple[ReplayCount, ...]:
    """Compare replays and updates at the end of a run; return the counts of the replays."""
    replays = [replay for graph in graphs for replay in graph.replays]
    unused = [
        (graph, update)
        for graph in graphs
        for task in graph.tasks
        for update in (*task.wasted, task.updated_by if task.fresh else None)
        if update is not None
    ]
    for replay in replays:
        if unused and replay.updated < replay.captured:
            _find_mixed(reporter, replay, unused)
    return tuple(
        ReplayCount(r.graph.name, r.number, r.captured, r.updated, r.waits, r.opened, r.done)
        for r in replays
        if r.captured or r.waits
    )


def _find_mixed(reporter: Reporter, replay: Replay, unused: Sequence[tuple[Graph, Command]]) -> None:
    """Find a replay without its updates beside updates of another graph without a replay."""
    all_of_graph = replay.graph.replays
    since = all_of_graph[replay.number - 2].index if replay.number > 1 else 0
    until = all_of_graph[replay.number].index if replay.number < len(all_of_graph) else None
    for graph, update in unused:
        if graph is replay.graph or len(graph.tasks) != replay.captured or update.index < since:
            continue
        if until is None or update.index < until:
            reporter.update_mixed(replay, graph, update)
            return


def rivals(program: Program, values: bool) -> dict[Command, set[Command]]:
    """Return, for each command, those whose order with it matters and isn't fixed by the program.

    Two commands of one gate; with `values`, also two accesses of shared bytes of which one writes.
    """
    order = _Static(program)
    found: dict[Command, set[Command]] = {}

    def pair(one: Command, other: Command) -> None:
        if one.actor is not other.actor and not order.before(one, other) and not order.before(other, one):
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)

    gates: dict[Gate, list[Command]] = {}
    for command in program.commands:
        if command.kind in (OPEN, TAKE) and command.gate is not None:
            for other in gates.setdefault(command.gate, []):
                pair(other, command)
            gates[command.gate].append(command)
    if values:
        touched: dict[Buffer, list[tuple[Region, bool, Command]]] = {}
        for command in program.commands:
            accesses = [(region, False) for region in program.reads(command)]
            accesses += [(region, True) for region in program.writes(command)]
            for region, writes in accesses:
                for other_region, other_writes, other in touched.setdefault(region.buffer, []):
                    if (writes or other_writes) and overlap(region, other_region):
                        pair(other, command)
            for region, writes in accesses:
                touched[region.buffer].append((region, writes, command))
    return found


class _Static:
    """The order that holds in every run: streams, events, synchronisation; not gates and collectives."""

    def __init__(self, program: Program) -> None:
        clocks: dict[int, dict[int, int]] = {actor.id: {} for actor in program.actors}
        self._position: dict[Command, int] = {}
        self._clocks: dict[Command, dict[int, int]] = {}
        for command in program.commands:
            clock = clocks[command.actor.id]
            deps = (*command.deps, command.after) if command.after is not None else command.deps
            for dep in deps:
                for actor, position in self._clocks[dep].items():
                    if position > clock.get(actor, 0):
                        clock[actor] = position
            self._position[command] = clock[command.actor.id] = clock.get(command.actor.id, 0) + 1
            self._clocks[command] = dict(clock)

    def before(self, one: Command, other: Command) -> bool:
        return self._clocks[other].get(one.actor.id, 0) >= self._position[one]

"""Captured graphs: their nodes, task groups, replays and the counts of each replay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slipstream.device.soft.machine.commands import COLLECTIVE, RECORD, TAKE, Actor, Command, Event, Node
from slipstream.device.soft.machine.history import History
from slipstream.device.soft.machine.places import Place
from slipstream.device.soft.machine.regions import Buffer, Region

if TYPE_CHECKING:
    from slipstream.device.soft.machine.ranks import Host
    from slipstream.device.soft.machine.reporter import Reporter


class Task:
    """A task group: captured kernels whose parameters an update replaces. What `end_task` returns.

    A kernel of the group reads `region`, an update writes it: so an update without an order to the replay
    that runs the kernel is found as a race.
    """

    def __init__(self, graph: Graph, number: int, place: Place) -> None:
        self.graph, self.number, self.place = graph, number, place
        self.nodes: list[Node] = []
        self.fresh = False  # updated since it last ran
        self.updated_by: Command | None = None
        self.wasted: list[Command] = []  # updates that another replaced before the task ran
        buffer = Buffer(f"the parameters of task {number} of {graph.name}", 1, "device", History(), task=True)
        self.region = Region(buffer, 0, 1)

    def runs(self, command: Command) -> None:
        """Give the instance of one of its nodes the parameters as they are now."""
        node, replay = command.node, command.replay
        assert node is not None
        assert replay is not None
        command.reads, command.writes, command.run = (*node.reads, self.region), node.writes, node.run
        if node is self.nodes[0]:
            replay.updated += self.fresh
            self.fresh = False

    def __repr__(self) -> str:
        return f"<task {self.number} of {self.graph.name}>"


def foreign(task: Task, kernels: Sequence[Command]) -> tuple[Task, Command, Region] | None:
    """Find what an update takes from another task of the graph in place of its own.

    New tensors are no mistake, and tensors that both tasks were captured with aren't either.

    Returns:
        The other task, the update's kernel, and what it takes; or None.
    """
    for at, kernel in enumerate(kernels):
        own, given = _captured(task.nodes[at]), _spans((*kernel.reads, *kernel.writes))
        if own.keys() <= given.keys():
            continue
        for other in task.graph.tasks:
            if other is not task and at < len(other.nodes):
                theirs = _captured(other.nodes[at])
                for span, region in given.items():
                    if span in theirs and span not in own:
                        return other, kernel, region
    return None


def _captured(node: Node) -> dict[Any, Region]:
    assert node.first is not None
    return _spans((*node.first[0], *node.first[1]))


def _spans(regions: Sequence[Region]) -> dict[Any, Region]:
    return {(id(region.buffer), *region[1:5]): region for region in regions}


class Graph:
    """A captured list of commands over one or more streams.

    Attributes:
        name: how findings call it.
        state: "new", "capturing", "captured" or "broken".
        streams: how many hardware streams it holds.
        origin: the name of the stream that the capture was begun on.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.clear()

    def clear(self) -> None:
        """Drop what was captured."""
        self.state = "new"
        self.nodes: list[Node] = []
        self.tasks: list[Task] = []
        self.sides: list[Actor] = []
        self.streams = 0
        self.origin = ""
        self.waits = 0
        self.inputs: dict[str, Region] = {}
        self.input_place: Place | None = None
        self.replays: list[Replay] = []

    @property
    def last(self) -> Replay | None:
        """Its latest replay."""
        return self.replays[-1] if self.replays else None

    def __repr__(self) -> str:
        return f"<graph {self.name!r}, {self.state}, {len(self.nodes)} commands>"


class Replay:
    """One launch of a graph."""

    __slots__ = (
        "actor",
        "captured",
        "done",
        "end",
        "graph",
        "index",
        "number",
        "opened",
        "place",
        "reporter",
        "updated",
        "waits",
    )

    def __init__(self, graph: Graph, actor: Actor, place: Place, reporter: Reporter) -> None:
        self.graph, self.actor, self.place, self.reporter = graph, actor, place, reporter
        self.number = len(graph.replays) + 1
        self.captured, self.waits = len(graph.tasks), graph.waits
        self.updated = self.opened = self.index = 0
        self.done = False
        self.end: Command | None = None

    def finish(self) -> None:
        """Check the counts once the last command has run."""
        self.done = True
        if self.captured and self.updated != self.captured and (self.updated or self.opened):
            self.reporter.task_count(self)


def launch(issue: Callable[[Command], None], host: Host, graph: Graph, actor: Actor, replay: Replay) -> None:
    """Put an instance of every node into the queues; the origin's chain runs on the launching stream.

    Two replays of one graph come one after the other, whatever streams they are launched on.
    """
    former = graph.last
    graph.replays.append(replay)
    instances: list[Command] = []
    actors = [actor, *graph.sides]
    for node in graph.nodes:
        deps = tuple([instances[dep] for dep in node.deps])
        command = Command(
            node.kind, actors[node.chain], node.op, node.reads, node.writes, node.run, node.place, deps
        )
        command.node, command.replay, command.gate = node, replay, node.gate
        if node.kind == COLLECTIVE:
            host.meet(command, *node.group)
        if not instances and former is not None and former.actor is not actor and former.end is not None:
            command.deps = (*deps, former.end)
        instances.append(command)
    end = Command(RECORD, actor, f"end of the replay of {graph.name}", place=replay.place)
    end.replay = replay
    replay.end = end
    instances.append(end)
    for command in instances:
        issue(command)
    replay.index = instances[0].index


class Capture:
    """A capture in progress: which streams take part, and what each has seen of the others."""

    def __init__(self, graph: Graph, origin: Actor, mode: str, rank: int, place: Place) -> None:
        self.graph, self.origin, self.mode, self.rank, self.place = graph, origin, mode, rank, place
        self.thread = threading.get_ident()
        self.actors = [origin]
        self.forks = [place]
        self.seen: list[dict[int, int]] = [{}]
        self.counts = [0]
        self.group: Task | None = None
        self.group_actor = origin
        self.broken: str | None = None

    def chain(self, actor: Actor) -> int:
        """Return the number of the stream in the graph; 0 is the origin."""
        return self.actors.index(actor)

    def join(self, actor: Actor, place: Place) -> None:
        """Let a stream take part from here on."""
        self.actors.append(actor)
        self.forks.append(place)
        self.seen.append({})
        self.counts.append(0)
        actor.capture = self

    def add(self, command: Command, deps: tuple[int, ...] = ()) -> Node:
        """Capture a command on a stream that takes part."""
        chain = self.chain(command.actor)
        node = Node(command, chain, len(self.graph.nodes), deps)
        self.graph.nodes.append(node)
        self.graph.waits += command.kind == TAKE
        self.counts[chain] += 1
        self.seen[chain][chain] = self.counts[chain]
        if self.group is not None and command.actor is self.group_actor:
            node.task = self.group
            node.first = (node.reads, node.writes, node.run)
            self.group.nodes.append(node)
        return node

    def record(self, command: Command, event: Event) -> None:
        """Capture a record."""
        node = self.add(command)
        event.record = None
        event.captured = (self, node, dict(self.seen[node.chain]))

    def wait(self, command: Command, node: Node, seen: Mapping[int, int]) -> None:
        """Capture a wait on a captured record."""
        self.add(command, (node.index,))
        mine = self.seen[self.chain(command.actor)]
        for chain, count in seen.items():
            mine[chain] = max(count, mine.get(chain, 0))

    def unjoined(self) -> list[int]:
        """Return the streams whose last command the origin hasn't seen."""
        seen = self.seen[0]
        return [chain for chain in range(1, len(self.actors)) if seen.get(chain, 0) < self.counts[chain]]

    def end(self, state: str) -> None:
        """Let go of the streams."""
        self.graph.state = state
        for actor in self.actors:
            actor.capture = None

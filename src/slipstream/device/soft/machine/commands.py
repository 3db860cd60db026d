"""What the machine is made of: commands, the actors that run them, events, gates, and captured nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slipstream.device.soft.machine.history import Clock
from slipstream.device.soft.machine.places import NOWHERE, Place
from slipstream.device.soft.machine.regions import Region

if TYPE_CHECKING:
    from slipstream.device.soft.machine.graphs import Capture, Replay, Task
    from slipstream.device.soft.machine.ranks import Meeting

Run = Callable[[], object]

KERNEL, RECORD, WAIT, OPEN, TAKE, UPDATE, COLLECTIVE, SYNC, HOST = range(9)
KIND_NAMES = (
    "kernel",
    "record",
    "wait",
    "open",
    "wait",
    "update",
    "collective",
    "synchronise",
    "host access",
)


class Command:
    """One thing that a stream, or a host, does. Issued once, run once.

    Attributes:
        actor: who runs it, in the order of issue.
        deps: records that must have run before.
        known: what the issuing host knew to be finished at the issue.
        index: its number in the order of issue.
        tick: its number on its actor's clock once it has run, 0 before.
        clock: what had happened when it ran; kept for records only.
        node, replay: the captured node that it is an instance of, and the replay, if it is.
    """

    __slots__ = (
        "actor",
        "after",
        "change",
        "clock",
        "deps",
        "done",
        "event",
        "gate",
        "host",
        "index",
        "kind",
        "known",
        "meeting",
        "node",
        "op",
        "place",
        "reads",
        "replay",
        "run",
        "tick",
        "waiters",
        "writes",
    )

    def __init__(
        self,
        kind: int,
        actor: Actor,
        op: str,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        run: Run | None = None,
        place: Place = NOWHERE,
        deps: tuple[Command, ...] = (),
    ) -> None:
        self.kind, self.actor, self.op = kind, actor, op
        self.reads, self.writes, self.run = reads, writes, run
        self.place, self.deps = place, deps
        self.known: Clock = _NOTHING
        self.clock: Clock | None = None
        self.done = False
        self.tick = self.index = 0
        self.waiters: list[Actor] | None = None
        self.gate: Gate | None = None
        self.event: Event | None = None
        self.node: Node | None = None
        self.replay: Replay | None = None
        self.meeting: Meeting | None = None
        self.host: Actor | None = None
        self.after: Command | None = None  # the host's last own command before the issue
        self.change: tuple[Node, Command] | None = None  # of an update: the node, and what it becomes

    def __repr__(self) -> str:
        return f"<{self.op} on {self.actor.name} at {self.place.where}>"


_NOTHING: Clock = {}


class Actor:
    """Something that does one thing after another: a host, a stream, or a side stream of a graph."""

    __slots__ = (
        "capture",
        "captured_as",
        "clock",
        "host",
        "id",
        "is_host",
        "known",
        "last",
        "last_wait",
        "name",
        "queue",
        "slot",
        "stream",
        "tick",
        "update",
    )

    def __init__(self, ident: int, name: str, is_host: bool = False) -> None:
        self.id, self.name, self.is_host = ident, name, is_host
        self.captured_as = name  # of a graph's side stream: the stream that was captured
        self.queue: deque[Command] = deque()
        self.clock: Clock = {}
        self.tick = 0
        self.known: Clock = _NOTHING
        self.slot = -1  # its place in the list of actors that can go on
        self.last: Command | None = None  # the last command issued to it
        self.last_wait: Command | None = None  # the last wait that it ran
        self.capture: Capture | None = None
        self.update: Any = None
        self.stream = -1
        self.host = 0

    def __repr__(self) -> str:
        return f"<{'host' if self.is_host else 'stream'} {self.name!r}>"


class Event:
    """A point in a stream's work. Recording it again moves it."""

    __slots__ = ("captured", "name", "record")

    def __init__(self, name: str) -> None:
        self.name = name
        self.record: Command | None = None  # the latest record issued
        # The latest record, when it is part of a capture: with what its stream had seen of the others.
        self.captured: tuple[Capture, Node, dict[int, int]] | None = None


class Gate:
    """One bit: a wait blocks until it is open, then closes it. Opening an open gate changes nothing."""

    __slots__ = ("clock", "is_open", "name", "opened_by", "past", "taken_by", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[Actor] = []
        self.clear()

    def clear(self) -> None:
        """Close the gate and forget what happened to it."""
        self.is_open = False
        self.clock: Clock = _NOTHING  # what had happened when it was opened
        self.opened_by: Command | None = None
        self.taken_by: Command | None = None
        self.past: deque[str] = deque(maxlen=12)  # its last openings and waits, for findings
        self.waiting.clear()


class Node:
    """A captured command: the pattern of one instance in each replay."""

    __slots__ = (
        "chain",
        "deps",
        "event",
        "first",
        "gate",
        "group",
        "index",
        "kind",
        "op",
        "place",
        "reads",
        "run",
        "task",
        "writes",
    )

    def __init__(self, command: Command, chain: int, index: int, deps: tuple[int, ...]) -> None:
        self.kind, self.op, self.place = command.kind, command.op, command.place
        self.reads, self.writes, self.run = command.reads, command.writes, command.run
        self.gate, self.event = command.gate, command.event
        self.chain, self.index, self.deps = chain, index, deps
        self.task: Task | None = None
        self.first: tuple[Sequence[Region], Sequence[Region], Run | None] | None = None
        self.group: Any = None  # of a captured collective: group, name and payload


def join(clock: Clock, other: Clock) -> None:
    """Let `clock` know what `other` knows."""
    for actor, tick in other.items():
        if tick > clock.get(actor, 0):
            clock[actor] = tick

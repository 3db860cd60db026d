"""A device that exists only in numbers: programs of several ranks run on it, and every time is known exactly.

    rank programs   host work, launches, replays, records, waits, synchronisations, collectives
    run             each operation begins when its call, its stream, its waits and its collective allow
    rows            the run as a profiler would have seen it, CUDA's way or Ascend's, as ops for `timeline_of`

Every operation keeps what held it up, so the critical path is known without the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import numpy as np

from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.table import Graph, Group, Kind, Role, Source, Stream, Timeline


@dataclass(frozen=True)
class Costs:
    """What the device adds, in ns."""

    call: int = 2_000  # the host is in a launch call
    launch: int = 3_000  # from the call's end to the earliest start
    event: int = 400  # from a record to the end of the wait that it frees
    back: int = 1_000  # from the device being done to the host's return


FREE = Costs(call=100, launch=0, event=0, back=0)  # nothing but work costs anything


@dataclass(eq=False)
class Work:
    """An operation of a device or of a host, while it runs and after."""

    rank: int
    name: str
    stream: str
    kind: Kind
    cost: int
    waits_for: list[tuple[Work, int]] = field(default_factory=list)  # (what, delay)
    start: int = -1
    end: int = -1
    call: Work | None = None
    graph: int = -1
    replay: int = -1
    node: int = -1
    meeting: Meeting | None = None
    record: Work | None = None
    waited: str = ""
    held_by: Work | None = None
    begin: int = -1  # its own work: after waiting for others
    phase: str = ""
    number: int = -1
    group: int = -1

    def settled(self) -> bool:
        """Fix its times if everything it waits for is fixed."""
        if self.end >= 0:
            return True
        if not all(other.settled() for other, _ in self.waits_for):
            return False
        if self.start < 0:
            floor = self.waits_for if self.kind != Kind.WAIT else self.waits_for[:-1]
            at, self.held_by = max(((o.end + d, o) for o, d in floor), key=lambda p: p[0], default=(0, None))
            self.start = self.begin = at
        if self.kind == Kind.WAIT:
            other, delay = self.waits_for[-1]
            if other.end + delay >= self.start:
                self.held_by = other
            self.end = max(self.start, other.end + delay)
            self.begin = self.end
            return True
        if self.meeting is not None:
            last = self.meeting.arrived()
            if last is None:
                return False
            self.begin = last.start
            if last is not self and last.start > self.start:
                self.held_by = last
        self.end = self.begin + self.cost
        return True


@dataclass(eq=False)
class Meeting:
    """A collective: it moves once all ranks are there."""

    ranks: int
    members: list[Work] = field(default_factory=list)
    number: int = 0

    def arrived(self) -> Work | None:
        """Return the last to arrive, if all have."""
        if len(self.members) < self.ranks:
            return None
        for member in self.members:
            if member.start < 0:
                if not all(other.settled() for other, _ in member.waits_for):
                    return None
                pairs = [(o.end + d, o) for o, d in member.waits_for]
                at, member.held_by = max(pairs, key=lambda p: p[0], default=(0, None))
                member.start = at
        return max(self.members, key=lambda member: member.start)


class Node:
    """A node of a virtual graph: name, stream, cost, and the nodes it waits for."""

    def __init__(self, name: str, stream: str, cost: int, *after: int, kind: Kind = Kind.KERNEL) -> None:
        self.name, self.stream, self.cost, self.after, self.kind = name, stream, cost, after, kind


class Rank:
    """One rank's host and streams. Its methods are what programs call."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.costs = world, rank, world.costs
        self.now = 0
        self.last_host: Work | None = None
        self.tail: dict[str, Work] = {}
        self.pending: dict[str, list[tuple[Work, int]]] = {}
        self.works: list[Work] = []
        self.marks: list[tuple[str, int, int]] = []
        self.replays: dict[int, int] = {}
        self.phase = ""

    def _host(self, name: str, cost: int, kind: Kind = Kind.HOST) -> Work:
        work = Work(
            self.rank, name, "thread", kind, cost, start=self.now, begin=self.now, end=self.now + cost
        )
        work.held_by, self.last_host, self.now = self.last_host, work, self.now + cost
        self.works.append(work)
        return work

    def host(self, name: str, cost: int) -> None:
        """The host works."""
        self._host(name, cost)

    def _device(self, name: str, stream: str, cost: int, kind: Kind, call: Work | None) -> Work:
        work = Work(self.rank, name, stream, kind, cost, call=call, phase=self.phase)
        if stream in self.tail:
            work.waits_for.append((self.tail[stream], 0))
        if call is not None:
            work.waits_for.append((call, self.costs.launch))
        work.waits_for += self.pending.pop(stream, [])
        self.tail[stream] = work
        self.works.append(work)
        return work

    def kernel(self, name: str, stream: str, cost: int, kind: Kind = Kind.KERNEL) -> Work:
        """Launch one kernel."""
        return self._device(name, stream, cost, kind, self._host("cudaLaunchKernel", self.costs.call))

    def collective(
        self, name: str, stream: str, cost: int, number: int, among: tuple[int, ...] | None = None
    ) -> Work:
        """Launch this rank's part of a collective; of all ranks, or among some."""
        work = self._device(name, stream, cost, Kind.COMM, self._host("cudaLaunchKernel", self.costs.call))
        groups = self.world.groups
        among = among or groups[0]
        if among not in groups:
            groups.append(among)
        work.number, work.group = number, groups.index(among)
        key = (work.group, number)
        work.meeting = self.world.meetings.setdefault(key, Meeting(len(among), number=number))
        work.meeting.members.append(work)
        return work

    def record(self, stream: str) -> Work | None:
        """Record an event."""
        call = self._host("cudaEventRecord", self.costs.call)
        if self.world.ascend:
            return self._device("EVENT_RECORD", stream, 0, Kind.RECORD, call)
        done = self.tail.get(stream)
        if done is None:
            return None
        mark = Work(
            self.rank, "record", stream, Kind.RECORD, 0, call=call
        )  # not a row: what a wait refers to
        mark.record = done
        return mark

    def wait(self, stream: str, event: Work | None) -> None:
        """Let a stream wait for an event."""
        call = self._host("cudaStreamWaitEvent", self.costs.call)
        if event is None:
            return
        if self.world.ascend:
            work = self._device("EVENT_WAIT", stream, 0, Kind.WAIT, call)
            work.waits_for.append((event, self.costs.event))
            work.record, work.waited = event, event.stream
            return
        assert event.record is not None
        self.pending.setdefault(stream, []).append((event.record, self.costs.event))
        echo = Work(self.rank, "Stream Wait Event", stream, Kind.WAIT, 0, call=call)
        echo.start = echo.begin = echo.end = call.start
        echo.record, echo.waited = event.call, event.stream
        self.works.append(echo)

    def replay(self, graph: int, nodes: list[Node], home: str) -> None:
        """Launch a graph: it begins when its home stream is free, and its last node, at home, ends it.

        Its other streams are its own: nothing else runs there.
        """
        call = self._host("cudaGraphLaunch", self.costs.call, Kind.LAUNCH)
        number = self.replays.get(graph, 0)
        self.replays[graph] = number + 1
        call.graph, call.replay = graph, number
        made: list[Work] = []
        before = [(self.tail[home], 0)] if home in self.tail else []
        before += self.pending.pop(home, [])
        for index, node in enumerate(nodes):
            work = Work(self.rank, node.name, node.stream, node.kind, node.cost, call=call, phase=self.phase)
            work.graph, work.replay, work.node = graph, number, index
            work.waits_for += [(made[other], 0) for other in node.after]
            if not node.after:
                work.waits_for += [*before, (call, self.costs.launch)]
            made.append(work)
        self.works += made
        assert made[-1].stream == home, "a graph ends on its home stream"
        self.tail[home] = made[-1]

    def sync(self, stream: str) -> Generator[None]:
        """The host waits for a stream; a program says `yield from rank.sync(...)`."""
        work = Work(self.rank, "cudaStreamSynchronize", "thread", Kind.SYNC, 0, start=self.now, waited=stream)
        done = [self.tail[stream]] if stream in self.tail else []
        while not all(other.settled() for other in done):
            yield
        last = max(done, key=lambda other: other.end, default=None)
        back = self.now if last is None else max(self.now, last.end + self.costs.back)
        work.held_by = last if last is not None and back > self.now else self.last_host
        work.begin = work.end = self.now = back
        self.last_host = work
        self.works.append(work)

    def mark(self, text: str) -> Callable[[], None]:
        """Begin a mark; call what is returned to end it."""
        begun = self.now

        def end() -> None:
            self.marks.append((text, begun, self.now))

        return end


Program = Callable[[Rank], Generator[None]]


class World:
    """All ranks."""

    def __init__(self, ranks: int = 1, *, ascend: bool = False, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.ascend = ascend
        self.meetings: dict[tuple[int, int], Meeting] = {}
        self.groups: list[tuple[int, ...]] = [tuple(range(ranks))]
        self.ranks: list[Rank] = []
        self.ranks += [Rank(self, rank) for rank in range(ranks)]
        for rank in self.ranks:
            rank.world = self

    def run(self, *programs: Program) -> World:
        """Run one program a rank, or one for all, to the end."""
        if len(programs) == 1:
            programs = programs * len(self.ranks)
        running = [program(rank) for program, rank in zip(programs, self.ranks, strict=True)]
        idle = 0
        while running:
            idle += 1
            assert idle < 100_000, "the programs wait for each other"
            running = [program for program in running if next(program, _DONE) is not _DONE]
        for work in self.works:
            assert work.settled(), f"{work.name} can never run"
        return self

    @property
    def works(self) -> list[Work]:
        return [work for rank in self.ranks for work in rank.works]

    @property
    def end(self) -> int:
        """When the last work of a device ended."""
        return max(work.end for work in self.works if work.kind <= Kind.COMM)

    def timeline(
        self, *, graphs: list[Graph] | None = None, numbered: bool = True, records: bool = True
    ) -> Timeline:
        """The run as rows, as a reader would have made them.

        `records`: whether waits say which record they wait for.
        """
        works = self.works
        place = {id(work): index for index, work in enumerate(works)}
        count = max((work.graph for work in works), default=-1) + 1
        known = graphs or [Graph(0, f"graph {number}", Source.GIVEN, 0) for number in range(count)]
        # Each rank has graphs of its own.
        known = [replace(graph, rank=rank.rank) for rank in self.ranks for graph in known]
        per_rank = len(known) // max(1, len(self.ranks))
        ops = [self._op(work, place, numbered, records) for work in works]
        ops = [replace(op, graph=op.graph + op.rank * per_rank) if op.graph >= 0 else op for op in ops]
        names = sorted({(work.rank, work.stream) for work in works})
        streams = [
            Stream(
                rank,
                None if name == "thread" else rank,
                name,
                number,
                Role.HOST if name == "thread" else Role.COMM if name == "comm" else Role.COMPUTE,
            )
            for number, (rank, name) in enumerate(names)
        ]
        marks = [
            (text, start, end, "thread", rank.rank) for rank in self.ranks for text, start, end in rank.marks
        ]
        groups = [Group(f"group {ranks}", ranks) for ranks in self.groups]
        return timeline_of(ops, streams=streams, marks=marks, groups=groups, graphs=known)

    def from_zero(self) -> World:
        """Let the first moment that is shown be 0, as readers do."""
        first = min(work.start for work in self.works)
        for rank in range(len(self.ranks)):
            self.show_on(rank, lambda time: time - first)
        return self

    def show_on(self, rank: int, clock: Callable[[int], int]) -> World:
        """Let a rank's profiler have a clock of its own: what it shows at each moment of the run."""
        for work in self.ranks[rank].works:
            work.start, work.begin, work.end = clock(work.start), clock(work.begin), clock(work.end)
        marks = self.ranks[rank].marks
        marks[:] = [(text, clock(start), clock(end)) for text, start, end in marks]
        return self

    def _op(self, work: Work, place: dict[int, int], numbered: bool, records: bool) -> Op:
        record = -1
        if work.record is not None and records:
            record = place[id(work.record)]
        return Op(
            work.name,
            work.start,
            work.end,
            work.stream,
            work.kind,
            launch=place[id(work.call)] if work.call is not None else -1,
            graph=work.graph,
            replay=work.replay,
            node=work.node,
            group=work.group,
            sequence=work.number if work.meeting is not None and numbered else -1,
            record=record,
            waited=work.waited if work.kind == Kind.SYNC or records else "",
            rank=work.rank,
        )

    def path_work(self) -> int:
        """The work on the critical path, from what held each operation up: the truth."""
        work: Work | None = max(
            (work for work in self.works if work.kind <= Kind.COMM), key=lambda work: work.end
        )
        total = 0
        while work is not None:
            total += work.end - work.begin if work.kind != Kind.SYNC else 0
            work = work.held_by
        return total


_DONE = object()


def edges_of(nodes: list[Node]) -> np.ndarray:
    """A virtual graph's edges, as a dump of its topology has them."""
    pairs = [(other, index) for index, node in enumerate(nodes) for other in node.after]
    return np.array(pairs, np.int32).reshape(-1, 2)

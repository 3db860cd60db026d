"""Property tests: programs over a few streams, ordered by events and host waits that stand in random places.

A naive oracle keeps, for every stream, event and the host, the set of ops that come before: no clocks, no regions,
only sets of steps and of elements. What it says of a program, the software NPU must say in every order: a race or
none. And where there is none, every order gives plain eager PyTorch's values, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slipstream.device import soft
from slipstream.device.soft.machine import ProgramOrder, Report, Scheduler, Seeded

pytestmark = pytest.mark.slow

SIZE, TENSORS, STREAMS, EVENTS = 4, 3, 3, 2
SCHEDULES = [ProgramOrder, lambda: Seeded(0), lambda: Seeded(1), lambda: Seeded(2), lambda: Seeded(3)]

Cells = frozenset[tuple[int, int, int]]


@dataclass(frozen=True)
class Block:
    """`tensors[tensor][rows, columns]`."""

    tensor: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    def of(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return tensors[self.tensor][slice(*self.rows), slice(*self.columns)]

    def cells(self) -> Cells:
        return frozenset((self.tensor, r, c) for r in range(*self.rows) for c in range(*self.columns))


@dataclass(frozen=True)
class Op:
    """One op on a stream: `target` becomes a function of itself and of `source`."""

    stream: int
    kind: str
    target: Block
    source: Block

    def apply(self, tensors: list[torch.Tensor]) -> None:
        target, source = self.target.of(tensors), self.source.of(tensors)
        if self.kind == "scale":
            target.mul_(0.5).sub_(0.25)
        elif self.kind == "fill":
            target.copy_(torch.tanh(source.sum()).expand_as(target))
        else:
            target.add_(torch.softmax(source, 1).mean())

    def reads(self) -> Cells:
        """The elements that it reads before it writes; a target is in `writes` anyway."""
        return frozenset() if self.kind == "scale" else self.source.cells()

    def writes(self) -> Cells:
        return self.target.cells()

    def conflicts(self, other: Op) -> bool:
        return bool(
            self.writes() & (other.writes() | other.reads())
            or other.writes() & (self.writes() | self.reads())
        )


@dataclass(frozen=True)
class Record:
    event: int
    stream: int


@dataclass(frozen=True)
class Wait:
    event: int
    stream: int


@dataclass(frozen=True)
class HostWaitsForEvent:
    event: int


@dataclass(frozen=True)
class HostWaitsForStream:
    stream: int


Step = Op | Record | Wait | HostWaitsForEvent | HostWaitsForStream
WAITS = (Wait, HostWaitsForEvent, HostWaitsForStream)

streams = st.integers(0, STREAMS - 1)
events = st.integers(0, EVENTS - 1)
spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(
    lambda p: (p[0], min(SIZE, p[0] + p[1]))
)
blocks = st.builds(Block, st.integers(0, TENSORS - 1), spans, spans)
ops = st.builds(Op, streams, st.sampled_from(["scale", "fill", "add"]), blocks, blocks)
marks = st.one_of(st.builds(Record, events, streams), st.builds(Wait, events, streams))
host_waits = st.one_of(st.builds(HostWaitsForEvent, events), st.builds(HostWaitsForStream, streams))
programs = st.lists(st.one_of(ops, ops, ops, marks, host_waits), max_size=12)
programs_without_host = st.lists(st.one_of(ops, ops, marks), max_size=12)


class Oracle:
    """Who comes before whom, by sets."""

    def __init__(self) -> None:
        self.streams: list[set[int]] = [set() for _ in range(STREAMS)]
        self.events: dict[int, set[int]] = {}
        self.host: set[int] = set()
        self.done: list[Op] = []

    def unordered(self, op: Op) -> list[Op]:
        """Return the earlier ops that `op` conflicts with and doesn't come after."""
        before = self.streams[op.stream] | self.host
        return [
            other for number, other in enumerate(self.done) if number not in before and other.conflicts(op)
        ]

    def take(self, step: Step) -> None:
        if isinstance(step, Op):
            self.streams[step.stream] |= self.host | {len(self.done)}
            self.done.append(step)
        elif isinstance(step, Record):
            self.events[step.event] = self.streams[step.stream] | self.host
        elif isinstance(step, Wait):
            self.streams[step.stream] |= self.events.get(step.event, set())
        elif isinstance(step, HostWaitsForEvent):
            self.host |= self.events.get(step.event, set())
        else:
            self.host |= self.streams[step.stream]


def has_race(program: list[Step]) -> bool:
    oracle = Oracle()
    for step in program:
        if isinstance(step, Op) and oracle.unordered(step):
            return True
        oracle.take(step)
    return False


def edge(draw: st.DrawFn, source: int, target: int, event: int, host: bool) -> list[Step]:
    """Return one of the ways to let stream `target` come after what stream `source` was given so far."""
    third = draw(streams)
    ways: list[list[Step]] = [
        [Record(event, source), Wait(event, target)],
        [Record(event, source), Wait(event, third), Record(event + 1, third), Wait(event + 1, target)],
    ]
    if host:
        ways += [[Record(event, source), HostWaitsForEvent(event)], [HostWaitsForStream(source)]]
    return draw(st.sampled_from(ways))


@st.composite
def ordered_programs(draw: st.DrawFn, end: tuple[Step, ...] = (), host: bool = True) -> list[Step]:
    """Random programs with `end` behind them, and with the edges that they lack put in."""
    oracle = Oracle()
    program: list[Step] = []
    for step in [*draw(programs if host else programs_without_host), *end]:
        while isinstance(step, Op) and (missing := oracle.unordered(step)):
            for new in edge(draw, missing[0].stream, step.stream, EVENTS + len(program), host):
                program.append(new)
                oracle.take(new)
        program.append(step)
        oracle.take(step)
    return program


ALL = Block(0, (0, SIZE), (0, SIZE))

#: Two streams that need an edge between them, unless chance has put one there.
CONFLICT = (Op(0, "add", ALL, ALL), Op(1, "fill", ALL, ALL))


def issue(program: list[Step], made: list[Any], tensors: list[torch.Tensor]) -> None:
    events: dict[int, Any] = {}
    for step in program:
        event = None
        if isinstance(step, Record | Wait | HostWaitsForEvent):
            event = events.setdefault(step.event, torch.npu.Event())
        if isinstance(step, Op):
            with torch.npu.stream(made[step.stream]):
                step.apply(tensors)
        elif isinstance(step, Record):
            event.record(made[step.stream])
        elif isinstance(step, Wait):
            event.wait(made[step.stream])
        elif isinstance(step, HostWaitsForEvent):
            event.synchronize()
        else:
            made[step.stream].synchronize()


def run(program: list[Step], scheduler: Scheduler) -> tuple[list[torch.Tensor], Report]:
    with soft.installed(scheduler) as machine:
        made = [torch.npu.Stream() for _ in range(STREAMS)]
        tensors = [start(number).npu() for number in range(TENSORS)]
        torch.npu.synchronize()
        issue(program, made, tensors)
        torch.npu.synchronize()
        return [tensor.cpu() for tensor in tensors], machine.finish()


def replay_twice(program: list[Step], scheduler: Scheduler) -> tuple[list[torch.Tensor], Report]:
    """Capture a program over forked streams, and replay it on two other streams in turn."""
    with soft.installed(scheduler) as machine:
        made = [torch.npu.Stream() for _ in range(STREAMS)]
        tensors = [start(number).npu() for number in range(TENSORS)]
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            origin = torch.npu.current_stream()
            for stream in made:
                stream.wait_stream(origin)
            issue(program, made, tensors)
            for stream in made:
                origin.wait_stream(stream)
        torch.npu.synchronize()
        for stream, other in ((made[0], made[1]), (made[1], made[0])):
            stream.wait_stream(other)
            with torch.npu.stream(stream):
                graph.replay()
        torch.npu.synchronize()
        return [tensor.cpu() for tensor in tensors], machine.finish()


def start(number: int) -> torch.Tensor:
    return torch.eye(SIZE) + number


def eagerly(program: list[Step]) -> list[torch.Tensor]:
    tensors = [start(number) for number in range(TENSORS)]
    for step in program:
        if isinstance(step, Op):
            step.apply(tensors)
    return tensors


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@settings(max_examples=40, deadline=None)
@given(ordered_programs())
def test_an_ordered_program_is_eager_pytorch_in_every_order(program: list[Step]) -> None:
    expected = eagerly(program)
    for schedule in SCHEDULES:
        found, report = run(program, schedule())
        assert report.findings == (), "\n\n".join(map(str, report.findings))
        assert same(found, expected)


@settings(max_examples=40, deadline=None)
@given(ordered_programs(CONFLICT), st.data())
def test_a_needed_edge_left_out_is_found_in_every_order(program: list[Step], data: st.DataObject) -> None:
    without = [program[:i] + program[i + 1 :] for i, step in enumerate(program) if isinstance(step, WAITS)]
    needed = [shorter for shorter in without if has_race(shorter)]
    assume(needed)
    broken = data.draw(st.sampled_from(needed))
    for schedule in SCHEDULES:
        kinds = run(broken, schedule())[1].kinds()
        assert "race" in kinds


@settings(max_examples=60, deadline=None)
@given(programs, st.integers(0, 1000))
def test_any_program_gets_the_verdict_of_the_naive_oracle(program: list[Step], seed: int) -> None:
    for scheduler in (ProgramOrder(), Seeded(seed)):
        found, report = run(program, scheduler)
        assert bool(report.findings) == has_race(program)
        if not report.findings:
            assert same(found, eagerly(program))


@settings(max_examples=40, deadline=None)
@given(ordered_programs(host=False))
def test_a_captured_program_is_eager_pytorch_in_every_order(program: list[Step]) -> None:
    expected = eagerly(program + program)
    for schedule in SCHEDULES[:3]:
        found, report = replay_twice(program, schedule())
        assert report.findings == (), "\n\n".join(map(str, report.findings))
        assert same(found, expected)


@settings(max_examples=40, deadline=None)
@given(programs_without_host, st.integers(0, 1000))
def test_any_captured_program_gets_the_verdict_of_the_naive_oracle(program: list[Step], seed: int) -> None:
    for scheduler in (ProgramOrder(), Seeded(seed)):
        found, report = replay_twice(program, scheduler)
        assert bool(report.findings) == has_race(program)
        if not report.findings:
            assert same(found, eagerly(program + program))

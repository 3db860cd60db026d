"""Random small programs: the machine and the naive checker come to the same verdict."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from slipstream.device.soft.machine import (
    Machine,
    ProgramOrder,
    Region,
    Replayed,
    Scheduler,
    Seeded,
    errors,
    explore,
)
from tests.device.soft.machine.naive import BUFFERS, EVENTS, GATES, STREAMS, Op, TooMany, compute, judge

streams = st.integers(0, STREAMS - 1)
few_buffers = st.lists(st.integers(0, BUFFERS - 1), max_size=2, unique=True).map(tuple)
kernels = st.builds(Op, st.just("kernel"), streams, st.just(0), few_buffers, few_buffers)
events = st.builds(Op, st.sampled_from(["record", "wait"]), streams, st.integers(0, EVENTS - 1))
gates = st.builds(Op, st.sampled_from(["open", "take"]), streams, st.integers(0, GATES - 1))
syncs = st.builds(Op, st.just("sync"), streams)
accesses = st.builds(Op, st.just("access"), st.just(0), st.just(0), few_buffers, few_buffers)
# Half of the programs have one gate and few kernels, so that openings and waits meet in many ways.
one_gate = st.builds(Op, st.sampled_from(["open", "take"]), streams)
one_buffer = st.sampled_from([((0,), ()), ((), (0,))])
one_kernel = st.builds(lambda s, rw: Op("kernel", s, 0, *rw), streams, one_buffer)
programs = st.one_of(
    st.lists(st.one_of(kernels, kernels, events, events, gates, gates, syncs, accesses), max_size=11),
    st.lists(st.one_of(one_gate, one_gate, one_gate, one_kernel, events, syncs), max_size=10),
)
programs_without_gates = st.lists(st.one_of(kernels, kernels, events, events, syncs, accesses), max_size=12)

check = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


def run(program: list[Op], machine: Machine, memory: list[int] | None = None) -> None:
    """Issue the program; kernels compute into `memory`."""
    for _ in range(STREAMS - 1):
        machine.stream("side")
    all_events = [machine.event(f"e{n}") for n in range(EVENTS)]
    all_gates = [machine.gate(f"g{n}") for n in range(GATES)]
    buffers = [machine.buffer(f"b{n}", 4) for n in range(BUFFERS)]

    def kernel(op: Op, number: int) -> None:
        assert memory is not None
        inputs = [memory[b] for b in op.reads]
        for place, b in enumerate(op.writes):
            memory[b] = compute(inputs, number, place)

    for number, op in enumerate(program):
        reads = tuple(Region(buffers[b], 0, 4) for b in op.reads)
        writes = tuple(Region(buffers[b], 0, 4) for b in op.writes)
        if op.kind == "kernel":
            call = None if memory is None else lambda op=op, number=number: kernel(op, number)
            machine.kernel(op.stream, f"k{number}", reads, writes, call)
        elif op.kind == "record":
            machine.record(op.stream, all_events[op.what])
        elif op.kind == "wait":
            machine.wait(op.stream, all_events[op.what])
        elif op.kind == "open":
            machine.open(op.stream, all_gates[op.what])
        elif op.kind == "take":
            machine.wait_gate(op.stream, all_gates[op.what])
        elif op.kind == "sync":
            machine.synchronize(op.stream)
        else:
            machine.host_access(reads, writes, f"h{number}")
            if memory is not None:
                kernel(op, number)


def issued(program: list[Op], memory: list[int] | None = None) -> Machine:
    machine = Machine(stacks=False, keep=True, executes=False)
    run(program, machine, memory)
    return machine


def live(program: list[Op], scheduler: Scheduler, memory: list[int] | None = None) -> Machine:
    machine = Machine(scheduler, stacks=False)
    try:
        run(program, machine, memory)
    except errors.StreamSyncTimeout:
        event("the host stood still")
    return machine


def naive(program: list[Op], values: bool = False):
    try:
        return judge(program, values)
    except TooMany:
        assume(False)


@check
@given(programs)
def test_all_orders_give_the_naive_verdict(program: list[Op]) -> None:
    truth = naive(program)
    found = explore(issued(program).program())
    assert found.complete
    kinds = found.kinds()
    event(f"orders {min(found.orders, 5)}, pruned {min(found.pruned, 3)}")
    assert ("race" in kinds) == truth.race
    assert ("hang" in kinds) == truth.hang
    assert ("lost-opening" in kinds) == truth.lost


@check
@given(programs, st.integers(0, 50))
def test_one_order_finds_nothing_that_is_not_there(program: list[Op], seed: int) -> None:
    truth = naive(program)
    for scheduler in (ProgramOrder(), Seeded(seed)):
        kinds = live(program, scheduler).finish().kinds()
        assert truth.race or "race" not in kinds
        assert truth.hang or "hang" not in kinds
        assert truth.lost or "lost-opening" not in kinds


@check
@given(programs_without_gates, st.integers(0, 50))
def test_without_gates_any_one_order_shows_every_race(program: list[Op], seed: int) -> None:
    truth = naive(program)
    for scheduler in (ProgramOrder(), Seeded(seed)):
        assert ("race" in live(program, scheduler).finish().kinds()) == truth.race


@check
@given(programs_without_gates, st.integers(0, 50))
def test_race_free_programs_give_one_memory(program: list[Op], seed: int) -> None:
    truth = naive(program, values=True)
    assume(not truth.race)
    (expected,) = truth.memories
    for scheduler in (ProgramOrder(), Seeded(seed), Seeded(seed + 1)):
        memory = list(range(BUFFERS))
        live(program, scheduler, memory).finish()
        assert tuple(memory) == expected


@check
@given(st.lists(st.one_of(kernels, events), max_size=9))
def test_with_values_every_memory_is_seen(program: list[Op]) -> None:
    truth = naive(program, values=True)
    memory = list(range(BUFFERS))
    seen = set()

    def before() -> None:
        memory[:] = range(BUFFERS)

    found = explore(issued(program, memory).program(), 50_000, True, before, lambda: seen.add(tuple(memory)))
    assert found.complete
    assert seen == truth.memories


@check
@given(programs, st.integers(0, 50))
def test_a_reported_order_is_taken_again(program: list[Op], seed: int) -> None:
    first_memory, second_memory = list(range(BUFFERS)), list(range(BUFFERS))
    first = live(program, Seeded(seed), first_memory).finish()
    second = live(program, Replayed(first.schedule.choices), second_memory).finish()
    assert second_memory == first_memory
    assert second.schedule.choices == first.schedule.choices
    assert [finding.title for finding in second.findings] == [finding.title for finding in first.findings]


@check
@given(programs_without_gates, st.integers(0, 50))
def test_a_replay_races_as_the_same_commands_do_outside_a_graph(program: list[Op], seed: int) -> None:
    """All streams are forked at the begin of the capture and joined at its end; the host takes no part."""
    inside = [op for op in program if op.kind in ("kernel", "record", "wait")]
    # Events recorded in a capture; a wait for one that isn't recorded yet does nothing on either side.
    truth = naive(inside)
    machine = Machine(Seeded(seed), stacks=False)
    streams = [machine.stream(f"s{n}") for n in range(STREAMS)]
    all_events = [machine.event(f"e{n}") for n in range(EVENTS)]
    buffers = [machine.buffer(f"b{n}", 4) for n in range(BUFFERS)]
    graph, fork = machine.graph("g"), machine.event("fork")
    machine.begin_capture(streams[0], graph)
    machine.record(streams[0], fork)
    for stream in streams[1:]:
        machine.wait(stream, fork)
    for number, op in enumerate(inside):
        if op.kind == "kernel":
            reads = tuple(Region(buffers[b], 0, 4) for b in op.reads)
            writes = tuple(Region(buffers[b], 0, 4) for b in op.writes)
            machine.kernel(streams[op.stream], f"k{number}", reads, writes)
        elif op.kind == "record":
            machine.record(streams[op.stream], all_events[op.what])
        else:
            machine.wait(streams[op.stream], all_events[op.what])
    for stream in streams[1:]:
        join = machine.event("join")
        machine.record(stream, join)
        machine.wait(streams[0], join)
    machine.end_capture(streams[0])
    for _ in range(2):
        machine.replay(streams[0], graph)
    report = machine.finish()
    assert report.kinds() == ({"race"} if truth.race else set())

"""All orders of a recorded program, each once."""

from __future__ import annotations

import json
import time

import pytest

from slipstream.device.soft.machine import Machine, Region, Seeded, explore


def noted() -> Machine:
    return Machine(keep=True, executes=False)


def test_independent_commands_do_not_multiply() -> None:
    machine = noted()
    for name in "abcdef":
        stream, region = machine.stream(name), Region(machine.buffer(name, 8), 0, 8)
        for _ in range(10):
            machine.kernel(stream, "k", (region,), (region,))
    program = machine.program()
    for values in (False, True):
        found = explore(program, values=values)
        assert (found.orders, found.pruned, found.complete, found.clean) == (1, 0, True, True)


def test_openings_of_different_gates_do_not_multiply() -> None:
    machine = noted()
    update = machine.stream("update")
    for n in range(30):
        gate = machine.gate(f"g{n}")
        machine.wait_gate(0, gate)
        machine.open(update, gate)
    found = explore(machine.program())
    assert (found.orders, found.complete, found.clean) == (1, True, True)


def test_a_hang_that_only_some_orders_show() -> None:
    """The second opening is lost if it comes before the first wait: then the second wait hangs."""
    machine = noted()
    update, gate = machine.stream("update"), machine.gate()
    for _ in range(2):
        machine.wait_gate(0, gate)
        machine.open(update, gate)
    found = explore(machine.program())
    assert found.orders == 2
    assert found.kinds() == {"lost-opening", "hang"}


def test_values_shows_what_a_race_does() -> None:
    machine, memory, seen = noted(), [0], set()
    side, region = machine.stream("side"), (Region(machine.buffer("b", 8), 0, 8),)
    machine.kernel(0, "add", region, region, lambda: memory.append(memory.pop() + 1))
    machine.kernel(side, "double", region, region, lambda: memory.append(memory.pop() * 10))

    def before() -> None:
        memory[:] = [3]

    found = explore(machine.program(), values=True, before=before, after=lambda: seen.add(memory[0]))
    assert found.orders == 2
    assert seen == {40, 31}


def test_the_bound_is_reported() -> None:
    machine = noted()
    region = (Region(machine.buffer("b", 8), 0, 8),)
    for name in "abcd":
        stream = machine.stream(name)
        for _ in range(4):
            machine.kernel(stream, "w", (), region)
    found = explore(machine.program(), bound=50, values=True)
    assert not found.complete
    assert found.orders + found.pruned == 50
    assert json.loads(json.dumps(found.as_dict()))["complete"] is False


def test_a_program_recorded_from_a_live_run() -> None:
    machine = Machine(Seeded(3), keep=True)
    side, region = machine.stream("side"), (Region(machine.buffer("b", 8), 0, 8),)
    event = machine.event()
    machine.kernel(0, "w", (), region)
    machine.record(0, event)
    machine.synchronize_event(event)
    machine.host_access(region, (), "read")
    machine.kernel(side, "r", region)
    while not machine.query(side):
        pass
    machine.kernel(0, "w", (), region)
    assert machine.finish().clean
    assert explore(machine.program()).clean
    assert machine.program().run(Seeded(1)).clean


def test_a_program_runs_again_as_often_as_one_likes() -> None:
    machine, ran = noted(), []
    machine.kernel(0, "k", run=lambda: ran.append(1))
    program = machine.program()
    for _ in range(3):
        report = program.run(Seeded(0), call=True)
        assert (report.commands, report.clean) == (1, True)
    assert ran == [1, 1, 1]


def test_collectives_in_a_recorded_program() -> None:
    machine = Machine(keep=True, executes=False)
    for rank in (0, 1):
        with machine.rank(rank):
            machine.collective(machine.default_stream, (0, 1), "all_reduce")
            machine.synchronize()
    assert explore(machine.program()).clean


def test_a_machine_that_keeps_nothing_has_no_program() -> None:
    with pytest.raises(ValueError, match="keep=True"):
        Machine().program()


def test_two_streams_of_twelve_commands_with_three_edges_in_under_a_second() -> None:
    machine = noted()
    one, two = machine.stream("one"), machine.stream("two")
    shared = Region(machine.buffer("shared", 8), 0, 8)
    own = [Region(machine.buffer(name, 8), 0, 8) for name in "ab"]
    for n in range(12):
        for stream, region in ((one, own[0]), (two, own[1])):
            machine.kernel(stream, "k", (region,), (shared if n % 4 == 1 else region,))
        if n in (2, 6, 10):
            event = machine.event()
            machine.record(one, event)
            machine.wait(two, event)
    program = machine.program()
    started = time.perf_counter()
    found = explore(program, values=True)
    assert time.perf_counter() - started < 1
    assert found.complete
    assert found.kinds() == {"race"}

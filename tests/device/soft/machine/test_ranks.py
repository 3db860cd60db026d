"""Simulated ranks: collectives that meet, differ, or wait for a rank that never comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slipstream.device.soft.machine import Machine, Region, Replayed, Seeded, errors

GROUP = (0, 1)


@pytest.fixture(params=range(-1, 10))
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(Seeded(request.param) if request.param >= 0 else None)


def both(machine: Machine, *programs: Callable[[], object]) -> None:
    machine.run_ranks(programs)


def test_a_collective_meets_and_orders(machine: Machine) -> None:
    values, sums = [3, 4], []
    shared = Region(machine.buffer("symmetric memory", 64), 0, 64)

    def reduce(payloads: list[int]) -> None:
        sums.append(sum(payloads))

    def program(rank: int) -> Callable[[], None]:
        def run() -> None:
            stream = machine.default_stream
            assert machine.current_host == rank
            if rank == 0:
                machine.kernel(stream, "write", (), (shared,))
            machine.collective(stream, GROUP, "all_reduce", run=reduce, payload=values[rank])
            machine.synchronize(stream)
            if rank == 1:
                machine.kernel(stream, "read", (shared,))
            machine.synchronize(stream)

        return run

    both(machine, program(0), program(1))
    assert sums == [7]
    assert machine.finish().clean


def test_without_the_collective_the_ranks_race(machine: Machine) -> None:
    shared = Region(machine.buffer("symmetric memory", 64), 0, 64)
    both(
        machine,
        lambda: machine.kernel(machine.default_stream, "write", (), (shared,)),
        lambda: machine.kernel(machine.default_stream, "read", (shared,)),
    )
    assert machine.finish().kinds() == {"race"}


def test_a_rank_that_skips_a_collective(machine: Machine) -> None:
    def busy() -> None:
        machine.collective(machine.default_stream, GROUP, "all_gather")
        machine.collective(machine.default_stream, GROUP, "all_reduce")
        machine.synchronize()

    def idle() -> None:
        machine.collective(machine.default_stream, GROUP, "all_gather")
        machine.synchronize()

    with pytest.raises(errors.StreamSyncTimeout):
        both(machine, busy, idle)
    (finding,) = machine.finish().findings
    assert finding.kind == "collective"
    assert (
        "all_reduce waits for ever: it is collective 2 of ranks [0, 1], and rank 1 never issues that many"
        in finding.title
    )
    assert "an idle rank must take part" in finding.missing


def test_collectives_in_different_orders(machine: Machine) -> None:
    def program(*names: str) -> Callable[[], None]:
        def run() -> None:
            for name in names:
                machine.collective(machine.default_stream, GROUP, name)
            machine.synchronize()

        return run

    both(machine, program("all_gather", "all_reduce"), program("all_reduce", "all_gather"))
    findings = machine.finish().findings
    assert {finding.kind for finding in findings} == {"collective"}
    assert "is all_gather on rank" in findings[0].title or "is all_reduce on rank" in findings[0].title


def test_two_groups_in_different_orders_stand_still(machine: Machine) -> None:
    def program(*groups: tuple[int, ...]) -> Callable[[], None]:
        def run() -> None:
            for group in groups:
                machine.collective(machine.default_stream, group, f"all_reduce of {len(group)}")
            machine.synchronize()

        return run

    three = (0, 1, 2)
    with pytest.raises(errors.StreamSyncTimeout):
        both(machine, program(GROUP, three), program(three, GROUP), program(three))
    assert "hang" in machine.finish().kinds()


def test_a_rank_that_waits_lets_the_others_go_on(machine: Machine) -> None:
    gate, steps = machine.gate("flag"), []

    def waiter() -> None:
        machine.wait_gate(machine.default_stream, gate)
        machine.synchronize()
        steps.append("waited")

    def opener() -> None:
        for n in range(5):
            machine.kernel(machine.default_stream, "k", run=lambda n=n: steps.append(n))
        machine.open(machine.default_stream, gate)
        machine.synchronize()

    both(machine, waiter, opener)
    assert "waited" in steps
    assert machine.finish().clean


def test_an_order_of_several_ranks_can_be_followed() -> None:
    def play(machine: Machine) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []

        def program(rank: int) -> Callable[[], None]:
            def run() -> None:
                for n in range(6):
                    machine.kernel(machine.default_stream, "k", run=lambda n=n: seen.append((rank, n)))
                    seen.append((rank + 10, n))
                    if n == 3:
                        machine.collective(machine.default_stream, GROUP, "all_reduce")
                machine.synchronize()

            return run

        both(machine, program(0), program(1))
        return seen

    for seed in range(10):
        machine = Machine(Seeded(seed))
        seen = play(machine)
        assert play(Machine(Seeded(seed))) == seen
        assert play(Machine(Replayed(machine.finish().schedule.choices))) == seen


def test_what_a_rank_raises_comes_out(machine: Machine) -> None:
    def fail() -> None:
        raise KeyError("rank 1")

    with pytest.raises(KeyError, match="rank 1"):
        both(machine, lambda: machine.kernel(machine.default_stream, "k"), fail)


def test_a_rank_outside_the_group_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match=r"rank 0 is not part of the group \[1, 2\]"):
        machine.collective(0, (2, 1), "all_reduce")


def test_collectives_inside_graphs(machine: Machine) -> None:
    sums: list[int] = []

    def program(rank: int) -> Callable[[], None]:
        def run() -> None:
            stream, graph = machine.stream(f"main{rank}"), machine.graph(f"g{rank}")
            machine.begin_capture(stream, graph, "thread_local")
            machine.collective(
                stream, GROUP, "all_reduce", run=lambda two: sums.append(sum(two)), payload=rank + 1
            )
            machine.end_capture(stream)
            for _ in range(3):
                machine.replay(stream, graph)
            machine.synchronize(stream)

        return run

    both(machine, program(0), program(1))
    assert sums == [3, 3, 3]
    assert machine.finish().clean

"""Streams, events, gates, host calls: what is ordered is clean, what isn't is found and explained."""

from __future__ import annotations

import json

import pytest

from slipstream.device.soft.machine import (
    Machine,
    ProgramOrder,
    Region,
    Replayed,
    Scheduler,
    Seeded,
    errors,
    follow,
)
from slipstream.device.soft.machine.host_calls import PATIENCE

SCHEDULERS = [ProgramOrder(), *(Seeded(seed) for seed in range(10))]


def ident(scheduler: Scheduler) -> str:
    return f"seed {scheduler.seed}" if isinstance(scheduler, Seeded) else "program order"


@pytest.fixture(params=SCHEDULERS, ids=ident)
def machine(request: pytest.FixtureRequest) -> Machine:
    scheduler = request.param
    return Machine(Seeded(scheduler.seed) if isinstance(scheduler, Seeded) else ProgramOrder())


def memory(machine: Machine, name: str = "hidden", where: str = "device") -> Region:
    return Region(machine.buffer(name, 64, where), 0, 64)


def test_a_read_that_nothing_orders_is_a_race_with_all_that_one_needs_to_mend_it(machine: Machine) -> None:
    plan, hidden = machine.stream("plan"), memory(machine)
    machine.kernel(0, "draft", (), (hidden,))
    machine.kernel(plan, "prepare", (hidden,))
    (finding,) = machine.finish().findings
    assert finding.kind == "race"
    assert "write-read race on hidden" in finding.title
    assert finding.streams == ("default", "plan")
    assert finding.ops == ("draft on default", "prepare on plan")
    assert finding.buffer == "hidden"
    assert 'machine.kernel(0, "draft"' in finding.stacks[0]
    assert 'machine.kernel(plan, "prepare"' in finding.stacks[1]
    assert finding.stacks[0].splitlines()[0].startswith(__file__)
    assert not any("_pytest" in stack or "soft/machine/stream_calls" in stack for stack in finding.stacks)
    assert finding.missing.startswith("`plan.wait_stream(default)` after draft (test_order.py:")
    assert [step.split(" (")[0] for step in finding.order] == [
        "the host issues draft on default",
        "the host issues prepare on plan",
        "plan runs prepare, which reads hidden",
        "default runs draft, which writes hidden, too late",
    ]
    assert json.loads(json.dumps(finding.as_dict()))["kind"] == "race"
    assert "to mend it: `plan.wait_stream(default)`" in str(finding)


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [("w", "r", "write-read"), ("r", "w", "read-write"), ("w", "w", "write-write")],
)
def test_the_three_races(machine: Machine, first: str, second: str, name: str) -> None:
    plan, hidden = machine.stream("plan"), (memory(machine),)
    machine.kernel(0, "a", hidden if first == "r" else (), hidden if first == "w" else ())
    machine.kernel(plan, "b", hidden if second == "r" else (), hidden if second == "w" else ())
    (finding,) = machine.finish().findings
    assert finding.title.startswith(f"{name} race")


def test_two_reads_are_no_race(machine: Machine) -> None:
    plan, hidden = machine.stream("plan"), (memory(machine),)
    machine.kernel(0, "a", hidden)
    machine.kernel(plan, "b", hidden)
    assert machine.finish().clean


def test_an_event_orders(machine: Machine) -> None:
    plan, hidden, event = machine.stream("plan"), (memory(machine),), machine.event()
    machine.kernel(0, "draft", (), hidden)
    machine.record(0, event)
    machine.wait(plan, event)
    machine.kernel(plan, "prepare", hidden)
    assert machine.finish().clean


def test_an_event_recorded_too_early_does_not_order_and_the_order_shows_it() -> None:
    machine = Machine()
    plan, hidden, event = machine.stream("plan"), (memory(machine),), machine.event()
    machine.kernel(0, "draft", (), hidden)
    machine.record(0, event)
    machine.kernel(0, "accept", (), hidden)
    machine.wait(plan, event)
    machine.kernel(plan, "prepare", hidden)
    (finding,) = machine.finish().findings
    assert finding.ops == ("accept on default", "prepare on plan")
    assert any("which doesn't come after accept" in step for step in finding.order)


def test_a_wait_sees_the_latest_record_issued_and_not_a_later_one(machine: Machine) -> None:
    plan, hidden, event = machine.stream("plan"), (memory(machine),), machine.event()
    machine.wait(plan, event)  # never recorded: nothing
    machine.record(0, event)
    machine.wait(plan, event)
    machine.kernel(0, "draft", (), hidden)
    machine.record(0, event)
    machine.kernel(plan, "prepare", hidden)
    assert machine.finish().kinds() == {"race"}


def test_order_through_a_third_stream(machine: Machine) -> None:
    second, third, hidden = machine.stream("second"), machine.stream("third"), (memory(machine),)
    one, two = machine.event(), machine.event()
    machine.kernel(0, "draft", (), hidden)
    machine.record(0, one)
    machine.wait(second, one)
    machine.record(second, two)
    machine.wait(third, two)
    machine.kernel(third, "prepare", hidden)
    assert machine.finish().clean


@pytest.mark.parametrize("how", ["stream", "all", "event", "query", "query event"])
def test_the_host_orders_by_waiting(machine: Machine, how: str) -> None:
    plan, hidden, event = machine.stream("plan"), (memory(machine),), machine.event()
    machine.kernel(0, "draft", (), hidden)
    machine.record(0, event)
    if how == "stream":
        machine.synchronize(0)
    elif how == "all":
        machine.synchronize()
    elif how == "event":
        machine.synchronize_event(event)
    else:
        while not machine.query(event if how == "query event" else 0):
            pass
    machine.kernel(plan, "prepare", hidden)
    machine.host_access(hidden, (), "print")
    assert machine.finish().clean


def test_waiting_for_another_stream_does_not_order(machine: Machine) -> None:
    plan, hidden = machine.stream("plan"), (memory(machine),)
    machine.kernel(0, "draft", (), hidden)
    machine.synchronize(plan)
    machine.kernel(plan, "prepare", hidden)
    assert machine.finish().kinds() == {"race"}


def test_a_host_buffer_rewritten_while_its_copy_is_in_flight(machine: Machine) -> None:
    pinned, lengths = memory(machine, "lengths_pinned", "host"), memory(machine, "lengths")
    machine.host_access((), (pinned,), "fill_")
    machine.kernel(0, "copy_", (pinned,), (lengths,))
    machine.host_access((), (pinned,), "fill_")
    (finding,) = machine.finish().findings
    assert finding.kind == "host-buffer"
    assert "lengths_pinned is rewritten while copy_" in finding.title
    assert finding.missing.startswith("`default.synchronize()`")


def test_a_host_read_before_the_copy_is_there(machine: Machine) -> None:
    pinned, tokens = memory(machine, "tokens_pinned", "host"), memory(machine, "tokens")
    machine.kernel(0, "copy_", (tokens,), (pinned,))
    machine.host_access((pinned,), (), "tolist")
    assert machine.finish().kinds() == {"race"}


def test_a_race_is_told_once_for_each_pair_of_places(machine: Machine) -> None:
    plan, hidden = machine.stream("plan"), (memory(machine),)
    for _ in range(5):
        machine.kernel(0, "draft", (), hidden)
        machine.kernel(plan, "prepare", hidden)
    titles = [finding.title for finding in machine.finish().findings]
    assert 1 <= len(titles) <= 2  # write-read, and the next round's read-write


def test_the_order_stays_small_however_long_the_program() -> None:
    machine = Machine(Seeded(1))
    plan, other, hidden = machine.stream("plan"), machine.stream("other"), memory(machine)
    event = machine.event()
    for n in range(300):
        machine.kernel(0, f"k{n}", (), (memory(machine, f"b{n}"),))
        machine.record(0, event)
        machine.wait(other, event)
    machine.kernel(0, "draft", (), (hidden,))
    machine.kernel(plan, "prepare", (hidden,))
    (finding,) = machine.finish().findings
    assert len(finding.order) == 4


def test_gates_open_wait_and_order(machine: Machine) -> None:
    update, lengths, gate = machine.stream("update"), (memory(machine, "lengths"),), machine.gate("g")
    machine.wait_gate(0, gate)
    machine.kernel(0, "attention", lengths)
    machine.kernel(update, "fill", (), lengths)
    machine.open(update, gate)
    machine.synchronize()
    machine.open(update, gate)
    machine.wait_gate(0, gate)
    assert machine.finish().clean


def test_a_gate_that_nobody_opens(machine: Machine) -> None:
    gate = machine.gate("layer 3")
    machine.wait_gate(0, gate)
    with pytest.raises(errors.StreamSyncTimeout, match="507046") as caught:
        machine.synchronize(0)
    assert caught.value.code == 507046
    assert caught.value.ascend == "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"
    finding = machine.finish().findings[0]
    assert finding.kind == "hang"
    assert (
        "default waits for layer 3 for ever: nobody has opened it for this wait, and nobody will"
        in finding.title
    )
    assert finding.ops[1].startswith("synchronize() of default")


def test_an_event_behind_a_closed_gate(machine: Machine) -> None:
    gate, event = machine.gate(), machine.event("done")
    machine.wait_gate(0, gate)
    machine.record(0, event)
    with pytest.raises(errors.EventSyncTimeout):
        machine.synchronize_event(event)
    with pytest.raises(errors.StreamSyncTimeout):
        [None for _ in range(2 * PATIENCE) if machine.query(event)]


def test_asking_before_the_host_opens_the_gate_is_no_hang(machine: Machine) -> None:
    opener, gate, event = machine.stream("opener"), machine.gate(), machine.event("done")
    machine.wait_gate(0, gate)
    machine.record(0, event)
    assert not any(machine.query(event) for _ in range(PATIENCE - 1))
    machine.open(opener, gate)
    while not machine.query(event):
        pass
    assert machine.finish().clean


def test_two_streams_that_wait_for_each_others_gates(machine: Machine) -> None:
    other, one, two = machine.stream("other"), machine.gate("one"), machine.gate("two")
    machine.wait_gate(0, one)
    machine.open(0, two)
    machine.wait_gate(other, two)
    machine.open(other, one)
    findings = machine.finish().findings
    assert {finding.kind for finding in findings} == {"hang"}
    assert "stands on other behind wait for two, which waits too" in findings[0].title


def test_an_opening_that_may_be_lost_is_found_in_any_order(machine: Machine) -> None:
    update, gate = machine.stream("update"), machine.gate("g")
    for _ in range(2):
        machine.wait_gate(0, gate)
        machine.open(update, gate)
    report = machine.finish()
    assert "lost-opening" in report.kinds()
    finding = next(finding for finding in report.findings if finding.kind == "lost-opening")
    assert "g is opened twice for one wait" in finding.title
    assert "let the second opening come after" in finding.missing


def test_the_wait_that_keeps_the_opening(machine: Machine) -> None:
    update, gate, event = machine.stream("update"), machine.gate("g"), machine.event()
    for _ in range(3):
        machine.wait(update, event)
        machine.wait_gate(0, gate)
        machine.record(0, event)
        machine.open(update, gate)
    assert machine.finish().clean


def test_a_lost_opening_hangs_the_next_wait() -> None:
    machine = Machine()
    update, gate = machine.stream("update"), machine.gate("g")
    machine.open(update, gate)
    machine.open(update, gate)
    machine.wait_gate(0, gate)
    machine.wait_gate(0, gate)
    report = machine.finish()
    assert report.kinds() == {"lost-opening", "hang"}
    hang = report.findings[1]
    assert "one of its openings was lost" in hang.title
    assert any("(it is open: lost)" in step for step in hang.order)


def test_what_a_kernel_raises_reaches_the_caller_and_the_machine_goes_on() -> None:
    machine = Machine()
    ran = []

    def fail() -> None:
        raise ZeroDivisionError("in the kernel")

    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        machine.kernel(0, "bad", run=fail)
    machine.kernel(0, "good", run=lambda: ran.append(1))
    assert ran == [1]
    assert machine.finish().clean


def test_equal_seeds_give_equal_orders_and_a_report_can_be_followed() -> None:
    def play(scheduler: Scheduler) -> tuple[list[str], Machine]:
        machine, seen = Machine(scheduler), []
        streams = [machine.stream(name) for name in "abc"]
        for n in range(20):
            for stream in streams:
                machine.kernel(stream, "k", run=lambda n=n, stream=stream: seen.append(f"{stream}.{n}"))
        machine.synchronize()
        return seen, machine

    orders = set()
    for seed in range(20):
        first, machine = play(Seeded(seed))
        again, _ = play(Seeded(seed))
        followed, _ = play(follow(machine.finish().schedule))
        assert first == again == followed
        orders.add(tuple(first))
    assert len(orders) > 10
    assert follow(Machine().finish().schedule).schedule(None).kind == "program order"


def test_an_order_in_which_kernels_raise_can_be_followed() -> None:
    def play(scheduler: Scheduler) -> tuple[list[str], Machine]:
        machine, seen = Machine(scheduler), []
        streams = [machine.stream(name) for name in "ab"]

        def work(name: str, fail: bool) -> None:
            seen.append(name)
            if fail:
                raise ZeroDivisionError

        for n in range(30):
            stream = streams[n % 2]
            try:
                machine.kernel(stream, "k", run=lambda n=n: work(f"k{n}", n % 5 == 0))
            except ZeroDivisionError:
                seen.append("raised")
        return seen, machine

    for seed in range(15):
        seen, machine = play(Seeded(seed))
        assert play(follow(machine.schedule))[0] == seen


def test_an_order_of_another_program_is_refused() -> None:
    machine = Machine(Replayed((7, -1)))
    with pytest.raises(errors.DivergedError, match="choice 0 lets"):
        machine.kernel(0, "k")


def test_a_buffer_lies_on_device_or_host() -> None:
    with pytest.raises(ValueError, match="'device' or on the 'host'"):
        Machine().buffer("b", 4, "disk")

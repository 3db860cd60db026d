"""Capture: what goes into a graph, what a replay does, and every rule with its code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from slipstream.device.soft.machine import Graph, Limits, Machine, Region, Seeded, errors


def memory(machine: Machine, name: str = "hidden") -> Region:
    return Region(machine.buffer(name, 64), 0, 64)


def captured(
    machine: Machine, stream: int, *kernels: tuple[str, tuple[Region, ...], tuple[Region, ...]]
) -> Graph:
    graph = machine.graph("g")
    machine.begin_capture(stream, graph)
    for op, reads, writes in kernels:
        machine.kernel(stream, op, reads, writes)
    return machine.end_capture(stream)


@pytest.fixture(params=range(-1, 5))
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(Seeded(request.param) if request.param >= 0 else None)


def test_nothing_runs_during_capture_and_all_of_it_at_each_replay(machine: Machine) -> None:
    side, graph, ran = machine.stream("side"), machine.graph("g"), []
    machine.begin_capture(side, graph)
    machine.kernel(side, "k", run=lambda: ran.append(1))
    assert machine.is_capturing(side) is graph
    machine.end_capture(side)
    assert machine.is_capturing(side) is None
    assert ran == []
    machine.replay(side, graph)
    machine.replay(0, graph)
    machine.synchronize()
    assert ran == [1, 1]


def test_fork_and_join_inside_a_graph_order_its_streams(machine: Machine) -> None:
    main, side, graph = machine.stream("main"), machine.stream("side"), machine.graph("g")
    hidden, out = memory(machine), memory(machine, "out")
    fork, join = machine.event("fork"), machine.event("join")
    machine.begin_capture(main, graph)
    machine.kernel(main, "draft", (), (hidden,))
    machine.record(main, fork)
    machine.wait(side, fork)
    machine.kernel(side, "plan", (hidden,), (out,))
    machine.record(side, join)
    machine.wait(main, join)
    machine.kernel(main, "verify", (out,), (hidden,))
    machine.end_capture(main)
    for _ in range(2):
        machine.replay(main, graph)
    machine.kernel(main, "read", (hidden, out))
    assert machine.finish().clean


def test_a_race_inside_a_graph_names_both_captured_places_and_the_replay(machine: Machine) -> None:
    main, side, graph, hidden = (
        machine.stream("main"),
        machine.stream("side"),
        machine.graph("g"),
        memory(machine),
    )
    fork, join = machine.event("fork"), machine.event("join")
    machine.begin_capture(main, graph)
    machine.record(main, fork)
    machine.wait(side, fork)
    machine.kernel(main, "draft", (), (hidden,))
    machine.kernel(side, "plan", (hidden,))
    machine.record(side, join)
    machine.wait(main, join)
    machine.end_capture(main)
    machine.replay(main, graph)
    (finding,) = machine.finish().findings
    assert finding.kind == "race"
    assert finding.ops == (
        "draft on main (replay 1 of g)",
        "plan on side in g (replay 1 of g)",
        "replay 1 of g on main",
    )
    assert "machine.replay(main, graph)" in finding.stacks[2]
    assert finding.missing.startswith("`side.wait_stream(main)` inside the capture, after draft")
    assert 'machine.kernel(main, "draft"' in finding.stacks[0]


def test_a_replay_races_with_what_is_not_ordered_before_it(machine: Machine) -> None:
    main, plan, hidden = machine.stream("main"), machine.stream("plan"), memory(machine)
    graph = captured(machine, main, ("verify", (hidden,), ()))
    machine.kernel(plan, "prepare", (), (hidden,))
    machine.replay(main, graph)
    (finding,) = machine.finish().findings
    assert "before the replay of g (test_capture.py:" in finding.missing
    assert finding.missing.startswith("`main.wait_stream(plan)` after prepare")


def test_what_a_side_stream_of_a_replay_does_is_waited_for_on_the_launching_stream(machine: Machine) -> None:
    main, side, other = machine.stream("main"), machine.stream("side"), machine.stream("other")
    graph, hidden, fork, join = machine.graph("g"), memory(machine), machine.event(), machine.event()
    machine.begin_capture(main, graph)
    machine.record(main, fork)
    machine.wait(side, fork)
    machine.kernel(side, "plan", (), (hidden,))
    machine.record(side, join)
    machine.wait(main, join)
    machine.end_capture(main)
    machine.replay(main, graph)
    machine.kernel(other, "read", (hidden,))
    (finding,) = machine.finish().findings
    assert finding.missing.startswith("`other.wait_stream(main)` after plan (test_capture.py:")


def test_a_defect_keeps_its_key_from_run_to_run_and_from_replay_to_replay() -> None:
    keys = set()
    for seed in range(10):
        machine = Machine(Seeded(seed))
        main, plan, hidden = machine.stream("main"), machine.stream("plan"), memory(machine)
        graph = captured(machine, main, ("verify", (hidden,), ()))
        for _ in range(3):
            machine.replay(main, graph)
        machine.kernel(plan, "prepare", (), (hidden,))
        keys |= {finding.key for finding in machine.finish().findings}
    assert len(keys) == 1


def test_replays_of_one_graph_come_one_after_the_other(machine: Machine) -> None:
    main, other, hidden = machine.stream("main"), machine.stream("other"), memory(machine)
    graph = captured(machine, main, ("verify", (hidden,), (hidden,)))
    machine.replay(main, graph)
    machine.replay(other, graph)
    assert machine.finish().clean


def test_gates_work_inside_graphs(machine: Machine) -> None:
    main, update, gate, graph = (
        machine.stream("main"),
        machine.stream("update"),
        machine.gate(),
        machine.graph("g"),
    )
    machine.begin_capture(main, graph)
    machine.wait_gate(main, gate)
    machine.end_capture(main)
    for _ in range(3):
        machine.replay(main, graph)
        machine.open(update, gate)
        machine.synchronize()
    report = machine.finish()
    assert report.clean
    assert [(count.waits, count.opened, count.finished) for count in report.replays] == [(1, 1, True)] * 3


# --- the rules ---------------------------------------------------------------------------------------------


def capturing(mode: str = "global") -> tuple[Machine, int, int, Graph]:
    machine = Machine()
    main, side, graph = machine.stream("main"), machine.stream("side"), machine.graph("g")
    machine.begin_capture(main, graph, mode)
    return machine, main, side, graph


def refused(kind: type[errors.SoftError], code: int | None, words: str):
    head = str(code) if code else "torch_npu's own check"
    return pytest.raises(kind, match=f"^{head} .*{words}")


def test_an_unjoined_stream_107025() -> None:
    machine, main, side, graph = capturing()
    event = machine.event()
    machine.record(main, event)
    machine.wait(side, event)
    machine.kernel(side, "k")
    with refused(
        errors.UnjoinedStream, 107025, r"side joined .* at test_capture.py:\d+ .*`main.wait_stream\(side\)`"
    ):
        machine.end_capture(main)
    with refused(errors.GraphCheck, None, "its capture failed"):
        machine.replay(main, graph)
    machine.synchronize()  # the streams are free again


def test_a_join_before_the_last_kernel_is_not_enough_107025() -> None:
    machine, main, side, _ = capturing()
    fork, join = machine.event(), machine.event()
    machine.record(main, fork)
    machine.wait(side, fork)
    machine.record(side, join)
    machine.kernel(side, "late")
    machine.wait(main, join)
    with refused(errors.UnjoinedStream, 107025, "side"):
        machine.end_capture(main)


def test_a_join_through_a_third_stream_is_a_join() -> None:
    machine, main, side, _ = capturing()
    third = machine.stream("third")
    events = [machine.event() for _ in range(3)]
    for (a, b), event in zip([(main, side), (side, third), (third, main)], events, strict=True):
        machine.kernel(a, "k")
        machine.record(a, event)
        machine.wait(b, event)
    machine.end_capture(main)


def test_host_synchronisation_107027_and_107030() -> None:
    machine, main, side, _ = capturing()
    with refused(errors.StreamCaptured, 107027, "main"):
        machine.synchronize(main)
    machine, main, side, _ = capturing()
    with refused(errors.CaptureForbids, 107030, "host waits for the device while g"):
        machine.synchronize()
    with refused(errors.CaptureForbids, 107030, ""):
        machine.synchronize(side)
    with refused(errors.CaptureForbids, 107030, ""):
        machine.query(side)
    with refused(errors.CaptureForbids, 107030, r"aten::item makes the host wait"):
        machine.sync_copy(side, "aten::item")
    with refused(errors.CaptureForbids, 107030, r"aten::item makes the host wait for main"):
        machine.sync_copy(main, "aten::item")
    with refused(errors.CaptureInvalidated, 507903, "aten::item makes the host wait for main"):
        machine.end_capture(main)


def test_relaxed_captures_let_the_host_wait_for_others() -> None:
    machine, main, side, _ = capturing("relaxed")
    machine.synchronize(side)
    machine.sync_copy(side, "aten::item")
    machine.end_capture(main)


def test_thread_local_captures_let_other_hosts_wait() -> None:
    machine, main, _, _ = capturing("thread_local")
    with machine.rank(1):
        machine.synchronize()
    machine.end_capture(main)


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_another_thread_may_wait_beside_a_thread_local_capture_only(mode: str) -> None:
    machine, main, side, _ = capturing(mode)
    with ThreadPoolExecutor(1) as beside:
        waited = beside.submit(machine.synchronize, side)
    if mode == "thread_local":
        waited.result()
        machine.end_capture(main)
    else:
        with refused(errors.CaptureForbids, 107030, "mode 'global'"):
            waited.result()


def test_events_inside_and_outside_107024_107028_107031() -> None:
    machine, main, side, _ = capturing()
    outside = machine.event("outside")
    machine.record(side, outside)
    with refused(errors.CaptureDependency, 107024, "side recorded outside"):
        machine.wait(main, outside)
    machine, main, side, _ = capturing()
    outside = machine.event("outside")
    machine.record(0, outside)
    with refused(errors.DefaultStreamDependency, 107031, "default recorded outside"):
        machine.wait(main, outside)
    machine, main, side, _ = capturing()
    inside = machine.event("inside")
    machine.record(main, inside)
    with refused(errors.DefaultStreamDependency, 107031, "the default stream would wait for inside"):
        machine.wait(0, inside)
    machine, main, side, _ = capturing()
    inside = machine.event("inside")
    machine.record(main, inside)
    machine.end_capture(main)
    with refused(errors.EventCaptured, 107028, "belongs to the graph"):
        machine.wait(side, inside)
    with refused(errors.EventCaptured, 107028, "the host cannot wait"):
        machine.synchronize_event(inside)
    machine.record(main, inside)
    machine.wait(side, inside)


def test_two_captures_that_depend_on_each_other_107032() -> None:
    machine, main, side, _ = capturing()
    machine.begin_capture(side, machine.graph("h"))
    event = machine.event()
    machine.record(main, event)
    with refused(errors.CaptureConflict, 107032, "two captures"):
        machine.wait(side, event)


def test_where_and_when_a_capture_begins_and_ends() -> None:
    machine, main, side, graph = capturing()
    with refused(errors.StreamCaptured, 107027, "already"):
        machine.begin_capture(main, machine.graph())
    with refused(errors.CaptureUnmatched, 107036, "begun on main and is ended on side"):
        event = machine.event()
        machine.record(main, event)
        machine.wait(side, event)
        machine.end_capture(side)
    machine, main, side, graph = capturing()
    with refused(errors.StreamNotCaptured, 107029, "no capture to end"):
        machine.end_capture(side)
    with refused(errors.GraphCaptured, 107026, "being captured"):
        machine.replay(side, graph)
    with refused(errors.GraphCaptured, 107026, "being captured"):
        machine.reset(graph)
    machine.end_capture(main)
    with refused(errors.GraphCheck, None, "captured before; reset it"):
        machine.begin_capture(main, graph)
    with refused(errors.GraphCheck, None, "default stream"):
        machine.begin_capture(0, machine.graph())
    with refused(errors.GraphCheck, None, "never captured"):
        machine.replay(main, machine.graph())
    with pytest.raises(ValueError, match="global, thread_local, relaxed"):
        machine.begin_capture(main, machine.graph(), "strict")


def test_a_replay_inside_a_capture_107027() -> None:
    machine, main, _, graph = capturing()
    machine.end_capture(main)
    machine.begin_capture(main, machine.graph("outer"))
    with refused(errors.StreamCaptured, 107027, "cannot be replayed on main"):
        machine.replay(main, graph)


def test_reset_in_flight_107037() -> None:
    machine = Machine(Seeded(2))  # nothing runs before the host waits
    main = machine.stream("main")
    graph = captured(machine, main, ("k", (), ()))
    machine.replay(main, graph)
    with refused(errors.GraphRunning, 107037, "synchronise main before the reset"):
        machine.reset(graph)
    machine.synchronize(main)
    machine.reset(graph)
    assert [finding.kind for finding in machine.finish().findings] == ["reset-running"]


def test_reset_that_only_may_be_in_flight_is_found_too() -> None:
    machine = Machine()
    main = machine.stream("main")
    graph = captured(machine, main, ("k", (), ()))
    machine.replay(main, graph)
    machine.reset(graph)
    (finding,) = machine.finish().findings
    assert (finding.kind, finding.code) == ("reset-running", 107037)
    assert finding.missing.startswith("`main.synchronize()` before the reset")


def test_a_reset_graph_can_be_captured_anew_and_gives_its_streams_back() -> None:
    machine = Machine()
    main = machine.stream("main")
    before = machine.streams_used
    graph = captured(machine, main, ("k", (), ()))
    assert machine.streams_used == before + 1
    machine.reset(graph)
    assert machine.streams_used == before
    machine.begin_capture(main, graph)
    machine.end_capture(main)
    machine.replay(main, graph)
    assert machine.finish().clean


def test_the_stream_budget_207008_and_207005() -> None:
    machine = Machine(limits=Limits(streams=6, reserved_streams=2))
    main = machine.stream("main")
    captured(machine, main, ("k", (), ()))
    captured(machine, main, ("k", (), ()))
    with refused(errors.OutOfResources, 207005, "New capture stream failed .* not memory .*207008"):
        captured(machine, main, ("k", (), ()))
    with refused(errors.OutOfStreams, 207008, "reset graphs"):
        machine.stream("one more")
    assert Limits().streams - Limits().reserved_streams == 1800


def test_a_stream_that_cannot_join_breaks_the_capture() -> None:
    machine = Machine(limits=Limits(streams=5, reserved_streams=1))
    main, side, graph, fork = (
        machine.stream("main"),
        machine.stream("side"),
        machine.graph("g"),
        machine.event("fork"),
    )
    machine.begin_capture(main, graph)
    machine.record(main, fork)
    with refused(errors.OutOfResources, 207005, "New capture stream failed"):
        machine.wait(side, fork)
    with refused(errors.CaptureInvalidated, 507903, "New capture stream failed"):
        machine.end_capture(main)


def test_the_mend_of_a_race_inside_a_graph_names_the_streams_of_the_capture() -> None:
    machine = Machine()
    launching, main, side = machine.stream("launching"), machine.stream("main"), machine.stream("side")
    hidden, graph, fork, join = (
        memory(machine),
        machine.graph("g"),
        machine.event("fork"),
        machine.event("join"),
    )
    machine.begin_capture(main, graph)
    machine.record(main, fork)
    machine.wait(side, fork)
    machine.kernel(side, "plan", (), (hidden,))
    machine.kernel(main, "verify", (hidden,))
    machine.record(side, join)
    machine.wait(main, join)
    machine.end_capture(main)
    machine.replay(launching, graph)
    (finding,) = machine.finish().findings
    assert finding.missing.startswith("`main.wait_stream(side)` inside the capture, after plan")


def test_addresses_that_moved_are_named() -> None:
    machine = Machine()
    main, static, fresh = machine.stream("main"), memory(machine, "static"), memory(machine, "fresh")
    graph = captured(machine, main, ("k", (static,), ()))
    machine.bind_inputs(graph, {"args[0]": static, "positions": static})
    machine.replay(main, graph, {"args[0]": static, "positions": static})
    assert machine.findings == []
    machine.replay(main, graph, {"args[0]": static, "positions": fresh})
    (finding,) = machine.finish().findings
    assert finding.kind == "stale-address"
    assert "its input `positions` at static+0, and is replayed with it at fresh+0" in finding.title
    assert finding.missing.endswith("`static.copy_(positions)`")
    assert len(finding.stacks) == 2

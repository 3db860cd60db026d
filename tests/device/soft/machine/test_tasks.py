"""Task groups, updates and their counts: the protocol of full graphs on Ascend, and what breaks it."""

from __future__ import annotations

import pytest

from slipstream.device.soft.machine import Gate, Graph, Machine, Region, Report, Seeded, Task, errors, explore


class Model:
    """A graph of `layers` attention ops, each a task behind a gate, as vLLM-Ascend captures them."""

    def __init__(
        self, machine: Machine, main: int, name: str = "g", layers: int = 3, gates: bool = True
    ) -> None:
        self.machine, self.main, self.layers = machine, main, layers
        self.graph: Graph = machine.graph(name)
        self.gates: list[Gate] = [machine.gate(f"{name}.{n}") for n in range(layers)] if gates else []
        self.tasks: list[Task] = []
        self.used: list[tuple[int, int]] = []
        machine.begin_capture(main, self.graph)
        for layer in range(layers):
            if gates:
                machine.wait_gate(main, self.gates[layer])
            machine.begin_task(main)
            machine.kernel(main, "attention", run=lambda layer=layer: self.used.append((layer, 0)))
            self.tasks.append(machine.end_task(main))
        machine.end_capture(main)

    def replay(self) -> None:
        self.machine.replay(self.main, self.graph)

    def update(self, stream: int, length: int, layers: int | None = None) -> None:
        for layer in range(self.layers if layers is None else layers):
            update(
                self.machine, stream, self.tasks[layer], lambda layer=layer: self.used.append((layer, length))
            )
            if self.gates:
                self.machine.open(stream, self.gates[layer])


def update(machine: Machine, stream: int, task: Task, run=None) -> None:
    machine.begin_update(stream, task)
    machine.kernel(stream, "attention", run=run)
    machine.end_update(stream)


@pytest.fixture(params=range(-1, 10))
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(Seeded(request.param) if request.param >= 0 else None)


def counts(report: Report) -> list[tuple[int, int, int, int]]:
    return [(c.captured, c.updated, c.waits, c.opened) for c in report.replays]


@pytest.mark.parametrize("update_first", [False, True])
def test_replay_then_update_and_update_then_replay_are_both_good(
    machine: Machine, update_first: bool
) -> None:
    main, updates = machine.stream("main"), machine.stream("updates")
    model = Model(machine, main)
    for step in range(1, 4):
        if update_first:
            model.update(updates, step)
            model.replay()
        else:
            model.replay()
            model.update(updates, step)
        machine.synchronize()
    report = machine.finish()
    assert report.clean
    assert model.used == [(layer, step) for step in range(1, 4) for layer in range(3)]
    assert counts(report) == [(3, 3, 3, 3)] * 3


def test_without_gates_the_update_must_come_before_the_replay(machine: Machine) -> None:
    main, updates, event = machine.stream("main"), machine.stream("updates"), machine.event()
    model = Model(machine, main, gates=False)
    model.replay()
    model.update(updates, 1)
    finding = machine.finish().findings[0]
    assert (finding.kind, finding.code) == ("race", 107037)
    assert finding.title.startswith("update of a task that may be running: the parameters of task 1 of g")
    machine.synchronize()
    found = len(machine.findings)
    model.used.clear()
    model.update(updates, 2)
    machine.record(updates, event)
    machine.wait(main, event)
    model.replay()
    machine.synchronize()
    assert len(machine.findings) == found
    assert model.used == [(0, 2), (1, 2), (2, 2)]


def test_a_missing_opening_hangs_and_says_how_far_the_replay_got(machine: Machine) -> None:
    main, updates = machine.stream("main"), machine.stream("updates")
    model = Model(machine, main)
    model.replay()
    model.update(updates, 1, layers=2)
    with pytest.raises(errors.StreamSyncTimeout):
        machine.synchronize()
    hang = machine.finish().findings[0]
    assert hang.kind == "hang"
    assert "main (replay 1 of g) waits for g.2 for ever" in hang.title
    assert "; updates opened g.0 (test_tasks.py:" in hang.missing
    assert (
        "2 of the replay's 3 waits for gates were opened, 2 of its 3 tasks ran with an update" in hang.title
    )


def test_a_task_left_out_of_the_updates_is_counted(machine: Machine) -> None:
    main, updates, event = machine.stream("main"), machine.stream("updates"), machine.event()
    model = Model(machine, main, gates=False)
    model.update(updates, 1, layers=2)
    machine.record(updates, event)
    machine.wait(main, event)
    model.replay()
    (finding,) = machine.finish().findings
    assert finding.kind == "task-count"
    assert "ran 3 captured tasks, of them 2 updated" in finding.title
    assert "left out: task 3 (test_tasks.py:" in finding.missing


def test_two_steps_ahead_without_a_wait_loses_an_opening(machine: Machine) -> None:
    main, updates = machine.stream("main"), machine.stream("updates")
    model = Model(machine, main, layers=1)
    for step in (1, 2):
        model.replay()
        model.update(updates, step)
    # Whatever the order, the opening is named; some orders show what comes of it, a race or a hang, as well.
    assert "lost-opening" in machine.finish().kinds()


@pytest.mark.parametrize("how", ["host", "device"])
def test_the_smallest_wait_that_is_enough(machine: Machine, how: str) -> None:
    main, updates, event = machine.stream("main"), machine.stream("updates"), machine.event()
    model = Model(machine, main)
    for step in (1, 2, 3):
        if how == "host":
            machine.synchronize(main)
        else:
            machine.record(main, event)
            machine.wait(updates, event)
        model.replay()
        model.update(updates, step)
    assert machine.finish().clean


def test_all_orders_of_two_steps_ahead() -> None:
    machine = Machine(keep=True, executes=False)
    main, updates = machine.stream("main"), machine.stream("updates")
    model = Model(machine, main, layers=1)
    for step in (1, 2):
        model.replay()
        model.update(updates, step)
    found = explore(machine.program())
    assert found.complete
    assert found.orders > 1
    assert found.kinds() >= {"lost-opening", "race", "hang"}


def test_all_orders_of_the_good_protocol_are_one() -> None:
    machine = Machine(keep=True, executes=False)
    main, updates, event = machine.stream("main"), machine.stream("updates"), machine.event()
    model = Model(machine, main, layers=20)
    for step in (1, 2, 3):
        machine.record(main, event)
        machine.wait(updates, event)
        model.replay()
        model.update(updates, step)
    found = explore(machine.program())
    assert (found.findings, found.orders, found.complete) == ((), 1, True)


@pytest.mark.parametrize("gates", [True, False])
def test_two_graphs_whose_updates_are_mixed_up(machine: Machine, gates: bool) -> None:
    main, updates, event = machine.stream("main"), machine.stream("updates"), machine.event()
    base, lora = Model(machine, main, "base", gates=gates), Model(machine, main, "lora", gates=gates)
    if gates:
        lora.replay()
        base.update(updates, 1)
    else:
        base.update(updates, 1)
        machine.record(updates, event)
        machine.wait(main, event)
        lora.replay()
    findings = machine.finish().findings
    mixed = next(finding for finding in findings if finding.kind == "update-mixed")
    assert "lora was replayed (3 tasks, 0 updated) while the updates went to base (3 tasks)" in mixed.title
    assert "keep the handles by graph, not by the number of tokens" in mixed.missing
    assert ("hang" in {finding.kind for finding in findings}) == gates


def test_mixed_up_updates_are_found_though_the_right_ones_come_later(machine: Machine) -> None:
    main, updates = machine.stream("main"), machine.stream("updates")
    base = Model(machine, main, "base", layers=1, gates=False)
    lora = Model(machine, main, "lora", layers=1, gates=False)
    for model in (lora, base):
        base.update(updates, 1)
        machine.synchronize()
        model.replay()
        machine.synchronize()
    assert machine.finish().kinds() == {"update-mixed"}


def test_two_graphs_updated_in_turn_are_clean(machine: Machine) -> None:
    main, updates = machine.stream("main"), machine.stream("updates")
    models = [Model(machine, main, name) for name in ("base", "lora")]
    for step in range(1, 4):
        for model in models:
            model.replay()
            model.update(updates, step)
            machine.synchronize()
    assert machine.finish().clean


def test_a_graph_replayed_without_any_update_keeps_its_parameters(machine: Machine) -> None:
    main = machine.stream("main")
    model = Model(machine, main, gates=False)
    model.replay()
    assert machine.finish().clean
    assert model.used == [(0, 0), (1, 0), (2, 0)]


def test_the_rules_of_groups_and_updates() -> None:
    machine = Machine()
    main, updates = machine.stream("main"), machine.stream("updates")
    with pytest.raises(errors.StreamNotCaptured, match="107029"):
        machine.begin_task(main)
    with pytest.raises(errors.StreamNotCaptured, match="107029"):
        machine.end_task(main)
    machine.begin_capture(main, machine.graph("bad"))
    with pytest.raises(errors.TaskGroupStatus, match="107033"):
        machine.end_task(main)
    machine.begin_task(main)
    with pytest.raises(errors.NotUpdatable, match=r"207019 .*all_reduce .*cannot be updated"):
        machine.kernel(main, "all_reduce", updatable=False)
    with pytest.raises(errors.TaskGroupStatus, match="107033"):
        machine.begin_task(main)
    with pytest.raises(errors.CaptureInvalidated, match="507903"):
        machine.end_capture(main)
    machine.begin_capture(main, machine.graph("open"))
    machine.begin_task(main)
    with pytest.raises(errors.TaskGroupStatus, match=r"107033 .*ends inside the task group"):
        machine.end_capture(main)

    model = Model(machine, main, layers=1)
    with pytest.raises(errors.TaskGroupStatus, match="no update is open"):
        machine.end_update(updates)
    machine.begin_update(updates, model.tasks[0])
    with pytest.raises(errors.TaskGroupStatus, match=r"an update is open on updates since test_tasks\.py"):
        machine.begin_update(updates, model.tasks[0])
    with pytest.raises(errors.UpdateFailed, match=r"107040 .*updated with nothing"):
        machine.end_update(updates)
    machine.begin_update(updates, model.tasks[0])
    machine.kernel(updates, "other_attention")
    with pytest.raises(
        errors.UpdateFailed, match="captured with attention and is updated with other_attention"
    ):
        machine.end_update(updates)
    machine.begin_capture(main, machine.graph("again"))
    with pytest.raises(errors.StreamCaptured, match="107027"):
        machine.begin_update(main, model.tasks[0])
    with pytest.raises(errors.CaptureInvalidated):
        machine.end_capture(main)
    machine.reset(model.graph)
    with pytest.raises(errors.UpdateFailed, match=r"doesn't hold it \(any more\)"):
        machine.begin_update(updates, model.tasks[0])


def test_an_update_changes_what_the_kernel_touches() -> None:
    machine = Machine()
    main, updates, side = machine.stream("main"), machine.stream("updates"), machine.stream("side")
    old, new = (Region(machine.buffer(name, 64), 0, 64) for name in ("old", "new"))
    graph = machine.graph()
    machine.begin_capture(main, graph)
    machine.begin_task(main)
    machine.kernel(main, "attention", (old,))
    task = machine.end_task(main)
    machine.end_capture(main)
    machine.begin_update(updates, task)
    machine.kernel(updates, "attention", (new,))
    machine.end_update(updates)
    machine.synchronize()
    machine.kernel(side, "fill_old", (), (old,))
    machine.replay(main, graph)
    assert machine.finish().clean
    machine.kernel(side, "fill_new", (), (new,))
    assert machine.finish().kinds() == {"race"}


def tasks_over(machine: Machine, *tensors: tuple[Region, ...]) -> list[Task]:
    """Capture one task for each tuple of what it reads."""
    main, graph, tasks = machine.stream("main"), machine.graph("g"), []
    machine.begin_capture(main, graph)
    for reads in tensors:
        machine.begin_task(main)
        machine.kernel(main, "attention", reads)
        tasks.append(machine.end_task(main))
    machine.end_capture(main)
    return tasks


def update_with(machine: Machine, stream: int, task: Task, *reads: Region) -> None:
    machine.begin_update(stream, task)
    machine.kernel(stream, "attention", reads)
    machine.end_update(stream)


def test_an_update_with_another_tasks_tensors_is_named(machine: Machine) -> None:
    shared, first, second, fresh = (Region(machine.buffer(name, 8), 0, 8) for name in ("kv", "a", "b", "c"))
    tasks, side = tasks_over(machine, (shared, first), (shared, second)), machine.stream("update")
    update_with(machine, side, tasks[0], shared, first)  # its own
    update_with(machine, side, tasks[0], shared, fresh)  # a new one
    update_with(machine, side, tasks[0], shared, first, second)  # the other's too, beside its own
    assert machine.findings == []
    update_with(machine, side, tasks[0], shared, second)
    (finding,) = machine.findings
    assert (finding.kind, finding.buffer, finding.streams) == ("update-mixed", "b", ("update",))
    assert "task 1 of g" in finding.title
    assert "task 2" in finding.title
    assert "test_tasks.py" in finding.missing


def test_two_buffers_that_take_turns_are_no_mix_up(machine: Machine) -> None:
    even, odd = (Region(machine.buffer(name, 8), 0, 8) for name in ("even", "odd"))
    tasks, side = tasks_over(machine, (even,), (even,)), machine.stream("update")
    for tensor in (odd, even, odd):
        for task in tasks:
            update_with(machine, side, task, tensor)
    assert machine.findings == []

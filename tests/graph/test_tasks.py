"""Tasks of graphs on the software NPU: every replay has its own numbers, in both orders; which wait that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from slipstream.device import soft
from slipstream.device.api import PagedQuery
from slipstream.device.npu import NpuGate, NpuTask
from slipstream.device.registry import open_device
from slipstream.device.soft.machine import Finding, Machine, ProgramOrder, Seeded, explore
from slipstream.device.soft.machine.errors import StreamSyncTimeout
from slipstream.errors import CaptureError, DeviceError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.host_lists import COMMITTED, HostLists, Source, TaskOrder
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.tasks import GraphTasks
from tests.graph.attention_layers import LONGEST, Layers, means, steps

SEEDS = 4
KEY = BatchDescriptor("verify", 2, 1)
ORDERS = [TaskOrder.REPLAY_FIRST, TaskOrder.UPDATE_FIRST]
Program = Callable[[], Any]

both_orders = pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.value)


@dataclass
class Shown:
    """What program order and the seeds showed."""

    findings: dict[str, Finding] = field(default_factory=dict)
    hung: int = 0
    results: list[Any] = field(default_factory=list)


def schedules(program: Program) -> Shown:
    shown = Shown()
    for seed in (None, *range(SEEDS)):
        with soft.installed(ProgramOrder() if seed is None else Seeded(seed)) as machine:
            try:
                shown.results.append(program())
            except StreamSyncTimeout:
                shown.hung += 1
            for finding in machine.finish().findings:
                shown.findings.setdefault(finding.kind, finding)
    return shown


def assert_clean(shown: Shown, result: Any) -> None:
    assert not shown.findings, "\n".join(map(str, shown.findings.values()))
    assert (shown.hung, len(shown.results)) == (0, 1 + SEEDS)
    assert all(one == result for one in shown.results)


class TestReplays:
    @both_orders
    def test_every_replay_has_its_own_numbers(self, order: TaskOrder) -> None:
        def program() -> Any:
            layers = Layers(order=order)
            layers.capture()
            return [layers.read(layers.run(committed)) for committed in ([3, 7], [4, 0], [20, 20])]

        assert_clean(schedules(program), [means(committed) for committed in ([3, 7], [4, 0], [20, 20])])

    @both_orders
    def test_the_host_may_run_ahead(self, order: TaskOrder) -> None:
        assert_clean(schedules(lambda: steps(lambda: Layers(order=order), 5)), means([7, 15]))

    @pytest.mark.slow
    @both_orders
    def test_it_is_clean_in_200_orders(self, order: TaskOrder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.graph.test_tasks.SEEDS", 200)
        assert_clean(schedules(lambda: steps(lambda: Layers(order=order), 5)), means([7, 15]))

    @both_orders
    def test_every_order_of_a_small_case_is_clean(self, order: TaskOrder) -> None:
        with soft.installed(keep=True) as machine:
            steps(lambda: Layers(order=order))
            found = explore(machine.program(), 3_000)
        assert found.complete
        assert found.clean, "\n".join(map(str, found.findings))

    @both_orders
    def test_the_host_waits_for_nothing(self, order: TaskOrder, monkeypatch: pytest.MonkeyPatch) -> None:
        with soft.installed():
            layers = Layers(order=order)
            layers.capture()

            def waits(*_: Any) -> None:
                raise AssertionError("the host waits")

            with monkeypatch.context() as patch:
                patch.setattr(torch.npu, "synchronize", waits)
                patch.setattr(torch.npu.Stream, "synchronize", waits)
                patch.setattr(torch.npu.Event, "synchronize", waits)
                for length in range(3, 8):
                    outs = layers.run([length, length])
            assert layers.read(outs) == means([7, 7])

    def test_an_eager_run_has_the_numbers_too(self, any_order: Machine) -> None:
        layers = Layers()
        layers.capture()
        assert layers.read(layers.run([5, 6], route=Route.EAGER)) == means([5, 6])
        assert layers.tasks().replays == 3  # those that tell a shape's cost
        assert any_order.finish().clean

    def test_rows_behind_those_written_are_padding(self, any_order: Machine) -> None:
        layers = Layers()
        layers.capture()
        assert layers.read(layers.run([9, 9])) == means([9, 9])
        assert layers.read(layers.run([5])) == means([5, 0])


class TestWaits:
    """docs/check.md: a refresh comes after the graph's last replay. One wait, and it is the update stream's."""

    @both_orders
    def test_without_it_updates_race_and_openings_are_lost(
        self, order: TaskOrder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(GraphTasks, "_wait_for_last_replay", lambda tasks: None)
        shown = schedules(lambda: steps(lambda: Layers(order=order), 5))
        assert {"race", "lost-opening"} <= set(shown.findings)
        assert "update of a task that may be running" in shown.findings["race"].title
        assert shown.hung > 0

    def test_behind_its_own_replay_it_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def late(tasks: GraphTasks, main: Any) -> Any:
            result = launch(tasks, main)
            tasks._ran.wait(tasks._update)
            return result

        launch = GraphTasks._launch
        monkeypatch.setattr(GraphTasks, "_launch", late)
        shown = schedules(lambda: steps(Layers))
        assert set(shown.findings) == {"hang"}
        assert shown.hung == 1 + SEEDS

    @pytest.mark.parametrize("eager", [(), (2,), (1, 2, 3)])
    def test_a_graph_rests_on_no_other_graph_s_wait(self, eager: tuple[int, ...]) -> None:
        """The draft graph of docs/check.md: steps in which the target runs eagerly take nothing away from it."""

        def program() -> Any:
            target = Layers()
            draft = Layers(device=target.device)
            draft.main = target.main
            target.capture()
            draft.capture()
            for step in range(4):
                target.run([step, step], route=Route.EAGER if step in eager else Route.REPLAY)
                outs = draft.run([step, 2 * step])
            return draft.read(outs)

        assert_clean(schedules(program), means([3, 6]))


class TestGraphsOfEqualRows:
    def test_never_share_a_list(self) -> None:
        """4 requests of one row and 2 of two: four rows each. Their turns in any order, one of them twice."""

        def program() -> Any:
            layers = Layers(buckets=(2, 4))
            for width in (1, 2):
                layers.capture(width)
            wide, narrow = layers.tasks(2, 2), layers.tasks(4, 1)
            assert BatchDescriptor("verify", 2, 2).rows == BatchDescriptor("verify", 4, 1).rows
            assert wide is not narrow
            results = [layers.read(layers.run([3, 4, 5, 6], 4, 1))]
            assert (narrow.replays, wide.replays) == (4, 3)
            for _ in range(2):
                results.append(layers.read(layers.run([8, 9], 2, 2)))
            results.append(layers.read(layers.run([1, 2, 3, 4], 4, 1)))
            return results

        expected = [[3, 4, 5, 6], [8, 9], [8, 9], [1, 2, 3, 4]]
        assert_clean(schedules(program), [means(committed) for committed in expected])


class TestAccounting:
    def test_a_graph_says_what_it_holds(self, machine: Machine) -> None:
        layers = Layers(3)
        layers.capture()
        tasks = layers.tasks()
        assert tasks.names == ["layer 0", "layer 1", "layer 2"]
        assert len(tasks) == tasks.graph.num_tasks == 3
        assert tasks.workspace_bytes == 1024
        layers.run([1, 2])
        assert tasks.stats.refreshes == tasks.replays == 4
        assert tasks.stats.plan_ns > 0
        assert tasks.stats.issue_ns > tasks.stats.last_ns > 0
        record = layers.runner.stats.graphs[GraphMode.FULL, KEY]
        assert (record.tasks, record.wait_ns, record.update_ns) == (3, 0, tasks.stats.last_ns)
        assert set(layers.runner.tasks) == {KEY}

    def test_on_the_cpu_there_is_nothing_to_update(self) -> None:
        """Lengths are tensors there, which a replay reads; an op with numbers of the host has no place."""
        device = open_device("cpu")
        length, graph, main = torch.tensor([3.0]), device.graph("one"), device.stream("main")
        graph.capture(lambda: length * 2, main)
        length.fill_(5)
        assert graph.replay_with_tasks().tolist() == [10]
        assert (graph.num_tasks, device.caps.attentions) == (0, ("paged",))
        with pytest.raises(CaptureError, match=r"graph 'one'.*no tasks"):
            graph.task(lambda: None, main)
        with pytest.raises(
            DeviceError, match=r"device 'cpu' has no attention with lengths of the host.*paged"
        ):
            device.paged_attention(PagedQuery(length, length, length, length, 1, 1, 1))

    def test_refreshing_61_layers_of_3_steps_is_planned_in_under_a_millisecond(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The loop around the device's calls is timed too: with calls that do nothing but count."""
        layers = Layers()
        layers.capture()
        tasks = layers.tasks()
        tasks._slots *= 92
        tasks._sources = [Source(COMMITTED, 2, step + 1, LONGEST) for step in range(3)]
        tasks._index = [number // 61 for number in range(183)]
        del tasks._slots[183:]
        monkeypatch.setattr(NpuTask, "update", lambda task, issue, stream: None)
        monkeypatch.setattr(NpuGate, "open", lambda gate, stream: None)
        planned, looped = [], []
        for step in range(5):
            layers.lists.write(COMMITTED, [step, 2 * step])
            started = time.perf_counter_ns()
            values = tasks.plan()
            planned.append(time.perf_counter_ns() - started)
            assert tasks._refresh(values) is None
            tasks._compare(tasks.replays)
            looped.append(time.perf_counter_ns() - started - planned[-1])
        assert values == [[4 + ahead, 8 + ahead] for ahead in (1, 2, 3) for _ in range(61)]
        with capsys.disabled():
            print(
                f"\n183 tasks: planned in {min(planned) / 1e3:.0f} us, {min(looped) / 1e3:.0f} us around the calls"
            )
        assert min(planned) < 1_000_000

    @pytest.mark.slow
    def test_183_tasks_on_the_software_npu(self, capsys: pytest.CaptureFixture[str]) -> None:
        with soft.installed(stacks=False):
            layers = Layers(183, layers_a_step=61)
            layers.capture()
            tasks = layers.tasks()
            before = tasks.stats.plan_ns, tasks.stats.issue_ns
            assert layers.read(layers.run([4, 8])) == [
                [(4 + step) / 2, (8 + step) / 2] for step in range(3) for _ in range(61)
            ]
            planned, issued = tasks.stats.plan_ns - before[0], tasks.stats.issue_ns - before[1]
        with capsys.disabled():
            print(
                f"\n183 tasks: planned in {planned / 1e3:.0f} us, refreshed and run in {issued / 1e6:.0f} ms"
            )


def test_lists_of_the_host() -> None:
    lists = HostLists({COMMITTED: 3})
    lists.write(COMMITTED, [4, 5])
    assert lists.read(Source(COMMITTED, 3, 2, LONGEST)) == [6, 7, 2]
    assert lists.version == 1

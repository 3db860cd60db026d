"""What breaks updates of tasks elsewhere: here each is impossible, or raises at once and nothing hangs.

One class a row of the table of symptoms that users of task groups report: hangs, old lengths, lists that are too
short or in another order, shared lists, openings that are lost, updates without a gate, workspaces that are gone,
buffers that move.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from slipstream.device.api import HostOp
from slipstream.device.npu import NpuGraph, NpuTask
from slipstream.device.soft.machine import Machine
from slipstream.errors import CaptureError, PlanAccessError, ReplayError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.host_lists import COMMITTED, HostLists, Source, TaskOrder
from slipstream.graph.tasks import GraphTasks
from tests.graph.attention_layers import LONGEST, Layers, means

KEY = BatchDescriptor("verify", 2, 1)

both_orders = pytest.mark.parametrize(
    "order", [TaskOrder.REPLAY_FIRST, TaskOrder.UPDATE_FIRST], ids=lambda order: order.value
)


def captured(layers: int = 2, order: TaskOrder = TaskOrder.REPLAY_FIRST) -> Layers:
    made = Layers(layers, order)
    made.capture()
    return made


def skipping(*left_out: str) -> Any:
    """A refresh that leaves tasks out, as a shorter list beside the handles does."""
    refresh = GraphTasks._refresh

    def short(tasks: GraphTasks, values: Sequence[Sequence[int]]) -> Exception | None:
        slots = tasks._slots
        kept = [(slot, value) for slot, value in zip(slots, values, strict=True) if slot.name not in left_out]
        tasks._slots = [slot for slot, _ in kept]
        try:
            return refresh(tasks, [value for _, value in kept])
        finally:
            tasks._slots = slots

    return short


class TestNoUpdate:
    """Events are never recorded: the replay waits for ever, and the host at its next wait."""

    def test_a_graph_with_tasks_is_not_replayed_without_them(self, any_order: Machine) -> None:
        layers = captured()
        graph = layers.runner.graphs[KEY]
        with pytest.raises(ReplayError, match=r"graph 'verify 2x1' has 2 tasks .*GraphTasks"):
            graph.replay()
        assert layers.read(layers.run([3, 4])) == means([3, 4])
        assert any_order.finish().clean

    @both_orders
    def test_a_refresh_that_does_nothing_is_found_at_once(
        self, order: TaskOrder, any_order: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        layers = captured(order=order)
        monkeypatch.setattr(GraphTasks, "_refresh", lambda tasks, values: None)
        with pytest.raises(
            ReplayError, match=r"'verify 2x1': of 2 captured tasks 0 were updated and 0 opened.*'layer 0'"
        ):
            layers.run([3, 4])
        layers.device.synchronize()  # nothing waits
        with pytest.raises(
            ReplayError, match=r"'verify 2x1' cannot be replayed: task 'layer 0' was updated 3 times"
        ):
            layers.run([3, 4])
        assert "hang" not in any_order.finish().kinds()


class TestOldLengths:
    """Events are recorded, and the lengths are those of another step: wrong tokens, no error."""

    @both_orders
    def test_lists_that_nobody_wrote_since(self, order: TaskOrder, any_order: Machine) -> None:
        layers = captured(order=order)
        layers.run([3, 4])
        with pytest.raises(
            ReplayError, match=r"'verify 2x1': no host list was written .*task 'layer 0'.*old numbers"
        ):
            layers.again()
        assert layers.read(layers.run([5, 6])) == means([5, 6])  # nothing was issued before
        assert any_order.finish().clean

    @pytest.mark.parametrize(("committed", "row", "value"), [([-1, 4], 0, 0), ([3, LONGEST], 1, LONGEST + 1)])
    def test_lengths_that_no_context_has(
        self, any_order: Machine, committed: list[int], row: int, value: int
    ) -> None:
        layers = captured()
        with pytest.raises(ReplayError, match=f"'committed' gives {value} for row {row} .*1 to {LONGEST}"):
            layers.run(committed)
        assert layers.read(layers.run([5, 6])) == means([5, 6])
        assert any_order.finish().clean

    def test_an_op_that_keeps_the_numbers_of_its_capture(self, machine: Machine) -> None:
        """Captured as it stands, outside of any task: every replay would use the same lengths."""
        layers = Layers()
        op = layers.device.paged_attention(layers.attention(2))
        with pytest.raises(
            CaptureError, match=r"npu_fused_infer_attention_score.*numbers from the host.*task"
        ):
            layers.device.graph("frozen").capture(lambda: op.run([3, 4]), layers.main)


class TestShortLists:
    """Metadata for fewer layers than there are handles: the last events are never recorded."""

    @both_orders
    @pytest.mark.parametrize("left_out", ["layer 0", "layer 2"])
    def test_a_task_that_is_left_out_is_named(
        self, order: TaskOrder, left_out: str, any_order: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        layers = captured(3, order)
        monkeypatch.setattr(GraphTasks, "_refresh", skipping(left_out))
        with pytest.raises(
            ReplayError, match=f"of 3 captured tasks 2 were updated and 2 opened; task '{left_out}'"
        ):
            layers.run([3, 4])
        layers.device.synchronize()
        assert "hang" not in any_order.finish().kinds()

    def test_a_list_for_fewer_requests_than_the_graph_has(self, machine: Machine) -> None:
        lists = HostLists({COMMITTED: 1})
        lists.write(COMMITTED, [3])
        with pytest.raises(ReplayError, match=r"takes 2 numbers of host list 'committed', which has 1"):
            lists.read(Source(COMMITTED, 2, 1, LONGEST))
        with pytest.raises(PlanAccessError, match=r"room for 1 requests, and 2 were written"):
            lists.write(COMMITTED, [3, 4])
        with pytest.raises(PlanAccessError, match=r"no host list 'comitted'; did you mean 'committed'\?"):
            lists.write("comitted", [3])

    @both_orders
    def test_an_update_that_the_device_refuses(
        self, order: TaskOrder, any_order: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The replay is there already, or will be: its gates open all the same."""
        layers = captured(order=order)
        update = NpuTask.update

        def refuses(task: NpuTask, issue: Any, stream: Any) -> None:
            if task is layers.tasks()._slots[1].task:
                issue = partial(torch.zeros, 1, device="npu")  # another op than the captured one
            update(task, issue, stream)

        monkeypatch.setattr(NpuTask, "update", refuses)
        with pytest.raises(
            ReplayError, match=r"task 'layer 1' could not be updated, .* task 2 of graph 'verify 2x1'.*107040"
        ):
            layers.run([3, 4])
        layers.device.synchronize()
        assert "hang" not in any_order.finish().kinds()

    def test_a_replay_that_the_device_refuses(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind an update its gates stand open, and the next opening would be lost."""

        def refuses(graph: NpuGraph) -> None:
            raise RuntimeError("507011")

        for order in TaskOrder:
            layers = captured(order=order)
            with monkeypatch.context() as patch:
                patch.setattr(NpuGraph, "replay_with_tasks", refuses)
                with pytest.raises(RuntimeError, match="507011"):
                    layers.run([3, 4])
            if order is TaskOrder.UPDATE_FIRST:
                with pytest.raises(ReplayError, match=r"its gates are open.*507011.*; capture it again"):
                    layers.run([3, 4])
                layers.runner.sleep()
                layers.runner.wake()
            assert layers.read(layers.run([3, 4])) == means([3, 4])
        assert machine.finish().clean


class TestOtherOrder:
    """Lists in the order of groups beside handles in the order of layers: wrong lengths for each layer."""

    def test_each_task_has_its_own_source_whatever_the_order(self, any_order: Machine) -> None:
        layers = captured(3)
        tasks = layers.tasks()
        order = [2, 0, 1]
        tasks._slots = [tasks._slots[n] for n in order]
        tasks._index = [tasks._sources.index(slot.source) for slot in tasks._slots]
        assert layers.read(layers.run([3, 9])) == means([3, 9], 3)
        assert any_order.finish().clean

    def test_two_tasks_of_one_name_are_refused(self, machine: Machine) -> None:
        layers = Layers()

        def twice() -> None:
            for _ in range(2):
                op = layers.device.paged_attention(layers.attention(2))
                layers.book.call("layer 0", Source(COMMITTED, 2, 1, LONGEST), op)

        with layers.main, layers.book.warm_up():
            twice()
        graph = layers.device.graph("one")
        with (
            pytest.raises(CaptureError, match=r"graph 'one': task 'layer 0' was captured already"),
            layers.book.capture(graph),
        ):
            graph.capture(twice, layers.main)


class TestSharedLists:
    """Two graphs of one number of tokens: handles of one, updates for the other."""

    def test_a_graph_owns_its_tasks_and_nothing_else_knows_them(self, any_order: Machine) -> None:
        """The same shape captured again is another graph, with tasks, gates and workspace of its own."""
        layers = captured()
        former = layers.tasks()
        layers.runner.sleep()
        layers.runner.wake()
        tasks = layers.tasks()
        assert tasks.graph is layers.runner.graphs[KEY] is not former.graph
        pairs = list(zip(former._slots, tasks._slots, strict=True))
        assert all(one.gate is not other.gate and one.task is not other.task for one, other in pairs)
        assert former._workspace is not tasks._workspace
        assert layers.read(layers.run([3, 4])) == means([3, 4])
        assert any_order.finish().clean

    def test_a_capture_inside_a_capture_is_refused(self, machine: Machine) -> None:
        layers = captured()
        one, other = layers.device.graph("one"), layers.device.graph("other")
        with (
            layers.book.capture(one),
            pytest.raises(CaptureError, match=r"'other' cannot be captured: 'one' is being captured"),
            layers.book.capture(other),
        ):
            pass


class TestOpenings:
    """A gate is opened before the wait for its last opening has taken it: one of the two is lost.

    `test_tasks.TestWaits` shows the wait that keeps them apart; this is for those who open gates on their own.
    """

    @both_orders
    def test_an_opening_too_many_is_found_at_the_next_replay(
        self, order: TaskOrder, machine: Machine
    ) -> None:
        layers = captured(order=order)
        tasks = layers.tasks()
        tasks._slots[1].gate.open(tasks._update)
        with pytest.raises(
            ReplayError, match=r"task 'layer 1' was updated 3 times and opened 4 times for 3 replays"
        ):
            layers.run([3, 4])


class TestUpdatesWithoutAGate:
    """A task is updated while its graph runs, and nothing holds the op back."""

    def test_every_task_stands_behind_a_gate_of_its_own(self, machine: Machine) -> None:
        layers = captured(3)
        gates = [slot.gate for slot in layers.tasks()._slots]
        assert len(set(map(id, gates))) == 3
        nodes = layers.runner.graphs[KEY]._raw._graph.nodes  # type: ignore[attr-defined]
        waits = [node.gate for node in nodes if node.gate is not None]
        before_ops = [nodes[at - 1].gate for at, node in enumerate(nodes) if node.task is not None]
        assert len(waits) == len(set(before_ops)) == 3
        assert set(before_ops) == set(waits)

    def test_a_task_that_nobody_can_refresh_is_refused(self, machine: Machine) -> None:
        layers = Layers()
        op, graph = layers.device.paged_attention(layers.attention(2)), layers.device.graph("one")
        with layers.main:
            workspace, outputs = op.workspace(), op.outputs()

        def bare() -> None:
            graph.task(partial(op.issue, [3, 4], workspace, outputs), layers.main)

        with (
            pytest.raises(CaptureError, match=r"'one' has 1 tasks, of which 0 can be refreshed \(none\)"),
            layers.book.capture(graph),
        ):
            graph.capture(bare, layers.main)

    def test_a_task_outside_a_capture_is_refused(self, machine: Machine) -> None:
        layers = Layers()
        with pytest.raises(CaptureError, match=r"graph 'one' is not being captured"):
            layers.device.graph("one").task(lambda: None, layers.main)


class Sized(HostOp):
    """An op that wants so much scratch memory, and notes what it is given."""

    def __init__(self, op: HostOp, nbytes: int, given: list[torch.Tensor]) -> None:
        self._op, self._nbytes, self._given = op, nbytes, given

    def run(self, values: Sequence[int]) -> torch.Tensor:
        return self._op.run(values)

    def workspace(self) -> torch.Tensor:
        return torch.zeros(self._nbytes, dtype=torch.uint8, device="npu")

    def outputs(self) -> list[torch.Tensor]:
        return self._op.outputs()

    def issue(self, values: Sequence[int], workspace: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        self._given.append(workspace)
        self._op.issue(values, workspace, outputs)


class TestWorkspaces:
    """Scratch memory that the graph does not own is given to someone else: wrong values, or 507011."""

    def test_the_largest_one_is_the_graph_s_for_as_long_as_it_lives(self, any_order: Machine) -> None:
        layers = Layers(3)
        given: list[torch.Tensor] = []
        call, sizes = layers.book.call, iter([100, 5000, 700] * 2)

        def sized(name: str, source: Source, op: HostOp) -> torch.Tensor:
            return call(name, source, Sized(op, next(sizes), given))

        layers.book.call = sized  # type: ignore[method-assign]
        layers.capture()
        address = given[0].data_ptr()
        assert layers.tasks().workspace_bytes == 5000
        for step in range(3):
            gc.collect()
            torch.npu.empty_cache()
            with layers.main:
                others = [
                    torch.ones(size, dtype=torch.uint8, device="npu") for size in (100, 5000, 700, 5000)
                ]
            outs = layers.run([step, 2 * step])
            assert layers.read(outs) == means([step, 2 * step], 3)
            with layers.main:
                assert all(other.sum().item() == other.numel() for other in others)
        assert {each.data_ptr() for each in given} == {address}
        assert any_order.finish().clean

    def test_a_graph_drops_it_with_itself(self, machine: Machine) -> None:
        layers = captured()
        before = torch.npu.memory_allocated()
        layers.runner.sleep()
        gc.collect()
        assert torch.npu.memory_allocated() <= before - 1024

    def test_an_op_that_the_warm_up_did_not_run_has_none(self, machine: Machine) -> None:
        layers = Layers()
        graph = layers.device.graph("one")
        with (
            pytest.raises(CaptureError, match=r"graph 'one': task 'layer 0' has no workspace: .*warm-up"),
            layers.book.capture(graph),
        ):
            graph.capture(lambda: layers.phase(KEY), layers.main)


class TestMovedBuffers:
    """A persistent buffer, as the page table's row, lies elsewhere than at the capture."""

    def test_a_page_table_that_moved_is_found_at_the_first_replay(self, machine: Machine) -> None:
        layers = captured()
        layers.tables[2].data = layers.table[2:4]
        with pytest.raises(
            ReplayError, match=r"'verify 2x1': a static input moved .*npu_fused_infer_attention_score"
        ):
            layers.run([3, 4])

    def test_rows_that_change_places_take_their_pages_along(self, any_order: Machine) -> None:
        """`condense`: new pages are written into the captured table, and the lengths go with them."""
        layers = captured()
        assert layers.read(layers.run([3, 9])) == means([3, 9])
        with layers.main:
            layers.table[:2].copy_(layers.table[:2].flip(0))
            layers.values[:4] += 100  # whose pages are now the second row's
        outs = layers.read(layers.run([9, 3]))
        assert outs == [[9 / 2, 3 / 2 + 100], [10 / 2, 4 / 2 + 100]]
        assert any_order.finish().clean

"""The npu device on the software NPU: our interface over torch.npu's."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from slipstream.device import soft
from slipstream.device.api import Device
from slipstream.device.registry import open_device
from slipstream.device.soft.machine import Machine, ProgramOrder, Seeded
from slipstream.errors import CaptureError, DeviceError, HangError, ReplayError


@pytest.fixture
def device(any_order: Machine) -> Device:
    return open_device("npu")


def ones(device: Device, count: int = 4) -> torch.Tensor:
    return torch.ones(count, device=device.torch_device)


class TestStreams:
    def test_the_innermost_block_is_current(self, device: Device) -> None:
        main, plan = device.stream("main"), device.stream("plan")
        assert device.current_stream().name == "default"
        with main:
            with plan:
                assert device.current_stream() is plan
            assert device.current_stream() is main
        assert device.current_stream().name == "default"

    def test_a_stream_can_be_entered_twice(self, device: Device) -> None:
        main = device.stream("main")
        with main, main:
            pass
        assert device.current_stream().name == "default"

    def test_an_error_leaves_the_block_too(self, device: Device) -> None:
        with pytest.raises(KeyError), device.stream("main"):
            raise KeyError
        assert device.current_stream().name == "default"

    def test_a_wait_orders_two_streams(self, any_order: Machine, device: Device) -> None:
        main, plan = device.stream("main"), device.stream("plan")
        with main:
            value = ones(device)
            value += 1
        plan.wait_stream(main)
        with plan:
            value *= 3
        plan.synchronize()
        with plan:
            assert value.tolist() == [6.0] * 4
        assert any_order.finish().clean

    def test_without_the_wait_it_is_a_race(self, any_order: Machine, device: Device) -> None:
        main, plan = device.stream("main"), device.stream("plan")
        with main:
            value = ones(device)
        with plan:
            value *= 3
        device.synchronize()
        assert any_order.finish().kinds() == {"race"}

    def test_a_stream_of_torch_alone_has_no_name_here(self, device: Device) -> None:
        with torch.npu.stream(torch.npu.Stream()):  # type: ignore[attr-defined]
            assert device.current_stream().name == "unnamed"


class TestEventsAndGates:
    def test_an_event_orders_two_streams(self, any_order: Machine, device: Device) -> None:
        main, plan, event = device.stream("main"), device.stream("plan"), device.event()
        with main:
            value = ones(device)
        event.record(main)
        event.wait(plan)
        with plan:
            assert value.sum().item() == 4
        assert any_order.finish().clean

    def test_an_event_that_was_never_recorded_is_an_error(self, device: Device) -> None:
        with pytest.raises(HangError, match="never recorded"):
            device.event().wait(device.stream("plan"))

    def test_a_gate_may_be_opened_after_the_wait_was_issued(self, any_order: Machine, device: Device) -> None:
        main, plan, gate = device.stream("main"), device.stream("plan"), device.gate()
        with main:
            value = ones(device)
        gate.wait(plan)
        with plan:
            value *= 5
        gate.open(main)
        device.synchronize()
        with plan:
            assert value.tolist() == [5.0] * 4
        assert any_order.finish().clean

    def test_a_gate_that_nobody_opens_is_a_hang(self, any_order: Machine, device: Device) -> None:
        plan, gate = device.stream("plan"), device.gate()
        gate.wait(plan)
        assert any_order.finish().kinds() == {"hang"}


class TestGraphs:
    def test_a_replay_reads_the_static_inputs_anew(self, any_order: Machine, device: Device) -> None:
        main, graph = device.stream("main"), device.graph("double")
        with main:
            static = ones(device)
            result = graph.capture(lambda: static * 2, main)
            for value in (3.0, 4.0):
                static.fill_(value)
                assert graph.replay() is result
                assert result.tolist() == [2 * value] * 4
        assert any_order.finish().clean

    def test_two_graphs_keep_their_results_apart(self, device: Device) -> None:
        main, one, two = device.stream("main"), device.graph("one"), device.graph("two")
        with main:
            static = ones(device)
            first = one.capture(lambda: static + 1, main)
            second = two.capture(lambda: static + 2, main)
            one.replay()
            two.replay()
            assert (first.tolist(), second.tolist()) == ([2.0] * 4, [3.0] * 4)

    def test_it_says_nothing_that_the_device_does_not_tell(self, device: Device) -> None:
        main, graph = device.stream("main"), device.graph("one")
        with main:
            graph.capture(lambda: ones(device) + 1, main)
        assert (graph.spent_ns(), graph.group_times(), graph.num_sections) == ({}, [], 0)
        assert (graph.callbacks, graph.node_counts, graph.topology()) == ({}, {}, [])

    def test_only_one_capture_and_no_replay_before_it(self, device: Device) -> None:
        main, graph = device.stream("main"), device.graph("one")
        with pytest.raises(ReplayError, match="graph 'one' was never captured"):
            graph.replay()
        graph.capture(lambda: ones(device), main)
        with pytest.raises(CaptureError, match="graph 'one' was captured before"):
            graph.capture(lambda: ones(device), main)

    def test_a_host_read_breaks_the_capture_and_leaves_the_device_usable(self, device: Device) -> None:
        main, graph = device.stream("main"), device.graph("one")
        static = ones(device)
        device.synchronize()
        with pytest.raises(CaptureError, match=r"graph 'one' could not be captured.*107030"):
            graph.capture(lambda: static.sum().item(), main)
        assert device.current_stream().name == "default"
        result = graph.capture(lambda: static + 1, main)
        with main:
            graph.replay()
            assert result.tolist() == [2.0] * 4

    def test_an_input_that_moved_is_found(self, device: Device) -> None:
        main, graph = device.stream("main"), device.graph("one")
        static = ones(device)
        device.synchronize()
        graph.capture(lambda: static + 1, main)
        graph.check_addresses()
        static.data = ones(device, 4096)
        with pytest.raises(ReplayError, match=r"graph .one.: a static input moved .*read by aten.add"):
            graph.check_addresses()


class TestDevice:
    def test_it_measures_memory(self, device: Device) -> None:
        before = device.memory_bytes()
        kept = torch.zeros(1 << 20, device=device.torch_device)
        assert device.memory_bytes() - before >= kept.nbytes

    def test_no_visible_npu_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        blind = ModuleType("torch.npu")
        vars(blind)["is_available"] = lambda: False
        monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
        monkeypatch.setattr(torch, "npu", blind, raising=False)
        with pytest.raises(DeviceError, match="sees no NPU"):
            open_device("npu")

    def test_every_install_is_a_device_of_its_own(self) -> None:
        for scheduler in (ProgramOrder(), Seeded(1)):
            with soft.installed(scheduler):
                assert ones(open_device("npu")).sum().item() == 4

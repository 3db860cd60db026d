"""Streams, events and gates of the cpu device: program order, and a name for what would stand still."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

import pytest
import torch

from slipstream.config import DEVICES
from slipstream.device import soft
from slipstream.device.api import Device
from slipstream.device.registry import open_device
from slipstream.errors import DeviceError, HangError, UnknownNameError


@pytest.fixture
def device() -> Device:
    return open_device("cpu")


class TestStreams:
    def test_the_innermost_block_is_current(self, device: Device) -> None:
        main, plan = device.stream("main"), device.stream("plan")
        assert device.current_stream().name == "default"
        with main:
            with plan:
                assert device.current_stream() is plan
            with main:
                assert device.current_stream() is main
            assert device.current_stream() is main
        assert device.current_stream().name == "default"

    def test_an_error_leaves_the_block_too(self, device: Device) -> None:
        with pytest.raises(KeyError), device.stream("main"):
            raise KeyError
        assert device.current_stream().name == "default"

    def test_devices_do_not_share_their_current_stream(self, device: Device) -> None:
        other = open_device("cpu")
        with device.stream("main"):
            assert other.current_stream().name == "default"


class TestEvents:
    def test_a_recorded_event_can_be_waited_for_again_and_again(self, device: Device) -> None:
        main, plan, event = device.stream("main"), device.stream("plan"), device.event()
        event.record(main)
        event.wait(plan)
        event.wait(plan)
        event.record(main)
        event.wait(main)

    def test_waiting_for_what_was_never_recorded_is_a_hang(self, device: Device) -> None:
        with pytest.raises(HangError, match=r"stream 'plan' waits for an event that was never recorded"):
            device.event().wait(device.stream("plan"))


class TestGates:
    def test_a_wait_closes_the_gate(self, device: Device) -> None:
        main, plan, gate = device.stream("main"), device.stream("plan"), device.gate()
        gate.open(main)
        gate.wait(plan)
        with pytest.raises(HangError, match=r"stream 'plan' waits at a closed gate"):
            gate.wait(plan)
        gate.open(main)
        gate.wait(plan)

    def test_two_openings_are_one(self, device: Device) -> None:
        main, plan, gate = device.stream("main"), device.stream("plan"), device.gate()
        gate.open(main)
        gate.open(main)
        gate.wait(plan)
        with pytest.raises(HangError):
            gate.wait(plan)

    def test_a_new_gate_is_closed_and_gates_are_apart(self, device: Device) -> None:
        main, one, other = device.stream("main"), device.gate(), device.gate()
        one.open(main)
        with pytest.raises(HangError):
            other.wait(main)
        one.wait(main)


class TestRegistry:
    @pytest.mark.parametrize("name", DEVICES)
    def test_every_configured_device_opens(self, name: str) -> None:
        if name == "cuda" and not torch.cuda.is_available():
            pytest.skip("no CUDA GPU here")
        with soft.installed() if name == "npu" else nullcontext():
            self._opens(name)

    @staticmethod
    def _opens(name: str) -> None:
        device = open_device(name)
        _ = torch.zeros(8, device=device.torch_device)
        assert (device.name, device.caps.device) == (name, name)
        assert device.caps.default_threads >= 1
        assert device.memory_bytes() > 0

    def test_an_unknown_name_gets_the_nearest(self) -> None:
        with pytest.raises(UnknownNameError, match=r"unknown device 'cpuu'. Did you mean 'cpu'\?"):
            open_device("cpuu")

    @pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is installed")
    def test_npu_without_torch_npu_says_what_to_do(self) -> None:
        with pytest.raises(DeviceError, match=r"needs torch_npu.*software NPU: `slipstream check`"):
            open_device("npu")

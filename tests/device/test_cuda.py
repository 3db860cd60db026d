"""The cuda device. Tests marked `cuda` need a GPU; the others put other modules into CUDA's place."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipstream.check import rounds
from slipstream.device import cuda, soft
from slipstream.device.api import Device
from slipstream.device.registry import open_device
from slipstream.errors import DeviceError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")


def test_without_a_gpu_it_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match=r"device 'cuda' .* has no CUDA in it.*--device cpu"):
        open_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    with pytest.raises(DeviceError, match=r"built for CUDA 12\.9, but sees no GPU; look at `nvidia-smi`"):
        open_device("cuda")


class Driver:
    """Takes notes of what a gate asks the driver for."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[str, int, int, int]] = []
        self.code = code

    def __getattr__(self, name: str) -> Any:
        def call(handle: Any, address: ctypes.c_uint64, value: Any, flags: Any) -> int:
            self.calls.append((name, handle.value or 0, value.value, flags.value))
            return self.code

        return call


@pytest.fixture
def on_soft(monkeypatch: pytest.MonkeyPatch) -> Iterator[cuda.CudaDevice]:
    """A cuda device whose torch.cuda is the software NPU's torch.npu: the names that both have are the same."""
    with soft.installed():
        npu: Any = torch.npu  # type: ignore[attr-defined]
        stands_in = SimpleNamespace(**{name: getattr(npu, name) for name in dir(npu)}, CUDAGraph=npu.NPUGraph)
        monkeypatch.setattr(cuda, "_torch_cuda", lambda: stands_in)
        device = cuda.CudaDevice()
        device.torch_device = torch.device("npu", 0)
        yield device


def test_its_streams_and_graphs_work_over_the_names_that_both_modules_have(on_soft: cuda.CudaDevice) -> None:
    main, plan, graph = on_soft.stream("main"), on_soft.stream("plan"), on_soft.graph("double")
    with main:
        static = torch.ones(4, device=on_soft.torch_device)
        result = graph.capture(lambda: static * 2, main)
        static.fill_(3)
        graph.replay()
    plan.wait_stream(main)
    with plan:
        assert result.tolist() == [6.0] * 4


def test_a_gate_waits_closes_and_opens_by_the_driver(
    on_soft: cuda.CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(cuda, "raw_of", lambda stream: SimpleNamespace(cuda_stream=77))
    gate, stream = on_soft.gate(), on_soft.stream("plan")
    gate.wait(stream)
    gate.open(stream)
    assert driver.calls == [
        ("cuStreamWaitValue32_v2", 77, 1, 1),
        ("cuStreamWriteValue32_v2", 77, 0, 0),
        ("cuStreamWriteValue32_v2", 77, 1, 0),
    ]
    driver.code = 801
    with pytest.raises(DeviceError, match=r"cuStreamWriteValue32_v2 gave 801"):
        gate.open(stream)


@pytest.fixture
def gpu() -> Device:
    return open_device("cuda")


@pytest.mark.cuda
@needs_gpu
class TestOnAGpu:
    def test_a_replay_reads_the_static_inputs_anew(self, gpu: Device) -> None:
        main, graph = gpu.stream("main"), gpu.graph("double")
        with main:
            static = torch.ones(4, device=gpu.torch_device)
            result = graph.capture(lambda: static * 2, main)
            for value in (3.0, 4.0):
                static.fill_(value)
                graph.replay()
                assert result.tolist() == [2 * value] * 4

    def test_a_gate_may_be_opened_after_the_wait_was_issued(self, gpu: Device) -> None:
        main, plan, gate = gpu.stream("main"), gpu.stream("plan"), gpu.gate()
        value = torch.ones(4, device=gpu.torch_device)
        gpu.synchronize()
        gate.wait(plan)
        with plan:
            value *= 5
        with main:
            value += 1
        gate.open(main)
        plan.synchronize()
        assert value.tolist() == [10.0] * 4

    @pytest.mark.parametrize("graph", ["none", "full"])
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn", "auto"])
    def test_the_engine_gives_the_tokens_of_plain_eager_decoding(
        self, gpu: Device, draft: str, graph: str
    ) -> None:
        case = replace(rounds.USUAL, period=4)
        plain = rounds.tokens_on(gpu, replace(case, draft="none", graph="none"))
        assert rounds.tokens_on(gpu, replace(case, draft=draft, graph=graph)) == plain

"""install, uninstall, and what torch.npu and torch_npu say to wrong use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

from slipstream.device import soft
from slipstream.device.soft.machine import Machine
from slipstream.errors import DeviceError, SlipstreamError, UsageError


def test_install_makes_the_modules_and_uninstall_takes_them_away() -> None:
    with soft.installed() as machine:
        import torch_npu
        from torch_npu.npu import NPUGraph
        from torch_npu.npu.streams import Stream

        assert torch_npu.npu is torch.npu
        assert torch_npu.__version__ == "2.14.0"
        assert NPUGraph is torch.npu.NPUGraph
        assert issubclass(Stream, torch.Stream)
        assert torch.npu.is_available()
        assert isinstance(machine, Machine)
        with pytest.raises(DeviceError, match="installed already"):
            soft.install()
    assert not torch.npu.is_available()
    assert not hasattr(torch.npu, "Stream")
    assert "torch_npu" not in sys.modules
    assert not torch.ones(2).is_pinned()
    with pytest.raises(DeviceError, match="no software NPU is there"):
        torch.ones(2, device="npu")
    with soft.installed():
        assert torch.ones(2, device="npu").tolist() == [1, 1]


def test_importing_soft_imports_no_torch() -> None:
    code = "import sys, slipstream.device.soft.machine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_real_torch_npu_is_an_error() -> None:
    code = (
        "import sys, types; sys.modules['torch_npu'] = types.ModuleType('torch_npu')\n"
        "from slipstream.device import soft\n"
        "from slipstream.errors import DeviceError\n"
        "try: soft.install()\n"
        "except DeviceError as error: sys.exit('real torch_npu' not in str(error))\n"
        "sys.exit(2)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        soft.install(devices=0)


def test_a_missing_name_is_named_with_the_nearest_and_the_way(machine: Machine) -> None:
    import torch_npu

    with pytest.raises(AttributeError) as raised:
        _ = torch.npu.memory_alocated
    assert isinstance(raised.value, SlipstreamError)
    text = str(raised.value)
    assert "torch.npu.memory_alocated is not in the software NPU" in text
    assert "torch.npu.memory_allocated" in text
    assert 'soft.register("memory_alocated", function)' in text
    with pytest.raises(AttributeError, match=r'soft\.register_op\("npu_rms_norm\('):
        _ = torch_npu.npu_rms_norm
    assert not hasattr(torch.npu, "utilization")


def test_a_missing_module_is_named(machine: Machine) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"torch_npu.optim is not in the software NPU"):
        importlib.import_module("torch_npu.optim")


def test_a_device_that_is_not_there(machine: Machine) -> None:
    with pytest.raises(RuntimeError, match=r"Invalid device: npu:1"):
        torch.ones(2, device="npu:1")


def test_storages_tell_what_shares_memory(machine: Machine) -> None:
    x, other = torch.ones(4, 4, device="npu"), torch.ones(4, 4, device="npu")
    storage = x.untyped_storage()
    assert x[2].untyped_storage().data_ptr() == storage.data_ptr() == x.data_ptr()
    assert other.untyped_storage().data_ptr() != storage.data_ptr()
    assert storage.nbytes() == 64


def test_a_registered_function_is_there_after_the_next_install_too() -> None:
    soft.register("test_answer", lambda: 42)
    for _ in range(2):
        with soft.installed():
            assert torch.npu.test_answer() == 42


def double(self: torch.Tensor) -> torch.Tensor:
    return self * 2


def test_a_registered_op_runs_as_every_other(any_order: Machine) -> None:
    op = soft.register_op("npu_test_double(Tensor self) -> Tensor", double)
    import torch_npu

    assert torch_npu.npu_test_double is op
    x = torch.ones(3, device="npu")
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        torch_npu.npu_test_double(x)
    x.add_(1)
    kinds = {finding.kind for finding in any_order.finish().findings}
    assert kinds == {"race"}


def test_a_bad_op_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be registered"):
        soft.register_op("npu_test_bad(Tensor", double)
    soft.register_op("npu_test_twice(Tensor self) -> Tensor", double)
    with pytest.raises(UsageError, match="another function"):
        soft.register_op("npu_test_twice(Tensor self) -> Tensor", lambda self: self)


def test_streams_and_events(machine: Machine) -> None:
    npu = torch.npu
    default = npu.current_stream()
    assert default == npu.default_stream() == torch.npu.current_stream(0)
    stream = npu.Stream(priority=-1)
    assert stream != default
    assert isinstance(stream, torch.Stream)
    assert len({stream, npu.Stream(), default}) == 3
    with npu.stream(stream):
        assert npu.current_stream() == stream
        with npu.stream(None):
            assert npu.current_stream() == stream
        with default:
            assert npu.current_stream() == default
        assert npu.current_stream() == stream
    assert npu.current_stream() == default
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    start.record()
    torch.ones(4, device="npu").add_(1)
    end.record()
    end.synchronize()
    assert start.query()
    assert start.elapsed_time(end) >= 0
    with pytest.raises(RuntimeError, match="enable_timing"):
        npu.Event().elapsed_time(end)
    assert stream.query()
    assert npu.Event().query()


def test_the_33rd_stream_is_the_first_again(machine: Machine) -> None:
    streams = [torch.npu.Stream() for _ in range(33)]
    assert len(set(streams)) == 32
    assert streams[32] == streams[0]


def test_devices() -> None:
    with soft.installed(devices=2) as machine:
        npu = torch.npu
        assert npu.device_count() == 2
        npu.set_device(1)
        assert npu.current_device() == 1
        x = torch.ones(2, device="npu")
        assert x.device == torch.device("npu:1")
        with npu.device(0):
            assert torch.ones(2, device="npu").get_device() == 0
        assert npu.current_stream() != npu.default_stream(0)
        y = x.to("npu:0")
        assert (y + 1).tolist() == [2, 2]
        assert (npu.memory_allocated(0), npu.memory_allocated(1)) != (0, 0)
        assert npu.get_device_properties(1).total_memory == 64 << 30
        assert "Ascend" in npu.get_device_name()
        with pytest.raises(RuntimeError, match="Invalid device ID 2"):
            npu.set_device(2)
        with pytest.raises(ValueError, match="Expected a npu device"):
            npu.current_stream("cpu")
        assert machine.finish().findings == ()


def test_ranks_have_their_own_device_and_streams() -> None:
    with soft.installed(devices=2, ranks=2) as machine:
        results = {}

        def program(rank: int) -> None:
            torch.npu.set_device(rank)
            stream = torch.npu.Stream()
            x = torch.full((4,), float(rank), device="npu")
            stream.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(stream):
                x = x + 1
            torch.npu.current_stream().wait_stream(stream)
            results[rank] = (x.device.index, x.tolist())

        machine.run_ranks([lambda: program(0), lambda: program(1)])
        assert results == {0: (0, [1.0] * 4), 1: (1, [2.0] * 4)}
        assert machine.finish().findings == ()


def test_pytorchs_general_names_answer_for_the_npu(any_order: Machine) -> None:
    stream = torch.Stream(device="npu")
    assert isinstance(stream, torch.Stream)
    x = torch.ones(4, device="npu")
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        x.add_(1)
        event = stream.record_event()
    graph = torch.accelerator.Graph()
    event.wait(torch.accelerator.current_stream())
    torch.accelerator.synchronize()
    with stream, graph:
        out = x * 3
    graph.replay()
    assert out.tolist() == [6, 6, 6, 6]
    assert isinstance(torch.Generator(), torch.Generator)
    assert any_order.finish().findings == ()


def test_a_device_context_makes_tensors_on_the_npu(machine: Machine) -> None:
    with torch.device("npu"):
        assert torch.ones(3).device.type == "npu"
        assert torch.tensor([1, 2]).device.type == "npu"
        assert torch.ones(2, device="cpu").add_(1).tolist() == [2, 2]


def test_a_moved_input_is_named(machine: Machine) -> None:
    x, y = torch.ones(4, device="npu"), torch.ones(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x * 2 + y
    soft.note_inputs(graph, x, y=y)
    graph.replay()
    soft.note_inputs(graph, x, y=y)
    graph.replay()
    assert machine.findings == []
    soft.note_inputs(graph, x, y=y.clone())
    graph.replay()
    assert [finding.kind for finding in machine.findings] == ["stale-address"]
    assert "y" in str(machine.findings[0])


def test_every_order_of_a_torch_program_can_be_tried() -> None:
    from slipstream.device.soft.machine import explore

    for joined in (True, False):
        with soft.installed(keep=True) as machine:
            x, side = torch.ones(4, device="npu"), torch.npu.Stream()
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                x.add_(1)
            if joined:
                torch.npu.current_stream().wait_stream(side)
            x.mul_(2)
            kinds = {finding.kind for finding in explore(machine.program()).findings}
        assert kinds == (set() if joined else {"race"})


def test_settings_are_taken(machine: Machine) -> None:
    torch.npu.set_compile_mode(jit_compile=False)
    torch.npu.config.allow_internal_format = False
    torch.npu.matmul.allow_hf32 = True
    torch.npu.set_option({"ACL_OP_COMPILER_CACHE_MODE": "enable"})
    assert torch.npu.is_jit_compile_false()
    with pytest.raises(UsageError, match=r"sync debug mode 'wran'.*'warn'"):
        torch.npu.set_sync_debug_mode("wran")


class TestTransferToNpu:
    """`from torch_npu.contrib import transfer_to_npu`, the first line of many a program."""

    def test_what_says_cuda_means_npu(self, machine: Machine) -> None:
        from torch_npu.contrib import transfer_to_npu  # noqa: F401

        assert torch.cuda.is_available()
        module = torch.nn.Linear(4, 4).to("cuda")
        x = torch.ones(2, 4, device=torch.device("cuda", 0))
        places = [x, module(x), module.cuda().weight, torch.zeros(2).cuda(0), x.new_empty(3, device="cuda:0")]
        assert {str(tensor.device) for tensor in places} == {"npu:0"}
        assert x.is_cuda
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            y = x * 2
        graph.replay()
        torch.cuda.synchronize()
        assert y.tolist() == [[2.0] * 4] * 2
        assert machine.finish().clean

    def test_it_ends_with_the_software_npu(self) -> None:
        before = torch.cuda.is_available, torch.cuda.Stream
        with soft.installed():
            from torch_npu.contrib import transfer_to_npu  # noqa: F401

            assert torch.cuda.Stream is torch.npu.Stream
        assert (torch.cuda.is_available, torch.cuda.Stream) == before
        assert str(torch.device("cuda")) == "cuda"
        assert "torch_npu.contrib.transfer_to_npu" not in sys.modules

    def test_other_parts_are_named_as_missing(self, machine: Machine) -> None:
        with pytest.raises(
            ModuleNotFoundError, match=r"torch_npu\.contrib\.function is not in the software NPU"
        ):
            importlib.import_module("torch_npu.contrib.function")

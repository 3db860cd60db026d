"""A captured graph as one native program: same results, memory shared and never clobbered."""

import time
from itertools import chain

import pytest
import torch

from slipstream import ops
from slipstream.device.arena import ArenaPool
from slipstream.device.cpu import CpuDevice
from slipstream.errors import DeviceError, ReplayError
from slipstream.native import library

pytestmark = pytest.mark.skipif(library.load() is None, reason="no native library")


def layers(x, weight, matrices):
    for matrix in matrices:
        x = ops.linear(ops.rms_norm(x, weight, 1e-5, torch.float32), matrix, None, x)
    return x


@pytest.fixture
def stack():
    torch.manual_seed(0)
    return torch.ones(64), [ops.DenseMatrix(torch.randn(64, 64)) for _ in range(20)]


def test_a_replay_equals_the_eager_run_on_new_inputs(isa, stack):
    device, x = CpuDevice(), torch.randn(4, 64)
    graph = device.graph("layers")
    graph.capture(lambda: layers(x, *stack), device.stream("main"))
    for _ in range(3):
        x.copy_(torch.randn(4, 64))
        assert torch.equal(graph.replay(), layers(x, *stack))


def test_the_arena_is_as_wide_as_one_place_not_as_all(isa, stack):
    device, x = CpuDevice(), torch.randn(4, 64)
    graph = device.graph("layers")
    graph.capture(lambda: layers(x, *stack), device.stream("main"))
    one_tensor = x.nbytes
    assert 0 < device.arenas.nbytes <= 4 * one_tensor  # 40 results went through it


def test_two_graphs_share_the_arena_and_keep_their_results(isa, stack):
    device, x, y = CpuDevice(), torch.randn(4, 64), torch.randn(2, 64)
    first, second = device.graph("first"), device.graph("second")
    first.capture(lambda: layers(x, *stack), device.stream("main"))
    before = device.arenas.nbytes
    second.capture(lambda: layers(y, *stack), device.stream("main"))
    assert device.arenas.nbytes == before
    kept = first.replay()
    want = kept.clone()
    second.replay()
    assert torch.equal(kept, want)


def test_a_foreign_torch_op_is_a_call_back_with_the_same_result(isa, stack):
    device, x = CpuDevice(), torch.randn(4, 64)
    weight, matrices = stack

    def mixed():
        return layers(torch.tanh(layers(torch.tanh(x), weight, matrices[:3])), weight, matrices[3:])

    graph = device.graph("mixed")
    graph.capture(mixed, device.stream("main"))
    assert graph.callbacks == {"aten::tanh": 2}
    for _ in range(3):
        x.copy_(torch.randn(4, 64))
        torch.testing.assert_close(graph.replay(), mixed(), rtol=0, atol=0)
    spent = graph.spent_ns()
    assert spent["aten::tanh"] > 0
    assert spent["linear_f32"] > 0


def test_an_op_that_may_give_a_view_and_copies_is_a_call_back(isa, stack):
    device, pages = CpuDevice(), torch.zeros(4, 16)
    graph = device.graph("reshape")

    def copying():
        return layers(pages[:, :1].expand(-1, 32).reshape(2, 64), *stack)

    graph.capture(copying, device.stream("main"))
    assert graph.callbacks == {"aten::reshape": 1}
    pages.copy_(torch.randn(4, 16))
    assert torch.equal(graph.replay(), copying())


def test_an_op_in_place_is_a_call_back_on_the_buffer_itself(isa, stack):
    device, x, count = CpuDevice(), torch.randn(4, 64), torch.zeros(4, 1)
    graph = device.graph("in place")

    def counting():
        count.add_(1)
        return layers(x.mul(count), *stack)

    graph.capture(counting, device.stream("main"))
    graph.replay()
    got = graph.replay()
    assert count.unique().tolist() == [3.0]
    torch.testing.assert_close(got, layers(x * 3, *stack), rtol=0, atol=0)


def test_a_call_back_that_changes_its_shape_is_an_error(isa, stack):
    device, x = CpuDevice(), torch.ones(4, 64)
    graph = device.graph("by value")
    graph.capture(lambda: (layers(x, *stack), x[:, 0].nonzero()), device.stream("main"))
    graph.replay()
    x[2] = 0
    with pytest.raises(ReplayError, match=r"aten::nonzero gave \[3, 1\], and \[4, 1\] at capture"):
        graph.replay()


def test_groups_are_measured_in_order(isa, stack):
    device, x = CpuDevice(), torch.randn(4, 64)
    weight, matrices = stack

    def named():
        out = x
        for index in range(3):
            with ops.node_group(f"layer {index}"):
                out = layers(out, weight, matrices[:1])
        return torch.tanh(out)

    graph = device.graph("named")
    graph.capture(named, device.stream("main"))
    before = time.perf_counter_ns()
    graph.replay()
    after = time.perf_counter_ns()
    times = list(chain.from_iterable(graph.group_times()))
    assert [name for name, _, _ in times] == ["layer 0", "layer 1", "layer 2", "aten::tanh"]
    clock = [before, *(moment for _, began, ended in times for moment in (began, ended)), after]
    assert clock == sorted(clock)


def test_a_view_of_a_static_buffer_is_read_anew(isa, stack):
    device, buffer = CpuDevice(), torch.randn(8, 64)
    graph = device.graph("view")
    graph.capture(lambda: layers(buffer[:4], *stack), device.stream("main"))
    assert graph.callbacks == {}
    buffer.copy_(torch.randn(8, 64))
    assert torch.equal(graph.replay(), layers(buffer[:4].clone(), *stack))


class Hungry(ArenaPool):
    """Needs more than any machine has, until it is told otherwise."""

    extra = 1 << 60

    def take(self, nbytes):
        return super().take(nbytes + self.extra)


def test_no_memory_for_the_arena_is_a_clear_error_and_the_graph_as_new(isa, stack):
    device, x = CpuDevice(), torch.randn(4, 64)
    device.arenas = Hungry()
    graph = device.graph("layers")
    with pytest.raises(DeviceError, match=r"MB, which this machine cannot reserve.*--graph none"):
        graph.capture(lambda: layers(x, *stack), device.stream("main"))
    assert device.arenas.nbytes == 0
    assert graph.node_counts == {}
    device.arenas.extra = 0
    graph.capture(lambda: layers(x, *stack), device.stream("main"))
    assert torch.equal(graph.replay(), layers(x, *stack))

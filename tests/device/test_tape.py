"""Captured graphs of the cpu device: a replay does what the function would do now, over the same buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from slipstream import ops
from slipstream.device.api import Device, Graph
from slipstream.device.registry import open_device
from slipstream.errors import CaptureError, ReplayError
from slipstream.ops.registry import Written, op


@pytest.fixture
def device() -> Device:
    return open_device("cpu")


def capture(device: Device, function: Callable[[], Any], name: str = "g") -> Graph:
    graph = device.graph(name)
    graph.capture(function, device.stream("main"))
    return graph


@op
def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One result."""
    return x + y


@op
def split_in_two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results."""
    return x + 1, x * 2


@op
def scale_in_place(x: Written, factor: float) -> None:
    """Writes its argument."""
    x.mul_(factor)


@op
def write_only(target: Written, value: torch.Tensor) -> None:
    """Writes one argument from another."""
    target.copy_(value)


@op
def total(parts: list[torch.Tensor], *, start: torch.Tensor) -> torch.Tensor:
    """Tensors in a list and in a keyword."""
    return sum(parts, start)


@op
def blend(x: torch.Tensor, parts: list[torch.Tensor], other: torch.Tensor | None = None) -> torch.Tensor:
    """One tensor may come both alone and inside something else."""
    return sum(parts, x if other is None else x - 2 * other)


@op
def with_number(x: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Not all of its results are tensors."""
    return 7, x + 1


@op
def outer(x: torch.Tensor) -> torch.Tensor:
    """An op made of ops."""
    return total([x, x], start=split_in_two(x)[0])


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    scale_in_place(x, factor)
    return x


def nested_result(x: torch.Tensor) -> dict[str, Any]:
    left, right = split_in_two(x)
    return {"left": left, "rest": (right, [left + right], 7, None, x)}


#: Functions of one static input, float32 [4, 6].
FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "one op": lambda x: plus(x, x),
    "the model's ops": lambda x: ops.gated_silu(ops.concat_rows(x, ops.gated_silu(x))),
    "the model's ops, part of them given out": lambda x: (
        lambda y: (y, ops.gated_silu(ops.concat_rows(y, x)))
    )(ops.gated_silu(ops.concat_rows(x, x))),
    "the model's ops among others": lambda x: ops.gated_silu(plus(ops.concat_rows(x, x), torch.ones(12))),
    "several results": lambda x: split_in_two(x),
    "one of several results": lambda x: split_in_two(x)[1],
    "results in a structure": nested_result,
    "plain torch": lambda x: (x @ x.T).softmax(-1),
    "a chain": lambda x: plus(split_in_two(plus(x, x))[1], split_in_two(x)[0]),
    "an op of ops": outer,
    "list and keyword": lambda x: total([x, plus(x, x)], start=plus(x, x)),
    "the same tensor alone and in a list": lambda x: (lambda y: blend(y, [y, x]))(plus(x, x)),
    "the same tensor alone and in a keyword": lambda x: (lambda y: blend(y, [x], other=y))(plus(x, x)),
    "a number before the tensor": lambda x: with_number(x)[1],
    "in place on a result": lambda x: scaled(plus(x, x), 3.0),
    "in place by torch": lambda x: plus(x, x).add_(1).mul_(2),
    "in place by torch, then the old name": lambda x: (lambda y: (y.mul_(3), y)[1])(plus(x, x)),
    "in place through a view": lambda x: (lambda y: (y[1:3].zero_(), y)[1])(plus(x, x)),
    "a view of a result": lambda x: plus(x, x)[1:, ::2],
    "views of the input": lambda x: plus(x[:2], x[2:]),
    "an argument made inside": lambda x: x + torch.arange(6),
    "the input itself": lambda x: x,
    "nothing": lambda x: None,
}


class TestReplay:
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_gives_what_eager_gives_on_new_inputs(self, device: Device, name: str) -> None:
        function, static = FUNCTIONS[name], torch.randn(4, 6)
        graph = capture(device, lambda: function(static))
        for _ in range(3):
            static.copy_(torch.randn(4, 6))
            before = static.clone()
            result, expected = graph.replay(), function(before.clone())
            assert type(result) is type(expected)
            for got, wanted in zip(tree_leaves(result), tree_leaves(expected), strict=True):
                torch.testing.assert_close(got, wanted, rtol=0, atol=0)
            assert static.equal(before)

    def test_results_have_the_functions_structure(self, device: Device) -> None:
        static = torch.ones(4, 6)
        result = capture(device, lambda: nested_result(static)).replay()
        assert list(result) == ["left", "rest"]
        right, others, seven, nothing, same = result["rest"]
        assert (right.shape, len(others), seven, nothing) == ((4, 6), 1, 7, None)
        assert same is static

    def test_the_capture_runs_the_function_and_returns_its_result(self, device: Device) -> None:
        static = torch.ones(3)
        result = device.graph("g").capture(lambda: static + 1, device.stream("main"))
        assert result.tolist() == [2, 2, 2]

    def test_writes_to_static_buffers_happen_at_every_replay(self, device: Device) -> None:
        source, target, counter = torch.zeros(3), torch.zeros(3), torch.zeros(1)

        def function() -> None:
            write_only(target, plus(source, source))
            counter.add_(1)

        graph = capture(device, function)
        source.copy_(torch.tensor([1.0, 2.0, 3.0]))
        assert graph.replay() is None
        graph.replay()
        assert (target.tolist(), counter.item()) == ([2, 4, 6], 3)

    def test_graphs_share_static_buffers(self, device: Device) -> None:
        buffer = torch.zeros(2)
        first = capture(device, lambda: buffer.add_(1), "first")
        second = capture(device, lambda: buffer.mul_(10), "second")
        buffer.zero_()
        first.replay()
        second.replay()
        first.replay()
        assert buffer.tolist() == [11, 11]

    def test_constants_are_kept_as_they_were(self, device: Device) -> None:
        factor = 3.0
        static = torch.ones(2)
        graph = capture(device, lambda: scaled(plus(static, static), factor))
        factor = 100.0
        assert graph.replay().tolist() == [6, 6]

    def test_needs_no_grad_and_makes_none(self, device: Device) -> None:
        static = torch.ones(2)
        assert not capture(device, lambda: static * 2).replay().requires_grad

    def test_two_graphs_may_follow_each_other_over_one_result(self, device: Device) -> None:
        """The second graph writes nothing that the first one gave out."""
        static = torch.randn(4, 6)
        first = capture(device, lambda: ops.gated_silu(static), "first")
        second = capture(device, lambda: ops.gated_silu(ops.concat_rows(static, static)), "second")
        given = first.replay()
        kept = given.clone()
        second.replay()
        assert given.equal(kept)


class TestNodes:
    def test_each_op_is_one_node_and_other_torch_ops_are_counted_as_call_backs(self, device: Device) -> None:
        static = torch.ones(2, 4)
        counts = capture(device, lambda: plus(plus(static, static), static).exp().exp()).node_counts
        assert counts == {"plus": 2, "aten::exp": 2}

    def test_an_op_of_ops_is_one_node(self, device: Device) -> None:
        static = torch.ones(2)
        assert capture(device, lambda: outer(static)).node_counts == {"outer": 1}

    def test_an_op_called_through_torch_is_the_same_node(self, device: Device) -> None:
        static = torch.ones(2, 4)
        graph = capture(device, lambda: torch.ops.slipstream.gated_silu(plus(static, static)))
        assert graph.node_counts == {"plus": 1, "gated_silu": 1}
        static.mul_(2)
        assert torch.equal(graph.replay(), ops.gated_silu(2 * static))

    def test_topology_says_who_feeds_whom_and_on_which_stream(self, device: Device) -> None:
        main, side, static = device.stream("main"), device.stream("side"), torch.ones(2, 4)

        def function() -> torch.Tensor:
            doubled = plus(static, static)
            side.wait_stream(main)
            with side:
                left, right = split_in_two(static)
            main.wait_stream(side)
            return plus(doubled, plus(left, right))

        graph = device.graph("g")
        graph.capture(function, main)
        assert graph.topology() == [
            {"index": 0, "op": "plus", "stream": "main", "inputs": []},
            {"index": 1, "op": "split_in_two", "stream": "side", "inputs": []},
            {"index": 2, "op": "plus", "stream": "main", "inputs": [1]},
            {"index": 3, "op": "plus", "stream": "main", "inputs": [0, 2]},
        ]

    def test_nothing_is_recorded_outside_a_capture(self, device: Device) -> None:
        static = torch.ones(2, 4)
        graph = capture(device, lambda: plus(static, static))
        plus(static, static)
        graph.replay()
        assert graph.node_counts == {"plus": 1}


class TestFailures:
    @pytest.mark.parametrize(
        "read",
        [
            lambda x: x.sum().item(),
            lambda x: int(x[0, 0]),
            lambda x: float(x.max()),
            lambda x: bool((x > 0).any()),
            lambda x: 1 if x[0, 0] > 0 else 2,
        ],
        ids=["item", "int", "float", "bool", "if"],
    )
    def test_a_host_read_inside_a_capture_is_refused(self, device: Device, read: Any) -> None:
        static = torch.ones(2, 4)
        with pytest.raises(CaptureError, match=r"graph 'g' reads a device value on the host"):
            capture(device, lambda: read(plus(static, static)))

    @pytest.mark.parametrize("error", [CaptureError("no"), ValueError("no"), KeyboardInterrupt()], ids=repr)
    def test_after_a_failed_capture_the_graph_is_as_new(self, device: Device, error: BaseException) -> None:
        static = torch.ones(2, 4)

        def fails() -> None:
            plus(static, static)
            raise error

        graph = device.graph("g")
        with pytest.raises(type(error)):
            graph.capture(fails, device.stream("main"))
        assert (graph.node_counts, graph.topology()) == ({}, [])
        assert device.current_stream().name == "default"
        with pytest.raises(ReplayError, match="never captured"):
            graph.replay()
        graph.capture(lambda: plus(static, static), device.stream("main"))
        assert graph.node_counts == {"plus": 1}
        assert graph.replay().tolist() == [[2] * 4] * 2

    def test_capturing_twice_is_refused_and_the_first_stays(self, device: Device) -> None:
        static = torch.ones(2)
        graph = capture(device, lambda: static * 2)
        with pytest.raises(CaptureError, match="captured before"):
            graph.capture(lambda: static * 3, device.stream("main"))
        assert graph.replay().tolist() == [2, 2]

    def test_a_capture_inside_a_capture_is_refused_with_both_named(self, device: Device) -> None:
        with pytest.raises(CaptureError, match=r"'inner' cannot be captured while 'outer' is"):
            capture(device, lambda: capture(device, lambda: None, "inner"), "outer")

    def test_replaying_what_was_never_captured_names_the_graph(self, device: Device) -> None:
        with pytest.raises(ReplayError, match=r"graph 'verify 1x4' was never captured"):
            device.graph("verify 1x4").replay()

    def test_a_static_input_that_moved_is_named(self, device: Device) -> None:
        static, other = torch.ones(2, 4), torch.ones(2, 4)
        graph = capture(device, lambda: plus(other, plus(static, static)), "verify 1x4")
        graph.check_addresses()
        static.data = torch.zeros(2, 4)
        with pytest.raises(ReplayError, match=r"'verify 1x4'.*moved.*node 0 plus, argument 0"):
            graph.check_addresses()

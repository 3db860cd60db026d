"""Capture, replay, pools, and Ascend's rules of capture through torch.npu."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.device import soft
from slipstream.device.soft.machine import Limits, Machine
from slipstream.device.soft.machine.errors import SoftError


def test_a_graph_replays_over_its_static_input(any_order: Machine) -> None:
    x = torch.zeros(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = (x + 1) * 2
    for value in (3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [(value + 1) * 2] * 4
    assert any_order.finish().findings == ()


def test_nothing_runs_during_a_capture(machine: Machine) -> None:
    x = torch.zeros(4, device="npu")
    with torch.npu.graph(torch.npu.NPUGraph()):
        assert torch.npu.is_current_stream_capturing()
        x.add_(1)
    assert not torch.npu.is_current_stream_capturing()
    assert x.tolist() == [0, 0, 0, 0]


def test_a_fork_and_a_join_are_part_of_the_graph(any_order: Machine) -> None:
    x = torch.ones(4, device="npu")
    side, graph = torch.npu.Stream(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            a = x * 3
        b = x + 1
        main.wait_stream(side)
        out = a + b
    graph.replay()
    assert out.tolist() == [5, 5, 5, 5]
    assert any_order.finish().findings == ()


def test_random_numbers_are_new_at_each_replay_and_those_of_eager_calls(any_order: Machine) -> None:
    torch.manual_seed(3)
    expected = [torch.rand(4) for _ in range(3)]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = torch.rand(4, device="npu")
    torch.manual_seed(3)
    for numbers in expected:
        graph.replay()
        assert torch.equal(out.cpu(), numbers)
    state = torch.npu.get_rng_state()
    first = torch.rand(4, device="npu").cpu()
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="npu").cpu(), first)


def captured(function: Callable[[], Any], pool: Any = None) -> tuple[Any, Any]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool):
        out = function()
    return graph, out


def test_two_graphs_of_one_pool_share_what_the_first_lets_go(machine: Machine) -> None:
    x = torch.ones(1000, device="npu")
    pool = torch.npu.graph_pool_handle()
    first, a = captured(lambda: (x + 1) * 2, pool)
    second, b = captured(lambda: (x + 3) * 4, pool)
    apart, c = captured(lambda: x + 3)
    assert first.pool() == second.pool() == pool != apart.pool()
    reserved = torch.npu.memory_reserved()
    first.replay()
    second.replay()
    assert (a[0].item(), b[0].item()) == (4, 16)
    assert torch.npu.memory_reserved() == reserved
    # The first graph's x + 1 was let go inside its capture, and is the second's.
    pools = [s["segment_pool_id"] for s in torch.npu.memory_snapshot()]
    assert sorted(pools) == sorted([(0, 0), pool, apart.pool()])
    assert c is not None


def test_an_output_held_weakly_is_found_when_the_next_graph_overwrites_it(machine: Machine) -> None:
    x = torch.ones(8, device="npu")
    pool = torch.npu.graph_pool_handle()
    import torch_npu

    def with_weak_output() -> Any:
        return torch_npu._C._weak_ref_tensor(x * 2)

    first, weak = captured(with_weak_output, pool)
    second, _ = captured(lambda: x * 5, pool)
    first.replay()
    second.replay()
    result = weak + 0
    assert result[0].item() == 5
    assert "lifetime" in [finding.kind for finding in machine.finish().findings]


def test_a_reset_graph_can_be_captured_anew_and_gives_its_memory_back(machine: Machine) -> None:
    x = torch.ones(3 << 20, device="npu")
    graph, out = captured(lambda: x * 2)
    graph.replay()
    torch.npu.synchronize()
    before = torch.npu.memory_reserved()
    graph.reset()
    del out
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() < before
    with torch.npu.graph(graph):
        out = x * 3
    graph.replay()
    assert out[0].item() == 3


def test_debug_dump_writes_the_nodes(machine: Machine, tmp_path: Path) -> None:
    x = torch.ones(3, device="npu")
    graph, _ = captured(lambda: x * 2 + 1)
    graph.debug_dump(str(tmp_path / "graph.json"))
    nodes = json.loads((tmp_path / "graph.json").read_text())["nodes"]
    assert [node["op"] for node in nodes] == ["aten::mul.Tensor", "aten::add.Tensor"]


def test_a_graphed_module_trains_as_the_module(any_order: Machine) -> None:
    def train(device: str, graphed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(
            device
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if graphed:
            sample = torch.zeros(3, 4, device=device)
            model = torch.npu.make_graphed_callables(model, (sample,))
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((3, 4), float(step), device=device)).square().sum().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for cpu, npu in zip(train("cpu", False), train("npu", True), strict=True):
        assert torch.equal(cpu, npu)


# --- the rules of capture ------------------------------------------------------------------------------


def code_of(body: Callable[[Any], Any], mode: str = "global") -> int | None:
    """Return the code with which a capture's body, or its end, is refused."""
    stream, graph = torch.npu.Stream(), torch.npu.NPUGraph()
    torch.npu.synchronize()
    with torch.npu.stream(stream):
        graph.capture_begin(capture_error_mode=mode)
        with pytest.raises(SoftError) as raised:
            _both(lambda: body(stream), graph.capture_end)
    return raised.value.code


def _both(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    first()
    second()


def fork(stream: Any) -> None:
    side = torch.npu.Stream()
    side.wait_stream(stream)
    with torch.npu.stream(side):
        torch.ones(2, device="npu")


RULES: dict[str, tuple[Callable[[Any, torch.Tensor], Any], int | None]] = {
    "an unjoined stream": (lambda stream, x: fork(stream), 107025),
    "the stream's synchronize": (lambda stream, x: stream.synchronize(), 107027),
    "item": (lambda stream, x: x.sum().item(), 107030),
    "cpu": (lambda stream, x: x.cpu(), 107030),
    "a mask": (lambda stream, x: x[x > 0], 107030),
    "pageable memory": (lambda stream, x: x.copy_(torch.zeros(4), non_blocking=True), 107030),
    "torch.tensor": (lambda stream, x: torch.tensor([1.0], device="npu"), 107030),
    "synchronize of the device": (lambda stream, x: torch.npu.synchronize(), 107030),
    "the default stream": (
        lambda stream, x: torch.npu.default_stream().wait_stream(stream),
        107031,
    ),
    "an update on a capturing stream": (
        lambda stream, x: torch.npu.graph_task_update_begin(stream, one_task()),
        107027,
    ),
    "an op that cannot be updated": (lambda stream, x: in_group(stream, x), 207019),
}


def one_task() -> Any:
    """Return the handle of a task in some graph, captured on a stream that is not part of the caller's capture."""
    return TASKS[0]


TASKS: list[Any] = []


def in_group(stream: Any, x: torch.Tensor) -> None:
    torch.npu.graph_task_group_begin(stream)
    x.add_(1)


@pytest.mark.parametrize("name", RULES)
def test_what_a_capture_forbids(machine: Machine, name: str) -> None:
    body, code = RULES[name]
    x = torch.ones(4, device="npu")
    TASKS[:] = [a_task()]
    assert code_of(lambda stream: body(stream, x)) == code


def a_task() -> Any:
    graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.stream(stream):
        graph.capture_begin()
        torch.npu.graph_task_group_begin(stream)
        handle = torch.npu.graph_task_group_end(stream)
        graph.capture_end()
    return handle


def test_other_rules(machine: Machine) -> None:
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="never captured"):
        torch.npu.NPUGraph().replay()
    with pytest.raises(RuntimeError, match="without a successful capture"):
        torch.npu.NPUGraph().pool()
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        graph.capture_begin(capture_error_mode="strict")
    stream = torch.npu.Stream()
    with pytest.raises(SoftError) as raised:
        torch.npu.graph_task_group_begin(stream)
    assert raised.value.code == 107029
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        captured(lambda: torch.ones(2, device="npu"))[0].update(cpu_update_input=[{}])


def test_a_mask_with_one_value_is_no_host_wait(machine: Machine) -> None:
    x = torch.arange(4.0, device="npu")

    def body() -> None:
        x[x > 1] = 0.0

    graph, _ = captured(body)
    graph.replay()
    assert x.tolist() == [0, 1, 0, 0]


def test_a_capture_that_fails_leaves_its_stream_current_as_torch_npu_does(machine: Machine) -> None:
    before = torch.npu.current_stream()
    with pytest.raises(RuntimeError), torch.npu.graph(torch.npu.NPUGraph()):
        torch.ones(2, device="npu").sum().item()
    assert torch.npu.current_stream() != before


def test_reset_while_a_replay_runs_is_refused() -> None:
    with soft.installed() as machine:
        gate = torch.npu.ExternalEvent()

        def body() -> torch.Tensor:
            gate.wait()
            return torch.ones(2, device="npu")

        graph, _ = captured(body)
        graph.replay()
        with pytest.raises(SoftError) as raised:
            graph.reset()
        assert raised.value.code == 107037
        gate.record(torch.npu.Stream())
        assert "hang" not in [finding.kind for finding in machine.finish().findings]


def test_streams_run_out_with_ascends_code() -> None:
    with soft.installed(limits=Limits(streams=12, reserved_streams=4)):
        with pytest.raises(SoftError) as raised:
            _ = [torch.npu.Stream() for _ in range(20)]
        assert raised.value.code == 207008
    with soft.installed(limits=Limits(streams=12, reserved_streams=4)):
        x = torch.ones(2, device="npu")
        with pytest.raises(SoftError) as raised:
            _ = [captured(lambda: x * 2) for _ in range(20)]
        assert raised.value.code == 207005


def test_a_dropped_graph_gives_its_streams_back() -> None:
    with soft.installed(limits=Limits(streams=12, reserved_streams=4)):
        x = torch.ones(2, device="npu")
        for _ in range(20):
            captured(lambda: x * 2)[0].replay()
        torch.npu.synchronize()

"""Graphs that are dropped and captured again while requests decode; captures tried again; memory."""

from __future__ import annotations

import re

import pytest
import torch

from slipstream.engine.core import retry_captures, sleep, wake
from slipstream.engine.engine import Engine
from slipstream.errors import CaptureError
from slipstream.graph.modes import GraphMode
from slipstream.graph.reasons import Reason
from tests.engines import Fleet, answers, drain, greedy

TOKENS = 20


def step(engine: Engine, tokens: dict[int, list[int]], count: int) -> None:
    for _ in range(count):
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)


@pytest.mark.parametrize("mode", ["full", "piecewise", "full_and_piecewise"])
def test_sleep_and_wake_amid_requests_change_no_text(tiny: Fleet, mode: str) -> None:
    """The captures of waking run the phases: they must not write where requests have keys and values."""
    engine = tiny.engine(draft="nextn", graph=mode, buckets=(4,), check=True)
    prompts, tokens = tiny.prompts()[1:4], dict[int, list[int]]()
    for prompt in prompts:
        engine.add(prompt, greedy(TOKENS))
    graphs = engine.stats.graphs
    captured, captures = engine.core.runner.captured(), graphs.captures
    step(engine, tokens, 6)
    assert graphs.eager == 0
    sleep(engine.core)
    assert engine.core.runner.captured() == []
    assert engine.core.device.pool_bytes() == 0
    step(engine, tokens, 3)
    kinds = graphs.eager_kinds()
    assert kinds["verify", Reason.NOT_CAPTURED] == 3
    wake(engine.core)
    assert engine.core.runner.captured() == captured
    assert graphs.captures == 2 * captures
    for request, rest in drain(engine).items():
        tokens[request] += rest
    assert [tokens[i] for i in range(3)] == [tiny.plain("f32", prompt, TOKENS) for prompt in prompts]
    assert graphs.eager_kinds() == kinds


def test_time_in_kernels_is_kept_over_a_sleep(tiny: Fleet) -> None:
    engine = tiny.engine(draft="none", buckets=(1,), dtype="q4")
    answers(engine, tiny.prompts()[:1], greedy(8))
    before = engine.kernel_ns()
    sleep(engine.core)
    assert engine.kernel_ns() == before
    wake(engine.core)
    answers(engine, tiny.prompts()[:1], greedy(8))
    assert all(spent >= before[kernel] for kernel, spent in engine.kernel_ns().items())


def test_a_capture_that_failed_is_tried_again(tiny: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream.device.cpu import CpuGraph

    capture = CpuGraph.capture

    def refused(graph: CpuGraph, *args: object) -> object:
        if graph.name == "verify 4x1":
            raise CaptureError("Alloc sq cq fail, stream_id=1984, error code is 207005")
        return capture(graph, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CpuGraph, "capture", refused)
    engine = tiny.engine(draft="none", buckets=(4, 8))
    prompts = tiny.prompts()[1:4]
    expected = [tiny.plain("f32", prompt, 8) for prompt in prompts]
    assert answers(engine, prompts, greedy(8)) == expected
    [reason] = engine.stats.graphs.eager_reasons
    assert re.fullmatch(
        r"verify: capture failed: Alloc sq cq fail, .* \(stream resources: .* To mend it: capture fewer sizes.*\)",
        reason,
    )
    monkeypatch.undo()
    retry_captures(engine.core)
    engine.reset_stats()
    assert answers(engine, prompts, greedy(8)) == expected
    assert engine.stats.graphs.eager == 0


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_memory_of_each_graph_is_known(tiny: Fleet, kernels: str) -> None:
    engine = tiny.engine(draft="none", buckets=(1, 8), kernels=kernels)
    by_bucket = {key.num_reqs: record.memory_bytes for (_, key), record in engine.stats.graphs.graphs.items()}
    config = tiny.loaded().target.config
    # Logits, hidden rows and a token: what a verify returns, and nothing that lies in the shared arena.
    row = 4 * (config.vocab_size + config.hidden_size) + 8
    assert by_bucket[8] == 8 * row
    if kernels == "auto":
        assert by_bucket[1] == row
        assert engine.core.device.pool_bytes() > 0


def test_streams_of_a_graph_are_those_its_work_runs_on(tiny: Fleet) -> None:
    engine = tiny.engine(draft="nextn", buckets=(1,))
    assert {record.streams for record in engine.stats.graphs.graphs.values()} == {1}


class TestTheExtendSwitch:
    @pytest.mark.parametrize("mode", ["full", "piecewise"])
    @pytest.mark.parametrize("asked", ["on", "off", "auto"])
    def test_changes_no_text(self, tiny: Fleet, asked: str, mode: str) -> None:
        engine = tiny.engine(draft="nextn", buckets=(4,), graph=mode, extend_graph=asked, check=True)
        prompts = tiny.prompts()[1:4]
        assert answers(engine, prompts, greedy(8)) == [tiny.plain("f32", prompt, 8) for prompt in prompts]
        saving, kinds = engine.core.extend_saving, engine.stats.graphs.eager_kinds()
        assert saving is not None
        captured = {key.phase for _, key in engine.core.runner.captured()}
        assert ("extend" in captured) == saving.kept == (("extend", Reason.DISABLED) not in kinds)
        assert saving.kept == {"on": True, "off": False}.get(asked, saving.kept)
        if asked == "off":
            reason = "extend: the extend graphs are off (--extend-graph off)"
            assert set(engine.stats.graphs.eager_reasons) == {reason}
        elif asked == "on":
            assert (saving.shapes, saving.why) == ((), "the extend graphs are on (--extend-graph on)")
            assert min(saving.memory_bytes, saving.graphs) > 0
        else:
            [shape] = saving.shapes
            assert str(shape.shape) == "extend 4x4"
            assert min(shape.replay_ns, shape.eager_ns, saving.memory_bytes, saving.graphs) > 0

    def test_of_graphs_that_save_nothing_drops_them(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("slipstream.graph.runner.pays", lambda shapes: False)
        engine = tiny.engine(draft="nextn", buckets=(1, 4), extend_graph="auto")
        before = engine.core.runner.kernel_ns()
        assert all(spent >= 0 for spent in before.values())
        answers(engine, tiny.prompts()[1:2], greedy(8))
        [reason] = engine.stats.graphs.eager_reasons
        assert reason.startswith("extend: dropped: a replay saves nothing; 2 extend graphs hold 0.0")
        sleep(engine.core)
        wake(engine.core)
        assert "extend" not in {key.phase for _, key in engine.core.runner.captured()}


def test_whole_and_in_pieces_at_once_serve_one_engine(tiny: Fleet) -> None:
    engine = tiny.engine(draft="nextn", graph="full_and_piecewise", prefill_chunk=16)
    modes = {key.phase: mode for mode, key in engine.core.runner.captured()}
    assert modes == {
        "verify": GraphMode.FULL,
        "extend": GraphMode.FULL,
        "draft": GraphMode.FULL,
        "prefill": GraphMode.PIECEWISE,
    }
    assert torch.is_tensor(engine.core.buffers.view("prefill.ids", 16))

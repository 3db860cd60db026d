"""The engine with attention that takes lengths from the host, on the software NPU: the CPU's tokens, clean."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from slipstream.check.rounds import RoundCase, reference_tokens, run_round
from slipstream.config import EngineConfig, GraphConfig, SpecConfig
from slipstream.device.caps import Caps
from slipstream.device.npu import NpuGraph
from slipstream.device.soft.machine import Seeded
from slipstream.engine import core, drafting
from slipstream.engine.engine import Engine
from slipstream.errors import ReplayError, UsageError
from slipstream.graph.host_lists import HostLists
from slipstream.graph.runner import GraphRunner
from slipstream.graph.tasks import GraphTasks
from slipstream.plan import ModelShape, resolve
from tests.engines import verify_always
from tests.speculative.test_auto import AnyRound

THREE = RoundCase(prompts=(9, 4, 18), answers=(8, 4, 5), bucket=3, period=4, attention="fia", positions=128)

#: A context that goes from one page into the next while it is decoded, beside one that is behind that already.
TWO_PAGES = replace(THREE, prompts=(124, 131), answers=(9, 4), bucket=2, positions=256)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[GraphRunner]:
    """The runners of the engines that are built."""
    made: list[GraphRunner] = []

    class Kept(GraphRunner):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(core, "GraphRunner", Kept)
    return made


def check(case: RoundCase, order: int | None) -> None:
    run = run_round(None if order is None else Seeded(order), case)
    assert run.report.clean, str(run.report)
    assert run.tokens == reference_tokens(case)


slow = pytest.mark.slow

#: A seed's temperament is the rest of its division by five.
ORDERS = [None, 3, *(pytest.param(seed, marks=slow) for seed in range(4, 20))]


@pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
class TestTokens:
    @pytest.mark.parametrize("order", ORDERS)
    def test_are_those_of_the_cpu(
        self, draft: str, order: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(drafting, "choose_round", verify_always)
        monkeypatch.setattr(drafting, "TOO_DEAR", math.inf)
        check(replace(THREE, draft=draft), order)

    @slow
    @pytest.mark.parametrize("order", [None, 1, 3])
    def test_over_two_pages_and_in_the_other_order(self, draft: str, order: int | None) -> None:
        check(replace(TWO_PAGES, draft=draft, task_order="update_first"), order)


class TestOtherRoutes:
    @pytest.mark.parametrize("draft", ["none", pytest.param("nextn", marks=slow)])
    def test_eagerly(self, draft: str) -> None:
        check(replace(THREE, draft=draft, graph="none"), 2)

    def test_update_first(self) -> None:
        check(replace(THREE, task_order="update_first"), 2)

    def test_over_two_pages(self) -> None:
        check(TWO_PAGES, 1)

    def test_a_head_that_comes_and_goes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chooser = AnyRound(7)
        monkeypatch.setattr(drafting, "choose_round", chooser)
        monkeypatch.setattr(drafting, "TOO_DEAR", math.inf)
        monkeypatch.setattr(drafting.Drafting, "decide_heads", chooser.heads)
        check(replace(THREE, draft="auto"), 1)
        assert {choice.head for choice, _ in chooser.chosen} == {True, False}

    def test_a_phase_that_cannot_be_captured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It runs eagerly from then on, with the host's lengths, beside the graphs of the others."""

        def refuses(graph: NpuGraph, issue: Any, stream: Any) -> Any:
            if graph.name.startswith("draft"):
                raise RuntimeError("207008")
            return task(graph, issue, stream)

        task = NpuGraph.task
        monkeypatch.setattr(NpuGraph, "task", refuses)
        check(replace(THREE, num_steps=3), None)

    def test_in_checking_mode(self) -> None:
        check(replace(THREE, check=True), 1)


@slow
@pytest.mark.parametrize("order", [None, *range(10)])
def test_the_engine_s_rounds_need_no_wait_before_a_refresh(
    order: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has read the tokens of the round before. docs/check.md says so; graphs further ahead do need it."""
    monkeypatch.setattr(GraphTasks, "_wait_for_last_replay", lambda tasks: None)
    check(THREE, order)


class TestTasks:
    def test_of_each_phase(self, runners: list[GraphRunner]) -> None:
        """The draft graph holds a forward less than there are steps: candidate 1 comes from the round before."""
        check(replace(THREE, num_steps=4), None)
        runner = runners[0]  # the other one is that of the CPU's tokens
        assert {str(key): tasks.names for key, tasks in runner.tasks.items()} == {
            "verify 3x5": ["layer 0"],
            "extend 3x5": ["layer 0"],
            "draft 3x4": ["step 0 layer 0", "step 1 layer 0", "step 2 layer 0"],
        }
        for tasks in runner.tasks.values():
            assert tasks.stats.refreshes == tasks.replays > 3

    def test_paged_attention_has_none(self, runners: list[GraphRunner]) -> None:
        check(replace(THREE, attention="paged"), None)
        runner = runners[0]  # the other one is that of the CPU's tokens
        assert runner.tasks == {}


class TestWrongLengths:
    def test_the_host_s_lengths_are_held_against_the_device_s_when_checking(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An optimistic length, which elsewhere costs acceptance and nothing else."""

        def one_more(engine: Engine, requests: Any) -> None:
            for request in requests:
                request.committed += 1
            try:
                write(engine, requests)
            finally:
                for request in requests:
                    request.committed -= 1

        write = Engine._write_lengths
        monkeypatch.setattr(Engine, "_write_lengths", one_more)
        with pytest.raises(
            ReplayError, match=r"request 0 has 9 tokens in the cache, and the host takes it for 10"
        ):
            run_round(None, replace(THREE, check=True))

    def test_lengths_that_nobody_writes_are_found_in_any_mode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HostLists, "write", lambda lists, name, values: None)
        with pytest.raises(
            ReplayError, match=r"graph 'verify 3x1': no host list was written since its last replay"
        ):
            run_round(None, replace(THREE, draft="none"))


class TestPlan:
    CAPS = Caps("npu", ("f32", "bf16"), ("full", "none"), True, (), 1, attentions=("paged", "fia"))
    SHAPE = ModelShape("tiny", 512, False, 64)

    def plan(self, caps: Caps = CAPS, **options: Any) -> Any:
        return resolve(EngineConfig(device=caps.device, spec=SpecConfig("none"), **options), caps, self.SHAPE)

    def test_auto_keeps_lengths_on_the_device(self) -> None:
        plan = self.plan()
        assert (plan.attention, plan.kv_dtype) == ("paged", "f32")
        [decision] = [decision for decision in plan.decisions if decision.what == "attention"]
        assert "replays need no updates" in decision.why

    @pytest.mark.parametrize(
        ("asked", "got"),
        [
            ("full", "full"),
            ("full_decode_only", "full_decode_only"),
            ("full_and_piecewise", "full_decode_only"),
            ("piecewise", "none"),
        ],
    )
    def test_fia_stands_between_no_pieces(self, asked: str, got: str) -> None:
        plan = self.plan(attention="fia", page_size=128, graph=GraphConfig(asked))
        assert plan.graph_mode.value == got
        [decision] = [decision for decision in plan.decisions if decision.what == "graph"]
        assert ("cannot be split at attention" in decision.why) == (asked != got)

    def test_fia_reads_float16_and_large_pages(self) -> None:
        plan = self.plan(attention="fia", page_size=128)
        assert (plan.attention, plan.kv_dtype, plan.task_order) == ("fia", "f16", "replay_first")
        assert (plan.page_size, plan.pages_per_request) == (128, 5)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"attention": "fia"},
                r"page-size 16 is not possible with attention fia; use one of 128,256,384,512",
            ),
            (
                {"attention": "fia", "page_size": 128, "kv_dtype": "f32"},
                r"kv-dtype f32 is not possible .* f16",
            ),
            ({"attention": "fya"}, r"unknown attention 'fya'. Did you mean 'fia'\?"),
            (
                {"graph": GraphConfig(task_order="update")},
                r"unknown task order 'update'. Did you mean 'update_first'\?",
            ),
            ({"page_size": 128}, r"page-size 128 is not possible; use one of 1,2,4"),
        ],
    )
    def test_what_is_not_possible(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            self.plan(**options)

    def test_a_device_without_it(self) -> None:
        caps = Caps("cpu", ("f32",), ("full", "none"), False, (), 1)
        with pytest.raises(
            UsageError, match=r"attention 'fia' is not possible: device 'cpu' has paged.*--device npu"
        ):
            self.plan(caps, attention="fia", page_size=128)

"""The runner: captures what it can, falls back with a reason, counts everything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from slipstream.device.registry import open_device
from slipstream.errors import ReplayError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.runner import GraphRunner
from slipstream.graph.stats import GraphStats
from slipstream.speculative import phases
from slipstream.trace import Recorder, Slice
from tests.engines import Fleet, answers, greedy, verify_always


class Small:
    """A runner of one phase, "verify", that adds 1 to the first rows of a buffer."""

    def __init__(self, mode: GraphMode = GraphMode.FULL, **options: Any) -> None:
        self.buffer = torch.zeros(8)
        self.calls: list[BatchDescriptor] = []
        self.observed: list[BatchDescriptor] = []
        device = open_device("cpu")
        self.main = device.stream("main")
        self.runner = GraphRunner(
            device,
            Dispatcher(mode, (1, 4)),
            {"verify": self.phase},
            observe=lambda key, time_ns: self.observed.append(key),
            **options,
        )

    def phase(self, key: BatchDescriptor) -> torch.Tensor:
        self.calls.append(key)
        return self.buffer[: key.rows] + 1

    def run(self, num_requests: int, width: int = 1) -> Any:
        dispatch = self.runner.dispatcher.dispatch("verify", num_requests, width)
        return self.runner.run(dispatch, num_requests, self.main)


class TestCapture:
    def test_every_bucket_and_width_is_warmed_up_then_captured_largest_first(self) -> None:
        small = Small()
        small.runner.capture({"verify": (2, 1)}, small.main)
        shapes = [BatchDescriptor("verify", b, w) for b, w in ((4, 2), (4, 1), (1, 2), (1, 1))]
        assert small.calls == [shape for shape in shapes for _ in range(2)]
        assert set(small.runner.graphs) == set(shapes)
        assert small.observed == shapes
        assert small.runner.stats.captures == 4
        assert small.runner.stats.capture_ns > 0

    def test_mode_none_captures_nothing(self) -> None:
        small = Small(GraphMode.NONE)
        small.runner.capture({"verify": (1,)}, small.main)
        assert (small.runner.graphs, small.calls) == ({}, [])

    def test_captures_are_no_runs(self) -> None:
        small = Small()
        small.runner.capture({"verify": (1,)}, small.main)
        assert (small.runner.stats.replays, small.runner.stats.eager) == (0, 0)


class TestRun:
    def test_a_replay_does_not_call_the_function(self) -> None:
        small = Small()
        small.runner.capture({"verify": (1,)}, small.main)
        small.calls.clear()
        small.buffer.copy_(torch.arange(8.0))
        assert small.run(3).tolist() == [1, 2, 3, 4]
        assert small.calls == []

    def test_an_eager_run_has_no_padding_and_says_why(self) -> None:
        small = Small()
        small.runner.capture({"verify": (1,)}, small.main)
        assert small.run(5).shape == (5,)
        assert small.runner.stats.eager_reasons == {"verify: 5 requests exceed the largest bucket 4": 1}

    def test_every_run_is_counted_and_traced(self) -> None:
        recorder = Recorder()
        small = Small(recorder=recorder)
        small.runner.capture({"verify": (2,)}, small.main)
        for num_requests in (3, 3, 1, 5):
            small.run(num_requests, 2)
        phases = small.runner.stats.phases
        assert {
            key: (p.replays, p.eager, p.requests, p.rows, p.padded_rows) for key, p in phases.items()
        } == {
            ("verify", 4, 2): (2, 0, 6, 16, 4),
            ("verify", 1, 2): (1, 0, 1, 2, 0),
            ("verify", 5, 2): (0, 1, 5, 10, 0),
        }
        slices = [event for event in recorder.events() if isinstance(event, Slice)]
        events = [event for event in slices if event.track == "main"]
        assert [e.name for e in slices if e not in events] == ["record"] * 4
        assert [(e.track, e.name, e.args["route"], e.args["padded_rows"]) for e in events] == [
            ("main", "verify", "replay", 2),
            ("main", "verify", "replay", 2),
            ("main", "verify", "replay", 0),
            ("main", "verify", "eager", 0),
        ]
        assert sum(event.dur_ns for event in events) == small.runner.stats.phase_ns

    @pytest.mark.parametrize("check", [False, True])
    def test_a_moved_buffer_is_found_at_the_first_replay_and_when_checking_at_every_one(
        self, check: bool
    ) -> None:
        small = Small(check=check)
        small.runner.capture({"verify": (1,)}, small.main)
        small.run(4)
        small.buffer.data = torch.zeros(8)
        if check:
            with pytest.raises(ReplayError, match=r"'verify 4x1'.*moved"):
                small.run(4)
        else:
            small.run(4)
        with pytest.raises(ReplayError, match=r"'verify 1x1'.*moved"):
            small.run(1)


class TestAFailedCapture:
    @staticmethod
    def reading(make: Callable[..., Any]) -> Callable[..., Any]:
        """The phase, with a host read that no graph can hold."""

        def made(*args: Any) -> Any:
            function = make(*args)

            def reads(key: BatchDescriptor) -> Any:
                result = function(key)
                first = result if isinstance(result, torch.Tensor) else result[0]
                assert first.sum().item() >= 0
                return result

            return reads

        return made

    @pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
    def test_leaves_that_phase_eager_with_the_reason_and_the_text_right(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch, phase: str
    ) -> None:
        """Padding included: its bucket has to match the phases that are replayed."""
        name = f"{phase}_phase"
        monkeypatch.setattr(f"slipstream.engine.core.{name}", self.reading(getattr(phases, name)))
        engine = tiny.engine(draft="nextn", buckets=(4,), check=True)
        prompts = tiny.prompts()[:3]
        assert answers(engine, prompts, greedy(16)) == [tiny.plain("f32", p, 16) for p in prompts]
        routes = {
            name: (counts.replays > 0, counts.eager > 0)
            for (name, _, _), counts in engine.stats.graphs.phases.items()
        }
        expected = dict.fromkeys(("draft", "verify", "extend"), (True, False)) | {phase: (False, True)}
        assert routes == expected
        [reason] = engine.stats.graphs.eager_reasons
        assert reason.startswith(f"{phase}: capture failed: graph '{phase} 4x")
        assert "reads a device value on the host" in reason

    def test_of_one_width_leaves_the_other_captured(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = phases.verify_phase

        def wide_reads(*args: Any) -> Any:
            plain, reading = whole(*args), self.reading(whole)(*args)
            return lambda key: (reading if key.width > 1 else plain)(key)

        monkeypatch.setattr("slipstream.engine.core.verify_phase", wide_reads)
        monkeypatch.setattr("slipstream.engine.drafting.choose_round", verify_always)
        monkeypatch.setattr("slipstream.engine.drafting.TOO_DEAR", math.inf)  # whatever rows cost here
        engine = tiny.engine(draft="ngram", buckets=(1,))
        prompt = tiny.prompts()[3]
        assert answers(engine, [prompt], greedy(16)) == [tiny.plain("f32", prompt, 16)]
        found = {key[2]: (p.replays > 0, p.eager > 0) for key, p in engine.stats.graphs.phases.items()}
        assert found == {4: (False, True), 1: (True, False)}


class TestStats:
    def test_reset_forgets_the_runs_and_keeps_the_captures(self) -> None:
        small = Small()
        small.runner.capture({"verify": (1,)}, small.main)
        small.run(4)
        small.run(5)
        stats = small.runner.stats
        assert (stats.replays, stats.eager, stats.padded_rows) == (1, 1, 0)
        assert stats.phase_ns > 0
        stats.reset()
        assert (stats.replays, stats.eager, stats.phase_ns, dict(stats.eager_reasons)) == (0, 0, 0, {})
        assert stats.captures == 2

    def test_reasons_are_counted_by_phase(self) -> None:
        stats = GraphStats()
        dispatcher = Dispatcher(GraphMode.NONE, ())
        for phase in ("draft", "verify", "verify"):
            dispatch = dispatcher.dispatch(phase, 2, 1)
            assert dispatch.route is Route.EAGER
            stats.count(dispatch, 5)
        reason = "graphs are off (--graph none)"
        assert stats.eager_reasons == {f"draft: {reason}": 1, f"verify: {reason}": 2}
        assert stats.phase_ns == 15

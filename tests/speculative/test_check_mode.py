"""Checking mode finds a plan that forgets to write: the poison left in its place is never silently used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.errors import DeviceError, PlanAccessError
from slipstream.graph.buffers import PlanBuffers
from slipstream.speculative.planning import PlanFunction
from slipstream.speculative.plans import buffer_specs
from tests.engines import Fleet, answers, greedy

PLANNED = [spec.name for spec in buffer_specs(1, 3, 1, 1) if not spec.uploaded]


def forget(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    write, out = PlanBuffers.write, PlanBuffers.out

    def forgets(self: PlanBuffers, name: str, value: torch.Tensor) -> None:
        if name != forgotten:
            write(self, name, value)

    def elsewhere(self: PlanBuffers, name: str, rows: int) -> torch.Tensor:
        buffer = out(self, name, rows)
        return buffer.clone() if name == forgotten else buffer

    monkeypatch.setattr(PlanBuffers, "write", forgets)
    monkeypatch.setattr(PlanBuffers, "out", elsewhere)


@pytest.mark.parametrize("forgotten", PLANNED)
def test_a_forgotten_buffer_is_named(tiny: Fleet, monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    engine = tiny.engine(draft="nextn", check=True, buckets=(4,))
    forget(monkeypatch, forgotten)
    with pytest.raises(
        PlanAccessError, match=rf"plan '.*_plan.*' declares that it writes {forgotten}, and did not"
    ):
        answers(engine, tiny.prompts()[:3], greedy(8))


@pytest.mark.parametrize("graph", ["full", "none"])
@pytest.mark.parametrize("forgotten", ["verify.ids", "verify.positions", "verify.slots", "extend.rows"])
@pytest.mark.parametrize("dtype", ["f32", "q4"])
def test_a_kernel_that_meets_poison_stops(
    tiny: Fleet, monkeypatch: pytest.MonkeyPatch, dtype: str, forgotten: str, graph: str
) -> None:
    """The line behind the first: no kernel reads or writes memory at such an index."""
    engine = tiny.engine(dtype=dtype, draft="nextn", check=True, graph=graph, buckets=(4,))
    forget(monkeypatch, forgotten)
    monkeypatch.setattr(PlanFunction, "_check_written", lambda *_: None)
    with pytest.raises((DeviceError, IndexError, RuntimeError)):
        answers(engine, tiny.prompts()[:3], greedy(8))


@pytest.mark.parametrize("check", [True, False])
def test_checking_changes_no_text(tiny: Fleet, check: bool) -> None:
    prompts: list[Any] = tiny.prompts()[:3]
    engine = tiny.engine(draft="nextn", check=check)
    assert answers(engine, prompts, greedy(16)) == [tiny.plain("f32", p, 16) for p in prompts]

"""Our round, broken in ways that its streams could be: by changing the round's calls, not its code.

Each is a context; inside it every round is broken. `Last` is the order that shows what such a round does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from slipstream.device.api import Stream
from slipstream.device.soft.machine import Scheduler
from slipstream.device.soft.machine.engine import Engine
from slipstream.engine import engine as engine_module
from slipstream.graph.buffers import StepBuffers
from slipstream.graph.dispatch import Dispatch
from slipstream.graph.runner import GraphRunner
from slipstream.speculative import plans
from slipstream.speculative import round as round_module
from slipstream.speculative.round import Batch, RoundParts, RoundResult, run_round
from slipstream.speculative.state import RoundState


class Last(Scheduler):
    """The host as far ahead as it can be, and one stream run only when no other can.

    Args:
        name: of the stream.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def after_call(self, engine: Engine) -> None:
        """Run nothing: the host goes on."""

    def while_blocked(self, engine: Engine) -> None:
        """Run the next command of another stream, or of this one."""
        engine.run(min(engine.ready, key=lambda actor: (actor.name == self._name, actor.queue[0].index)))


Wait = Callable[[RoundParts, Stream, Stream, str], None]

_wait: Wait = round_module._wait


def _without(left_out: str) -> Wait:
    def wait(parts: RoundParts, waiter: Stream, other: Stream, what: str) -> None:
        if what != left_out:
            _wait(parts, waiter, other, what)

    return wait


class _ForkBefore:
    """A runner that lets the plan stream wait for the main one before a phase, instead of after it."""

    def __init__(self, runner: GraphRunner, phase: str, parts: RoundParts) -> None:
        self._runner, self._phase, self._parts = runner, phase, parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, dispatch: Dispatch, num_requests: int, stream: Stream) -> Any:
        if dispatch.key.phase == self._phase:
            self._parts.plan.wait_stream(self._parts.main)
        return self._runner.run(dispatch, num_requests, stream)


def _plan_forks_before(phase: str) -> Callable[[RoundParts, RoundState, Batch], RoundResult]:
    def broken(parts: RoundParts, state: RoundState, batch: Batch) -> RoundResult:
        runner: Any = _ForkBefore(parts.runner, phase, parts)
        return run_round(replace(parts, runner=runner), state, batch)

    return broken


@contextmanager
def verify_plan_before_draft() -> Iterator[None]:
    """The verify plan waits for what came before the draft, not for the draft: SGLang before 0.5.20."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_module, "_wait", _without("draft"))
        patch.setattr(engine_module, "run_round", _plan_forks_before("draft"))
        yield


@contextmanager
def verify_before_plan() -> Iterator[None]:
    """The main stream verifies without waiting for the verify plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_module, "_wait", _without("verify plan"))
        yield


@contextmanager
def extend_plan_b_before_accept() -> Iterator[None]:
    """Part B of the extend plan waits for what part A does, not for accept: SGLang 0.5.16 to 0.5.21."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_module, "_wait", _without("accept"))
        yield


@contextmanager
def padded_rows_reset_late() -> Iterator[None]:
    """The verify plan writes the real requests' rows only; those of the padding are reset after the join.

    What a larger batch left there names the pages of a request that is gone, and another has them now.
    """
    batches: list[Batch] = []

    def noting(parts: RoundParts, state: RoundState, batch: Batch) -> RoundResult:
        batches[:] = [batch]
        return run_round(parts, state, batch)

    def real_rows(
        buffers: StepBuffers, state: RoundState, bucket: int, page_size: int, drafts_BS: torch.Tensor
    ) -> None:
        count = batches[0].num_requests
        verify_plan(buffers, state, count, page_size, drafts_BS[:count])

    def wait(parts: RoundParts, waiter: Stream, other: Stream, what: str) -> None:
        _wait(parts, waiter, other, what)
        if what == "verify plan":
            with parts.plan:
                for name in ("verify.ids", "verify.positions", "verify.slots"):
                    rows = parts.buffers.view(name, parts.buffers.rows(name))
                    rows[batches[0].num_requests * batches[0].width :].zero_()

    verify_plan = plans.verify_plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "run_round", noting)
        patch.setattr(plans, "verify_plan", real_rows)
        patch.setattr(round_module, "_wait", wait)
        yield


@contextmanager
def mirrors_written_early() -> Iterator[None]:
    """The host writes its mirrors for the next round before it has waited for this one."""

    def broken(parts: RoundParts, state: RoundState, batch: Batch) -> RoundResult:
        result = run_round(parts, state, batch)
        parts.buffers.host["slots"].numpy()[:] = 0
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "run_round", broken)
        yield

"""One round of speculative decoding. Read this file first.

    main   [draft graph: num_steps-1 NextN forwards] .. [verify graph] [accept, commit] .. [extend graph]
    plan                                  [verify plan]          [extend plan A]  [extend plan B]
                                          after draft             independent      after accept

Every fork and join is a statement below, in the order of the drawing. What crosses rounds is one frozen
`RoundState`; a round keeps nothing else. Candidate 1 comes from the previous extend (or from prefill), so the
draft graph holds num_steps - 1 forwards.

Where the head does not draft, the drafts are the host's (`speculative.ngram`), or there are none; then there is no
draft graph and no extend, and verify with width 1 is plain decoding. A head that skipped such rounds is brought up
to date before it drafts again (`engine.catch_up`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from slipstream.device.api import Stream
from slipstream.graph.buffers import StepBuffers
from slipstream.graph.runner import GraphRunner
from slipstream.speculative import plans
from slipstream.speculative.accept import Accepted, accept_greedy
from slipstream.speculative.phases import Verified
from slipstream.speculative.planning import PlanFunction
from slipstream.speculative.state import RoundState
from slipstream.trace import Recorder, names


@dataclass(frozen=True, slots=True)
class RoundParts:
    """What all rounds of an engine share.

    Attributes:
        main, plan: the two streams.
        draft_plans: the head's draft plan for each number of drafts; none where there is no head.
        page_size: slots a KV page.
    """

    main: Stream
    plan: Stream
    runner: GraphRunner
    buffers: StepBuffers
    recorder: Recorder
    draft_plans: Mapping[int, PlanFunction]
    page_size: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one round, whose slots, pages and host drafts are in the buffers' host mirrors.

    Attributes:
        num_requests: real ones; rows behind them are padding.
        width: rows a request; 1 where nobody drafts.
        head: whether the head drafts.
        extend: whether the head sees what the round accepts; always where it drafts.
        mixed: whether requests marked `from_host` take the host's drafts in a round of the head's.
        choose: picks tokens for requests that sample, (logits [B x width, V], argmax [B, width]) -> [B, width];
            None where all are greedy.
    """

    num_requests: int
    width: int
    head: bool = False
    extend: bool = False
    mixed: bool = False
    choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round leaves: the next state, and what it settled, still on the device.

    Attributes:
        main: the stream that settles it.
        hidden_RH: the target's hidden rows before the final norm, float32 [bucket x width, H]; the next round
            writes over them.
        sure_B: float32, how sure the head is of the next round's first draft: its share of the softmax. None
            where it did not extend. Valid as long.
    """

    main: Stream
    state: RoundState
    accepted: Accepted
    num_requests: int
    hidden_RH: torch.Tensor
    sure_B: torch.Tensor | None = None

    def settle(self) -> list[list[int]]:
        """Return each request's new tokens: the one point where the host waits for the round."""
        with self.main:
            advanced, tokens = self.accepted.advanced_B.tolist(), self.accepted.tokens_BW.tolist()
        return [row[:count] for row, count in zip(tokens[: self.num_requests], advanced, strict=False)]


@torch.inference_mode()
def run_round(parts: RoundParts, state: RoundState, batch: Batch) -> RoundResult:
    """Draft, verify, accept, extend for one batch, and return the next state."""
    main, plan, runner, buffers = parts.main, parts.plan, parts.runner, parts.buffers
    num_requests, width = batch.num_requests, batch.width
    verify_as = runner.dispatcher.dispatch("verify", num_requests, width)
    bucket = verify_as.bucket
    shape = (buffers, state, bucket, parts.page_size)
    slots_B = buffers.view("slots", num_requests)

    with main:
        with parts.recorder.slice(names.HOST, names.UPLOAD):
            buffers.upload()
        drafts_BS = buffers.view("drafts", bucket)[:, : width - 1]
        if batch.head:
            with parts.recorder.slice(names.HOST, names.DRAFT_PLAN):
                parts.draft_plans[width - 1](*shape)
            draft_as = runner.dispatcher.dispatch("draft", num_requests, width - 1)
            candidates_BS = runner.run(draft_as, num_requests, main)
            from_host_B1 = buffers.view("from_host", bucket)[:, None] == 1 if batch.mixed else None
            drafts_BS = (
                candidates_BS if from_host_B1 is None else drafts_BS.where(from_host_B1, candidates_BS)
            )
        if batch.choose is not None:  # a request that samples verifies no draft
            drafts_BS = drafts_BS.masked_fill(buffers.view("greedy", bucket)[:, None] == 0, -1)

    _wait(parts, plan, main, "draft")
    with plan, parts.recorder.slice(names.PLAN, names.VERIFY_PLAN):
        plans.verify_plan(*shape, drafts_BS)
    _wait(parts, main, plan, "verify plan")

    if batch.extend:
        with plan, parts.recorder.slice(names.PLAN, names.EXTEND_PLAN_A):
            plans.extend_plan_a(*shape, width)

    verified = Verified(*runner.run(verify_as, num_requests, main))
    with main, parts.recorder.slice(names.MAIN, names.ACCEPT):
        target_BW = verified.tokens_R.view(bucket, width)
        if batch.choose is not None:
            target_BW = batch.choose(verified.logits_RV, target_BW)
        accepted, committed = accept_greedy(state, slots_B, drafts_BS, target_BW)

    if not batch.extend:
        return RoundResult(main, committed, accepted, num_requests, verified.hidden_RH)

    _wait(parts, plan, main, "accept")
    with plan, parts.recorder.slice(names.PLAN, names.EXTEND_PLAN_B):
        plans.extend_plan_b(*shape, accepted, verified.hidden_RH)
    _wait(parts, main, plan, "extend plan")

    extend_as = runner.dispatcher.dispatch("extend", num_requests, width)
    candidate_B, hidden_BH, sure_B = runner.run(extend_as, num_requests, main)
    with main, parts.recorder.slice(names.HOST, names.SETTLE):
        next_state = committed.put_drafts(slots_B, candidate_B[:num_requests], hidden_BH[:num_requests])
    return RoundResult(main, next_state, accepted, num_requests, verified.hidden_RH, sure_B)


def _wait(parts: RoundParts, waiter: Stream, other: Stream, what: str) -> None:
    """Let `waiter` wait for what `other` was given so far; an arrow in the trace."""
    waiter.wait_stream(other)
    if parts.recorder.enabled:
        now = time.perf_counter_ns()
        parts.recorder.flow(f"{waiter.name} waits for {what}", other.name, now, waiter.name, now)

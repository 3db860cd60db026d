"""The engine's loop: `add` requests, `step` until nothing is left.

A step: admit who fits, compute one prefill chunk, run one round for all that decode, publish their tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slipstream import ops
from slipstream.config import SamplingParams
from slipstream.engine.core import (
    ChunkRows,
    EngineCore,
    chunk_attention,
    chunk_rows,
    prefill_dispatch,
    prefill_rows,
    use_kernels,
)
from slipstream.engine.drafting import Drafting, Drafts
from slipstream.engine.request import Phase, Request, TextStream
from slipstream.engine.sampling import request_generator, sample
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.stats import EngineStats
from slipstream.errors import ReplayError
from slipstream.graph.host_lists import COMMITTED
from slipstream.graph.runner import trace_args
from slipstream.plan_checks import check_sampling
from slipstream.speculative.keeper import Stance
from slipstream.speculative.lag import HeadLag
from slipstream.speculative.round import Batch, RoundResult, run_round
from slipstream.speculative.state import RoundState
from slipstream.trace import Slice, names

#: Is handed the target's hidden rows as they come: (request id, position of the first row, rows). The rows,
#: float32 [R, H] before the final norm, stand at consecutive positions whose tokens are settled, and are only good
#: until it returns. After a preemption positions come again, with the same rows.
HiddenObserver = Callable[[int, int, torch.Tensor], None]

#: Why a catch-up does: so do its.
CATCH_UP_REASON = "a catch-up is not captured"

#: Of the rows that a head catches up with, this many are held against the text, to know what its drafts are worth
#: without trying them: the LM head is most of a row's cost.
SCORED_ROWS = 8

_CATCH_UP_ARGS: dict[str, int | float | str] = {"route": "eager", "reason": CATCH_UP_REASON, "requests": 1}


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step gave one request.

    Attributes:
        request_id: whose.
        token_ids: new tokens, the ending one included.
        text: new text.
        finish_reason: "stop", "length" or "abort" where the request ended, else None.
    """

    request_id: int
    token_ids: list[int]
    text: str
    finish_reason: str | None


class Engine:
    """Serves requests on one core.

    Args:
        core: model, cache, graphs.
        eos_ids: tokens that end an answer.
        text_stream: makes a request's detokeniser.

    Attributes:
        observer: is handed hidden rows, or None.
    """

    def __init__(
        self, core: EngineCore, eos_ids: frozenset[int], text_stream: Callable[[], TextStream]
    ) -> None:
        plan = core.plan
        self.core = core
        self.observer: HiddenObserver | None = None
        self.stats = EngineStats(core.runner.stats)
        self.scheduler = Scheduler(
            plan.max_requests, plan.max_model_len, plan.num_pages, plan.page_size, plan.width
        )
        self._eos_ids = eos_ids
        self._text_stream = text_stream
        hidden_size = core.target.config.hidden_size
        with core.main:
            self._state = RoundState.empty(plan.max_requests, hidden_size, core.device.torch_device)
        # Rows of the mirrors that an earlier batch wrote: all of them before the first.
        self._filled_rows = core.buffers.rows("slots")
        self._mirrors = {name: mirror.numpy() for name, mirror in core.buffers.host.items()}
        self._kernels_before = core.runner.kernel_ns()
        self._next_id = 0
        self._requests: dict[int, Request] = {}
        self._drafting = Drafting(plan, core.runner.dispatcher, core.costs, head=core.head is not None)
        # Only where rounds may do without the head does it fall behind.
        self._lag: HeadLag | None = None
        if core.head is not None and plan.draft == "auto":
            self._lag = HeadLag(plan.max_requests)
        self._generators: dict[int, torch.Generator] = {}

    def add(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> int:
        """Queue a request and return its id.

        Raises:
            UsageError: a sampling parameter is not possible.
            RequestError: the request can never be served; nothing was queued.
        """
        check_sampling(sampling)
        ids = list(prompt_ids)
        self.scheduler.check(ids, sampling)
        request = Request(self._next_id, ids, sampling, self._text_stream())
        self._next_id += 1
        self._requests[request.request_id] = request
        if sampling.temperature > 0:
            self._generators[request.request_id] = request_generator(self.core.plan.seed, request.request_id)
        else:
            self._drafting.join(request)
        self.scheduler.add(request)
        return request.request_id

    def abort(self, request_id: int) -> StepOutput | None:
        """Give up a request; return its last text, or None if it is not there any more."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        text = request.abort()
        self._forget(request)
        return StepOutput(request_id, [], text, request.finish_reason)

    def kernel_ns(self) -> dict[str, int]:
        """Return the time inside replays by kernel since the last reset, in nanoseconds."""
        now = self.core.runner.kernel_ns()
        spent = {kernel: time_ns - self._kernels_before.get(kernel, 0) for kernel, time_ns in now.items()}
        return {kernel: time_ns for kernel, time_ns in spent.items() if time_ns}

    def reset_stats(self) -> None:
        """Begin to count anew."""
        self.stats.reset()
        self._kernels_before = self.core.runner.kernel_ns()

    @property
    def busy(self) -> bool:
        """Whether any request is left."""
        return self.scheduler.busy

    def step(self) -> list[StepOutput]:
        """Run one step and return what it gave."""
        use_kernels(self.core.plan)
        with self.core.main:  # whatever the host reads or writes on the device, in this stream's order
            return self._step()

    def _step(self) -> list[StepOutput]:
        outputs: list[StepOutput] = []
        self.scheduler.admit()
        request = self.scheduler.next_prefill()
        if request is not None:
            outputs += self._prefill(request)
        started = time.perf_counter_ns()
        with self.core.recorder.slice(names.HOST, names.SCHEDULE):
            requests = self.scheduler.next_round()
        if requests:
            outputs += self._round(requests, started)
        return outputs

    def _prefill(self, request: Request) -> list[StepOutput]:
        """Compute one chunk of a prompt; behind the last chunk stands the first token."""
        started = time.perf_counter_ns()
        core, ids = self.core, request.prefill_ids
        pages = request.pages.pages if request.pages else []
        start, end = request.computed, min(request.computed + core.plan.prefill_chunk, len(ids))
        rows = chunk_rows(core, end - start, start, pages)
        if start == 0:
            self._start_head(request)
        hidden_RH = prefill_rows(core, ids[start:end], start, rows)
        if self.observer is not None:
            self.observer(request.request_id, start, hidden_RH)
        request.computed = end
        last = end == len(ids)
        outputs: list[StepOutput] = []
        token = -1
        if last:
            fresh = not request.output_ids
            token = self._first_token(request, hidden_RH) if fresh else request.output_ids[-1]
            self._start_rounds(request, token)
            if fresh:
                outputs = [self._publish(request, [token])]
        if (
            core.head is not None
            and request.phase is not Phase.FINISHED
            and self._behind(request) is not None
        ):
            self._prefill_head(request, hidden_RH, ids[start + 1 : end + 1] + [token] * last, rows)
        ended = time.perf_counter_ns()
        self.stats.prompt_tokens += end - start
        self.stats.prefill_ns += ended - started
        if core.recorder.enabled:
            args = trace_args(prefill_dispatch(core, end - start))
            core.recorder.add(Slice(names.MAIN, names.PREFILL, started, ended - started, args))
        return outputs

    @torch.inference_mode()
    def _first_token(self, request: Request, hidden_RH: torch.Tensor) -> int:
        logits_V = self.core.target.logits(hidden_RH[-1:])[0]
        generator = self._generators.get(request.request_id)
        return int(logits_V.argmax()) if generator is None else sample(logits_V, request.sampling, generator)

    @torch.inference_mode()
    def _start_rounds(self, request: Request, token: int) -> None:
        request.phase = Phase.DECODE
        request.committed = request.computed
        place = self.core.device.torch_device
        slot_B, length_B, bonus_B = torch.tensor(
            [[request.slot], [request.committed], [token]], device=place
        ).unbind()
        self._state = self._state.put(slot_B, lengths_M=length_B, bonus_M=bonus_B)

    def _start_head(self, request: Request) -> None:
        """Decide, before the first chunk of a prompt, whether the head is to follow this request."""
        if self._lag is None:
            return
        greedy = request.request_id not in self._generators
        if greedy and self._drafting.follows(request.request_id, len(self.scheduler.running)):
            self._lag.clear(request.slot)
        else:
            self._lag.lose(request.slot)

    @torch.inference_mode()
    def _prefill_head(
        self, request: Request, hidden_RH: torch.Tensor, next_ids: list[int], rows: ChunkRows
    ) -> None:
        """Give the head the same positions: the token after each, and the target's hidden row there."""
        core = self.core
        if core.head is None or core.draft_cache is None:
            return
        place = core.device.torch_device
        head_RH = core.head.forward(
            torch.tensor(next_ids, device=place),
            hidden_RH,
            *rows,
            core.draft_cache,
            chunk_attention(core, request.computed),
        )
        if request.phase is Phase.DECODE:
            last_BH = head_RH[-1:]
            logits_BN = core.head.logits(last_BH)
            candidate_B = core.head.tokens(logits_BN)
            self._drafting.note_confidence(request.request_id, ops.top_share(logits_BN).item())
            slot_B = torch.tensor([request.slot], device=place)
            self._state = self._state.put_drafts(slot_B, candidate_B, last_BH)

    def _round(self, requests: list[Request], started: int) -> list[StepOutput]:
        core, recorder = self.core, self.core.recorder
        with recorder.slice(names.HOST, names.SCHEDULE):
            stance = self._drafting.decide_heads(requests, [self._behind(request) for request in requests])
        catch_up_ns = self._mind_heads(requests, stance)
        with recorder.slice(names.HOST, names.SCHEDULE):
            drafts = self._drafting.choose(requests, stance.rate)
            self._fill(requests, drafts)
            chooser = self._chooser(requests, drafts.width)
            batch = Batch(len(requests), drafts.width, drafts.head, drafts.extend, drafts.mixed, chooser)
        result = run_round(core.round_parts, self._state, batch)
        self._state = result.state
        with recorder.slice(names.HOST, names.SETTLE):
            settled = result.settle()
            if self.observer is not None:
                for row, (request, tokens) in enumerate(zip(requests, settled, strict=True)):
                    rows_RH = result.hidden_RH[row * drafts.width : row * drafts.width + len(tokens)]
                    self.observer(request.request_id, request.committed, rows_RH)
            if not drafts.extend:
                self._leave_behind(requests, drafts.width, settled, result)
        with recorder.slice(names.HOST, names.PUBLISH, advanced=sum(map(len, settled))):
            sure = self._confidences(requests, result)
            time_ns = time.perf_counter_ns() - started - catch_up_ns
            self._drafting.settle(requests, drafts, settled, time_ns)
            for request, confidence in sure:
                self._drafting.note_confidence(request.request_id, confidence)
            outputs = []
            for row, (request, tokens) in enumerate(zip(requests, settled, strict=True)):
                sampled = request.request_id in self._generators
                self.stats.count_request(0 if sampled else drafts.count(row), len(tokens))
                self.scheduler.commit(request, len(tokens))
                outputs.append(self._publish(request, tokens))
        self.stats.rounds += 1
        self.stats.kinds[drafts.kind] += 1
        self.stats.round_tokens += sum(len(output.token_ids) for output in outputs)
        self.stats.round_ns += time.perf_counter_ns() - started
        return outputs

    def _behind(self, request: Request) -> int | None:
        """Return how many positions the head of a request has not seen; None where it has lost the thread."""
        if self._lag is None:
            return 0
        return None if self._lag.lost(request.slot) else self._lag.count(request.slot)

    def _confidences(self, requests: list[Request], result: RoundResult) -> list[tuple[Request, float]]:
        """Return how sure the heads that have seen the whole text are of their next first draft."""
        if self._lag is None or result.sure_B is None:
            return []
        sure = result.sure_B.tolist()  # the shape's; padding behind the batch's own
        return [each for each in zip(requests, sure, strict=False) if not self._lag.lost(each[0].slot)]

    def _leave_behind(
        self, requests: list[Request], width: int, settled: list[list[int]], result: RoundResult
    ) -> None:
        """Keep what the heads would have read in a round that did without them."""
        if self._lag is not None:
            slots, counts = [request.slot for request in requests], [len(tokens) for tokens in settled]
            self._lag.keep(slots, counts, width, result.hidden_RH)

    def _mind_heads(self, requests: list[Request], stance: Stance) -> int:
        """Bring heads up to date or let them lose the thread; return the time that it took."""
        total_ns = 0
        for row in stance.catch_up:
            started, count = time.perf_counter_ns(), self._behind(requests[row]) or 0
            self._catch_up_one(requests[row])
            time_ns = time.perf_counter_ns() - started
            total_ns += time_ns
            self._drafting.settle_catch_up(requests, row, count, time_ns)
            self.stats.catch_ups += 1
            self.stats.catch_up_ns += time_ns
            self.core.recorder.add(Slice(names.MAIN, names.CATCH_UP, started, time_ns, _CATCH_UP_ARGS))
        for row in stance.lose:
            if self._lag is not None:
                self._lag.lose(requests[row].slot)
        return total_ns

    @torch.inference_mode()
    def _catch_up_one(self, request: Request) -> None:
        """Give the head the rows it lags; what it would have drafted there is held against the text."""
        core, lag = self.core, self._lag
        if core.head is None or core.draft_cache is None or lag is None or request.pages is None:
            return
        place, count = core.device.torch_device, lag.count(request.slot)
        start, next_ids = request.committed - count, request.all_ids[-count:]
        rows = chunk_rows(core, count, start, request.pages.pages)
        ids_R = torch.tensor(next_ids, device=place)
        lengths = chunk_attention(core, request.committed)
        head_RH = core.head.forward(ids_R, lag.rows(request.slot), *rows, core.draft_cache, lengths)
        lag.clear(request.slot)
        # The last row's candidate is what the head drafts next; those before it are compared.
        logits_RN = core.head.logits(head_RH[-SCORED_ROWS - 1 :])
        guesses, sure = core.head.tokens(logits_RN), ops.top_share(logits_RN).tolist()
        known = next_ids[count - len(sure) + 1 :]
        for guess, confidence, token in zip(guesses[:-1].tolist(), sure[:-1], known, strict=True):
            self._drafting.judge(request.request_id, confidence, held=guess == token)
        self._drafting.note_confidence(request.request_id, sure[-1])
        slot_B = torch.tensor([request.slot], device=place)
        self._state = self._state.put_drafts(slot_B, guesses[-1:], head_RH[-1:])

    def _fill(self, requests: list[Request], drafts: Drafts) -> None:
        """Write the host mirrors: real rows, then padding that names no request."""
        host, stale = self._mirrors, slice(0, self._filled_rows)
        for name, padding in (
            ("slots", self.core.plan.max_requests),
            ("pages", 0),
            ("drafts", -1),
            ("greedy", 0),
            ("from_host", 0),
        ):
            host[name][stale] = padding
        self._filled_rows = len(requests)
        for row, request in enumerate(requests):
            by_host = drafts.by_host[row]
            pages = request.pages.pages if request.pages else []
            host["slots"][row] = request.slot
            host["pages"][row, : len(pages)] = pages
            host["drafts"][row, : len(by_host)] = by_host
            host["from_host"][row] = bool(by_host)
            host["greedy"][row] = request.request_id not in self._generators
        self._write_lengths(requests)

    def _write_lengths(self, requests: list[Request]) -> None:
        """Tell attention that takes lengths from the host how long the contexts are.

        Raises:
            ReplayError: in checking mode, the device has other lengths.
        """
        core = self.core
        if core.attention is None:
            return
        lengths = [request.committed for request in requests]
        core.attention.book.lists.write(COMMITTED, lengths)
        if core.plan.check:
            on_device = self._state.lengths_M.tolist()
            for request, length in zip(requests, lengths, strict=True):
                if on_device[request.slot] != length:
                    raise ReplayError(
                        f"request {request.request_id} has {on_device[request.slot]} tokens in the cache, and the "
                        f"host takes it for {length}: attention would read another context than there is."
                    )

    def _chooser(
        self, requests: list[Request], width: int
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """Return what draws the tokens of requests that sample, or None where all are greedy."""
        draws = [(row, r) for row, r in enumerate(requests) if r.request_id in self._generators]
        if not draws:
            return None

        def choose(logits_RV: torch.Tensor, target_BW: torch.Tensor) -> torch.Tensor:
            chosen_BW = target_BW.clone()
            for row, request in draws:
                generator = self._generators[request.request_id]
                chosen_BW[row, 0] = sample(logits_RV[row * width], request.sampling, generator)
            return chosen_BW

        return choose

    def _publish(self, request: Request, tokens: list[int]) -> StepOutput:
        taken, text = request.take(tokens, self._eos_ids, self.core.plan.max_model_len)
        self._drafting.extend(request.request_id, taken)
        if request.finish_reason is not None:
            self._forget(request)
        return StepOutput(request.request_id, taken, text, request.finish_reason)

    def _forget(self, request: Request) -> None:
        self.scheduler.release(request)
        self.stats.preemptions += request.preemptions
        self._drafting.leave(request.request_id)
        for table in (self._requests, self._generators):
            table.pop(request.request_id, None)

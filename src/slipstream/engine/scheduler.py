"""Who runs: admission, pages, preemption. No torch.

A step computes one prefill chunk (of the oldest request in prefill) and one round of all requests that decode.
Requests join and leave between rounds only.

Pages: admission takes those of the prompt and a full width; before each round every request gets the full width
ahead of its committed tokens, after it the drafts' pages go back. When the pool runs dry the youngest request
gives its pages up and starts again from its tokens: nothing is lost but time.
"""

from __future__ import annotations

from collections import deque

from slipstream.config import SamplingParams
from slipstream.engine.request import Phase, Request
from slipstream.errors import EmptyPromptError, PromptTooLongError, RequestTooLargeError
from slipstream.kv.pages import PagePool, RequestPages, pages_for


class Scheduler:
    """The queue, the running requests and their pages.

    Args:
        max_requests: requests that run together.
        max_model_len: tokens of prompt and answer, a request.
        num_pages: KV pages of the pool.
        page_size: tokens a page.
        width: rows a request in a round.
    """

    def __init__(
        self, max_requests: int, max_model_len: int, num_pages: int, page_size: int, width: int
    ) -> None:
        self.pool = PagePool(num_pages)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._max_model_len = max_model_len
        self._page_size = page_size
        self._width = width
        self._free_slots = list(range(max_requests - 1, -1, -1))

    @property
    def busy(self) -> bool:
        """Whether any request is left."""
        return bool(self.waiting or self.running)

    def check(self, prompt_ids: list[int], sampling: SamplingParams) -> None:
        """Check that a request can be served, alone if need be.

        Raises:
            EmptyPromptError, PromptTooLongError, RequestTooLargeError: it cannot; the others go on.
        """
        if not prompt_ids:
            raise EmptyPromptError("the prompt is empty: there is no token to continue from. Give some text.")
        room = self._max_model_len - len(prompt_ids)
        if room < 1:
            raise PromptTooLongError(
                f"the prompt has {len(prompt_ids)} tokens, and the context holds {self._max_model_len} with at "
                "least one for the answer. Shorten the prompt, or raise --max-model-len if the model allows."
            )
        longest = len(prompt_ids) + min(sampling.max_tokens, room) + self._width
        needed = pages_for(longest, self._page_size)
        if needed > self.pool.num_pages:
            raise RequestTooLargeError(
                f"the request may grow to {longest} tokens, {needed} pages of {self._page_size}, and there are "
                f"{self.pool.num_pages} pages in all. Shorten it, lower --max-tokens, or raise --num-pages."
            )

    def add(self, request: Request) -> None:
        """Queue a checked request."""
        self.waiting.append(request)

    def admit(self) -> None:
        """Let waiting requests run, in order, while there are slots and pages."""
        while self.waiting and self._free_slots:
            request = self.waiting[0]
            pages = RequestPages(self.pool, self._page_size)
            if not pages.reserve(len(request.prefill_ids) + self._width):
                return
            self.waiting.popleft()
            request.pages = pages
            request.slot = self._free_slots.pop()
            request.phase = Phase.PREFILL
            request.computed = 0
            self.running.append(request)

    def next_prefill(self) -> Request | None:
        """Return the oldest request in prefill."""
        return next((request for request in self.running if request.phase is Phase.PREFILL), None)

    def next_round(self) -> list[Request]:
        """Return the requests that decode, each with pages for the full width; may preempt the youngest."""
        for request in [request for request in self.running if request.phase is Phase.DECODE]:
            while request.phase is Phase.DECODE and not self._pages(request).reserve(
                request.committed + self._width
            ):
                self._preempt(self.running[-1])
        return [request for request in self.running if request.phase is Phase.DECODE]

    def commit(self, request: Request, num_tokens: int) -> None:
        """Note that `num_tokens` more are in the cache; pages behind them go back."""
        request.committed += num_tokens
        self._pages(request).keep(request.committed)

    def release(self, request: Request) -> None:
        """Take a finished or aborted request out, wherever it stands."""
        request.phase = Phase.FINISHED
        if request in self.running:
            self.running.remove(request)
            self._drop(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._drop(request)
        request.phase = Phase.WAITING
        request.preemptions += 1
        self.waiting.appendleft(request)

    def _drop(self, request: Request) -> None:
        self._pages(request).release()
        request.pages = None
        self._free_slots.append(request.slot)
        request.slot = -1

    @staticmethod
    def _pages(request: Request) -> RequestPages:
        if request.pages is None:
            raise RuntimeError(f"request {request.request_id} runs without pages")
        return request.pages

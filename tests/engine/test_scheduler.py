"""Who runs, and who has to give its pages up."""

from __future__ import annotations

import pytest

from slipstream.config import SamplingParams
from slipstream.engine.request import Phase, Request
from slipstream.engine.scheduler import Scheduler
from slipstream.errors import EmptyPromptError, PromptTooLongError, RequestTooLargeError
from tests.engine.test_request import Letters

PAGE_SIZE, WIDTH = 4, 4


def scheduler(**options: int) -> Scheduler:
    sizes = {"max_requests": 3, "max_model_len": 64, "num_pages": 30, "page_size": PAGE_SIZE, "width": WIDTH}
    return Scheduler(**(sizes | options))


def add(made: Scheduler, *lengths: int) -> list[Request]:
    requests = [Request(i, [1] * length, SamplingParams(), Letters()) for i, length in enumerate(lengths)]
    for request in requests:
        made.add(request)
    return requests


def decode(made: Scheduler, *requests: Request) -> None:
    """Prefill is done and gave a first token."""
    for request in requests:
        request.phase = Phase.DECODE
        request.computed = request.committed = len(request.prefill_ids)
        if not request.output_ids:
            request.output_ids.append(7)


class TestAdmission:
    def test_is_in_order_and_as_many_as_there_are_slots(self) -> None:
        made = scheduler()
        requests = add(made, 5, 5, 5, 5)
        made.admit()
        assert made.running == requests[:3]
        assert list(made.waiting) == requests[3:]
        assert [request.slot for request in requests] == [0, 1, 2, -1]

    def test_takes_pages_for_the_prompt_and_the_full_width(self) -> None:
        made = scheduler()
        [request] = add(made, 9)
        made.admit()
        assert request.pages is not None
        assert len(request.pages.pages) == 4  # 9 + 4 tokens
        assert made.pool.free == 26

    def test_waits_for_pages_and_nobody_overtakes(self) -> None:
        made = scheduler(num_pages=6)
        big, huge, small = add(made, 12, 12, 1)
        made.admit()
        assert made.running == [big]
        assert made.pool.free == 2  # enough for `small`, which is behind `huge`
        made.release(big)
        made.admit()
        assert made.running == [huge, small]

    def test_slots_and_pages_of_the_finished_go_to_the_next(self) -> None:
        made = scheduler(max_requests=1)
        first, second = add(made, 5, 5)
        made.admit()
        made.release(first)
        made.admit()
        assert (made.running, second.slot, first.slot, first.pages) == ([second], 0, -1, None)
        made.release(second)
        assert (made.pool.free, made.busy) == (30, False)

    def test_the_oldest_prefill_goes_first(self) -> None:
        made = scheduler()
        first, second, third = add(made, 5, 5, 5)
        made.admit()
        decode(made, first)
        assert made.next_prefill() is second
        decode(made, second, third)
        assert made.next_prefill() is None


class TestRounds:
    def test_every_request_that_decodes_has_the_full_width_ahead(self) -> None:
        made = scheduler()
        requests = add(made, 3, 8, 13)
        made.admit()
        decode(made, *requests[:2])
        for _ in range(6):
            assert made.next_round() == requests[:2]
            for request in requests[:2]:
                assert len(made._pages(request).pages) * PAGE_SIZE >= request.committed + WIDTH
                made.commit(request, 3)

    def test_pages_of_rejected_drafts_go_back(self) -> None:
        made = scheduler()
        [request] = add(made, 4)
        made.admit()
        decode(made, request)
        made.next_round()
        assert made.pool.free == 30 - 2
        made.commit(request, 1)  # 5 committed tokens
        assert made.pool.free == 30 - 2
        made.next_round()
        assert made.pool.free == 30 - 3  # 5 + 4
        made.commit(request, 1)
        assert made.pool.free == 30 - 2

    def test_a_dry_pool_preempts_the_youngest_and_it_goes_first_next_time(self) -> None:
        made = scheduler(max_requests=2, num_pages=6)
        old, young, waiting = add(made, 4, 4, 4)
        made.admit()
        decode(made, old, young)
        assert list(made.waiting) == [waiting]
        made.commit(old, 4)  # 8 committed: needs a third page
        made.commit(young, 4)
        made.pool.take(made.pool.free - 1)
        assert made.next_round() == [old]
        assert (young.phase, young.preemptions, young.slot, young.pages) == (Phase.WAITING, 1, -1, None)
        assert list(made.waiting) == [young, waiting]

    def test_one_in_prefill_is_preempted_as_well_and_begins_at_its_start(self) -> None:
        made = scheduler(num_pages=5)
        old, young = add(made, 8, 4)
        made.admit()
        decode(made, old)
        young.computed = 2
        made.commit(old, 3)
        assert made.next_round() == [old]
        assert young.phase is Phase.WAITING
        made.release(old)
        made.admit()
        assert (made.running, young.computed) == ([young], 0)

    def test_a_preempted_request_prefills_its_output_but_the_newest_token(self) -> None:
        [request] = add(scheduler(), 3)
        request.output_ids = [7, 8, 9]
        assert request.prefill_ids == [1, 1, 1, 7, 8]
        assert request.all_ids == [1, 1, 1, 7, 8, 9]

    def test_a_request_may_preempt_itself_where_it_is_the_youngest(self) -> None:
        made = scheduler(num_pages=6)
        old, young = add(made, 8, 8)
        made.admit()
        decode(made, old, young)
        made.commit(young, 1)
        assert made.next_round() == [old]
        assert young.phase is Phase.WAITING


class TestLeaving:
    @pytest.mark.parametrize("where", ["waiting", "prefill", "decode"])
    def test_gives_everything_back_wherever_it_stands(self, where: str) -> None:
        made = scheduler(max_requests=1)
        first, second = add(made, 5, 5)
        made.admit()
        if where == "decode":
            decode(made, first)
        request = second if where == "waiting" else first
        made.release(request)
        assert request.phase is Phase.FINISHED
        assert request not in made.running
        assert request not in made.waiting
        made.release(second if request is first else first)
        assert (made.pool.free, made.busy) == (30, False)


class TestWhatCanNeverBeServed:
    def check(self, prompt: int, sampling: SamplingParams | None = None, **options: int) -> None:
        scheduler(**options).check([1] * prompt, sampling or SamplingParams(max_tokens=8))

    def test_an_empty_prompt(self) -> None:
        with pytest.raises(EmptyPromptError, match="empty"):
            self.check(0)

    def test_a_prompt_that_leaves_no_room_in_the_context(self) -> None:
        self.check(63)
        with pytest.raises(PromptTooLongError, match=r"64 tokens, and the context holds 64"):
            self.check(64)

    @pytest.mark.parametrize(("pages", "fits"), [(6, True), (5, False)])
    def test_a_request_that_could_not_end_even_alone(self, pages: int, fits: bool) -> None:
        """12 prompt tokens, 8 of answer and a width of 4 make 6 pages."""
        if fits:
            return self.check(12, num_pages=pages)
        with pytest.raises(RequestTooLargeError, match=r"24 tokens, 6 pages of 4, and there are 5"):
            self.check(12, num_pages=pages)

    def test_answers_are_no_longer_than_the_context_allows(self) -> None:
        self.check(60, SamplingParams(max_tokens=10_000), num_pages=17)

    def test_a_request_that_fits_by_the_check_is_served_to_its_end_alone(self) -> None:
        """The check is not too generous: growing to the last token never runs dry."""
        made = scheduler(num_pages=6)
        [request] = add(made, 12)
        made.admit()
        decode(made, request)
        for _ in range(7):
            assert made.next_round() == [request]
            made.commit(request, 1)

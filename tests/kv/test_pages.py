"""Pages: none is owned twice, all come back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from slipstream.kv.cache import KvCache
from slipstream.kv.pages import SCRATCH_PAGE, PagePool, RequestPages, pages_for
from slipstream.ops import slots_of

NUM_PAGES, PAGE_SIZE = 12, 4


class Pages(RuleBasedStateMachine):
    """Requests grow, shrink and leave in any order."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.alive: list[RequestPages] = []

    @rule(target=requests)
    def join(self) -> RequestPages:
        request = RequestPages(self.pool, PAGE_SIZE)
        self.alive.append(request)
        return request

    @rule(request=requests, num_tokens=st.integers(0, 60))
    def reserve(self, request: RequestPages, num_tokens: int) -> None:
        before, free = list(request.pages), self.pool.free
        enough = pages_for(num_tokens, PAGE_SIZE) - len(before) <= free
        assert request.reserve(num_tokens) == enough
        assert request.pages[: len(before)] == before
        if enough:
            assert len(request.pages) == max(len(before), pages_for(num_tokens, PAGE_SIZE))
        else:
            assert (request.pages, self.pool.free) == (before, free)

    @rule(request=requests, num_tokens=st.integers(0, 60))
    def keep(self, request: RequestPages, num_tokens: int) -> None:
        before = list(request.pages)
        request.keep(num_tokens)
        assert request.pages == before[: pages_for(num_tokens, PAGE_SIZE)]

    @rule(request=consumes(requests))
    def leave(self, request: RequestPages) -> None:
        request.release()
        self.alive.remove(request)
        assert request.pages == []

    @invariant()
    def every_page_is_free_or_has_one_owner(self) -> None:
        owned = [page for request in self.alive for page in request.pages]
        assert len(set(owned)) == len(owned)
        assert SCRATCH_PAGE not in owned
        assert all(1 <= page <= NUM_PAGES for page in owned)
        assert len(owned) + self.pool.free == NUM_PAGES

    def teardown(self) -> None:
        for request in self.alive:
            request.release()
        assert sorted(self.pool.take(NUM_PAGES) or []) == list(range(1, NUM_PAGES + 1))


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_pool_gives_all_or_nothing() -> None:
    pool = PagePool(3)
    assert pool.take(4) is None
    assert pool.free == 3
    assert pool.take(3) == [1, 2, 3]
    assert pool.take(0) == []
    assert pool.take(1) is None


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_pages_for_rounds_up(tokens: int, pages: int) -> None:
    assert pages_for(tokens, PAGE_SIZE) == pages


def test_slots_follow_the_page_table() -> None:
    pages_BP = torch.tensor([[3, 1, 7], [2, 5, 0]])
    positions_BW = torch.tensor([[0, 3, 4, 11], [1, 2, 7, 8]])
    expected = [[12, 15, 4, 31], [9, 10, 23, 0]]
    assert slots_of(pages_BP, positions_BW, PAGE_SIZE).tolist() == expected


def test_a_cache_has_room_for_the_scratch_page_and_says_its_size() -> None:
    cache = KvCache.make(2, NUM_PAGES, PAGE_SIZE, 3, 8, torch.device("cpu"))
    assert [layer.shape for layer in cache.layers] == [((NUM_PAGES + 1) * PAGE_SIZE, 6, 8)] * 2
    assert cache.nbytes == 2 * (NUM_PAGES + 1) * PAGE_SIZE * 6 * 8 * 4
    assert not any(layer.any() for layer in cache.layers)

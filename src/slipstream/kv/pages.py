"""Which KV pages are free. Pure: no torch."""

from __future__ import annotations

#: Page 0 belongs to no request: padded rows write there.
SCRATCH_PAGE = 0


class PagePool:
    """Pages 1 to num_pages, handed out and taken back.

    Args:
        num_pages: pages for requests; the scratch page comes on top.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Lowest first: a lone request then reads neighbouring memory.
        self._free = list(range(num_pages, SCRATCH_PAGE, -1))

    @property
    def free(self) -> int:
        """Pages that no request has."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Return `count` pages, or None if there are not so many; then nothing is taken."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        """Return pages to the pool."""
        self._free.extend(reversed(pages))


class RequestPages:
    """The pages of one request, in order of its positions.

    Args:
        pool: where they come from.
        page_size: tokens a page.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self.pages: list[int] = []

    def reserve(self, num_tokens: int) -> bool:
        """Make room for positions 0 to num_tokens - 1. False, and nothing taken, if the pool is too empty."""
        missing = pages_for(num_tokens, self._page_size) - len(self.pages)
        if missing <= 0:
            return True
        taken = self._pool.take(missing)
        if taken is None:
            return False
        self.pages += taken
        return True

    def keep(self, num_tokens: int) -> None:
        """Give back the pages behind position num_tokens - 1: the width was reserved, the drafts fell."""
        needed = pages_for(num_tokens, self._page_size)
        surplus, self.pages = self.pages[needed:], self.pages[:needed]
        self._pool.give_back(surplus)

    def release(self) -> None:
        """Give back all."""
        self.keep(0)


def pages_for(num_tokens: int, page_size: int) -> int:
    """Return how many pages hold `num_tokens` tokens."""
    return -(-num_tokens // page_size)

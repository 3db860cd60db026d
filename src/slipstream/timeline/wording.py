"""Times, shares and counts as people read them: one way in every answer, report and message."""

from __future__ import annotations

from collections.abc import Iterable


def duration(ns: float) -> str:
    """Return a time.

    >>> duration(20_797_940), duration(118_400), duration(1_484_000_000)
    ('20.80 ms', '118.4 us', '1.48 s')
    """
    size = abs(ns)
    if size >= 0.9995e9:
        return f"{ns / 1e9:.2f} s"
    if size >= 0.99995e6:
        return f"{ns / 1e6:.2f} ms"
    return f"{ns / 1e3:.1f} us"


def percent(share: float) -> str:
    """Return a share; nothing is 0 and everything 100, and only they are.

    >>> percent(0.0004), percent(0.123), percent(0.99996)
    ('under 0.1 %', '12.3 %', 'over 99.9 %')
    """
    if 0 < share < 0.0005:
        return "under 0.1 %"
    if 0.9995 <= share < 1:
        return "over 99.9 %"
    text = f"{100 * share:.1f}"
    return f"{text.removesuffix('.0')} %"


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a number of things.

    >>> counted(1, "round"), counted(3905, "row")
    ('1 round', '3,905 rows')
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def listed(items: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = [*items] or [""]
    return f"{', '.join(first)} and {last}" if first else last

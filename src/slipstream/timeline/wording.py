"""Times, shares and counts as people read them: one way in every answer, report and message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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


def counted(count: float, one: str, several: str | None = None) -> str:
    """Return a number of things; a mean of such numbers to three digits.

    >>> counted(1, "round"), counted(3905, "row"), counted(7.333, "join"), counted(2, "copy", "copies")
    ('1 round', '3,905 rows', '7.33 joins', '2 copies')
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:.3g}"
    return f"{number} {one if number == '1' else several or one + 's'}"


def listed(items: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = [*items] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def ranks_named(ranks: Sequence[int]) -> str:
    """Name some ranks: "rank 2", "ranks 0 and 3", "ranks 0 to 7".

    >>> ranks_named([2]), ranks_named([0, 1]), ranks_named([0, 1, 2, 3, 6]), ranks_named(range(8))
    ('rank 2', 'ranks 0 and 1', 'ranks 0 to 3 and 6', 'ranks 0 to 7')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [
        word
        for run in runs
        for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run])
    ]
    return f"rank{'s' * (len(ranks) > 1)} {listed(words)}"

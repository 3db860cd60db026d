"""A progress bar: after two seconds, on a terminal, on standard error."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from slipstream.timeline.loading import progress_bar


def drawn(seconds: float, *, terminal: bool) -> str:
    """What is drawn where each report comes so long after the last."""
    out = io.StringIO()
    times = iter(seconds * number for number in range(100))
    with progress_bar(Console(file=out, force_terminal=terminal), clock=lambda: next(times)) as tell:
        for step in range(5):
            tell("reading", step / 4)
        tell("rounds", 1.0)
    return out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "terminal", "shown"), [(1.0, True, True), (0.1, True, False), (1.0, False, False)]
)
def test_a_bar_appears_when_it_takes_long_and_somebody_looks(
    seconds: float, terminal: bool, shown: bool
) -> None:
    text = drawn(seconds, terminal=terminal)
    assert ("rounds" in text) == shown
    assert bool(text) == shown

"""What docs/graphs.md prints is what the commands give."""

from __future__ import annotations

import pytest

from tests.graph import guide


def test_the_guide_shows_both_commands() -> None:
    commands = [shown.command.split()[2] for shown in guide.shown()]
    assert {"plan", "explain-error"} <= set(commands)


@pytest.mark.parametrize("shown", guide.shown(), ids=lambda shown: shown.command)
def test_the_output_of_a_command(shown: guide.Shown) -> None:
    assert guide.run(shown.command) == shown.output

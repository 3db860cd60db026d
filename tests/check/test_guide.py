"""What docs/check.md prints is what its programs give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from slipstream.check.worker import warm_up
from tests.check import guide


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    threads = torch.get_num_threads()
    warm_up()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("shown", guide.shown(), ids=lambda shown: shown.command)
def test_the_output_of_a_command(shown: guide.Shown) -> None:
    assert guide.run(shown.command) == shown.output


def test_the_programs_are_the_files() -> None:
    printed = dict(guide.programs())
    assert {"race.py", "tasks.py"} <= set(printed)
    for name, source in printed.items():
        assert (guide.DOCS / "check" / name).read_text(encoding="utf-8") == source

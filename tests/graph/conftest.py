"""The software NPU, for graphs whose ops take numbers from the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream.device import soft
from slipstream.device.soft.machine import Machine
from tests.device.soft.conftest import machine, scheduler

__all__ = ["any_order", "machine"]


@pytest.fixture(params=["program", 1, 3], ids=["program", "starved", "priorities"])
def any_order(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """The software NPU in program order, and in two others."""
    with soft.installed(scheduler(request.param)) as made:
        yield made

"""Fixtures and programs of the software NPU's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipstream.device import soft
from slipstream.device.soft.machine import Machine, ProgramOrder, Scheduler, Seeded

SCHEDULES = ["program", *range(6)]


def scheduler(name: str | int) -> Scheduler:
    return ProgramOrder() if name == "program" else Seeded(int(name))


@pytest.fixture
def machine() -> Iterator[Machine]:
    """The software NPU in program order."""
    with soft.installed() as machine:
        yield machine


@pytest.fixture(params=SCHEDULES)
def any_order(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """The software NPU in program order, and in seeded orders."""
    with soft.installed(scheduler(request.param)) as machine:
        yield machine

"""Runs programs that must be clean in many orders: shared by the tests against false alarms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slipstream.device import soft
from slipstream.device.soft.machine import ProgramOrder, Seeded

SEEDS = 30


def assert_clean_in_every_order(function: Callable[[], Any]) -> None:
    """Run a program in program order and in seeded orders: no finding, and one value."""
    values = []
    for scheduler in [ProgramOrder(), *(Seeded(seed) for seed in range(SEEDS))]:
        with soft.installed(scheduler) as machine:
            values.append(function())
            findings = machine.finish().findings
        assert findings == (), "\n\n".join(map(str, findings))
    assert values[0] is not None
    assert all(value == values[0] for value in values)


def streams(count: int) -> list[Any]:
    """Return new streams that come after all that was given to others so far."""
    made = [torch.npu.Stream() for _ in range(count)]
    torch.npu.synchronize()
    return made

"""torch.npu's random state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from slipstream.device.soft.binding.runtime import active, is_active
from slipstream.device.soft.face.devices import index_of


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """Return a device's random state, as a ByteTensor on the host."""
    return active().random[index_of(device)].generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    """Set a device's random state."""
    active().random[index_of(device)].generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return every device's random state."""
    return [state.generator.get_state() for state in active().random]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set every device's random state."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    active().random[active().device].generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device."""
    if is_active():  # torch.manual_seed comes by here as well
        for state in active().random:
            state.generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with a number of chance."""
    active().random[active().device].generator.seed()


def seed_all() -> None:
    """Seed every device with the same number of chance."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Return the current device's seed."""
    return active().random[active().device].generator.initial_seed()

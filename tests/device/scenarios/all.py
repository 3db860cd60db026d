"""All scenarios: importing this fills the registry."""

from __future__ import annotations

import importlib

from tests.device.scenarios.registry import HERE, PARTS, SCENARIOS, table

for part in PARTS:
    importlib.import_module(f"tests.device.scenarios.{part}")

__all__ = ["HERE", "SCENARIOS", "table"]

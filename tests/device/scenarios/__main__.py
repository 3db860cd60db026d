"""Writes the README of this folder."""

from tests.device.scenarios.all import HERE, table

(HERE / "README.md").write_text(table())

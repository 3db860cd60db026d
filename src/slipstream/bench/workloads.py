"""The prompts of the named workloads."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import msgspec


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a workload.

    Attributes:
        name: short, for tables.
        user: the message.
    """

    name: str
    user: str


def decode_prompts() -> list[Prompt]:
    """Return the eight prompts of "decode": chat, code, a summary, a copy, a correction."""
    text = resources.files("slipstream.bench").joinpath("prompts/decode-8.json").read_bytes()
    return msgspec.json.decode(text, type=list[Prompt])

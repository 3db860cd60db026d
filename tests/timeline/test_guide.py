"""docs/trace.md: its outputs are what the program prints, and its table of keys is complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.timeline.guide import GUIDE, in_folder, run, shown


@pytest.fixture(scope="module", autouse=True)
def traces() -> Iterator[None]:
    with in_folder():
        yield


@pytest.mark.parametrize("item", shown(), ids=lambda item: item.command)
def test_outputs(item: Any) -> None:
    assert run(item.command) == item.output


#: Objects whose keys are names of things and not ours, through so many levels.
_FREE = {
    "summary": 1,
    "facts": 1,
    "values": 1,
    "host": 1,
    "meanwhile": 1,
    "routes": 2,
    "edges": 1,
    "dropped": 1,
}


def keys_of(value: Any, free: int = 0) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from keys_of(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if not free:
                yield key
            yield from keys_of(each, free - 1 if free else _FREE.get(key, 0))


@pytest.mark.parametrize(
    "command",
    [
        "slipstream trace analyse slow --round 3 --json",
        "slipstream trace diff slow fast --json",
        "slipstream trace whatif slow --scale comm=0.5 --json",
    ],
)
def test_every_key_is_documented(command: str) -> None:
    documented = set(re.findall(r"`(\w+)`", GUIDE.read_text(encoding="utf-8")))
    assert set(keys_of(json.loads(run(command)))) <= documented

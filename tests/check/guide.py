"""The commands and outputs of docs/check.md: read for a test; `python -m tests.check.guide` writes them anew."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.check.report import collect
from slipstream.check.request import CheckRequest
from slipstream.check.worker import outcomes, warm_up

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "check.md"
_BLOCK = re.compile(r"```console\n\$ (slipstream check [^\n]*)\n(.*?)```", re.DOTALL)
_TITLES = " | grep '^[a-z]'"


@dataclass(frozen=True)
class Shown:
    """A command of the guide, and the output that stands under it."""

    command: str
    output: str


def shown() -> list[Shown]:
    """Return the commands of the guide."""
    return [Shown(*found) for found in _BLOCK.findall(GUIDE.read_text(encoding="utf-8"))]


def programs() -> Iterator[tuple[str, str]]:
    """Yield (file name, source) of the programs that the guide prints."""
    text = GUIDE.read_text(encoding="utf-8")
    for source, name in re.findall(r"```python\n(.*?)```\n<!-- (\S+) -->", text, re.DOTALL):
        yield name, source


def run(command: str) -> str:
    """Return what a command of the guide prints, run in the folder of its programs."""
    words = shlex.split(command.removesuffix(_TITLES))[2:]
    path, _, *arguments = [*words, ""] if len(words) == 1 else [*words]
    before = Path.cwd()
    os.chdir(DOCS / "check")
    try:
        request = CheckRequest(path, tuple(arguments if len(words) > 1 else ()))
        text = collect(request, list(outcomes(request))).text() + "\n"
    finally:
        os.chdir(before)
    if command.endswith(_TITLES):
        text = "".join(line for line in text.splitlines(keepends=True) if re.match("[a-z]", line))
    return text


def main() -> None:
    """Run every command, and write its output into the guide."""
    warm_up()
    text = GUIDE.read_text(encoding="utf-8")
    GUIDE.write_text(
        _BLOCK.sub(lambda found: f"```console\n$ {found[1]}\n{run(found[1])}```", text), encoding="utf-8"
    )


if __name__ == "__main__":
    main()

"""The commands and outputs of docs/graphs.md: read for a test; `python -m tests.graph.guide` writes them anew."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from slipstream.cli import main as slipstream

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "graphs.md"
_BLOCK = re.compile(r"```console\n\$ (slipstream graphs [^\n]*)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command of the guide, and the output that stands under it."""

    command: str
    output: str


def shown() -> list[Shown]:
    """Return the commands of the guide."""
    return [Shown(*found) for found in _BLOCK.findall(GUIDE.read_text(encoding="utf-8"))]


def run(command: str) -> str:
    """Return what a command of the guide prints, run in the folder of its files."""
    before = Path.cwd()
    os.chdir(DOCS / "graphs")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            slipstream(shlex.split(command)[1:])
    finally:
        os.chdir(before)
    # A table ends its lines with spaces; a file of ours does not.
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"


def main() -> None:
    """Run every command, and write its output into the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    GUIDE.write_text(
        _BLOCK.sub(lambda found: f"```console\n$ {found[1]}\n{run(found[1])}```", text), encoding="utf-8"
    )


if __name__ == "__main__":
    main()

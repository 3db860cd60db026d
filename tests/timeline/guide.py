"""The commands and outputs of docs/trace.md: read for a test; `python -m tests.timeline.guide` writes them anew.

With a folder as its argument it writes the traces of the guide there instead.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from slipstream.cli import main as slipstream
from tests.timeline.generated import sglang
from tests.timeline.speculative import Shape

GUIDE = Path(__file__).parents[2] / "docs" / "trace.md"
_BLOCK = re.compile(r"```console\n\$ (slipstream trace [^\n]*)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """A command of the guide, and the output that stands under it."""

    command: str
    output: str


def shown() -> list[Shown]:
    """Return the commands of the guide."""
    return [Shown(*found) for found in _BLOCK.findall(GUIDE.read_text(encoding="utf-8"))]


def write_traces(folder: Path) -> None:
    """Write the guide's traces."""
    sglang(folder / "slow", Shape(ranks=2, eager_extend=(1,), slow_rank=1, rounds=8))
    sglang(folder / "fast", Shape(ranks=2, rounds=8))


@contextmanager
def in_folder() -> Iterator[None]:
    """Be where the guide's traces are."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        write_traces(Path(folder))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def run(command: str) -> str:
    """Return what a command of the guide prints, run where its traces are."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        slipstream(shlex.split(command)[1:])
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def main() -> None:
    """Run every command, and write its output into the guide."""
    if len(sys.argv) > 1:
        write_traces(Path(sys.argv[1]))
        return
    text = GUIDE.read_text(encoding="utf-8")
    with in_folder():
        made = _BLOCK.sub(lambda found: f"```console\n$ {found[1]}\n{run(found[1])}```", text)
    GUIDE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()

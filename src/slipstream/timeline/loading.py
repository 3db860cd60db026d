"""From paths to an analysis, with a progress bar where it takes a while and somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from slipstream.errors import UsageError
from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.kinds import Rules, load_rules
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.report.terminal import console

#: A bar appears when something has taken so long.
PATIENCE_S: Final = 2.0
#: No engine gives a request more rows in verify.
WIDEST: Final = 1024


@dataclass(frozen=True)
class Request:
    """What is to be analysed.

    Attributes:
        paths: a trace, a folder of ranks, or the traces of the ranks of one run.
        advanced: tokens that a request gets from a round, or a file that says so by round; None unknown.
        sides: files beside the trace: topologies, tokens of rounds.
        rules: a file of the user's rules, or None.
        width: rows that a request has in verify, where no mark says it; None unknown.
        one_clock: whether the clocks of ranks are aligned where they differ.
    """

    paths: tuple[Path, ...]
    advanced: str | None = None
    sides: tuple[Path, ...] = ()
    rules: Path | None = None
    width: str | None = None
    one_clock: bool = True

    @property
    def title(self) -> str:
        """What it is called in a report."""
        first = self.paths[0]
        name = first.name or str(first.resolve().name)
        return name if len(self.paths) == 1 else f"{name} and {len(self.paths) - 1} more"


def load(request: Request, *, infer: bool = True) -> Analysis:
    """Read and analyse.

    Raises:
        UsageError: no path, or a number that is none.
        TraceError: it cannot be read.
    """
    if not request.paths:
        raise UsageError("name a trace: a profiler's file, an Ascend profile's folder, or a folder of ranks.")
    advanced, sides = _advanced(request)
    width = _width(request)
    rules = load_rules(request.rules) if request.rules is not None else Rules()
    with progress_bar(console(error=True)) as tell:
        timeline = open_timeline(
            request.paths,
            sides=sides,
            rules=rules,
            progress=lambda done, all_: tell("reading", done / max(1, all_)),
            one_clock=request.one_clock,
        )
        tell("dependencies", 0.0)
        return analyse(
            timeline,
            advanced=advanced,
            width=width,
            infer=infer,
            progress=lambda share: tell("rounds", share),
        )


def _advanced(request: Request) -> tuple[float | None, tuple[Path, ...]]:
    """Return the number of tokens if one was given, and the files beside the trace."""
    text = request.advanced
    if text is None:
        return None, request.sides
    try:
        number = float(text)
    except ValueError:
        if not Path(text).exists():
            raise UsageError(
                f"--advanced {text!r} is neither a number nor a file. Give the tokens that a request gets from a "
                'round on average, as 2.8, or a file with a line a round, as {"accepted": [2, 0, 3]}.'
            ) from None
        return None, (*request.sides, Path(text))
    if not 0 < number < 1000:
        raise UsageError(f"--advanced {text}: a round gives a request at least one token, so give 1 or more.")
    return number, request.sides


def _width(request: Request) -> int | None:
    """Return the rows that a request has in verify, if they were given."""
    text = request.width
    if text is None:
        return None
    width = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    if not 1 <= width <= WIDEST:
        raise UsageError(
            f"--width {text}: give the rows that a request has in verify, 1 to {WIDEST}: its drafts and the token "
            "before them (num_draft_tokens), as 4."
        )
    return width


Tell = Callable[[str, float], None]


@contextmanager
def progress_bar(
    out: Console, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Tell]:
    """Yield what to tell of (stage, share done); a bar appears on a terminal once patience is over.

    Args:
        out: where the bar goes; nothing is shown where it is no terminal.
        patience_s: how long nothing is shown.
        clock: in seconds.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=True,
    )
    task = bar.add_task("reading", total=1.0)
    began = clock()
    shown = False

    def tell(stage: str, share: float) -> None:
        nonlocal shown
        if not shown and out.is_terminal and clock() - began >= patience_s:
            bar.start()
            shown = True
        bar.update(task, description=stage, completed=min(1.0, share))

    try:
        yield tell
    finally:
        if shown:
            bar.stop()

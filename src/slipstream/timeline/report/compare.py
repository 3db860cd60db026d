"""A difference of two runs, and what would be otherwise, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipstream.timeline.changes import Bucket, PerfectOverlap, RemoveWait
from slipstream.timeline.report.diff import Diff, Difference
from slipstream.timeline.report.ledger import Entry
from slipstream.timeline.report.overview import Overview
from slipstream.timeline.report.words import ROUNDS, host_name
from slipstream.timeline.whatif import WhatIf
from slipstream.timeline.wording import counted, duration, percent

_CAUSES = 10
#: Parts and causes smaller than this share of a round are left out.
_SMALL = 0.002
#: From this share of inferred dependencies on, an answer is a direction, not a number.
_WEAK = 0.2


def show_diff(out: Console, found: Diff, views: tuple[Overview, Overview], titles: tuple[str, str]) -> None:
    """Print a difference."""
    whole = found.differences[0]
    out.print(Text(f"A = {titles[0]}, B = {titles[1]}", style="dim"))
    a, b = found.token_ns
    if a and b:
        text = f"A token costs {duration(a)} in A and {duration(b)} in B ({_percent(b / a - 1)})."
        out.print(Text(text, style="bold"))
    out.print(Text(_verdict(whole, views), style="bold"))
    for name, (one, other) in found.routes.items():
        out.print(f"Route of {name}: {one} in A, {other} in B.")
    out.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(("median of", "A", "B", "change", "95 % interval of B - A", "p", "rounds")):
        table.add_column(name, justify="left" if place == 0 else "right", overflow="fold", no_wrap=place > 0)
    for item in found.differences:
        if _worth(item, whole):
            table.add_row(*_row(item), style="bold" if item.significant and item is not whole else "")
    out.print(table)
    out.print(
        "p: permutation test of the rank sum, two-sided, corrected for the number of lines (Holm); bold below 0.05"
    )
    out.print()
    _show_causes(out, found)


def _verdict(whole: Difference, views: tuple[Overview, Overview]) -> str:
    a, b = whole.medians
    one, several = ROUNDS[views[0].kind]
    apart = ""
    if views[0].kind is not views[1].kind:
        apart = f"Not of one kind: A's are {several}, B's {ROUNDS[views[1].kind][1]}. "
        one, several = "round", "rounds"
    text = f"{apart}A {one} takes {duration(a or 0)} in A and {duration(b or 0)} in B"
    text += f" ({_percent(whole.change or 0.0)})"
    if whole.p is None:
        few = f"{whole.counts[0]} and {whole.counts[1]} {several} are"
        few = "one of each is" if set(whole.counts) == {1} else few
        return f"{text}; {few} too few to say whether that is chance."
    if whole.significant:
        return f"{text}; chance is an unlikely reason (p {_p(whole.p)})."
    enough = "" if min(whole.counts) >= 5 else "; so few rounds cannot show more"
    return f"{text}; that may be chance (p {_p(whole.p)}{enough})."


def _worth(item: Difference, whole: Difference) -> bool:
    """Whether what a line stands for is, in all rounds together, a part of them that can be seen."""

    def part(run: int) -> float:
        rounds, size = whole.counts[run], whole.medians[run]
        return item.counts[run] * (item.medians[run] or 0.0) / (rounds * size) if rounds and size else 0.0

    return item is whole or max(part(0), part(1)) >= _SMALL


def _row(item: Difference) -> tuple[str, ...]:
    a, b = ("" if value is None else duration(value) for value in item.medians)
    change = "" if item.change is None else _percent(item.change)
    interval = "too few rounds"
    if item.low is not None and item.high is not None:
        interval = f"{_signed(item.low)} to {_signed(item.high)}"
    if None in item.medians:
        change, interval = "", f"only in {'A' if item.medians[1] is None else 'B'}"
    rounds = str(item.counts[0]) if len(set(item.counts)) == 1 else f"{item.counts[0]}, {item.counts[1]}"
    return item.what, a, b, change, interval, "" if item.p is None else _p(item.p), rounds


def _show_causes(out: Console, found: Diff) -> None:
    change = found.means[1] - found.means[0]
    shown = [cause for cause in found.causes if abs(cause.change_ns) >= _SMALL * max(found.means)][:_CAUSES]
    out.print(Text(f"The difference of mean rounds, {_signed(change)}, went to:", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(("what", "name", "A", "B", "B - A")):
        table.add_column(name, justify="left" if place < 2 else "right", overflow="fold", no_wrap=place > 1)
    for cause in shown:
        name = host_name(cause.name) if cause.entry is Entry.HOST else cause.name
        table.add_row(
            cause.entry.value, name, duration(cause.a_ns), duration(cause.b_ns), _signed(cause.change_ns)
        )
    rest = change - sum(cause.change_ns for cause in shown)
    left = len(found.causes) - len(shown)
    if left:
        table.add_row(counted(left, "other"), "", "", "", _signed(rest))
    table.add_row(
        "together", "", duration(found.means[0]), duration(found.means[1]), _signed(change), style="bold"
    )
    out.print(table)


def _percent(share: float) -> str:
    """Return a change; from ten times on as a factor, as nobody reads +11136.1 %."""
    return f"×{1 + share:,.0f}" if share >= 9 else f"{100 * share:+.1f} %"


def _signed(ns: float) -> str:
    return f"{'+' if ns >= 0 else '-'}{duration(abs(ns))}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def show_what_if(
    out: Console, result: WhatIf, asked: Sequence[str], changes: Sequence[object], title: str
) -> None:
    """Print what would be otherwise.

    Args:
        out: where to.
        result: of the what-if.
        asked: the changes in the user's words.
        changes: as they were read.
        title: what was analysed.
    """
    count = len(result.rounds)
    out.print(
        Text(
            f"{title}: rank {result.rank}, {counted(count, 'round')}; if {' and '.join(asked)}:", style="dim"
        )
    )
    out.print(Text(f"{result.text[0].upper()}{result.text[1:]}.", style="bold"))
    out.print()
    before = float(np.mean(result.before_ns)) if count else 0.0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(("", "a round on average", "of that", "what it assumes")):
        table.add_column(
            name, justify="right" if place in (1, 2) else "left", overflow="fold", no_wrap=place < 3
        )
    rows = [
        ("as recorded", result.before_ns, ""),
        ("careful", result.careful_ns, "edges that did not bind get the median delay of their kind"),
        ("hopeful", result.hopeful_ns, "such edges cost nothing"),
    ]
    if result.limit_ns is not None:
        rows.append(("at most", result.limit_ns, "what is scaled takes no time at all"))
    for name, values, assumes in rows:
        mean = float(np.mean(values)) if count else 0.0
        table.add_row(name, duration(mean), percent(mean / before) if before else "", assumes)
    out.print(table)
    out.print()
    share = result.touched_on_path_ns / max(1, int(result.before_ns.sum()))
    lines = [f"what changes is {percent(share)} of the critical paths as recorded"]
    lines += [*result.remarks, *validity(result, changes)]
    for line in lines:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("-", line)
        out.print(grid)


def validity(result: WhatIf, changes: Sequence[object]) -> list[str]:
    """Say in which range an answer is worth something."""
    lines = []
    if result.inferred_share >= _WEAK:
        lines.append(
            f"{percent(result.inferred_share)} of the paths rests on dependencies that were concluded, not read: "
            "take the answer as a direction"
        )
    elif result.inferred_share:
        lines.append(
            f"{percent(result.inferred_share)} of the paths rests on dependencies that were concluded"
        )
    if len(result.rounds) < 3:
        lines.append(f"it is the answer for {counted(len(result.rounds), 'round')}; another may differ")
    if any(isinstance(change, RemoveWait) for change in changes):
        lines.append(
            "it is worth something where nothing that is read needed the wait: check with slipstream check"
        )
    if not any(isinstance(change, Bucket | PerfectOverlap) for change in changes):
        lines.append(
            "operations keep their order and streams, and do not slow each other down where they newly overlap"
        )
    return lines


def what_if_data(result: WhatIf, asked: Sequence[str], changes: Sequence[object]) -> dict[str, Any]:
    """Return a what-if as plain data."""
    careful, hopeful = result.mean_gain_ns
    return {
        "schema": 1,
        "changes": list(asked),
        "rank": result.rank,
        "text": result.text,
        "rounds": list(result.rounds),
        "before_ns": result.before_ns.tolist(),
        "careful_ns": result.careful_ns.tolist(),
        "hopeful_ns": result.hopeful_ns.tolist(),
        "limit_ns": None if result.limit_ns is None else result.limit_ns.tolist(),
        "mean_gain_ns": {"careful": careful, "hopeful": hopeful},
        "touched_ns": result.touched_ns,
        "touched_on_path_ns": result.touched_on_path_ns,
        "inferred_share": result.inferred_share,
        "remarks": [*result.remarks, *validity(result, changes)],
    }

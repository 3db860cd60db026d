"""`slipstream trace analyse | diff | whatif | export | record`. What is heavy is imported by the commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.timeline.analysis import Analysis
    from slipstream.timeline.changes import Change
    from slipstream.timeline.loading import Request
    from slipstream.timeline.report.overview import Overview

trace_app = App(
    name="trace",
    help="Read any profiler's trace into rounds, a critical path, and what it waits for.",
    help_format="plaintext",  # importing a renderer of Markdown would take a quarter of the time
)

DEFAULT_TRACE: Final = Path("slipstream-trace.json.gz")

_Several = Parameter(negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Reading.

    Attributes:
        advanced: Tokens that a request gets from a round, as 2.8; or a file with a line a round.
        width: Rows that a request has in verify (num_draft_tokens), as 4, where no mark says it.
        sides: A file beside the trace: a graph from get_graph_data() or debug_dump(), accepted lengths. Repeat it.
        rules: Your names of operations and streams, TOML or JSON.
        rank: The rank to tell of; by default the one that the others wait for longest.
        infer: Conclude waits and joins that the trace does not state; they are marked.
        clocks: Bring ranks to one clock where collectives show that theirs differ, or leave times as they are.
    """

    advanced: str | None = None
    width: str | None = None
    sides: Annotated[tuple[Path, ...], _Several] = ()
    rules: Path | None = None
    rank: int | None = None
    infer: bool = True
    clocks: Literal["align", "as-is"] = "align"

    def request(self, paths: tuple[Path, ...]) -> Request:
        """Return what is to be read."""
        from slipstream.timeline.loading import Request

        return Request(paths, self.advanced, self.sides, self.rules, self.width, self.clocks == "align")


_OPTIONS = TraceOptions()


@trace_app.command
def analyse(
    *paths: Path,
    json: bool = False,
    html: Path | None = None,
    round: int | None = None,
    details: bool = False,
    options: TraceOptions = _OPTIONS,
) -> int:
    """Say where the time of the rounds of a trace goes.

    Args:
        paths: A trace, a folder of ranks, or the traces of the ranks of one run.
        json: Print one JSON document with everything instead.
        html: Write a page that opens offline, too.
        round: Tell of this round only, in full.
        details: The nine answers, every round and all of the data's quality as well.
        options: How it is read.
    """
    from slipstream.timeline.loading import load

    request = options.request(paths)
    found = load(request, infer=options.infer)
    views, rank = _views(found, options.rank)
    if html is not None:  # first, so that it is there whatever reads the report and for how long
        from slipstream.timeline.report.html import write_html

        write_html(found, html, round=round)
    _report(found, views, rank, request.title, json=json, round=round, details=details)
    if html is not None:
        print(f"page: {html}", file=sys.stderr)
    return 0


@trace_app.command
def diff(
    a: Path,
    b: Path,
    *,
    json: bool = False,
    options: TraceOptions = _OPTIONS,
) -> int:
    """Compare two runs: rounds, phases, whether chance explains it, and what the difference went to.

    Args:
        a: The trace, or folder of ranks, to compare with.
        b: The other one.
        json: Print one JSON document instead.
        options: How they are read.
    """
    from slipstream.timeline.loading import load
    from slipstream.timeline.report.compare import show_diff
    from slipstream.timeline.report.diff import diff as compare
    from slipstream.timeline.report.diff import diff_data
    from slipstream.timeline.report.terminal import console

    one, other = options.request((a,)), options.request((b,))
    first, rank = _views(load(one, infer=options.infer), options.rank)
    second, rank_b = _views(load(other, infer=options.infer), rank if options.rank is not None else None)
    rank_b = rank if rank in second else rank_b
    found = compare(first[rank], second[rank_b])
    if json:
        _print_json(diff_data(found))
        return 0
    titles = (_title(a, b, rank, len(first)), _title(b, a, rank_b, len(second)))
    show_diff(console(), found, (first[rank], second[rank_b]), titles)
    return 0


def _title(path: Path, other: Path, rank: int, ranks: int) -> str:
    """Return a name that tells one run from the other."""
    text = path.name if path.name != other.name else str(path)
    return f"{text} (rank {rank})" if ranks > 1 else text


@trace_app.command
def whatif(
    *paths: Path,
    scale: Annotated[tuple[str, ...], _Several] = (),
    host: float | None = None,
    remove_wait: Annotated[tuple[str, ...], _Several] = (),
    bucket: Annotated[tuple[str, ...], _Several] = (),
    extend_graph: Literal["on"] | None = None,
    perfect_overlap: Annotated[bool, Parameter(negative=())] = False,
    json: bool = False,
    options: TraceOptions = _OPTIONS,
) -> int:
    """Reschedule the trace's own operations under its own dependencies, with something changed.

    Args:
        paths: A trace, a folder of ranks, or the traces of the ranks of one run.
        scale: Durations, as comm=0.5, verify=0.9 or 'kernel~pattern=0.8'. Repeat it.
        host: Factor of the host's own time; 0 is a host that costs nothing.
        remove_wait: A:B, stream A no longer waits for stream B. Repeat it.
        bucket: 8=6, what was replayed with bucket 8 would have been with 6. Repeat it.
        extend_graph: on: an eager extend would be one replay.
        perfect_overlap: Communication is hidden as far as it can be.
        json: Print one JSON document instead.
        options: How it is read.
    """
    from slipstream.timeline.loading import load
    from slipstream.timeline.report.compare import show_what_if, what_if_data
    from slipstream.timeline.report.terminal import console
    from slipstream.timeline.whatif import what_if

    asked, changes = _changes(scale, host, remove_wait, bucket, extend_graph, perfect_overlap)
    request = options.request(paths)
    found = load(request, infer=options.infer)
    _, rank = _views(found, options.rank)
    result = what_if(found, changes, rank=rank)
    if json:
        _print_json(what_if_data(result, asked, changes))
    else:
        show_what_if(console(), result, asked, changes, request.title)
    return 0


def _changes(
    scale: tuple[str, ...],
    host: float | None,
    remove_wait: tuple[str, ...],
    bucket: tuple[str, ...],
    extend_graph: str | None,
    perfect_overlap: bool,
) -> tuple[list[str], list[Change]]:
    """Return the changes in the user's words, and read.

    Raises:
        UsageError: there are none, or one cannot be read.
    """
    from slipstream.timeline import changes as known

    asked: list[str] = []
    changes: list[Change] = []
    several: tuple[tuple[str, tuple[str, ...], Callable[[str], Change]], ...] = (
        ("scale", scale, known.parse_scale),
        ("remove-wait", remove_wait, known.parse_remove_wait),
        ("bucket", bucket, known.parse_bucket),
    )
    for option, texts, read in several:
        for text in texts:
            asked.append(f"--{option} {text}")
            changes.append(read(text))
    if host is not None:
        asked.append(f"--host {host:g}")
        changes.append(known.Host(known.parse_factor(str(host), "--host")))
    if extend_graph is not None:
        asked.append("--extend-graph on")
        changes.append(known.ExtendGraph())
    if perfect_overlap:
        asked.append("--perfect-overlap")
        changes.append(known.PerfectOverlap())
    if not changes:
        raise UsageError(
            "say what would change: --scale comm=0.5, --host 0, --remove-wait main:plan, --bucket 8=6, "
            "--extend-graph on or --perfect-overlap."
        )
    return asked, changes


@trace_app.command
def export(
    *paths: Path,
    perfetto: Path,
    round: int | None = None,
    options: TraceOptions = _OPTIONS,
) -> int:
    """Write a trace that Perfetto shows without losing an operation, its critical path drawn.

    Args:
        paths: A trace, a folder of ranks, or the traces of the ranks of one run.
        perfetto: Where to; .gz compresses.
        round: This round only.
        options: How it is read.
    """
    from slipstream.timeline.loading import load
    from slipstream.timeline.report.perfetto import write_perfetto

    found = load(options.request(paths), infer=options.infer)
    _views(found, options.rank)
    write_perfetto(found, perfetto, round=round)
    print(f"trace: {perfetto} (open it in Perfetto, ui.perfetto.dev)", file=sys.stderr)
    return 0


@trace_app.command
def record(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    trace: Path = DEFAULT_TRACE,
    analyse: bool = True,
) -> int:
    """Run a command that uses Slipstream so that every engine of it writes a trace, and analyse them.

    The exit code is the command's.

    Args:
        command: Behind --, as in: slipstream trace record -- slipstream run smollm2 --prompt hi
        trace: Where the trace goes; of further engines to the same name with .2, .3 and so on.
        analyse: Say where the time went.
    """
    from slipstream.timeline.loading import load
    from slipstream.timeline.record import record as run

    recorded = run(command, trace)
    for path in recorded.traces:
        print(f"trace: {path}", file=sys.stderr)
        if analyse:
            request = _OPTIONS.request((path,))
            found = load(request)
            _report(found, *_views(found, None), request.title)
            print()
    if len(recorded.traces) > 1:
        names = " ".join(map(str, recorded.traces[:2]))
        print(f"to compare them: slipstream trace diff {names}", file=sys.stderr)
    return recorded.code


def _views(found: Analysis, rank: int | None) -> tuple[dict[int, Overview], int]:
    """Return the overview of each rank, and which rank to tell of.

    Raises:
        TraceError: the trace has no device.
        UsageError: it does not have that rank.
    """
    from slipstream.timeline.report.overview import overviews, rank_lines, slowest

    views = overviews(found)
    if rank is None:
        return views, slowest(rank_lines(found, views))
    if rank not in views:
        raise UsageError(f"--rank {rank}: the trace holds the device of rank {', '.join(map(str, views))}.")
    return views, rank


def _report(
    found: Analysis,
    views: dict[int, Overview],
    rank: int,
    title: str,
    *,
    json: bool = False,
    round: int | None = None,
    details: bool = False,
) -> None:
    from slipstream.timeline.report.details import round_of, show_details, show_round
    from slipstream.timeline.report.json import analysis_data
    from slipstream.timeline.report.terminal import console, show

    if round is not None:
        round_of(found, rank, round)
    if json:
        _print_json(analysis_data(found, views, rank, round))
        return
    out = console()
    if round is not None:
        show_round(out, found, round_of(found, rank, round))
        return
    show(out, found, views, rank, title)
    if details:
        show_details(out, found, views[rank])


def _print_json(data: Any) -> None:
    sys.stdout.write(msgspec.json.encode(data).decode() + "\n")

"""Runs as ranks with clocks of their own show them, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from slipstream.timeline.analysis import Analysis
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.table import Timeline
from tests.timeline.speculative import US, Shape, graphs, play
from tests.timeline.virtual import Rank, World

MS = 1_000_000
LATE = Shape(rounds=8, ranks=2, slow_rank=1, eager_extend=(1,), eager_host=100 * US, jitter=60 * US)

Shown = Callable[[int], int]


def later(by_ns: int) -> Shown:
    """A clock that is ahead by so much."""
    return lambda time_ns: time_ns + by_ns


def shown(shape: Shape, clocks: dict[int, Shown]) -> Timeline:
    """A run as ranks with clocks of their own show it."""
    world = play(shape)
    for rank, clock in clocks.items():
        world.show_on(rank, clock)
    return world.from_zero().timeline(graphs=graphs(shape))


def rows_of(line: Timeline) -> list[tuple]:
    """Everything that is done, by rank and time."""
    streams = [(stream.rank, stream.name) for stream in line.streams]
    columns = (line.start_ns, line.end_ns, line.kind, line.group, line.sequence, line.replay, line.node)
    rows = [
        (*streams[int(line.stream[row])], line.name_of(row), *(int(column[row]) for column in columns))
        for row in range(len(line))
    ]
    marks = line.marks
    rows += [
        (*streams[stream], line.names[name], start, end)
        for start, end, name, stream in zip(
            marks.start_ns.tolist(),
            marks.end_ns.tolist(),
            marks.name.tolist(),
            marks.stream.tolist(),
            strict=True,
        )
    ]
    return sorted(rows)


def said_of(analysis: Analysis) -> dict[int, list[tuple]]:
    """What is said of each round: times, path, the nine answers."""
    return {
        rank: [
            (
                report.round.start_ns,
                report.round.end_ns,
                report.path.by_piece(),
                dict(report.rests_on),
                [(answer.text, answer.values) for answer in report.answers],
            )
            for report in reports
        ]
        for rank, reports in analysis.reports.items()
    }


def words(line: Timeline) -> list[str]:
    return [note.why for note in line.notes if note.what == "clocks"]


def apart(line: Timeline) -> int:
    """How many collectives one rank left before another came."""
    return find_dependencies(line).impossible_collectives


def ragged(world: World, by_ns: np.ndarray) -> World:
    """Let each rank leave each collective a little later or earlier, int [ranks, collectives]."""
    for work in world.works:
        if work.meeting is not None:
            work.end += int(by_ns[work.rank, work.number])
    return world


def meet(
    rounds: int = 12,
    *,
    lateness: list[list[int]] | None = None,
    among: Callable[[Rank, int], tuple[int, ...]] | None = None,
    name: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)",
    cost: int = 30 * US,
    uneven: int = 3 * US,
):
    """Kernels and collectives in turn; `lateness[rank][round]` is what a kernel takes longer."""

    def program(rank: Rank) -> Generator[None]:
        for number in range(rounds):
            more = lateness[rank.rank][number] if lateness else 0
            rank.host("schedule", 20 * US + number * 7919 % 13 * uneven)
            rank.kernel("attention", "comm", 50 * US + more)
            rank.collective(name, "comm", cost, number, among(rank, number) if among else None)
            yield from rank.sync("comm")
        yield

    return program

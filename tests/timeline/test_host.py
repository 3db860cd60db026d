from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.host import BETWEEN, host_work, innermost, main_thread
from slipstream.timeline.overlap import Intervals
from slipstream.timeline.table import Kind


def nested(low: int, high: int, depth: int, cuts: list[int]) -> list[tuple[int, int, str]]:
    """Operations that nest: each holds the ones between two cuts of it."""
    made = [(low, high, f"op {depth}")]
    inner = sorted({cut for cut in cuts if low < cut < high})
    if depth < 3 and len(inner) >= 2:
        made += nested(inner[0], inner[1], depth + 1, [cut for cut in inner[2:] if cut < inner[1]])
        made += nested(inner[1], high, depth + 1, inner[2:])
    return made


@given(
    cuts=st.lists(st.integers(1, 99), max_size=14),
    low=st.integers(0, 100),
    high=st.integers(0, 120),
)
def test_time_goes_to_the_innermost_operation(cuts: list[int], low: int, high: int) -> None:
    low, high = min(low, high), max(low, high) + 1
    made = nested(0, 100, 0, cuts)
    table = timeline_of([Op(name, a, b, "thread", Kind.HOST) for a, b, name in made])
    deps = find_dependencies(table)
    found = host_work(deps, main_thread(deps, 0), Intervals(np.array([low]), np.array([high])))
    truth: dict[str, int] = {}
    for moment in range(low, high):
        holders = [(a, -b, name) for a, b, name in made if a <= moment < b]
        name = max(holders, key=lambda holder: (holder[0], holder[1], holder[2]))[2] if holders else BETWEEN
        truth[name] = truth.get(name, 0) + 1
    assert dict(found) == truth


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=12), st.integers(0, 40))
def test_of_what_overlaps_the_one_that_began_last_has_the_time(
    spans: list[tuple[int, int]], low: int
) -> None:
    made = sorted(((start, -(start + took)) for start, took in spans))
    table = timeline_of(
        [Op(f"op {n}", start, -end, "thread", Kind.HOST) for n, (start, end) in enumerate(made)]
    )
    if not made:
        return
    cut = innermost(table, 0)
    assert (cut.end_ns > cut.start_ns).all()
    assert (cut.start_ns[1:] >= cut.end_ns[:-1]).all()
    for moment in range(low, low + 20):
        inside = np.flatnonzero((cut.start_ns <= moment) & (moment < cut.end_ns))
        running = [n for n, (start, end) in enumerate(made) if start <= moment < -end]
        assert [table.names[name] for name in cut.name[inside]] == [f"op {n}" for n in running[-1:]]


def test_time_in_no_operation_has_the_name_of_the_innermost_mark() -> None:
    """A mark over a whole step says nothing of what the host does; a phase's is called as the phase is."""
    marks = [
        ("ProfilerStep#3", 0, 100, "thread"),
        ("step[TARGET_VERIFY bs=8]", 10, 60, "thread"),
        ("prepare_for_verify", 20, 40, "thread"),
        ("prepare_for_verify", 20, 90, "another thread"),
    ]
    ops = [Op("aten::cat", 30, 50, "thread", Kind.HOST), Op("call", 60, 62, "thread", Kind.HOST)]
    ops += [Op("kernel", 70, 80, launch=1), Op("print", 0, 1, "another thread", Kind.HOST)]
    deps = find_dependencies(timeline_of(ops, marks=marks))
    found = host_work(deps, main_thread(deps, 0), Intervals(np.array([5, 45]), np.array([35, 80])))
    assert dict(found) == {
        BETWEEN: 5 + 18,
        "code in verify": 10 + 10,
        "code in prepare_for_verify": 10,
        "aten::cat": 5 + 5,
        "call": 2,
    }


def test_the_main_thread_is_the_one_that_launches() -> None:
    ops = [Op(f"busy {n}", n, n + 1, "other", Kind.HOST) for n in range(5)]
    ops += [Op("launch", 0, 1, "engine", Kind.HOST), Op("kernel", 2, 5, launch=5)]
    deps = find_dependencies(timeline_of(ops))
    assert deps.timeline.streams[main_thread(deps, 0)].name == "engine"
    assert main_thread(deps, 7) == -1

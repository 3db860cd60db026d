from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.device.soft.machine import Buffer, Machine, Region
from slipstream.device.soft.machine.history import History
from slipstream.device.soft.machine.regions import overlap

BUFFER = Buffer("b", 64, "device", History())


def bytes_of(region: Region) -> set[int]:
    inside = range(region.start, region.stop)
    if not region.step:
        return set(inside)
    return {byte for byte in inside if (byte - region.start) % region.step < region.width}


@st.composite
def regions(draw: st.DrawFn) -> Region:
    start = draw(st.integers(0, 40))
    stop = draw(st.integers(start + 1, 64))
    step = draw(st.sampled_from([0, 0, 3, 4, 8]))
    return Region(BUFFER, start, stop, step, draw(st.integers(1, step)) if step else 0)


@given(regions(), regions())
def test_overlap_is_exact(a: Region, b: Region) -> None:
    assert overlap(a, b) == bool(bytes_of(a) & bytes_of(b))


accesses = st.lists(st.tuples(st.integers(0, 2), st.booleans(), regions()), min_size=1, max_size=12)


@given(accesses)
def test_a_history_finds_a_conflict_if_there_is_one(steps: list[tuple[int, bool, Region]]) -> None:
    """Three streams without any order: there is a race if and only if some pair of accesses conflicts."""
    machine = Machine(stacks=False)
    streams = [machine.stream(str(n)) for n in range(3)]
    buffer = machine.buffer("b", 64)
    for number, (stream, writes, region) in enumerate(steps):
        there = (region._replace(buffer=buffer),)
        machine.kernel(streams[stream], f"k{number}", () if writes else there, there if writes else ())
    conflict = any(
        one[0] != other[0] and (one[1] or other[1]) and bytes_of(one[2]) & bytes_of(other[2])
        for at, one in enumerate(steps)
        for other in steps[:at]
    )
    assert ("race" in machine.finish().kinds()) == bool(conflict)


@given(accesses)
def test_one_stream_never_races(steps: list[tuple[int, bool, Region]]) -> None:
    machine = Machine(stacks=False)
    buffer = machine.buffer("b", 64)
    for number, (_, writes, region) in enumerate(steps):
        there = (region._replace(buffer=buffer),)
        machine.kernel(0, f"k{number}", () if writes else there, there if writes else ())
    assert machine.finish().clean


def test_columns_of_a_matrix_do_not_race() -> None:
    machine = Machine()
    side, matrix = machine.stream("side"), machine.buffer("matrix", 4 * 16)
    machine.kernel(0, "left", (), (Region(matrix, 0, 64, 16, 8),))
    machine.kernel(side, "right", (), (Region(matrix, 8, 64, 16, 8),))
    assert machine.finish().clean
    machine.kernel(side, "wide", (), (Region(matrix, 4, 64, 16, 8),))
    assert machine.finish().kinds() == {"race"}


def test_many_disjoint_tensors_of_a_segment_stay_apart() -> None:
    machine = Machine(stacks=False)
    side, segment = machine.stream("side"), machine.buffer("segment", 1 << 20)
    for n in range(500):
        stream = side if n % 2 else 0
        machine.kernel(stream, "w", (), (Region(segment, n * 512, n * 512 + 512),))
        machine.kernel(stream, "r", (Region(segment, n * 512 + 8, n * 512 + 16),), ())
    assert machine.finish().clean

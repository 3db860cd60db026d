"""Ranks whose clocks differ, by an amount that is known: aligned they are the run itself. No other is moved."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.timeline.analysis import analyse
from slipstream.timeline.assemble import COLUMNS, Op, timeline_of
from slipstream.timeline.clock_fit import SKEW_NS
from slipstream.timeline.clocks import align
from slipstream.timeline.collectives import number_collectives
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.table import Advanced, Clock, Group, Kind, Timeline
from tests.timeline.clocks import LATE, MS, apart, later, meet, ragged, rows_of, said_of, shown, words
from tests.timeline.speculative import US, Shape, graphs, play
from tests.timeline.test_answers import check_invariants
from tests.timeline.virtual import Rank, World


def check_table(line: Timeline) -> None:
    """Rows in order, from 0, and what points at rows points at the same ones."""
    order = np.lexsort((-line.end_ns, line.start_ns))
    assert np.array_equal(line.start_ns[order], line.start_ns)
    assert np.array_equal(line.end_ns[order], line.end_ns)
    assert min(line.start_ns.min(), line.marks.start_ns.min(initial=line.start_ns.max())) == 0
    assert (line.end_ns >= line.start_ns).all()
    launched = np.flatnonzero(line.launch >= 0)
    assert (line.rank[launched] == line.rank[line.launch[launched]]).all()
    assert not line.on_device[line.launch[launched]].any()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("by_ns", [-3 * MS, -35_217, 35_217, 200_001, 40 * MS])
def test_an_offset_is_found_and_a_late_rank_stays_late(rank: int, by_ns: int) -> None:
    truth = play(LATE).timeline(graphs=graphs(LATE))
    line = shown(LATE, {rank: later(by_ns)})
    aligned = align(line)
    # Rank 0's clock stays, whoever's is wrong.
    moved = -by_ns if rank == 1 else by_ns
    assert aligned.clocks == (Clock(1, moved, 0.0, LATE.rounds, 0),)
    us = f"{moved / 1000:+,.3f}"
    assert words(aligned) == [
        f"the times of rank 1 were moved by {us} us, by the ends of 8 collectives, spread 0.0 us"
    ]
    check_table(aligned)
    assert rows_of(aligned) == rows_of(truth)
    for key in COLUMNS:
        assert np.array_equal(getattr(aligned, key), getattr(truth, key)), key
    ours = aligned.start_ns[aligned.rank == 0] + aligned.base_ns
    assert np.array_equal(ours, line.start_ns[line.rank == 0] + line.base_ns)
    told = analyse(aligned)
    check_invariants(told)
    assert said_of(told) == said_of(analyse(truth))
    late = [report.answers[7].values for report in told.reports[0]]
    assert {values["late_rank"] for values in late} == {1}
    as_it_was = [report.answers[7].values for report in analyse(line).reports[0]]
    assert as_it_was != late


def waits_of(line: Timeline) -> list[tuple[int, int]]:
    """The rank that came last to each collective, and how long the others stood."""
    deps = find_dependencies(line)
    return [
        (int(line.rank[last]), int((deps.release_ns[stood] - line.start_ns[stood]).sum()))
        for last, *stood in (members.tolist() for members in deps.collectives)
    ]


def test_a_clock_that_drifts_is_followed() -> None:
    lateness = [[20 * MS + 9 * US * (number % 5) for number in range(34)], [20 * MS] * 34]
    ppm = 80
    truth = World(2).run(meet(34, lateness=lateness)).timeline()
    world = World(2).run(meet(34, lateness=lateness))
    world.show_on(1, lambda time_ns: time_ns + 3 * MS + round(time_ns * ppm / 1e6))
    aligned = align(world.timeline())
    (clock,) = aligned.clocks
    assert clock.rank == 1
    assert clock.drift_ppm == pytest.approx(-ppm, abs=0.1)
    assert clock.spread_ns <= 2
    assert "us more each second" in words(aligned)[0]
    check_table(aligned)
    assert max(abs(np.sort(aligned.start_ns) - np.sort(truth.start_ns))) <= 4
    waits, wanted = waits_of(aligned), waits_of(truth)
    late = [found for found, true in zip(waits, wanted, strict=True) if true[1]]
    assert len(late) > 20
    assert {rank for rank, _ in late} == {0}
    assert max(abs(found[1] - true[1]) for found, true in zip(waits, wanted, strict=True)) <= 4


def test_noise_is_not_taken_for_drift() -> None:
    rng = np.random.default_rng(1)
    shape = Shape(rounds=48, ranks=2, tree=20 * MS)
    world = ragged(play(shape), rng.integers(-3_000, 3_000, (2, shape.rounds)))
    world.show_on(1, later(500 * US))
    (clock,) = align(world.timeline(graphs=graphs(shape))).clocks
    assert clock.drift_ppm == 0
    assert abs(clock.moved_ns + 500 * US) <= 2_000
    assert 500 < clock.spread_ns < 6_000


@given(seed=st.integers(0, 1 << 30), most_us=st.integers(0, 7))
@settings(max_examples=25, deadline=None)
def test_ranks_that_are_only_late_are_left_as_they_are(seed: int, most_us: int) -> None:
    """However late each is to each collective, on one clock all leave together, to within some microseconds."""
    rng = np.random.default_rng(seed)
    world = World(3).run(meet(lateness=rng.integers(0, 2 * MS, (3, 12)).tolist()))
    line = ragged(world, rng.integers(0, most_us * US + 1, (3, 12))).timeline()
    assert align(line) is line


def test_without_an_offset_nothing_changes() -> None:
    line = play(LATE).timeline(graphs=graphs(LATE))
    assert align(line) is line
    # less than ranks of one clock were seen to be apart, and possible as it is
    line = shown(LATE, {1: later(-SKEW_NS + 5_000)})
    assert align(line) is line


def test_overlapping_groups_lead_from_clock_to_clock() -> None:
    """Ranks 0 and 2 never meet: rank 1 met both."""

    def run() -> World:
        return World(3).run(two_groups)

    truth = run().timeline()
    world = run().show_on(0, later(5 * MS)).show_on(1, later(-MS)).show_on(2, later(70 * US))
    aligned = align(world.timeline())
    assert [(clock.rank, clock.moved_ns) for clock in aligned.clocks] == [(1, 6 * MS), (2, 5 * MS - 70 * US)]
    assert rows_of(aligned) == rows_of(truth)
    assert apart(aligned) == 0


def two_groups(rank: Rank) -> Generator[None]:
    for number in range(20):
        for members in ((0, 1), (1, 2)):
            if rank.rank in members:
                rank.kernel("attention", "comm", (400 + 10 * rank.rank + number * 7919 % 13) * US)
                rank.collective("hcom_allReduce_", "comm", 30 * US, number, members)
                yield from rank.sync("comm")
    yield


def test_ranks_that_met_nobody_keep_their_times() -> None:
    """Two pairs that never meet: each pair is aligned, but not with the other."""

    def program(rank: Rank) -> Generator[None]:
        members = (0, 1) if rank.rank < 2 else (2, 3)
        yield from meet(among=lambda *_: members)(rank)

    truth = World(4).run(program).timeline()
    world = World(4).run(program).show_on(1, later(2 * MS)).show_on(3, later(-4 * MS))
    aligned = align(world.timeline())
    assert [(clock.rank, clock.moved_ns) for clock in aligned.clocks] == [(1, -2 * MS), (3, 4 * MS)]
    assert words(aligned)[-1] == "no collectives bring ranks 2 and 3 to the clock of the others"
    assert rows_of(aligned) == rows_of(truth)
    # with nothing to move, nothing is said
    assert words(align(truth)) == []


def test_ranks_of_one_clock_are_moved_together() -> None:
    """Two hosts of two ranks, all ends ragged: no rank is moved against the other of its host."""
    rng = np.random.default_rng(3)
    world = ragged(World(4).run(meet(20)), rng.integers(0, 5_000, (4, 20)))
    world.show_on(2, later(900 * US)).show_on(3, later(900 * US))
    aligned = align(world.timeline())
    assert [clock.rank for clock in aligned.clocks] == [2, 3]
    assert len({clock.moved_ns for clock in aligned.clocks}) == 1
    assert abs(aligned.clocks[0].moved_ns + 900 * US) < 2_000
    assert len(words(aligned)) == 1
    assert "the times of ranks 2 and 3 were moved by -" in words(aligned)[0]


def test_the_clock_of_most_ranks_stays() -> None:
    aligned = align(World(4).run(meet()).show_on(0, later(MS)).timeline())
    assert [(clock.rank, clock.moved_ns) for clock in aligned.clocks] == [(0, -MS)]


def test_what_contradicts_itself_changes_nothing() -> None:
    world = World(2).run(meet(16))
    for work in world.ranks[1].works:
        if work.meeting is not None:  # other collectives than the numbers say
            work.start, work.end = (
                time + (-3 * MS, 4 * MS)[work.number % 2] for time in (work.start, work.end)
            )
    line = world.timeline()
    aligned = align(line)
    assert aligned.clocks == ()
    assert aligned.start_ns is line.start_ns
    assert words(aligned) == [
        "ranks' clocks differ, and collectives do not say by how much: they contradict each other"
    ]
    assert apart(aligned) == 16


def test_late_rank_answers_say_that_clocks_differ() -> None:
    shape = replace(LATE, rounds=2)  # too few to say by how much
    line = align(shown(shape, {1: later(-5 * MS)}))
    assert words(line) == ["ranks' clocks differ, and collectives do not say by how much: they met in 2"]
    for report in analyse(line).reports[0]:
        assert report.answers[7].text.endswith(
            "; who came last is not sure: collectives left before all had come: 2"
        )
        assert report.answers[7].values["impossible_collectives"] == 2


@pytest.mark.parametrize("name", ["ncclDevKernel_SendRecv(args)", "ncclDevKernel_Broadcast_RING_LL(args)"])
def test_what_not_all_leave_together_says_nothing(name: str) -> None:
    line = World(2).run(meet(name=name)).show_on(1, later(2 * MS)).timeline()
    assert align(line) is line
    assert apart(line) == 12


def test_an_all_to_all_needs_causality() -> None:
    """Who has more to receive leaves later, always: only what is impossible as it is moves a clock."""
    world = World(2).run(meet(name="all_to_all"))
    busier = np.array([[0] * 12, [25 * US] * 12])
    line = ragged(world, busier).timeline()
    assert align(line).clocks == ()
    aligned = align(World(2).run(meet(name="all_to_all")).show_on(1, later(2 * MS)).timeline())
    assert [clock.moved_ns for clock in aligned.clocks] == [-2 * MS]


def unnumbered(line: Timeline) -> Timeline:
    """As profilers without numbers give it, and as it is read."""
    numbered = number_collectives(line)
    return align(numbered, given=line.sequence >= 0)


def without(line: Timeline, lost: set[tuple[int, int]]) -> Timeline:
    """The collectives without numbers, and some (rank, number) not in the trace."""
    ops = [
        Op(line.name_of(row), int(line.start_ns[row]), int(line.end_ns[row]), kind=Kind.COMM,
           group=int(line.group[row]), rank=int(line.rank[row]))
        for row in np.flatnonzero(line.kind == Kind.COMM).tolist()
        if (int(line.rank[row]), int(line.sequence[row])) not in lost
    ]  # fmt: skip
    return timeline_of(ops, groups=line.groups)


def test_a_rank_that_began_to_record_later_is_not_moved() -> None:
    """Where order gives the numbers: rank 1 lacks the first round, rank 0 the last."""
    line = World(2).run(meet(20)).timeline()
    aligned = unnumbered(without(line, {(1, 0), (0, 19)}))
    assert aligned.clocks == ()
    assert "a rank whose trace begins later would look the same" in words(aligned)[0]
    # a clock that differs, by less than a round or by many, is told from that by the rounds' own lengths
    for by_ns in (40 * US, 900 * US):
        moved = World(2).run(meet(20)).show_on(1, later(by_ns)).timeline(numbered=False)
        assert [clock.moved_ns for clock in unnumbered(moved).clocks] == [-by_ns]


def test_an_offset_that_a_round_would_explain_is_not_believed() -> None:
    """Equal rounds, numbers by order: an offset of most of one may be a small one of a rank that began later."""
    even = Shape(rounds=16, ranks=2)  # a round takes 0.5 ms
    for by_ns, moved in ((60 * US, [-60 * US]), (220 * US, []), (400 * US, [])):
        world = play(even).show_on(1, later(by_ns)).from_zero()
        aligned = unnumbered(world.timeline(numbered=False))
        assert [clock.moved_ns for clock in aligned.clocks] == moved
    # with numbers there is no doubt
    assert [clock.moved_ns for clock in align(world.timeline()).clocks] == [-400 * US]


def test_an_order_that_fits_better_is_believed_to_be_the_one() -> None:
    """Rank 1 lacks the first round, and its clock is behind by most of one: what remains is not its offset."""
    slow = [[400 * US] * 20] * 2
    world = World(2).run(meet(20, lateness=slow, uneven=US))
    ends = [work.end for work in world.ranks[0].works if work.meeting is not None]
    world.show_on(1, later(60 * US - int(np.median(np.diff(ends))))).from_zero()
    aligned = unnumbered(without(world.timeline(), {(1, 0), (0, 19)}))
    assert aligned.clocks == ()
    assert "a rank whose trace begins later would look the same" in words(aligned)[0]


def test_a_list_may_be_too_short_to_say_where_it_begins() -> None:
    line = World(2).run(meet(4)).timeline()
    aligned = unnumbered(without(line, {(1, 0), (0, 3)}))
    assert aligned.clocks == ()
    assert "a rank whose trace begins later would look the same" in words(aligned)[0]


def test_rounds_of_layers_that_are_all_alike_do_not_mislead() -> None:
    """Two rounds of 16 layers, all alike: a rank that began a round later has but one round in common."""

    def program(rank: Rank) -> Generator[None]:
        for number in range(33):
            rank.kernel("attention", "comm", 20 * US if number % 16 else 900 * US)
            rank.collective("all_reduce", "comm", 40 * US, number)
            yield from rank.sync("comm")
        yield

    lost = {(1, number) for number in range(16)} | {(0, number) for number in range(17, 33)}
    aligned = unnumbered(without(World(2).run(program).timeline(), lost))
    assert aligned.clocks == ()
    assert "ranks share no moment, and those of two runs might look the same" in words(aligned)[0]


@pytest.mark.parametrize("seed", range(8))
def test_ragged_ends_are_no_offset(seed: int) -> None:
    by_ns = np.random.default_rng(seed).integers(-140 * US, 140 * US, (2, 10))
    line = ragged(World(2).run(meet(10, cost=300 * US)), by_ns).timeline()
    assert align(line) is line


def test_all_to_alls_count_for_nothing_beside_what_all_leave_together() -> None:
    def program(rank: Rank) -> Generator[None]:
        for number in range(24):
            rank.kernel("attention", "comm", 50 * US)
            name = "all_reduce" if number % 3 == 0 else "all_to_all"
            rank.collective(name, "comm", 40 * US, number)
            yield from rank.sync("comm")
        yield

    busier = np.array([[0] * 24, [0 if number % 3 == 0 else 25 * US for number in range(24)]])
    aligned = align(ragged(World(2).run(program), busier).show_on(1, later(300 * US)).timeline())
    assert [(clock.moved_ns, clock.collectives) for clock in aligned.clocks] == [(-300 * US, 8)]


def test_what_causality_shows_need_not_be_exact() -> None:
    """Ends that are ragged by 200 us: what is impossible as it is shows an offset of 350 us all the same."""
    by_ns = np.random.default_rng(5).integers(-200 * US, 200 * US, (2, 16))
    by_ns[0] = 0
    world = ragged(World(2).run(meet(16, cost=300 * US)), by_ns).show_on(1, later(350 * US))
    assert apart(world.timeline()) > 10
    aligned = align(world.timeline())
    assert abs(aligned.clocks[0].moved_ns + 350 * US) < aligned.clocks[0].spread_ns < 250 * US
    assert apart(aligned) == 0


def test_an_offset_stays_within_what_is_possible() -> None:
    """Rank 0 leaves most collectives 6 us later; the others move for 4 us, so it may be no more than that."""
    world = ragged(World(2).run(meet(cost=4 * US)), np.array([[6 * US] * 7 + [0] * 5, [0] * 12]))
    aligned = align(world.show_on(1, later(500 * US)).timeline())
    assert [clock.moved_ns for clock in aligned.clocks] == [-500 * US + 4 * US - 1]
    assert apart(aligned) == 0


def test_most_collectives_must_be_possible_with_an_offset() -> None:
    """One of 20 may be wrong, two may not."""
    for wrong, moved in ((1, [-2 * MS]), (2, [])):
        lost = np.array([[0] * 20, [5 * MS] * wrong + [0] * (20 - wrong)])
        world = ragged(World(2).run(meet(20)), lost)
        for work in world.ranks[1].works:
            if work.meeting is not None and work.number < wrong:
                work.start += 5 * MS
        aligned = align(world.show_on(1, later(2 * MS)).timeline())
        assert [clock.moved_ns for clock in aligned.clocks] == moved


def test_kinds_of_one_group_have_numbers_of_their_own() -> None:
    """Without numbers an all-reduce and an all-gather of one group must not be taken for one collective."""
    ops = [
        Op(name, 100 * n, 100 * n + 50, "comm", Kind.COMM, group=0, rank=rank)
        for rank in (0, 1)
        for n, name in enumerate(["ncclAllReduce", "ncclAllGather"] * 2)
    ]
    line = number_collectives(timeline_of(ops, groups=[Group("tp", (0, 1))]))
    assert sorted(line.sequence.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(find_dependencies(line).collectives) == 4


def test_what_a_round_advanced_by_moves_with_its_rank() -> None:
    line = shown(LATE, {1: later(2 * MS)})
    gave = (Advanced(0, (3,), 5 * MS, rank=1), Advanced(1, (2,), 5 * MS), Advanced(2, (2,), None, rank=1))
    aligned = align(replace(line, advanced=gave))
    assert [each.start_ns for each in aligned.advanced] == [3 * MS, 5 * MS, None]


@given(by_ns=st.lists(st.integers(-30 * MS, 30 * MS), min_size=2, max_size=2), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_shifted_run_is_the_run_to_within_the_error(by_ns: list[int], seed: int) -> None:
    lateness = np.random.default_rng(seed).integers(0, 300 * US, (3, 10)).tolist()
    truth = World(3).run(meet(10, lateness=lateness))
    line = World(3).run(meet(10, lateness=lateness)).show_on(1, later(by_ns[0])).show_on(2, later(by_ns[1]))
    aligned = align(line.timeline())
    moved = {clock.rank: clock.moved_ns for clock in aligned.clocks}
    left = [moved.get(rank, 0) + shown_by for rank, shown_by in enumerate([0, *by_ns])]
    differ = [abs(one - other) for one, other in zip([0, 0, by_ns[0]], [*by_ns, by_ns[1]], strict=True)]
    if min(differ) > SKEW_NS:
        assert max(left) == min(left)
        assert rows_of(aligned) == rows_of(truth.timeline())
        assert said_of(analyse(aligned)) == said_of(analyse(truth.timeline()))
    else:
        assert max(left) - min(left) <= 2 * SKEW_NS


def test_long_collectives_may_end_further_apart() -> None:
    """Over a slow link a step of a ring takes long: 60 us of 10 ms show no clock, of 1 ms they do."""
    for cost, moved in ((10 * MS, []), (MS, [-60 * US])):
        line = World(2).run(meet(cost=cost)).show_on(1, later(60 * US)).timeline()
        assert [clock.moved_ns for clock in align(line).clocks] == moved

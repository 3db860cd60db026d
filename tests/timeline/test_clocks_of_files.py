"""Files of ranks whose clocks differ, and real ones: what is moved, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.cli import main
from slipstream.timeline.analysis import analyse
from slipstream.timeline.clocks import align
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.report.overview import overviews, rank_lines
from slipstream.timeline.report.verdict import verdict
from slipstream.timeline.table import Clock, Kind
from tests.timeline import vendors
from tests.timeline.clocks import LATE, MS, apart, later, said_of, shown
from tests.timeline.places import analysed, real
from tests.timeline.speculative import US, draft_nodes, extend_nodes, play, verify_nodes
from tests.timeline.test_answers import check_invariants
from tests.timeline.virtual import World


@pytest.mark.parametrize("vendor", ["kineto", "rocm", "text", "db"])
def test_nine_answers_of_a_shifted_run_come_back_from_every_format(tmp_path: Path, vendor: str) -> None:
    shape = replace(LATE, ascend=vendor in ("text", "db"))
    nodes = [draft_nodes(shape), verify_nodes(shape, -1), extend_nodes(shape)]
    writers = {"kineto": vendors.write_cuda, "rocm": vendors.write_rocm, "text": vendors.write_text}
    told = []
    for name, by_ns in (("true", 0), ("shifted", 250 * US)):
        (folder := tmp_path / name / "run").mkdir(parents=True)
        world = play(shape).show_on(1, later(by_ns))
        sides = writers.get(vendor, vendors.write_db)(folder, world, nodes)
        line = open_timeline(folder, sides=sides)
        assert [clock.moved_ns for clock in line.clocks] == ([-by_ns] if by_ns else [])
        told.append(said_of(analyse(line)))
        if by_ns:
            assert open_timeline(folder, sides=sides, one_clock=False).clocks == ()
    assert told[0] == told[1]


def test_ranks_with_different_epochs_are_one_run_if_their_collectives_say_so(tmp_path: Path) -> None:
    hour = 3_600_000 * MS
    shape = replace(LATE, rounds=12, jitter=70 * US)

    def mixed(name: str, world: World) -> tuple[list[str], tuple[Clock, ...]]:
        (folder := tmp_path / name / "run").mkdir(parents=True)
        vendors.write_cuda(folder, world, [])
        line = open_timeline(folder)
        return [note.why for note in line.notes if note.what == "mixed"], line.clocks

    why, clocks = mixed("epochs", play(shape).show_on(1, later(hour)))
    assert why == []
    assert [clock.moved_ns for clock in clocks] == [-hour]
    # rank 1 of another run of the same program, an hour later, as long and with as many rounds
    world = play(shape)
    world.ranks[1] = play(replace(shape, jitter=-70 * US, tree=150 * US)).ranks[1]
    why, clocks = mixed("runs", world.show_on(1, later(hour)))
    assert why == ["ranks share no moment: they are of different runs, or their clocks differ"]
    assert clocks == ()


def test_verdicts_on_a_late_rank_say_if_clocks_differ() -> None:
    analysis = analyse(shown(LATE, {}))
    views = overviews(analysis)
    late = max(rank_lines(analysis, views), key=lambda line: line.caused_ns)
    assert late.sure
    assert "not sure" not in verdict(views[1], late)
    text = verdict(views[1], replace(late, sure=False))
    assert "in collectives until this one came" in text
    assert text.endswith("; that is not sure, as clocks may differ.")


def test_the_command_says_what_it_moved_or_leaves_times_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(folder: Path, *options: str) -> str:
        assert main(["trace", "analyse", str(folder), *options]) == 0
        return " ".join(capsys.readouterr().out.split())

    def written(name: str, rounds: int) -> Path:
        (folder := tmp_path / name / "run").mkdir(parents=True)
        world = play(replace(LATE, rounds=rounds)).show_on(1, later(-700 * US))
        vendors.write_cuda(folder, world, [])
        return folder

    folder = written("shifted", 8)
    moved = (
        "clocks: the times of rank 1 were moved by +700.000 us, by the ends of 8 collectives, spread 0.0 us"
    )
    assert moved in told(folder)
    found = json.loads(told(folder, "--json"))
    clock = {"rank": 1, "moved_ns": 700 * US, "drift_ppm": 0.0, "collectives": 8, "spread_ns": 0}
    assert found["quality"]["clocks"] == [clock]
    assert found["rank"] == 1
    assert "not sure" not in found["verdict"]
    was = json.loads(told(folder, "--clocks", "as-is", "--json"))
    assert was["quality"]["clocks"] == []
    assert {note["what"] for note in was["quality"]["notes"]} >= {"clocks"}
    assert was["rank"] == 0  # whoever's clock is ahead
    # too few to move anything: whatever is said of late ranks is marked
    text = told(written("short", 2))
    assert "ranks' clocks differ, and collectives do not say by how much: they met in 2" in text


def test_four_npus_of_which_one_is_25_us_off() -> None:
    """The clock of rank 2 is 25 us behind those of 0, 1 and 3: by its collectives with each of them alone."""
    path = real("ascend/qwen3-4rank")
    was, line = open_timeline(path, one_clock=False), analysed("ascend/qwen3-4rank").timeline
    assert apart(was) == 6
    assert apart(line) == 0
    (clock,) = line.clocks
    assert (clock.rank, clock.collectives) == (2, 14)
    assert 23 * US < clock.moved_ns < 28 * US
    assert clock.spread_ns < 3 * US
    ends = was.end_ns[(was.kind == Kind.COMM) & (was.sequence >= 0)]
    assert len(ends)
    # nothing within a rank changes
    for rank in line.ranks:
        one, other = ((t.start_ns[t.rank == rank], t.dur_ns[t.rank == rank]) for t in (was, line))
        assert np.array_equal(np.diff(one[0]), np.diff(other[0]))
        assert np.array_equal(one[1], other[1])
    check_invariants(analysed("ascend/qwen3-4rank"))


@pytest.mark.parametrize("name", ["kineto/dlrm-8rank", "ascend/910b-alexnet-db"])
def test_real_ranks_of_one_host_are_left_as_they_are(name: str) -> None:
    line = open_timeline(real(name), one_clock=False)
    for given in (True, False):
        assert align(line, np.full(len(line), given)) is line

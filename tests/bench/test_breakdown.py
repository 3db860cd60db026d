"""The clock that adds up slices, and the record made of it."""

from __future__ import annotations

import time

import pytest

from slipstream.bench.bandwidth import ForwardBytes
from slipstream.bench.breakdown import PhaseClock, breakdown_table, reading, round_breakdown
from slipstream.bench.tables import console
from slipstream.engine.stats import EngineStats
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.stats import GraphStats, PhaseStats
from slipstream.trace import names

MS = 1_000_000


def test_the_clock_adds_up_slices_by_name() -> None:
    clock = PhaseClock()
    for _ in range(3):
        with clock.slice(names.MAIN, names.ACCEPT, rows=4):
            time.sleep(0.002)
    with pytest.raises(KeyError), clock.slice(names.HOST, names.PUBLISH):
        raise KeyError("left by an error")
    assert clock.runs == {"accept": 3, "publish": 1}
    assert clock.spent_ns["accept"] >= 3 * 2 * MS
    assert clock.spent_ns["publish"] < clock.spent_ns["accept"]
    assert clock.events() == []
    clock.reset()
    assert (clock.runs, clock.spent_ns) == ({}, {})


def test_a_slice_may_begin_inside_another() -> None:
    clock = PhaseClock()
    with clock.slice(names.MAIN, names.ACCEPT), clock.slice(names.PLAN, names.VERIFY_PLAN):
        time.sleep(0.001)
    assert clock.spent_ns["accept"] >= clock.spent_ns["verify plan"] >= MS


def counted() -> tuple[EngineStats, PhaseClock]:
    """Ten rounds of 5 ms: two widths of verify, 4 ms together, and 0.5 ms of accept."""
    graphs = GraphStats()
    graphs.phases[BatchDescriptor("verify", 1, 4)] = PhaseStats(replays=2, rows=8, time_ns=12 * MS)
    graphs.phases[BatchDescriptor("verify", 1, 1)] = PhaseStats(replays=7, eager=1, rows=8, time_ns=28 * MS)
    stats = EngineStats(graphs, round_ns=50 * MS, rounds=10)
    clock = PhaseClock()
    clock.spent_ns, clock.runs = {"accept": 5 * MS, "schedule": MS}, {"accept": 10, "schedule": 10}
    return stats, clock


def test_parts_rest_and_speed_of_known_counts() -> None:
    record = round_breakdown(*counted(), {"linear_q4": 30 * MS}, 100.0, ForwardBytes(80 * MS, 10_000))
    assert [(p["phase"], p["width"], p["runs"], round(p["ms"])) for p in record["parts"]] == [
        ("verify", 1, 8, 28),
        ("verify", 4, 2, 12),
        ("accept", 0, 10, 5),
        ("schedule", 0, 10, 1),
        ("rest", 0, 10, 4),
    ]
    assert record["round_ms"] == 5
    assert record["host_share"] == pytest.approx(0.2)
    assert record["forward_ms"] == pytest.approx(4)
    assert record["read_mb"] == pytest.approx(81)
    assert record["gb_s"] == pytest.approx(81 / 4)
    assert record["kernel_ms"] == {"linear_q4": 30}


def test_before_the_first_round_everything_is_zero() -> None:
    record = round_breakdown(EngineStats(GraphStats()), PhaseClock(), {}, 0.0, ForwardBytes(1, 1))
    assert (record["rounds"], record["round_ms"], record["forward_ms"], record["gb_s"]) == (0, 0, 0, 0)
    assert [part["ms"] for part in record["parts"]] == [0]


def test_the_table_has_a_line_a_part_and_blanks_where_an_engine_has_none() -> None:
    record = round_breakdown(*counted(), {"linear_q4": 30 * MS, "argmax": 10 * MS}, 1.0, ForwardBytes(1, 1))
    plain = record | {"parts": [p for p in record["parts"] if p["width"] != 4]}
    out = console()
    with out.capture() as captured:
        out.print(breakdown_table({"plain": plain, "spec": record}))
    lines = captured.get().splitlines()
    [wide] = [line for line in lines if "verify 1x4" in line]
    assert wide.replace("│", " ").split() == ["verify", "1x4", "2", "6.000", "24.0%"]
    [narrow] = [line for line in lines if "verify 1x1 (eager)" in line]
    assert narrow.count("56.0%") == 2
    assert any("round" in line and line.count("5.00") == 2 for line in lines)
    assert max(map(len, lines)) <= 80
    assert "linear_q4 75.0%, argmax 25.0%" in reading(record, 10.0)
    assert "dispatch share 20.0%" in reading(record, 10.0)

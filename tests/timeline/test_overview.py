"""What reports sum up: the ledger adds up to the rounds, whatever the trace."""

from __future__ import annotations

import pytest

from slipstream.timeline.analysis import analyse
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.report.ledger import Entry
from slipstream.timeline.report.overview import focus, overviews, rank_lines, slowest
from slipstream.timeline.report.verdict import verdict
from slipstream.timeline.wording import counted, duration, percent, ranks_named
from tests.timeline.places import real
from tests.timeline.speculative import Shape, play

REAL = (
    "kineto/tracelens/mi300x-vllm-piecewise.json.gz",
    "kineto/tracelens/mi300x-sglang-decode-graph.json.gz",
    "kineto/tracelens/h100-qwen-clipped.json.gz",
    "kineto/tracelens/b200-vllm-eager.json.gz",
    "kineto/hta/a100-sampled-rank0.json.gz",
    "kineto/hta/v100-graph-replays.json.gz",
    "kineto/dlrm-8rank",
    "ascend/910b-alexnet-text/level1-rank0",
    "ascend/910b-alexnet-db",
    "ascend/qwen3-4rank",
)


@pytest.mark.parametrize("name", REAL)
def test_every_nanosecond_of_the_paths_has_one_entry(name: str) -> None:
    analysis = analyse(open_timeline(real(name)))
    views = overviews(analysis)
    for view in views.values():
        ledger = view.ledger
        assert sum(ledger.spent.values()) == ledger.total_ns
        assert ledger.total_ns == sum(report.round.took_ns for report in view.reports)
        assert sum(part.share for part in view.parts) == pytest.approx(1)
        assert 0 <= view.busy <= 1
        assert verdict(view).endswith(".")
    lines = rank_lines(analysis, views)
    assert sum(line.caused_ns for line in lines) == sum(line.stood_ns for line in lines)
    assert slowest(lines) in views


def test_the_rank_to_tell_of_is_the_one_that_is_waited_for() -> None:
    analysis = analyse(play(Shape(ranks=3, slow_rank=2)).timeline())
    lines = rank_lines(analysis, overviews(analysis))
    assert slowest(lines) == 2
    assert [line.last > 0 for line in lines] == [False, False, True]
    assert lines[2].caused_ns == lines[0].stood_ns + lines[1].stood_ns


def test_prefills_are_told_of_where_nothing_else_is_there() -> None:
    analysis = analyse(play(Shape(rounds=3)).timeline())
    reports = analysis.reports[0]
    assert focus(reports) == reports
    assert focus(()) == ()


def test_the_host_is_an_entry_of_its_own() -> None:
    analysis = analyse(play(Shape()).timeline())
    ledger = overviews(analysis)[0].ledger
    assert dict(ledger.names(Entry.HOST))["build_tree"] == 6 * 80_000
    assert ledger.share(*Entry) == pytest.approx(1)


def test_words() -> None:
    assert [duration(ns) for ns in (0, 999_940, 999_960, 999_600_000, -1_500)] == [
        "0.0 us",
        "999.9 us",
        "1.00 ms",
        "1.00 s",
        "-1.5 us",
    ]
    assert [percent(share) for share in (0.0, 1.0, 0.0001, 0.99999, 0.5, 0.1234)] == [
        "0 %",
        "100 %",
        "under 0.1 %",
        "over 99.9 %",
        "50 %",
        "12.3 %",
    ]
    assert counted(2, "smaller part") == "2 smaller parts"
    assert counted(1, "stretch", "stretches") == "1 stretch"
    assert [counted(mean, "operation") for mean in (1.0, 7.3333, 0.5)] == [
        "1 operation",
        "7.33 operations",
        "0.5 operations",
    ]
    assert [ranks_named(some) for some in ([2], [0, 1], [0, 1, 2, 3, 6], range(8))] == [
        "rank 2",
        "ranks 0 and 1",
        "ranks 0 to 3 and 6",
        "ranks 0 to 7",
    ]

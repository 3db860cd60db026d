"""Paths, edges and totals of real traces, against what their vendors and other tools say of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.inference import BLOCKING_NS
from slipstream.timeline.path import Piece
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.reschedule import make_model, reschedule
from slipstream.timeline.rounds import RoundKind
from slipstream.timeline.table import Kind
from tests.timeline.places import analysed, real
from tests.timeline.test_answers import check_invariants

FILES = [
    "kineto/tracelens/mi300x-vllm-piecewise.json.gz",
    "kineto/tracelens/mi300x-sglang-decode-graph.json.gz",
    "kineto/tracelens/b200-vllm-eager.json.gz",
    "kineto/tracelens/h100-qwen-clipped.json.gz",
    "kineto/hta/v100-graph-replays.json.gz",
    "kineto/hta/v100-ddp-54mb.json.gz",
    "kineto/hta/a100-nccl-args.json.gz",
    "kineto/hta/a100-sampled-rank0.json.gz",
    "kineto/hta/a100-sampled-rank1.json.gz",
    "kineto/hta/cpu-only.json.gz",
    "kineto/hta-critical-path/alexnet",
    "kineto/hta-critical-path/cuda_event_sync",
    "kineto/hta-critical-path/cuda_event_sync_multi_stream",
    "kineto/hta-critical-path/simple_add",
    "kineto/hta-critical-path/end_to_end/simple_add/input",
    "kineto/tracelens/mi300x-sglang-decode-capture.json.gz",
    "kineto/dlrm-8rank",
    "ascend/910b-alexnet-text/level1-rank0",
    "ascend/910b-alexnet-text/level1-rank1",
    "ascend/910b-alexnet-text/level2-rank0",
    "ascend/910b-alexnet-db",
    "ascend/qwen3-4rank",
]


@pytest.mark.parametrize("path", FILES)
def test_invariants_hold(path: str) -> None:
    analysis = analysed(path)
    check_invariants(analysis)
    # what is known of the recording gives the recording back
    deps = analysis.deps
    if len(deps.timeline):
        model = make_model(deps)
        again = reschedule(model, len(deps.timeline))
        assert model.broken == 0
        assert np.array_equal(again.release_ns, deps.release_ns)


def test_the_path_runs_through_25_replays() -> None:
    analysis = analysed(FILES[0])
    total = analysis.quality.totals[0]
    assert round(total.span_ns / 1e6, 2) == 156.47
    assert round(total.busy_ns / 1e6, 2) == 156.09
    assert round(total.idle_ns / 1e6, 2) == 0.38
    path = analysis.reports[0][0].path
    table = analysis.timeline
    assert path.by_piece()[Piece.WORK] == total.busy_ns
    assert path.by_piece()[Piece.UNKNOWN] == 0
    inside = path.row[(path.row >= 0) & (table.graph[path.row] >= 0)]
    assert len({(int(table.graph[row]), int(table.replay[row])) for row in inside}) == 25


@pytest.mark.parametrize("path", [*FILES[:2], FILES[4]])
def test_device_time_is_reachable_from_launches_or_marked(path: str) -> None:
    """HTA reaches 5.0 % of vLLM's, 1.2 % of SGLang's and 70.6 % of the V100's device time."""
    analysis = analysed(path)
    table, edges = analysis.timeline, analysis.deps.edges
    # From launches on along edges; a row that nothing launched counts only with a note that says so.
    reached = table.kind == Kind.LAUNCH
    reached[edges.src[edges.kind == EdgeKind.LAUNCH]] = True
    forward = np.argsort(table.start_ns[edges.dst], kind="stable")
    for src, dst in zip(edges.src[forward].tolist(), edges.dst[forward].tolist(), strict=True):
        reached[dst] |= reached[src]
    clipped = table.is_work & (table.launch < 0)
    assert sum(note.count for note in analysis.quality.notes if note.what == "clipped") == int(clipped.sum())
    own = int(table.dur_ns[table.is_work & (reached | clipped)].sum())
    assert own / int(table.dur_ns[table.is_work].sum()) > 0.99


def test_two_sampled_ranks_meet_where_their_times_allow_it(tmp_path: Path) -> None:
    """A100: ten NCCL operations a rank, of which a sampling profiler left out others; so not all are the same."""
    for rank in (0, 1):
        name = f"rank{rank}.json.gz"
        (tmp_path / name).symlink_to(real(f"kineto/hta/a100-sampled-{name}").resolve())
    analysis = analyse(open_timeline(tmp_path))
    check_invariants(analysis)
    table, deps = analysis.timeline, analysis.deps
    assert table.ranks == (0, 1)
    assert np.bincount(table.rank[table.is_work & (table.kind == Kind.COMM)]).tolist() == [10, 10]
    ends = [table.end_ns[members].tolist() for members in deps.collectives]
    assert len(ends) == 4
    assert all(abs(one - other) < 1_000_000 for one, other in ends)
    assert [note.count for note in deps.notes if note.what == "clocks"] == [6]


def test_sglang_decoding_is_a_decoding_step_on_the_device() -> None:
    analysis = analysed(FILES[1])
    report = analysis.reports[0][0]
    assert report.round.kind is RoundKind.DECODE
    assert report.round.phase("decode").facts["requests"] == 32
    assert report.path.by_piece()[Piece.WORK] > 9_700_000  # HTA finds 0.015 ms of compute
    assert analysis.quality.launched_share > 0.99


def test_ddp_communication_is_wholly_exposed() -> None:
    total = analysed(FILES[5]).quality.totals[0]
    assert round(total.exposed_ns / 1e6) == 357
    assert total.covered_ns == 0
    assert round(100 * total.exposed_ns / total.span_ns, 1) == 20.6


def test_training_is_not_taken_for_speculation() -> None:
    analysis = analysed(FILES[4])
    assert {report.round.kind for report in analysis.reports[1]} == {RoundKind.STRETCH}
    clipped = sum(note.count for note in analysis.quality.notes if note.what == "clipped")
    table = analysis.timeline
    reached = int((table.is_work & (table.launch >= 0)).sum())
    assert (reached + clipped) / int(table.is_work.sum()) > 0.99


@pytest.mark.parametrize(("name", "rank"), [("level1-rank0", 0), ("level1-rank1", 1), ("level2-rank0", 0)])
def test_blocking_waits_are_paired_with_their_records(name: str, rank: int) -> None:
    table = open_timeline(real(f"ascend/910b-alexnet-text/{name}"))
    deps = find_dependencies(table)
    blocking = np.flatnonzero((table.kind == Kind.WAIT) & table.on_device & (table.dur_ns > BLOCKING_NS))
    assert len(blocking)
    for wait in blocking.tolist():
        found = [e for e in deps.edges_into(wait) if deps.edges.kind[e] == EdgeKind.EVENT_INFERRED]
        assert len(found) == 1
        assert deps.edges.confidence[found[0]] == Confidence.INFERRED
        assert 380 <= deps.lag_ns[found[0]] <= 520


@pytest.mark.parametrize(
    "path",
    [
        "ascend/910b-alexnet-text/level1-rank0",
        "ascend/910b-alexnet-text/level1-rank1",
        "ascend/910b-alexnet-text/level2-rank0",
        "ascend/910b-alexnet-db",
    ],
)
def test_totals_equal_the_vendors(path: str) -> None:
    quality = analysed(path).quality
    assert len(quality.vendor) >= 4
    for rank, word, theirs, ours in quality.vendor:
        assert abs(theirs - ours) <= 100, (rank, word)


def test_eight_ranks_and_who_came_last() -> None:
    analysis: Analysis = analysed("kineto/dlrm-8rank")
    deps = analysis.deps
    assert len(deps.collectives) == 8
    assert all(len(members) == 8 for members in deps.collectives)
    table = deps.timeline
    for members in deps.collectives:
        assert table.start_ns[members[0]] == table.start_ns[members].max()
    assert deps.count_by_kind()[EdgeKind.COLLECTIVE] == 56
    answer = analysis.reports[0][0].answers[7]
    assert answer.values["late_rank"] == 7

"""The historic stream budget, against the values of the old code, and the probe beside it."""

from __future__ import annotations

import pytest

from slipstream.errors import UsageError
from slipstream.graph.modes import GraphMode
from slipstream.graph.streams import Hccl, MemoryProbe, StreamFacts, measured_max_sizes, stream_budget

PIECES, BOTH = GraphMode.PIECEWISE, GraphMode.FULL_AND_PIECEWISE


@pytest.mark.parametrize(
    ("facts", "mode", "hccl", "most"),
    [
        (StreamFacts(36), PIECES, Hccl.FFTS, 48),
        (StreamFacts(36), BOTH, Hccl.FFTS, 47),
        (StreamFacts(48, tp=4), PIECES, Hccl.FFTS, 11),
        (StreamFacts(48, tp=4), PIECES, Hccl.AIV, 17),
        (StreamFacts(64, tp=4), PIECES, Hccl.FFTS, 9),
        (StreamFacts(64, tp=4), PIECES, Hccl.AIV, 12),
        (StreamFacts(94, tp=8, dp=2, moe=True, expert_parallel=True), PIECES, Hccl.AIV, 3),
        (StreamFacts(61, tp=4, dp=4), PIECES, Hccl.FFTS, 5),
    ],
)
def test_sizes_that_fit(facts: StreamFacts, mode: GraphMode, hccl: Hccl, most: int) -> None:
    budget = stream_budget(facts, mode, hccl, 51)
    assert budget.max_sizes == most
    assert budget.fits(most)
    assert not budget.fits(most + 1)


def test_a_draft_model_takes_its_share() -> None:
    with_draft = stream_budget(StreamFacts(36, draft_layers=1), PIECES, Hccl.FFTS, 51)
    assert with_draft.max_sizes == 1800 // 39
    assert with_draft.streams_per_size == 39


def test_context_parallelism_takes_a_hundred_each() -> None:
    facts = StreamFacts(36, pcp=2, dcp=2)
    assert stream_budget(facts, PIECES, Hccl.FFTS, 51).max_sizes == 1600 // 37
    assert stream_budget(facts, PIECES, Hccl.AIV, 51).max_sizes == (1800 - 37) // 37


def test_whole_graphs_take_one_stream_a_size() -> None:
    for mode in (GraphMode.FULL, GraphMode.FULL_DECODE_ONLY):
        budget = stream_budget(StreamFacts(94, tp=8, dp=2, moe=True), mode, Hccl.FFTS, 51)
        assert (budget.streams_per_size, budget.max_sizes) == (1, 1800)
    assert stream_budget(StreamFacts(94), GraphMode.NONE, Hccl.FFTS, 0).max_sizes == 0


def test_where_nothing_fits_it_is_nothing_and_not_less() -> None:
    facts = StreamFacts(2000, tp=8, dp=8)
    assert [stream_budget(facts, PIECES, hccl, 51).max_sizes for hccl in Hccl] == [0, 0]


def test_a_probe_says_what_really_fits() -> None:
    assert measured_max_sizes(49) == 36
    assert measured_max_sizes(49, reserved=100) == 34
    with pytest.raises(UsageError, match="probe of 0 streams a size is not possible"):
        measured_max_sizes(0)


def test_memory_is_the_largest_graphs_and_a_little_for_each_other() -> None:
    probe = MemoryProbe(512, 24)
    assert [probe.total_mib(number) for number in (0, 1, 3)] == [0, 512, 560]
    with pytest.raises(UsageError, match="probe of -1 MiB"):
        MemoryProbe(-1, 0).validate()


@pytest.mark.parametrize("facts", [StreamFacts(0), StreamFacts(1, tp=0), StreamFacts(1, draft_layers=0)])
def test_numbers_that_are_not_possible(facts: StreamFacts) -> None:
    with pytest.raises(UsageError, match="0 is not possible"):
        facts.validate()

"""Which decode batches have a graph, and in which mode that is so."""

from __future__ import annotations

import pytest

from slipstream.graph.coverage import cover, covering_size, decode_sizes, ranges
from slipstream.graph.modes import GraphMode
from slipstream.graph.sizes import SizeSource, default_sizes, round_to_width

FULL, PIECES = GraphMode.FULL, GraphMode.PIECEWISE
DECODE_ONLY, BOTH = GraphMode.FULL_DECODE_ONLY, GraphMode.FULL_AND_PIECEWISE


@pytest.mark.parametrize(
    ("requests", "width", "uncovered"),
    [
        (20, 1, tuple(range(17, 21))),
        (100, 1, tuple(range(97, 101))),
        (12, 1, tuple(range(9, 13))),
        (25, 4, (25,)),
        (10, 3, (9, 10)),
        (40, 4, ()),
        (16, 1, ()),
    ],
)
def test_ascends_default_leaves_the_fullest_batches_without_a_graph(
    requests: int, width: int, uncovered: tuple[int, ...]
) -> None:
    sizes = round_to_width(default_sizes(SizeSource.ASCEND, requests, width), width)
    assert cover(sizes, BOTH, width, requests).uncovered == uncovered


def test_a_batch_is_padded_to_the_next_size() -> None:
    coverage = cover((6, 24), FULL, 3, 8)
    assert coverage.sizes == (6, 6, 24, 24, 24, 24, 24, 24)
    # 5 requests x 3 rows in a bucket of 8: 24 rows, 9 padded.
    assert (coverage.sizes[4], coverage.padded_rows(5)) == (24, 9)


def test_decode_graphs_of_more_requests_than_may_run_are_not_captured() -> None:
    sizes = (1, 8, 16)
    assert decode_sizes(sizes, DECODE_ONLY, 1, 10) == (1, 8)
    assert decode_sizes(sizes, FULL, 1, 10) == sizes
    assert decode_sizes((2, 4, 8), BOTH, 4, 10) == (4, 8)
    assert decode_sizes(sizes, GraphMode.NONE, 1, 10) == ()


def test_where_whole_graphs_end_pieces_take_over() -> None:
    assert cover((8, 16), DECODE_ONLY, 1, 10).uncovered == (9, 10)
    assert cover((8, 16), BOTH, 1, 10).sizes[8:] == (16, 16)
    assert cover((8, 16), PIECES, 1, 10).uncovered == ()
    assert cover((8, 16), GraphMode.NONE, 1, 10).uncovered == tuple(range(1, 11))


def test_with_sequence_parallelism_rows_are_rounded_before_a_size_is_looked_for() -> None:
    coverage = cover((8, 12, 16), PIECES, 1, 9, ranks=8)
    assert coverage.sizes == (8,) * 8 + (16,)
    assert coverage.padded_rows(9) == 7


@pytest.mark.parametrize(
    ("mode", "width", "requests", "ranks", "size"),
    [(FULL, 4, 25, 1, 100), (FULL, 3, 10, 8, 48), (PIECES, 3, 10, 8, 32), (PIECES, 3, 10, 1, 30)],
)
def test_the_size_that_the_fullest_batch_needs(
    mode: GraphMode, width: int, requests: int, ranks: int, size: int
) -> None:
    assert covering_size(mode, width, requests, ranks=ranks) == size
    assert cover((size,), mode, width, requests, ranks=ranks).uncovered == ()


def test_numbers_are_written_as_ranges() -> None:
    assert ranges([3, 17, 18, 19, 20, 22]) == "3, 17 to 20, 22"
    assert ranges([]) == ""

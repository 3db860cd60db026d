"""Capture sizes: default lists, users' lists, rounding, filters and cuts, against the documented rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.graph.buckets import pick_bucket
from slipstream.graph.sizes import (
    MAX_SIZE,
    SizeSource,
    check_sizes,
    default_maximum,
    default_sizes,
    round_to_width,
    sample_sizes,
    sequence_parallel_sizes,
    size_table,
    stride_sizes,
)

ASCEND, VLLM = SizeSource.ASCEND, SizeSource.VLLM


class TestDefaults:
    def test_the_grid_to_512_has_51_sizes(self) -> None:
        sizes = stride_sizes(512)
        assert len(sizes) == 51
        assert (sizes[:5], sizes[-18:-15]) == ((1, 2, 4, 8, 16), (248, 256, 272))
        assert sizes[-1] == 512

    def test_interactive_has_every_size_to_32(self) -> None:
        assert stride_sizes(48, interactive=True) == (*range(1, 33), 40, 48)
        assert stride_sizes(5, interactive=True) == (1, 2, 3, 4, 5)

    @pytest.mark.parametrize(
        ("source", "requests", "width", "batched", "maximum"),
        [
            (ASCEND, 40, 4, None, 160),
            (ASCEND, 200, 4, None, 512),
            (VLLM, 40, 4, None, 320),
            (VLLM, 200, 4, None, 512),
            (ASCEND, 40, 4, 100, 100),
            (VLLM, 20, 1, None, 40),
        ],
    )
    def test_the_maximum(
        self, source: SizeSource, requests: int, width: int, batched: int | None, maximum: int
    ) -> None:
        assert default_maximum(source, requests, width, batched) == maximum

    @pytest.mark.parametrize(
        ("requests", "width", "last"), [(12, 1, 8), (20, 1, 16), (100, 1, 96), (300, 1, 288)]
    )
    def test_ascends_list_ends_at_a_step_of_the_grid(self, requests: int, width: int, last: int) -> None:
        assert default_sizes(ASCEND, requests, width)[-1] == last

    def test_most_of_ascends_maxima_are_off_the_grid(self) -> None:
        short = [n for n in range(1, 513) if default_sizes(ASCEND, n, 1)[-1] < n]
        assert len(short) == 461

    def test_vllms_list_holds_the_fullest_batch(self) -> None:
        assert all(default_sizes(VLLM, n, 1)[-1] >= n for n in range(1, 513))
        assert 20 in default_sizes(VLLM, 20, 1)
        assert {4, 8, 16, 32, 64, 96, 100} <= set(default_sizes(VLLM, 25, 4))

    def test_vllm_adds_no_decode_batches_below_a_maximum_that_the_user_set(self) -> None:
        assert default_sizes(VLLM, 20, 1, maximum=24) == (1, 2, 4, 8, 16, 24)

    def test_what_a_step_computes_ends_the_list_and_stands_in_it(self) -> None:
        assert default_sizes(VLLM, 64, 1, max_batched_tokens=50)[-2:] == (48, 50)
        assert default_sizes(ASCEND, 64, 1, max_batched_tokens=50)[-2:] == (48, 50)
        assert default_sizes(ASCEND, 20, 1, max_batched_tokens=4096) == (1, 2, 4, 8, 16)


class TestUsersLists:
    def test_a_list_stands_as_it_is(self) -> None:
        assert check_sizes([1, 3, 7], 7) == (1, 3, 7)

    @pytest.mark.parametrize(
        ("sizes", "maximum", "said"),
        [
            ([], None, "empty.*--mode none"),
            ([0, 1], None, r"size 0 is not possible.*1 to 65536"),
            ([-4], None, "size -4 is not possible"),
            ([MAX_SIZE + 1], None, f"size {MAX_SIZE + 1} is not possible"),
            ([8, 4], None, "do not ascend: 4 comes after 8; write 4,8"),
            ([4, 4], None, "size 4 stands twice"),
            ([1, 2, 16], 8, "largest size 16 is over the maximum 8"),
            ([1, 2, 4], 8, "largest size 4 is not the maximum 8"),
        ],
    )
    def test_what_is_not_possible_is_refused(self, sizes: list[int], maximum: int | None, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            check_sizes(sizes, maximum)


class TestRounding:
    @pytest.mark.parametrize(
        ("sizes", "maximum", "width", "rounded"),
        [
            ((1, 2, 4, 8, 16), 16, 4, (4, 8, 16)),
            ((1, 2, 4, 8, 16, 24), 24, 3, (3, 6, 9, 18, 24)),
            ((4, 8), 8, 5, (5,)),
            ((1, 2, 4), None, 1, (1, 2, 4)),
        ],
    )
    def test_to_the_width(
        self, sizes: tuple[int, ...], maximum: int | None, width: int, rounded: tuple[int, ...]
    ) -> None:
        assert round_to_width(sizes, width, maximum=maximum) == rounded

    def test_a_maximum_below_one_request_is_refused_with_the_least(self) -> None:
        with pytest.raises(
            UsageError, match=r"largest size 4 holds no decode request of 5 rows.*as --sizes 5"
        ):
            round_to_width((1, 2, 4), 5)

    def test_with_sequence_parallelism_sizes_are_multiples_of_both(self) -> None:
        assert round_to_width((8, 16, 24, 48), 3, ranks=8) == (24, 48)

    @given(st.sets(st.integers(1, 200), min_size=1), st.integers(1, 12))
    def test_sizes_ascend_are_multiples_and_stay_below_the_maximum(self, sizes: set[int], width: int) -> None:
        ascending = tuple(sorted(sizes))
        if ascending[-1] < width:
            return
        rounded = round_to_width(ascending, width)
        assert list(rounded) == sorted(set(rounded))
        assert all(size % width == 0 and size <= ascending[-1] for size in rounded)


class TestFilters:
    def test_sequence_parallelism_keeps_multiples_of_the_ranks(self) -> None:
        assert sequence_parallel_sizes((1, 2, 4, 8), 8) == (8,)

    def test_where_nothing_is_left_it_says_what_to_add(self) -> None:
        with pytest.raises(UsageError, match="keeps multiples of 8, and none of 1,2,12 is one; add 16"):
            sequence_parallel_sizes((1, 2, 12), 8)

    def test_a_cut_keeps_the_first_the_last_and_what_lies_evenly_between(self) -> None:
        assert sample_sizes(tuple(range(1, 11)), 4) == (1, 4, 7, 10)
        assert sample_sizes((1, 2, 4, 8, 16), 2) == (1, 16)
        assert sample_sizes((1, 2, 4), 4) == (1, 2, 4)

    @pytest.mark.parametrize("keep", [1, 0, -3])
    def test_of_one_place_the_last_is_kept(self, keep: int) -> None:
        assert sample_sizes((1, 2, 4), keep) == (4,)

    @given(st.sets(st.integers(1, 500), min_size=2), st.integers(2, 60))
    def test_a_cut_has_as_many_as_are_asked_for(self, sizes: set[int], keep: int) -> None:
        ascending = tuple(sorted(sizes))
        cut = sample_sizes(ascending, keep)
        assert len(cut) == len(set(cut)) == min(keep, len(ascending))
        assert (cut[0], cut[-1]) == (ascending[0], ascending[-1])


class TestTable:
    def test_of_padding(self) -> None:
        assert size_table((1, 2, 4)) == (0, 1, 2, 4, 4)

    @given(st.sets(st.integers(1, 100), min_size=1))
    def test_says_what_looking_up_says(self, sizes: set[int]) -> None:
        ascending = sorted(sizes)
        table = size_table(ascending)
        assert len(table) == ascending[-1] + 1
        assert all(table[rows] == pick_bucket(ascending, rows) for rows in range(1, len(table)))

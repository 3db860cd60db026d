"""Buckets and keys: which captured shape holds a batch, and that no two shapes share a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.graph.buckets import MAX_BUCKET, check_buckets, pick_bucket
from slipstream.graph.descriptor import BatchDescriptor


class TestBuckets:
    def test_are_sorted_and_unique(self) -> None:
        assert check_buckets([8, 1, 4, 1, 2]) == (1, 2, 4, 8)

    @pytest.mark.parametrize("bucket", [0, -1, MAX_BUCKET + 1])
    def test_that_are_not_possible_are_refused_with_the_range(self, bucket: int) -> None:
        with pytest.raises(UsageError, match=rf"bucket {bucket} is not possible.*1 to {MAX_BUCKET}"):
            check_buckets([1, bucket])

    def test_none_at_all_is_refused_with_what_to_do(self) -> None:
        with pytest.raises(UsageError, match=r"empty.*--graph none"):
            check_buckets([])

    @given(st.sets(st.integers(1, 30), min_size=1), st.integers(1, 40))
    def test_the_smallest_that_holds_the_batch_is_picked(self, buckets: set[int], requests: int) -> None:
        fitting = [bucket for bucket in buckets if bucket >= requests]
        assert pick_bucket(sorted(buckets), requests) == (min(fitting) if fitting else None)


def test_a_descriptor_is_a_frozen_key_that_people_can_read() -> None:
    key = BatchDescriptor("verify", 8, 4)
    assert (str(key), {key: 1}[BatchDescriptor("verify", 8, 4)]) == ("verify 8x4", 1)
    with pytest.raises(AttributeError):
        key.width = 1  # type: ignore[misc]


def test_equal_rows_of_different_shapes_are_different_keys() -> None:
    keys = [
        BatchDescriptor(phase, num_reqs, width)
        for phase in ("verify", "extend", "prefill")
        for num_reqs, width in ((1, 8), (2, 4), (4, 2), (8, 1))
    ]
    keys += [BatchDescriptor.relaxed(phase, 8) for phase in ("verify", "extend", "prefill")]
    assert {key.rows for key in keys} == {8}
    assert len(set(keys)) == len(keys) == len({str(key) for key in keys})


def test_a_relaxed_key_knows_rows_only() -> None:
    key = BatchDescriptor.relaxed("verify", 8)
    assert (key.rows, key.uniform, key.num_reqs, str(key)) == (8, False, None, "verify 8 rows")
    with pytest.raises(ValueError, match="relaxed"):
        _ = key.slots

"""Buckets and the dispatcher: which captured shape a batch runs in, and why it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import UsageError
from slipstream.graph.buckets import MAX_BUCKET, check_buckets, pick_bucket
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatcher
from slipstream.graph.modes import GraphMode, Route


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


class TestDispatcher:
    def test_a_batch_that_fits_is_replayed_in_its_bucket(self) -> None:
        decision = Dispatcher(GraphMode.FULL, (1, 4)).dispatch("verify", 3, 4)
        assert (decision.route, decision.reason) == (Route.REPLAY, "captured")
        assert decision.key == BatchDescriptor("verify", 4, 4)
        assert (decision.key.rows, decision.key.padded_rows(3)) == (16, 4)

    def test_graphs_that_are_off_run_eagerly_without_padding(self) -> None:
        decision = Dispatcher(GraphMode.NONE, (1, 4)).dispatch("verify", 3, 4)
        assert (decision.route, decision.key.num_reqs) == (Route.EAGER, 3)
        assert "--graph none" in decision.reason

    def test_a_batch_that_is_too_large_runs_eagerly_without_padding(self) -> None:
        decision = Dispatcher(GraphMode.FULL, (1, 4)).dispatch("draft", 5, 1)
        assert (decision.route, decision.key.num_reqs) == (Route.EAGER, 5)
        assert decision.reason == "5 requests exceed the largest bucket 4"

    def test_after_a_failed_capture_only_that_phase_and_width_is_eager_and_keeps_its_bucket(self) -> None:
        dispatcher = Dispatcher(GraphMode.FULL, (1, 4))
        dispatcher.fail("verify", 4, "capture failed: because")
        failed = dispatcher.dispatch("verify", 3, 4)
        assert (failed.route, failed.key.num_reqs, failed.reason) == (
            Route.EAGER,
            4,
            "capture failed: because",
        )
        assert dispatcher.dispatch("verify", 3, 1).route is Route.REPLAY
        assert dispatcher.dispatch("extend", 3, 4).route is Route.REPLAY

    def test_the_callers_failures_are_copied(self) -> None:
        failed: dict[tuple[str, int], str] = {}
        Dispatcher(GraphMode.FULL, (1,), failed).fail("verify", 1, "x")
        assert failed == {}


def test_a_descriptor_is_a_frozen_key_that_people_can_read() -> None:
    key = BatchDescriptor("verify", 8, 4)
    assert (str(key), {key: 1}[BatchDescriptor("verify", 8, 4)]) == ("verify 8x4", 1)
    with pytest.raises(AttributeError):
        key.width = 1  # type: ignore[misc]

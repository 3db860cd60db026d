"""Captured request slots. Pure: no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from slipstream.errors import UsageError

#: More slots than this in one graph are a typing mistake, not a plan.
MAX_BUCKET = 512


def check_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Return the buckets ascending and unique.

    Raises:
        UsageError: the list is empty, or holds a number that is not 1 to 512.
    """
    if not buckets:
        raise UsageError("the list of buckets is empty; give at least one, as 1,2,4,8, or --graph none.")
    for bucket in buckets:
        if not 1 <= bucket <= MAX_BUCKET:
            raise UsageError(f"bucket {bucket} is not possible; a bucket is 1 to {MAX_BUCKET} request slots.")
    return tuple(sorted(set(buckets)))


def pick_bucket(buckets: Sequence[int], num_requests: int) -> int | None:
    """Return the smallest bucket that holds `num_requests`, or None. `buckets` ascend."""
    index = bisect_left(buckets, num_requests)
    return buckets[index] if index < len(buckets) else None

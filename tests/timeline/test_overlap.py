from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipstream.timeline.breakdown import family, short_name
from slipstream.timeline.overlap import covered_ns, intersect, merge, share, shares, subtract, union

stretches = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=12)
#: Real clocks: 19 digits, where a float would lose the last three.
FAR = 1_736_408_883_694_795_840


def made(pairs: list[tuple[int, int]], shift: int = 0):
    start = np.array([a for a, _ in pairs], np.int64) + shift
    return start, start + np.array([b for _, b in pairs], np.int64)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, a + b)}


def of(intervals, shift: int = 0) -> set[int]:
    pairs = zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True)
    return {t - shift for a, b in pairs for t in range(a, b)}


@given(a=stretches, shift=st.sampled_from([0, FAR]))
def test_union_is_the_set_and_is_disjoint(a, shift) -> None:
    found = union(*made(a, shift))
    assert of(found, shift) == points(a)
    assert found.total_ns == len(points(a))
    assert (found.end_ns > found.start_ns).all()
    assert (found.start_ns[1:] > found.end_ns[:-1]).all()


@given(a=stretches, b=stretches, shift=st.sampled_from([0, FAR]))
def test_sets_as_sets(a, b, shift) -> None:
    one, other = union(*made(a, shift)), union(*made(b, shift))
    assert of(intersect(one, other), shift) == points(a) & points(b)
    assert of(subtract(one, other), shift) == points(a) - points(b)
    assert of(merge(one, other), shift) == points(a) | points(b)
    assert of(one.holes(shift, shift + 80), shift) == set(range(80)) - points(a)
    assert of(one.clip(shift + 5, shift + 30), shift) == points(a) & set(range(5, 30))


@given(a=stretches, b=stretches, shift=st.sampled_from([0, FAR]))
def test_covered_time_of_each_operation(a, b, shift) -> None:
    cover = union(*made(b, shift))
    found = covered_ns(*made(a, shift), cover)
    assert found.tolist() == [len(points([pair]) & points(b)) for pair in a]


@given(a=stretches, b=stretches)
def test_covered_and_exposed_are_the_total(a, b) -> None:
    found = share("x", *made(a), union(*made(b)))
    assert found.total_ns == len(points(a))
    assert found.covered_ns == len(points(a) & points(b))
    assert found.covered_ns + found.exposed_ns == found.total_ns
    assert found.sum_ns >= found.total_ns


def test_shares_by_label_come_with_the_most_exposed_first() -> None:
    start, end = made([(0, 10), (20, 10), (5, 10)])
    cover = union(*made([(0, 10), (22, 8)]))
    found = shares(start, end, np.array([0, 0, 1], np.int32), ["reduce", "gather"], cover)
    assert [(item.what, item.exposed_ns, item.count) for item in found] == [
        ("gather", 5, 1),
        ("reduce", 2, 2),
    ]


def test_names_of_communication_without_sizes() -> None:
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert family(nccl) == "ncclDevKernel_AllReduce"
    assert family("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)") == "ncclKernel_SendRecv"
    assert family("hcom_allReduce__586_0_1@1234") == "hcom_allReduce"
    assert family("void deep_ep::internode::dispatch<true, 4>(int)") == "deep_ep::internode::dispatch"
    assert short_name("void f<1>(int)") == "f"
    assert short_name("(odd)") == "(odd)"

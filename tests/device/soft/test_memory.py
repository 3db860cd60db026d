"""The caching allocator's model: which block a tensor gets, pools, and the figures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.device import soft
from slipstream.device.soft.binding.blocks import (
    LARGE_SEGMENT_BYTES,
    MIB,
    SMALL_SEGMENT_BYTES,
    Block,
    Pool,
    Segment,
    rounded,
    segment_bytes,
)
from slipstream.device.soft.binding.memory import UNWRITTEN
from slipstream.device.soft.binding.regions import spans
from slipstream.device.soft.machine import Machine


def bytes_of(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="npu")


def test_a_freed_block_is_the_same_streams_next_one(machine: Machine) -> None:
    x = bytes_of(1000)
    address = x.data_ptr()
    view = x[10:]
    del x
    assert bytes_of(1000).data_ptr() != address  # the view still holds it
    del view
    other = torch.npu.Stream()
    with torch.npu.stream(other):
        assert bytes_of(1000).data_ptr() != address
    assert bytes_of(900).data_ptr() == address


def test_figures(machine: Machine) -> None:
    npu = torch.npu
    assert (npu.memory_allocated(), npu.memory_reserved()) == (0, 0)
    small, large = bytes_of(1), bytes_of(5 * MIB)
    assert npu.memory_allocated() == 512 + 5 * MIB
    assert npu.memory_reserved() == SMALL_SEGMENT_BYTES + LARGE_SEGMENT_BYTES
    free, total = npu.mem_get_info()
    assert total - free == npu.memory_reserved()
    del large
    assert npu.memory_allocated() == 512
    assert npu.max_memory_allocated() == 512 + 5 * MIB
    npu.reset_peak_memory_stats()
    assert npu.max_memory_allocated() == 512
    npu.empty_cache()
    assert npu.memory_reserved() == SMALL_SEGMENT_BYTES
    assert npu.memory_stats()["allocated_bytes.all.current"] == 512
    assert torch.accelerator.memory_allocated() == 512
    assert small.numel() == 1


def test_memory_runs_out_and_the_cache_is_emptied_first() -> None:
    with soft.installed(memory_bytes=64 * MIB):
        a = bytes_of(40 * MIB)
        del a
        b = bytes_of(50 * MIB)  # only after the first segment has gone back
        with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
            bytes_of(30 * MIB)
        assert b.numel() == 50 * MIB
        assert torch.npu.memory_stats()["num_ooms"] == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * MIB)), max_size=60), st.booleans())
def test_blocks_never_overlap_and_come_together_again(steps: list[tuple[bool, int]], small: bool) -> None:
    pool, address = Pool(small), [0]

    def make(num_bytes: int, home: Pool) -> Segment:
        address[0] += num_bytes
        return Segment(num_bytes, address[0], None, home)

    held: list[Block] = []
    for take, size in steps:
        if take or not held:
            block = pool.take(rounded(min(size, MIB) if small else size + MIB), make)
            assert not any(
                other.segment is block.segment
                and other.offset < block.offset + block.num_bytes
                and block.offset < other.offset + other.num_bytes
                for other in held
            )
            held.append(block)
        else:
            pool.give(held.pop(size % len(held)))
    for block in held:
        pool.give(block)
    segments = list(pool.segments)
    assert sorted(map(id, pool.empty())) == sorted(map(id, segments))
    assert not pool.segments


def test_segment_sizes_are_the_allocators() -> None:
    assert segment_bytes(MIB) == 2 * MIB
    assert segment_bytes(MIB + 512) == 20 * MIB
    assert segment_bytes(10 * MIB) == 10 * MIB
    assert segment_bytes(11 * MIB) == 12 * MIB


@st.composite
def strided(draw: st.DrawFn) -> tuple[int, list[int], list[int], int]:
    sizes = draw(st.lists(st.integers(0, 5), max_size=4))
    strides = draw(st.lists(st.integers(0, 20), min_size=len(sizes), max_size=len(sizes)))
    return draw(st.integers(0, 9)), sizes, strides, draw(st.sampled_from([1, 2, 4]))


def touched(offset: int, sizes: list[int], strides: list[int], item: int) -> set[int]:
    starts = {offset}
    for size, stride in zip(sizes, strides, strict=True):
        starts = {start + index * stride * item for start in starts for index in range(size)}
    return {start + byte for start in starts for byte in range(item)}


@settings(max_examples=400, deadline=None)
@given(strided())
def test_spans_cover_every_byte(tensor: tuple[int, list[int], list[int], int]) -> None:
    covered = set()
    for start, stop, step, width in spans(*tensor):
        for row in range(start, stop, step or stop - start):
            covered |= set(range(row, min(row + (width or stop - start), stop)))
    assert touched(*tensor) <= covered


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_spans_of_slices_are_exact(data: st.DataObject) -> None:
    x = torch.empty(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)))
    for dim in range(3):
        low = data.draw(st.integers(0, x.shape[dim] - 1))
        x = x.narrow(dim, low, data.draw(st.integers(1, x.shape[dim] - low)))
    if data.draw(st.booleans()):
        x = x.transpose(0, 2)
    args = (x.storage_offset() * 4, list(x.shape), list(x.stride()), 4)
    covered = set()
    for start, stop, step, width in spans(*args):
        for row in range(start, stop, step or stop - start):
            covered |= set(range(row, min(row + (width or stop - start), stop)))
    assert covered == touched(*args)


def test_unwritten_memory_holds_the_same_in_every_run(machine: Machine) -> None:
    assert torch.empty(4, dtype=torch.uint8, device="npu").tolist() == [UNWRITTEN] * 4
    assert not 0 <= torch.empty(1, dtype=torch.int64, device="npu").item() < 2**60

"""No false alarm, part two: tensors that are let go, pinned buffers, and what torch does by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.device.soft.clean import assert_clean_in_every_order, streams

pytestmark = pytest.mark.slow

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


# --- memory ------------------------------------------------------------------------------------------------


@program
def record_stream_before_a_tensor_goes() -> Any:
    main, side = streams(2)
    total = torch.zeros(1024, device="npu")
    torch.npu.synchronize()
    for step in range(6):
        with torch.npu.stream(side):
            made = torch.full((1024,), float(step), device="npu")
        main.wait_stream(side)
        with torch.npu.stream(main):
            total.add_(made)
        made.record_stream(main)
        del made
    torch.npu.synchronize()
    return total[0].item()


@program
def temporaries_reused_on_their_own_stream() -> Any:
    a, b = streams(2)
    results = []
    for _ in range(3):
        for stream in (a, b):
            with torch.npu.stream(stream):
                x = torch.ones(256, device="npu")
                for _ in range(3):
                    x = (x * 2).relu() + 1
                results.append(x)
    torch.npu.synchronize()
    return [result[0].item() for result in results]


@program
def freed_after_the_other_stream_is_joined() -> Any:
    main, side = streams(2)
    results = []
    for _ in range(3):
        with torch.npu.stream(main):
            x = torch.ones(256, device="npu")
        side.wait_stream(main)
        with torch.npu.stream(side):
            results.append(x.sum())
        main.wait_stream(side)
        del x  # the next one on main comes after side's read
    torch.npu.synchronize()
    return [result.item() for result in results]


# --- host buffers ------------------------------------------------------------------------------------------


@program
def double_buffered_upload() -> Any:
    """Batches go up on a stream of their own through two pinned buffers, while the former batch is computed."""
    upload, compute = streams(2)
    pinned = [torch.zeros(64).pin_memory() for _ in range(2)]
    device = [torch.zeros(64, device="npu") for _ in range(2)]
    copied = [torch.npu.Event() for _ in range(2)]
    computed = [torch.npu.Event() for _ in range(2)]
    torch.npu.synchronize()
    results = []
    for batch in range(6):
        slot = batch % 2
        copied[slot].synchronize()  # of two batches ago: the host may write again; nothing for the first two
        pinned[slot].numpy()[:] = np.arange(64) + batch
        upload.wait_event(computed[slot])  # of two batches ago: the device copy may be overwritten
        with torch.npu.stream(upload):
            device[slot].copy_(pinned[slot], non_blocking=True)
            copied[slot].record()
        compute.wait_event(copied[slot])
        with torch.npu.stream(compute):
            results.append((device[slot] * 2).sum())
            computed[slot].record()
    torch.npu.synchronize()
    return [result.item() for result in results]


@program
def results_come_down_beside_the_next_step() -> Any:
    """Each step's tokens are copied to the host on a copy stream, and read one step later."""
    main, copy = streams(2)
    tokens = [torch.zeros(4, dtype=torch.int64, device="npu") for _ in range(2)]
    on_host = [torch.zeros(4, dtype=torch.int64).pin_memory() for _ in range(2)]
    arrived = [torch.npu.Event() for _ in range(2)]
    torch.npu.synchronize()
    seen = []
    for step in range(5):
        slot = step % 2
        main.wait_event(arrived[slot])  # the copy of two steps ago has read it
        with torch.npu.stream(main):
            tokens[slot].copy_(torch.arange(4, device="npu") + step)
        copy.wait_stream(main)
        with torch.npu.stream(copy):
            on_host[slot].copy_(tokens[slot], non_blocking=True)
            arrived[slot].record()
        if step:
            arrived[1 - slot].synchronize()
            seen.append(on_host[1 - slot].tolist())
    torch.npu.synchronize()
    return seen


@program
def pinned_buffer_made_anew_for_each_upload() -> Any:
    (upload,) = streams(1)
    x = torch.zeros(8, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(upload):
        for step in range(4):
            x.copy_(torch.full((8,), float(step)).pin_memory(), non_blocking=True)
        return x.tolist()


@program
def parts_of_a_pinned_buffer() -> Any:
    (upload,) = streams(1)
    x, pinned = torch.zeros(8, 4, device="npu"), torch.zeros(8, 4).pin_memory()
    torch.npu.synchronize()
    with torch.npu.stream(upload):
        for row in range(8):
            pinned[row] = row  # the rows before may be in flight, this one isn't
            x[row].copy_(pinned[row], non_blocking=True)
        return x.tolist()


# --- what torch does by itself -----------------------------------------------------------------------------


@program
def random_numbers_on_two_streams() -> Any:
    a, b = streams(2)
    torch.manual_seed(5)
    with torch.npu.stream(a):
        x = torch.rand(4, device="npu")
    with torch.npu.stream(b):
        y = torch.rand(4, device="npu")
    torch.npu.synchronize()
    return x.tolist(), y.tolist()


@program
def training_step_beside_an_upload() -> Any:
    (side,) = streams(1)
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4).npu()
    x = torch.ones(2, 4, device="npu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pinned, other = torch.ones(4).pin_memory(), torch.zeros(4, device="npu")
    torch.npu.synchronize()
    for _ in range(3):
        with torch.npu.stream(side):
            other.copy_(pinned, non_blocking=True)
        optimizer.zero_grad()
        layer(x).pow(2).sum().backward()
        optimizer.step()
    torch.npu.synchronize()
    return layer.weight.tolist(), other.tolist()


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_it_is_clean_in_every_order(function: Callable[[], Any]) -> None:
    assert_clean_in_every_order(function)

"""No false alarm: programs whose order comes from one means only, whichever it is, are clean in 30 orders.

Each program is the right way to do something that is often done wrong; none may be reported, and its values are
the same in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.device import soft
from slipstream.device.soft.machine import ProgramOrder, Seeded

SEEDS = 30
PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_it_is_clean_in_every_order(function: Callable[[], Any]) -> None:
    values = []
    for scheduler in [ProgramOrder(), *(Seeded(seed) for seed in range(SEEDS))]:
        with soft.installed(scheduler) as machine:
            values.append(function())
            findings = machine.finish().findings
        assert findings == (), "\n\n".join(map(str, findings))
    assert values[0] is not None
    assert all(value == values[0] for value in values)


def streams(count: int) -> list[Any]:
    made = [torch.npu.Stream() for _ in range(count)]
    torch.npu.synchronize()
    return made


# --- order by events ---------------------------------------------------------------------------------------


@program
def events_only() -> Any:
    a, b = streams(2)
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    for step in range(4):
        with torch.npu.stream(a):
            x.add_(step)
            written = a.record_event()
        b.wait_event(written)
        with torch.npu.stream(b):
            x.mul_(2)
            doubled = b.record_event()
        a.wait_event(doubled)
    torch.npu.synchronize()
    return x.tolist()


@program
def one_event_recorded_again_and_again() -> Any:
    a, b = streams(2)
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    there, back = torch.npu.Event(), torch.npu.Event()
    for step in range(4):
        with torch.npu.stream(a):
            x.add_(step)
            there.record()
        with torch.npu.stream(b):
            there.wait()
            x.mul_(3)
            back.record()
        a.wait_event(back)
    a.synchronize()
    return x.tolist()


@program
def through_a_third_stream() -> Any:
    a, b, c = streams(3)
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(a):
        x.fill_(7)
    b.wait_stream(a)
    c.wait_stream(b)  # b does nothing; it passes the order on
    with torch.npu.stream(c):
        y = x * 2
    torch.npu.synchronize()
    return y.tolist()


@program
def readers_side_by_side() -> Any:
    a, b, c = streams(3)
    x = torch.arange(4.0, device="npu")
    torch.npu.synchronize()
    results = []
    for stream in (a, b):
        with torch.npu.stream(stream):
            results.append(x + 1)
        c.wait_stream(stream)
    with torch.npu.stream(c):
        x.zero_()
    torch.npu.synchronize()
    return [result.tolist() for result in results]


@program
def event_of_an_earlier_point_is_enough() -> Any:
    a, b = streams(2)
    x, y = torch.zeros(4, device="npu"), torch.zeros(4, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(a):
        x.fill_(1)
        ready = a.record_event()
        y.fill_(2)  # b doesn't read it
    b.wait_event(ready)
    with torch.npu.stream(b):
        z = x + 1
    torch.npu.synchronize()
    return z.tolist()


# --- order by one stream, or by the host -------------------------------------------------------------------


@program
def one_stream_only() -> Any:
    (a,) = streams(1)
    with torch.npu.stream(a):
        x = torch.zeros(4, device="npu")
        for step in range(5):
            x = (x + step) * 2
        return x.tolist()


@program
def host_synchronises_a_stream() -> Any:
    a, b = streams(2)
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    for step in range(3):
        with torch.npu.stream(a):
            x.add_(step)
        a.synchronize()
        with torch.npu.stream(b):
            x.mul_(2)
        b.synchronize()
    return x.tolist()


@program
def host_synchronises_the_device() -> Any:
    a, b = streams(2)
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(a):
        x.add_(1)
    torch.npu.synchronize()
    with torch.npu.stream(b):
        x.mul_(2)
    torch.npu.synchronize()
    return x.tolist()


@program
def host_reads_a_value_between() -> Any:
    a, b = streams(2)
    x = torch.ones(4, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(a):
        x.add_(1)
        total = x.sum().item()  # the host has waited for a
    with torch.npu.stream(b):
        x.mul_(total)
    torch.npu.synchronize()
    return x.tolist()


@program
def host_asks_until_an_event_is_reached() -> Any:
    a, b = streams(2)
    x = torch.ones(4, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(a):
        x.add_(1)
        done = a.record_event()
    while not done.query():
        pass
    with torch.npu.stream(b):
        x.mul_(3)
    torch.npu.synchronize()
    return x.tolist()


@program
def default_stream_in_between() -> Any:
    a, b = streams(2)
    default = torch.npu.default_stream()
    x = torch.ones(4, device="npu")
    a.wait_stream(default)
    with torch.npu.stream(a):
        x.add_(1)
    default.wait_stream(a)
    y = x * 2
    b.wait_stream(default)
    with torch.npu.stream(b):
        y.add_(1)
    default.wait_stream(b)
    return y.tolist()


# --- parts of a tensor -------------------------------------------------------------------------------------


@program
def rows_columns_and_heads() -> Any:
    a, b, c = streams(3)
    x = torch.zeros(8, 3, 4, device="npu")
    torch.npu.synchronize()
    for number, stream in enumerate((a, b, c)):
        with torch.npu.stream(stream):
            x[:, number].add_(number + 1)  # a head each
            x[2 * number, number] = 9
    torch.npu.synchronize()
    parts = []
    for number, stream in enumerate((a, b, c)):
        with torch.npu.stream(stream):
            x[:, :, number].mul_(2)  # a column each
    torch.npu.synchronize()
    for number, stream in enumerate((a, b)):
        with torch.npu.stream(stream):
            parts.append(x[number::2].sum(0))  # odd and even rows, read
            x[number::2, :, 3] = 1  # and a column of them, written
    torch.npu.synchronize()
    return [part.tolist() for part in parts], x.tolist()


@program
def qkv_of_one_buffer() -> Any:
    a, b = streams(2)
    packed = torch.arange(48.0, device="npu").view(4, 12)
    query, key, value = packed.split([4, 4, 4], dim=1)
    torch.npu.synchronize()
    with torch.npu.stream(a):
        query.mul_(2)
        key.add_(1)
    with torch.npu.stream(b):
        value.neg_()
    torch.npu.synchronize()
    return packed.tolist()


# --- graphs and gates --------------------------------------------------------------------------------------


@program
def fork_and_join_inside_a_graph() -> Any:
    (side,) = streams(1)
    x = torch.ones(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            a = x * 3
            b = a + 1
        c = x + 1
        main.wait_stream(side)
        out = b + c
    results = []
    for value in (1.0, 2.0, 3.0):
        x.fill_(value)
        graph.replay()
        results.append(out.tolist())
    return results


@program
def replays_on_two_streams_in_turn() -> Any:
    a, b = streams(2)
    x = torch.zeros(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.add_(1)
    torch.npu.synchronize()
    for stream, other in ((a, b), (b, a), (a, b)):
        stream.wait_stream(other)
        with torch.npu.stream(stream):
            graph.replay()
    torch.npu.synchronize()
    return x.tolist()


@program
def two_graphs_of_one_pool_on_one_stream() -> Any:
    x = torch.ones(1000, device="npu")
    pool = torch.npu.graph_pool_handle()
    graphs, outs = [], []
    for factor in (2, 3):
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, pool=pool):
            outs.append(((x + 1) * factor).sum() + 0)
        graphs.append(graph)
    results = []
    for _ in range(3):
        for graph, out in zip(graphs, outs, strict=True):
            graph.replay()
            results.append(out.item())
    return results


@program
def gates_order_two_streams() -> Any:
    a, b = streams(2)
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    full, empty = torch.npu.ExternalEvent(), torch.npu.ExternalEvent()
    for step in range(3):
        with torch.npu.stream(a):
            x.add_(step)
            full.record(a)
            empty.wait(a)
        with torch.npu.stream(b):
            full.wait(b)
            x.mul_(2)
            empty.record(b)
    torch.npu.synchronize()
    return x.tolist()


@program
def gate_inside_a_graph_opened_from_outside() -> Any:
    a, b = streams(2)
    x = torch.zeros(4, device="npu")
    gate, graph = torch.npu.ExternalEvent(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        gate.wait(torch.npu.current_stream())
        y = x * 2
    torch.npu.synchronize()
    results = []
    for step in range(3):
        with torch.npu.stream(a):
            graph.replay()
        with torch.npu.stream(b):
            x.fill_(step)
            gate.record(b)
        torch.npu.synchronize()
        results.append(y.tolist())
    return results


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

"""No false alarm: programs whose order comes from one means only, whichever it is, are clean in 30 orders.

Each program is the right way to do something that is often done wrong; none may be reported, and its values are
the same in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.device.soft.clean import assert_clean_in_every_order, streams

pytestmark = pytest.mark.slow

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


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


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_it_is_clean_in_every_order(function: Callable[[], Any]) -> None:
    assert_clean_in_every_order(function)

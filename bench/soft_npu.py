"""How fast is the software NPU's machine? Commands noted and scheduled a second, all orders, memory.

    python bench/soft_npu.py [--commands N] [--repeats N]

- noted: what a host call costs (a stack is taken), while nothing runs;
- scheduled: what running the noted commands costs, with clocks and the check of every access;
- replayed: both at once, for the commands of a captured graph;
- all orders: two streams of 12 commands with three edges; with `values`, also every order of their accesses;
- all in CPU time, which is wall time where nothing else runs;
- memory: bytes a command at N and at 2 N commands, with every command kept.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

from slipstream.device.soft.machine import Machine, Region, Seeded, explore

BUFFERS, STREAMS, GRAPH = 64, 3, 100


class HostAhead(Seeded):
    """Nothing runs before the host waits, then any stream."""

    def __init__(self) -> None:
        super().__init__(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    count, repeats = options.commands, options.repeats

    noted, scheduled = zip(*(eager(count) for _ in range(repeats)), strict=True)
    print(f"noted       {statistics.median(noted):>10,.0f} commands/s")
    print(f"scheduled   {statistics.median(scheduled):>10,.0f} commands/s")
    replayed = [replays(count) for _ in range(repeats)]
    print(f"replayed    {statistics.median(replayed):>10,.0f} commands/s, noted and scheduled at once")
    for values in (False, True):
        took, orders, complete = all_orders(values, repeats)
        ended = "all" if complete else "stopped at the bound"
        name = "with values" if values else "all orders "
        print(f"{name} {took * 1e3:>10.1f} ms for {orders} orders ({ended})")
    small, large = memory(count), memory(2 * count)
    print(f"memory      {small:>10,.0f} bytes a command at {count}, {large:,.0f} at {2 * count}")


def eager(count: int) -> tuple[float, float]:
    machine = Machine(HostAhead())
    issue = round_of(machine)
    started = time.process_time()
    issued = 0
    while issued < count:
        issued += issue()
    middle = time.process_time()
    report = machine.finish()
    ended = time.process_time()
    assert report.clean
    assert report.commands == issued
    return issued / (middle - started), issued / (ended - middle)


def round_of(machine: Machine) -> Callable[[], int]:
    """A fork and a join over three streams: 24 kernels with two reads and a write, 3 records, 3 waits."""
    streams = [machine.stream(f"s{n}") for n in range(STREAMS)]
    events = [machine.event(f"e{n}") for n in range(STREAMS)]
    parts = [
        [Region(machine.buffer(f"b{s}.{n}", 4096), 0, 4096) for n in range(BUFFERS)] for s in range(STREAMS)
    ]
    at = [0]

    def issue() -> int:
        for stream, event, regions in zip(streams, events, parts, strict=True):
            for _ in range(8):
                n = at[0] = (at[0] + 1) % (BUFFERS - 2)
                machine.kernel(stream, "aten::add", (regions[n], regions[n + 1]), (regions[n + 2],))
            machine.record(stream, event)
        for stream, event in zip(streams, events[1:] + events[:1], strict=True):
            machine.wait(stream, event)
        return 10 * STREAMS

    return issue


def replays(count: int) -> float:
    machine = Machine()
    stream, side = machine.stream("main"), machine.stream("side")
    graph, fork, join = machine.graph("g"), machine.event(), machine.event()
    regions = [Region(machine.buffer(f"b{n}", 4096), 0, 4096) for n in range(BUFFERS)]
    machine.begin_capture(stream, graph)
    machine.record(stream, fork)
    machine.wait(side, fork)
    for n in range(GRAPH // 2):
        k = n % (BUFFERS // 2 - 1)
        machine.kernel(stream, "aten::mul", (regions[k],), (regions[k + 1],))
        machine.kernel(side, "aten::mul", (regions[k + BUFFERS // 2],), (regions[k + BUFFERS // 2 + 1],))
    machine.record(side, join)
    machine.wait(stream, join)
    machine.end_capture(stream)
    started = time.process_time()
    for _ in range(count // GRAPH):
        machine.replay(stream, graph)
    report = machine.finish()
    took = time.process_time() - started
    assert report.clean
    return report.commands / took


def all_orders(values: bool, repeats: int) -> tuple[float, int, bool]:
    times = []
    for _ in range(repeats):
        machine = Machine(keep=True, executes=False)
        one, two = machine.stream("one"), machine.stream("two")
        shared = Region(machine.buffer("shared", 64), 0, 64)
        own = [Region(machine.buffer(name, 64), 0, 64) for name in ("a", "b")]
        for n in range(12):
            for stream, region in ((one, own[0]), (two, own[1])):
                # Every fourth command writes what the other stream writes too.
                machine.kernel(stream, "aten::add", (region,), (shared if n % 4 == 1 else region,))
            if n in (2, 6, 10):
                event = machine.event()
                machine.record(one, event)
                machine.wait(two, event)
        program = machine.program()
        started = time.process_time()
        result = explore(program, values=values)
        times.append(time.process_time() - started)
    return statistics.median(times), result.orders, result.complete


def memory(count: int) -> float:
    tracemalloc.start()
    machine = Machine(keep=True)
    issue = round_of(machine)
    issued = 0
    while issued < count:
        issued += issue()
    machine.finish()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / issued


if __name__ == "__main__":
    main()

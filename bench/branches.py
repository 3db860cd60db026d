"""Do independent branches of a graph pay on this CPU? Prints median times, interleaved, of three pairs.

    python bench/branches.py [--threads N] [--repeats N]

- Attention's projections of layers in SmolLM2-135M's shape: one fused matrix; query, then key and value,
  each by the whole team; query beside key and value, each by a part of it.
- A NextN head's draft step beside the next plan's integer work: one after the other, and side by side.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from slipstream import ops
from slipstream.device.api import Graph
from slipstream.device.cpu import CpuDevice, usable_cores
from slipstream.native import library

HIDDEN, QUERIES, KEYS_VALUES, FEED_FORWARD, LAYERS = 576, 576, 384, 1536, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    if library.load() is None:
        raise SystemExit("error: there is no native library; build it with python -m slipstream.native.build")
    library.use(True, options.threads)
    print(f"{options.threads} threads, median of {options.repeats} interleaved replays, ms")
    for rows in (1, 4):
        report(f"projections of {LAYERS} layers, {rows} rows", projections(rows), options.repeats)
        report(f"draft step and plan, {rows} requests", draft_and_plan(rows), options.repeats)


def report(title: str, graphs: dict[str, Graph], repeats: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(repeats):
        for name, graph in graphs.items():
            started = time.perf_counter()
            graph.replay()
            times[name].append((time.perf_counter() - started) * 1e3)
    base = statistics.median(next(iter(times.values())))
    parts = [
        f"{name} {statistics.median(t):.3f} ({statistics.median(t) / base:.2f} x)"
        for name, t in times.items()
    ]
    print(f"{title}: {', '.join(parts)}")


def captured(name: str, branches: str, build: Callable[[CpuDevice], Callable[[], object]]) -> Graph:
    device = CpuDevice(branches=branches)
    graph = device.graph(name)
    graph.capture(build(device), device.stream("main"))
    return graph


def projections(rows: int) -> dict[str, Graph]:
    x, weight = torch.randn(rows, HIDDEN), torch.ones(HIDDEN)
    fused = [matrix(QUERIES + KEYS_VALUES) for _ in range(LAYERS)]
    apart = [(matrix(QUERIES), matrix(KEYS_VALUES)) for _ in range(LAYERS)]

    def in_one(device: CpuDevice) -> Callable[[], object]:
        return lambda: [ops.linear(ops.rms_norm(x, weight, 1e-5, torch.float32), m) for m in fused]

    def in_two(device: CpuDevice) -> Callable[[], object]:
        main, side = device.stream("main"), device.stream("side")

        def run() -> object:
            results = []
            for query, key_value in apart:
                normed = ops.rms_norm(x, weight, 1e-5, torch.float32)
                side.wait_stream(main)
                with side:
                    results.append(ops.linear(normed, key_value))
                results.append(ops.linear(normed, query))
                main.wait_stream(side)
            return results

        return run

    return {
        "fused": captured("fused", "off", in_one),
        "whole team": captured("whole team", "off", in_two),
        "branches": captured("branches", "on", in_two),
    }


def draft_and_plan(requests: int) -> dict[str, Graph]:
    x, weight = torch.randn(requests, HIDDEN), torch.ones(HIDDEN)
    shapes = ((QUERIES, HIDDEN), (HIDDEN, QUERIES), (2 * FEED_FORWARD, HIDDEN), (HIDDEN, FEED_FORWARD))
    query, out, gate_up, down = (matrix(*shape) for shape in shapes)
    lengths, slots = torch.full((8,), 100), torch.arange(requests)
    pages = torch.arange(requests * 16).view(requests, 16)
    positions, kv_slots = torch.zeros(2, 4 * requests, dtype=torch.int64)

    def both(device: CpuDevice) -> Callable[[], object]:
        main, plan = device.stream("main"), device.stream("plan")

        def run() -> object:
            plan.wait_stream(main)
            with plan:
                ops.plan_rows(lengths, slots, pages, 16, 0, positions, kv_slots)
            attended = ops.linear(ops.rms_norm(x, weight, 1e-5, torch.float32), query)
            residual = ops.linear(attended, out, None, x)
            gated = ops.gated_silu(ops.linear(ops.rms_norm(residual, weight, 1e-5, torch.float32), gate_up))
            result = ops.linear(gated, down, None, residual)
            main.wait_stream(plan)
            return result

        return run

    return {"in turn": captured("in turn", "off", both), "branches": captured("branches", "on", both)}


def matrix(num_out: int, num_in: int = HIDDEN) -> ops.Matrix:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 16, (num_out, num_in), dtype=np.uint8)
    scales = generator.random((2, num_out, num_in // ops.BLOCK), dtype=np.float32)
    return ops.PackedQ4Matrix.pack(codes, scales[0], -8 * scales[1])


if __name__ == "__main__":
    main()

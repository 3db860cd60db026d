"""What is on by default around a replay costs less than 1 % of a round: checks, dispatch, counting.

Parts are measured alone and held against a plain round of the real model, which is the shortest that it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from slipstream import ops
from slipstream.device.registry import open_device
from slipstream.graph.dispatch import Dispatcher
from slipstream.graph.modes import GraphMode
from slipstream.graph.runner import GraphRunner
from slipstream.native import library
from tests.engines import Fleet, answers, greedy

#: Phases of a round at most.
PHASES = 3


def best_us(call: Callable[[], object], count: int = 500, repeats: int = 40) -> float:
    """The best of many means: what the call costs where nothing disturbs it."""
    means = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(count):
            call()
        means.append((time.perf_counter() - began) / count)
    return min(means) * 1e6


@pytest.mark.slow
def test_checks_dispatch_and_stats_are_each_below_1_percent_of_a_round(smollm2: Fleet) -> None:
    engine = smollm2.engine(dtype="q4", draft="none", buckets=(1,))
    answers(engine, [[1, 2, 3]], greedy(8))
    engine.reset_stats()
    answers(engine, [[1, 2, 3]], greedy(64))
    round_us = engine.stats.round_ns / engine.stats.rounds / 1e3

    x, weight = torch.ones(1, 8), torch.ones(8)
    device = open_device("cpu")
    main = device.stream("main")
    runner = GraphRunner(
        device,
        Dispatcher(GraphMode.FULL, (1,)),
        {"verify": lambda key: ops.rms_norm(x, weight, 1e-5, torch.float32)},
    )
    before = library.setting.native, library.setting.threads
    library.use(True, 1)
    try:
        runner.capture({"verify": (1,)}, main)
        [graph] = runner.graphs.values()
        dispatch = runner.dispatcher.dispatch("verify", 1, 1)
        replay = best_us(graph.replay)
        count = best_us(lambda: runner.stats.count(dispatch, 1000))
        run = best_us(lambda: runner.run(dispatch, 1, main))
        dispatching = best_us(lambda: runner.dispatcher.dispatch("verify", 1, 1))
    finally:
        library.use(*before)
    checks = run - replay - count
    print(
        f"\nround {round_us:.0f} us; replay {replay:.2f}, checks {checks:.2f}, stats {count:.2f}, dispatch "
        f"{dispatching:.2f} us a phase"
    )
    assert dispatching < 5
    assert PHASES * checks < 0.01 * round_us
    assert PHASES * count < 0.01 * round_us

"""A capture that fails at any of its commands leaves nothing behind: eager runs, other graphs and a retry work."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from slipstream.device import soft
from slipstream.device.soft.machine import Machine, Seeded
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.modes import Route
from tests.graph.attention_layers import Layers, means

KEY = BatchDescriptor("verify", 2, 1)

#: The machine's calls in a capture.
CALLS = ("begin_capture", "wait_gate", "begin_task", "kernel", "end_task", "end_capture")

#: Those of `Doubling`: for each of two layers the wait and the task with its kernel, and the kernels behind them.
CAPTURE = [
    "begin_capture",
    *["wait_gate", "begin_task", "kernel", "end_task"] * 2,
    *["kernel"] * 2,
    "end_capture",
]


class Doubling(Layers):
    """Attention, and behind it kernels that are no tasks."""

    def phase(self, key: BatchDescriptor) -> list[torch.Tensor]:
        return [out * 2 for out in super().phase(key)]


def doubled(committed: list[int]) -> list[list[float]]:
    return [[2 * value for value in row] for row in means(committed)]


@contextmanager
def refused(machine: Any, at: int, by_device: bool) -> Iterator[list[str]]:
    """Let call `at` of the next capture fail, from 0; yields the calls that were made.

    Args:
        machine: of the software NPU.
        at: which call.
        by_device: the device refuses, and its capture is broken; otherwise what calls it raises.
    """
    made: list[str] = []

    def failing(name: str, call: Any) -> Any:
        def calling(stream: int, *args: Any, **kwargs: Any) -> Any:
            if name == "begin_capture" or made:
                made.append(name)
            if not made or len(made) - 1 != at:
                return call(stream, *args, **kwargs)
            if name == "end_capture":
                call(stream, *args, **kwargs)  # over it is all the same
            if not by_device:
                raise ValueError(f"call {at}")
            capture = machine.actor_of(stream).capture
            if capture is not None:
                machine._captures._refuse(capture, f"call {at}")
            raise RuntimeError(f"call {at}")

        return calling

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(machine, name, failing(name, getattr(machine, name)))
        yield made


def streams_used(machine: Machine) -> int:
    gc.collect()
    return machine.streams_used


slow = pytest.mark.slow
EVERY = range(len(CAPTURE))


@pytest.mark.parametrize(
    ("calls", "by_device"),
    [
        pytest.param((0, 3, 10), True, id="some-device"),
        pytest.param((2, 9), False, id="some-python"),
        pytest.param(EVERY, True, id="every-device", marks=slow),
        pytest.param(EVERY, False, id="every-python", marks=slow),
    ],
)
def test_a_failure_at_a_command_leaves_the_runner_usable(calls: Sequence[int], by_device: bool) -> None:
    with soft.installed(Seeded(1)) as machine:
        healthy = Layers()
        layers = Doubling(device=healthy.device)
        healthy.capture()
        streams = streams_used(machine)
        for at in calls:
            call = CAPTURE[at]
            with refused(machine, at, by_device) as made:
                try:
                    layers.capture()
                    [reason] = layers.runner.dispatcher._failed.values()
                    assert "graph 'verify 2x1' could not be captured: " in reason
                except ValueError as error:  # no capture was broken by it: the phase's own
                    assert not by_device
                    reason = str(error)
                assert f"call {at}" in reason
            assert made[at] == call
            assert layers.device.current_stream().name == "default"
            assert layers.runner.graphs == layers.runner.tasks == {}
            assert layers.read(layers.run([at, 5], route=Route.EAGER)) == doubled([at, 5])
            assert healthy.read(healthy.run([5, at])) == means([5, at])
            assert streams_used(machine) == streams
        with refused(machine, 10_000, by_device) as made:
            layers.runner.retry()
        assert made[: len(CAPTURE)] == CAPTURE
        assert layers.tasks().names == ["layer 0", "layer 1"]
        for committed in ([3, 4], [9, 5]):
            assert layers.read(layers.run(committed)) == doubled(committed)
        report = machine.finish()
        assert report.clean, str(report)


def test_a_capture_that_fails_leaves_the_graphs_before_it_as_they_were(machine: Machine) -> None:
    layers = Layers(buckets=(2, 4))
    layers.capture()
    former = layers.runner.graphs
    with refused(machine, 3, by_device=True):
        layers.capture(2)
    assert layers.runner.graphs == former
    assert layers.read(layers.run([3, 4])) == means([3, 4])
    layers.runner.retry()
    assert layers.read(layers.run([3, 4], width=2)) == means([3, 4])

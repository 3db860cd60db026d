"""Property test: random programs that make tensors on some streams, use them on others, and let them go.

Every use waits for what made the tensor; so the only thing that can go wrong is a block that is given away while
another stream still uses it. With `record_stream` at each such use nothing may be found, and the values are eager
PyTorch's. Without some of them, a run either finds a lifetime or gives eager PyTorch's values: never wrong ones in
silence.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.device import soft
from slipstream.device.soft.machine import ProgramOrder, Report, Scheduler, Seeded

pytestmark = pytest.mark.slow

STREAMS, LENGTH = 3, 16
SCHEDULES = [ProgramOrder, lambda: Seeded(0), lambda: Seeded(1), lambda: Seeded(2), lambda: Seeded(3)]


@dataclass(frozen=True)
class Make:
    """A new tensor on a stream, of two that are there (by their numbers, modulo how many there are)."""

    stream: int
    sources: tuple[int, int]
    recorded: bool


@dataclass(frozen=True)
class Drop:
    """The program lets go of a tensor."""

    number: int


def programs(recorded: st.SearchStrategy[bool]) -> st.SearchStrategy[list[Make | Drop]]:
    numbers = st.integers(0, 9)
    make = st.builds(Make, st.integers(0, STREAMS - 1), st.tuples(numbers, numbers), recorded)
    return st.lists(st.one_of(make, make, st.builds(Drop, numbers)), min_size=4, max_size=20)


def function(number: int, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one * 0.5 + other.flip(0)).sub(number)


def eagerly(program: list[Make | Drop]) -> list[torch.Tensor]:
    live = [torch.arange(float(LENGTH))]
    for number, step in enumerate(program):
        if isinstance(step, Make):
            one, other = (live[source % len(live)] for source in step.sources)
            live.append(function(number, one, other))
        elif len(live) > 1:
            live.pop(step.number % len(live))
    return live


def run(program: list[Make | Drop], scheduler: Scheduler) -> tuple[list[torch.Tensor], Report]:
    with soft.installed(scheduler) as machine:
        streams = [torch.npu.Stream() for _ in range(STREAMS)]
        live = [(torch.arange(float(LENGTH)).npu(), streams[0])]
        torch.npu.synchronize()
        for number, step in enumerate(program):
            if isinstance(step, Drop):
                if len(live) > 1:
                    live.pop(step.number % len(live))
                continue
            stream = streams[step.stream]
            sources = [live[source % len(live)] for source in step.sources]
            for tensor, home in sources:
                stream.wait_stream(home)
                if step.recorded:
                    tensor.record_stream(stream)
            with torch.npu.stream(stream):
                live.append((function(number, sources[0][0], sources[1][0]), stream))
            del sources, tensor
        torch.npu.synchronize()
        return [tensor.cpu() for tensor, _ in live], machine.finish()


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@settings(max_examples=40, deadline=None)
@given(programs(st.just(True)))
def test_with_record_stream_it_is_eager_pytorch_in_every_order(program: list[Make | Drop]) -> None:
    expected = eagerly(program)
    for schedule in SCHEDULES:
        found, report = run(program, schedule())
        assert report.findings == (), "\n\n".join(map(str, report.findings))
        assert same(found, expected)


@settings(max_examples=100, deadline=None)
@given(programs(st.booleans()), st.integers(0, 1000))
def test_without_it_wrong_values_never_come_in_silence(program: list[Make | Drop], seed: int) -> None:
    for scheduler in (ProgramOrder(), Seeded(seed)):
        found, report = run(program, scheduler)
        assert report.kinds() <= {"lifetime"}
        if not report.findings:
            assert same(found, eagerly(program))


def test_a_program_whose_block_is_taken_too_early_is_found() -> None:
    # Tensor 1 is made on stream 1, read on stream 2 and dropped; the next one on stream 1 takes its block.
    start = [Make(1, (0, 0), False), Make(2, (1, 1), False), Drop(1), Make(1, (0, 0), False)]
    wrong = 0
    for seed in range(20):
        found, report = run(start, Seeded(seed))
        assert report.kinds() == {"lifetime"}
        wrong += not same(found, eagerly(start))
    assert wrong

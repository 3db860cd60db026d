"""Property test: a random program over several streams, ordered by events, is eager PyTorch's, bit for bit.

A step does one op on one stream. Before it, its stream waits for the streams that touched the same tensors last,
so the program is free of races; then every order must give the CPU's values and no finding. With one step's waits
left out, what is found depends on nothing but the program: every order says the same.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.device import soft
from slipstream.device.soft.machine import ProgramOrder, Report, Scheduler, Seeded

ROWS, TENSORS, STREAMS = 4, 3, 3


@dataclass(frozen=True)
class Step:
    """`target[rows]` becomes a function of itself and of `source[rows]`, on a stream."""

    stream: int
    kind: str
    target: int
    source: int
    low: int
    high: int


steps = st.builds(
    lambda stream, kind, target, source, a, b: Step(stream, kind, target, source, min(a, b), max(a, b) + 1),
    st.integers(0, STREAMS - 1),
    st.sampled_from(["add", "scale", "copy", "column", "matmul", "index", "random"]),
    st.integers(0, TENSORS - 1),
    st.integers(0, TENSORS - 1),
    st.integers(0, ROWS - 1),
    st.integers(0, ROWS - 1),
)


def apply(step: Step, tensors: list[torch.Tensor]) -> None:
    target, source = tensors[step.target], tensors[step.source]
    rows = slice(step.low, step.high)
    if step.kind == "add":
        target[rows].add_(source[rows])
    elif step.kind == "scale":
        target[rows].mul_(0.5).sub_(0.25)
    elif step.kind == "copy":
        target[rows] = source[rows].clone()
    elif step.kind == "column":
        target[:, step.low] = source[:, step.high - 1].tanh()
    elif step.kind == "matmul":
        target.copy_((source @ target.t()).softmax(-1))
    elif step.kind == "index":
        target.index_add_(0, torch.arange(ROWS, device=target.device).flip(0), source * 1)
    else:
        target[rows] = torch.rand(step.high - step.low, ROWS, device=target.device)


def run(program: list[Step], scheduler: Scheduler, left_out: int) -> tuple[list[torch.Tensor], Report]:
    """Run a program on the software NPU; the waits of step `left_out` are not made."""
    with soft.installed(scheduler) as machine:
        torch.manual_seed(1)
        streams = [torch.npu.Stream() for _ in range(STREAMS)]
        tensors = [torch.eye(ROWS, device="npu") + n for n in range(TENSORS)]
        last: list[Any] = [torch.npu.current_stream()] * TENSORS
        for index, step in enumerate(program):
            stream = streams[step.stream]
            for tensor in {step.target, step.source}:
                if index != left_out:
                    stream.wait_stream(last[tensor])
                last[tensor] = stream
            with torch.npu.stream(stream):
                apply(step, tensors)
        torch.npu.synchronize()
        return [t.cpu() for t in tensors], machine.finish()


def on_cpu(program: list[Step]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    tensors = [torch.eye(ROWS) + n for n in range(TENSORS)]
    for step in program:
        apply(step, tensors)
    return tensors


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=10), st.integers(0, 1000))
def test_an_ordered_program_gives_the_cpus_values(program: list[Step], seed: int) -> None:
    expected = on_cpu(program)
    for scheduler in (ProgramOrder(), Seeded(seed)):
        found, report = run(program, scheduler, -1)
        assert report.findings == ()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=2, max_size=8), st.data())
def test_a_missing_wait_is_found_in_every_order_or_in_none(program: list[Step], data: st.DataObject) -> None:
    left_out = data.draw(st.integers(0, len(program) - 1))
    verdicts = set()
    for seed in (None, 0, 1, 2):
        scheduler = ProgramOrder() if seed is None else Seeded(seed)
        found, report = run(program, scheduler, left_out)
        verdicts.add(bool(report.findings))
        if not report.findings:
            assert all(torch.equal(a, b) for a, b in zip(found, on_cpu(program), strict=True))
    assert len(verdicts) == 1


def test_threads_may_issue_at_once() -> None:
    with soft.installed(Seeded(1)) as machine:

        def work(stream: Any, found: list[float]) -> None:
            with torch.npu.stream(stream):
                x = torch.zeros(8, device="npu")
                for _ in range(150):
                    x = x + 1
                found.append(x.sum().item())

        results: list[float] = []
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            threads = [threading.Thread(target=work, args=(torch.npu.Stream(), results)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        assert results == [1200.0] * 4
        assert machine.finish().findings == ()

"""Races are found through views, in-place writes and `out=`; what is disjoint or ordered is clean."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from slipstream.device import soft
from slipstream.device.soft.machine import Machine, Report, Seeded


def on_two_streams(first: Callable[[Any], Any], second: Callable[[Any], Any], machine: Machine) -> Report:
    """Run two functions of a matrix, one on a side stream, with nothing between them."""
    x = torch.zeros(8, 8, device="npu")
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        first(x)
    second(x)
    return machine.finish()


RACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "write and read": (lambda x: x.add_(1), lambda x: x * 2),
    "read and write": (lambda x: x * 2, lambda x: x.add_(1)),
    "two writes": (lambda x: x.add_(1), lambda x: x.mul_(2)),
    "row and column": (lambda x: x[3].add_(1), lambda x: x[:, 2] * 1),
    "overlapping rows": (lambda x: x[:4].add_(1), lambda x: x[3:].add_(1)),
    "transposed view": (lambda x: x.t()[0].fill_(1), lambda x: x[:, 0] + 1),
    "out": (lambda x: torch.add(x[:2], 1, out=x[2:4]), lambda x: x[3].clone()),
    "copy": (lambda x: x[0].copy_(x[1]), lambda x: x[1].fill_(2)),
    "item": (lambda x: x.add_(1), lambda x: x[0, 0].item()),
    "foreach": (lambda x: torch._foreach_add_([x[0], x[1]], 1), lambda x: x[1].sum()),
}


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found_in_every_order(any_order: Machine, name: str) -> None:
    report = on_two_streams(*RACES[name], any_order)
    assert [finding.kind for finding in report.findings] == ["race"]


CLEAN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "two reads": (lambda x: x * 2, lambda x: x + 1),
    "rows": (lambda x: x[:4].add_(1), lambda x: x[4:].add_(1)),
    "columns": (lambda x: x[:, :4].add_(1), lambda x: x[:, 4:].add_(1)),
    "odd and even columns": (lambda x: x[:, ::2].add_(1), lambda x: x[:, 1::2].add_(1)),
    "quarters": (lambda x: x[:4, :4].add_(1), lambda x: x[:4, 4:].mul_(2)),
    "chunks": (lambda x: x.chunk(2, 1)[0].fill_(1), lambda x: x.chunk(2, 1)[1].fill_(2)),
    "heads": (lambda x: x.view(8, 2, 4)[:, 0].fill_(1), lambda x: x.view(8, 2, 4)[:, 1].sum()),
    "random numbers": (lambda x: torch.rand(4, device="npu"), lambda x: torch.rand(4, device="npu")),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_disjoint_is_clean(any_order: Machine, name: str) -> None:
    assert on_two_streams(*CLEAN[name], any_order).findings == ()


def test_a_finding_names_the_op_the_tensor_and_the_line(machine: Machine) -> None:
    report = on_two_streams(lambda x: x.add_(1), lambda x: x * 2, machine)
    text = str(report.findings[0])
    assert "aten::add_.Tensor" in text
    assert "aten::mul.Tensor" in text
    assert "float32[8, 8] of empty at test_races.py:" in text
    assert "on side (test_races.py:" in text
    assert "`default.wait_stream(side)`" in text


def test_a_race_gives_other_values_in_some_order() -> None:
    found = set()
    for seed in range(20):
        with soft.installed(Seeded(seed)):
            x = torch.zeros(1, device="npu")
            side = torch.npu.Stream()
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                x.add_(1)
            x.mul_(10)
            torch.npu.synchronize()
            found.add(x.item())
    assert found == {1.0, 10.0}


def test_a_tensor_freed_while_another_stream_uses_it_is_a_lifetime(any_order: Machine) -> None:
    main, side = torch.npu.current_stream(), torch.npu.Stream()
    x = torch.ones(4, device="npu")
    side.wait_stream(main)
    with torch.npu.stream(side):
        kept = x * 2
    del x
    torch.zeros(4, device="npu")  # takes the block that the side stream may still read
    assert kept is not None
    assert [finding.kind for finding in any_order.finish().findings] == ["lifetime"]


def test_record_stream_keeps_the_block(any_order: Machine) -> None:
    main, side = torch.npu.current_stream(), torch.npu.Stream()
    x = torch.ones(4, device="npu")
    side.wait_stream(main)
    with torch.npu.stream(side):
        kept = x * 2
    x.record_stream(side)
    del x
    for _ in range(3):
        torch.zeros(4, device="npu")
    assert kept is not None
    assert any_order.finish().findings == ()


def test_what_one_line_makes_is_told_apart_but_its_defects_are_one(machine: Machine) -> None:
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    for side in [torch.npu.Stream() for _ in range(3)]:
        with torch.npu.stream(side):
            x.add_(1)
    findings = machine.finish().findings
    assert len(findings) == 1
    one, two = findings[0].streams[:2]
    assert re.sub(r" #\d", "", one) == re.sub(r" #\d", "", two)
    assert one != two

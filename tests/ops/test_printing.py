"""A tensor printed inside a captured graph: at each replay, with that replay's values."""

from __future__ import annotations

import math

import pytest
import torch

from slipstream import ops
from slipstream.device import soft
from slipstream.device.registry import open_device
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.pieces import Live, capture_pieces
from slipstream.native import library
from slipstream.ops.printing import describe


def test_the_line_tells_shape_first_numbers_and_what_is_not_finite() -> None:
    assert describe("x", torch.arange(8.0).view(2, 4)) == (
        "x: float32[2, 4] [0, 1, 2, 3, 4, 5, ...] least 0 greatest 7 mean 3.5"
    )
    assert describe("ids", torch.tensor([3])) == "ids: int64[1] [3] least 3 greatest 3 mean 3"
    assert describe("y", torch.tensor([1.0, math.nan, math.inf])).endswith("; 2 not finite")
    assert describe("none", torch.empty(0, 3)) == "none: float32[0, 3] empty"


@pytest.mark.parametrize("native", [True, False])
def test_a_replay_on_the_cpu_prints_its_own_values(native: bool, capsys: pytest.CaptureFixture[str]) -> None:
    device, x, weight = open_device("cpu"), torch.ones(2, 4), torch.ones(4)
    before = library.setting.native, library.setting.threads
    library.use(native, 1)
    try:
        graph = device.graph("printing")

        def function() -> torch.Tensor:
            normed = ops.rms_norm(x, weight, 0.0, torch.float32)
            ops.print_tensor(normed, "normed")
            return ops.rms_norm(normed, weight, 0.0, torch.float32)

        graph.capture(function, device.stream("main"))
        assert capsys.readouterr().err == ""
        for scale in (1.0, -1.0):
            x.fill_(scale)
            graph.replay()
            assert capsys.readouterr().err.startswith(f"normed: float32[2, 4] [{scale:g}, {scale:g}, ")
    finally:
        library.use(*before)


def test_inside_a_piece(capsys: pytest.CaptureFixture[str]) -> None:
    device, x = open_device("cpu"), torch.ones(2)

    def function() -> torch.Tensor:
        doubled = x * 2
        ops.print_tensor(doubled, "doubled")
        return doubled + 1

    pieces, _ = capture_pieces(device, BatchDescriptor("verify", 2, 1), function, device.stream("main"))
    x.fill_(4)
    assert pieces.replay(Live(2, 2)).tolist() == [9, 9]
    assert capsys.readouterr().err == "doubled: float32[2] [8, 8] least 8 greatest 8 mean 8\n"


def test_a_replay_on_the_software_npu_prints_when_the_device_gets_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with soft.installed() as machine:
        device = open_device("npu")
        main = device.stream("main")
        with main:
            x = torch.ones(2, device="npu")
        graph = device.graph("printing")

        def function() -> torch.Tensor:
            ops.print_tensor(x * 3, "tripled")
            return x + 1

        graph.capture(function, main)
        assert capsys.readouterr().err == ""
        with main:
            for value in (1, 2):
                x.fill_(value)
                graph.replay()
        device.synchronize()
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(" least")[0] for line in lines] == [
            "tripled: float32[2] [3, 3]",
            "tripled: float32[2] [6, 6]",
        ]
        assert machine.finish().clean

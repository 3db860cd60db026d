"""Pieces over torch.npu: a capture that breaks leaves the device, the stream and the wrapper as they were."""

from __future__ import annotations

import pytest
import torch

from slipstream import ops
from slipstream.device import soft
from slipstream.device.registry import open_device
from slipstream.errors import CaptureError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.modes import GraphMode
from slipstream.graph.pieces import Live, capture_pieces, capture_whole
from slipstream.graph.wrapper import CaptureGate, GraphWrapper, eager

KEY = BatchDescriptor("verify", 2, 1)


@pytest.mark.parametrize("mode", [GraphMode.FULL, GraphMode.PIECEWISE])
@pytest.mark.parametrize("breaks_at", range(3))
def test_a_capture_that_breaks_can_be_tried_again(mode: GraphMode, breaks_at: int) -> None:
    """Before the attention, between it and the next piece's first op, and in the last piece."""
    with soft.installed() as machine:
        device = open_device("npu")
        main = device.stream("main")
        broken = [True]
        with main:
            query, cache = torch.ones(2, 2, 8, device="npu"), torch.ones(64, 2, 8, device="npu")
            pages = torch.zeros(2, 1, dtype=torch.int64, device="npu")
            positions = torch.zeros(2, dtype=torch.int64, device="npu")

        def attends(key: BatchDescriptor) -> torch.Tensor:
            x = query
            for step in range(3):
                if broken[0] and step == breaks_at:
                    x.sum().item()
                x = x + 1 if step != 1 else ops.paged_attention(x, cache, pages, positions, 64).view(2, 2, 8)
            return x

        make = capture_whole if mode is GraphMode.FULL else capture_pieces
        gate = CaptureGate(allowed=True)
        wrapper = GraphWrapper(mode, eager(attends), lambda key, call: make(device, key, call, main), gate)
        with main, pytest.raises(CaptureError, match="could not be captured"):
            wrapper(mode, KEY, Live(2, 2))
        assert wrapper.entries == {}
        assert device.current_stream().name != "main"
        broken[0] = False
        with main:
            wrapper(mode, KEY, Live(2, 2))
            query.fill_(3)
            result = wrapper(mode, KEY, Live(2, 2))
            assert result.view(-1).tolist() == [2.0] * 32  # values are ones wherever the attention looks
        assert machine.finish().clean

"""Programs in which everything is in order and a number is wrong: a run against eager PyTorch shows it."""

from __future__ import annotations

from typing import Any

import torch

from tests.device.scenarios.parts import Attention, Decoder, update_task
from tests.device.scenarios.registry import gives_other_values


@gives_other_values()
def op_with_host_lists_is_captured_without_a_task(mended: bool) -> list[float]:
    """vllm-ascend #9896: an attention op isn't among the splitting ops, so a piece holds it with the lengths of
    the capture."""
    attend = Attention()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        attend(1)
    lengths = []
    for length in (3, 4):
        graph.replay()
        if mended:
            attend(length)
        lengths.append(round(2 * attend.out[0, 0, 0].item() + 1, 3))
    return lengths


@gives_other_values()
def padded_rows_write_a_slot_in_use(mended: bool) -> Any:
    """sglang PR #18984: the padded rows of a bucket keep the slots of a bigger batch, and the replay writes there
    what another request owns by now."""
    kv = torch.zeros(8, device="npu")
    slots = torch.zeros(4, dtype=torch.int64, device="npu")
    hidden = torch.zeros(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        kv.index_copy_(0, slots, hidden)
    for batch, value in ([3, 4, 5, 6], 1.0), ([3, 4], 2.0):
        if mended:
            slots.fill_(0)  # slot 0 is nobody's
        slots[: len(batch)] = torch.tensor(batch, device="npu")
        hidden.fill_(value)
        graph.replay()
    return kv[5].item()


@gives_other_values()
def padded_rows_move_a_state(mended: bool) -> Any:
    """vllm-ascend #6822: rows that no request has are left as the allocator gave them, and a sum runs over all."""
    state = torch.empty(4, device="npu")
    state.fill_(9.0)  # what another tensor left in this block
    count = torch.zeros(1, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        count.copy_(state.sum().view(1))
    if mended:
        state[2:] = 0
    state[:2] = 1
    graph.replay()
    return count.item()


@gives_other_values()
def tail_of_the_host_list_is_stale(mended: bool) -> list[float]:
    """vllm-ascend #7290: the list of lengths is filled for the requests there are, and its tail is the last
    batch's."""
    update = torch.npu.Stream()
    decoder = Decoder(layers=2)
    lengths = [20, 20]
    batch = [4]
    lengths[: len(batch)] = batch
    if mended:
        lengths[len(batch) :] = [1]
    decoder.graph.replay()
    for length, handle, gate, attend in zip(
        lengths, decoder.handles, decoder.gates, decoder.layers, strict=True
    ):
        update_task(update, handle, attend, length)
        gate.record(update)
    return decoder.lengths()

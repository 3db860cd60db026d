"""Captures: streams that run out, operations that a capture forbids, streams that aren't joined."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from slipstream.device.soft.machine.errors import SoftError
from tests.device.scenarios.parts import Attention
from tests.device.scenarios.registry import few_streams, refused


def capture(body: Any, **options: Any) -> Any:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        body()
    return graph


@refused(
    207005, says=("New capture stream failed", "streams are used up, not memory"), limits=few_streams(12)
)
def graph_for_every_layer_and_size(mended: bool) -> None:
    """vllm-ascend #9564: a graph for each layer and size needs more streams than there are; the device calls it
    a failed allocation."""
    layers = [torch.ones(4, device="npu") for _ in range(4)]
    pieces = [layers] if mended else [[layer] for layer in layers]
    graphs = []
    for size in (4, 3, 2, 1):
        for piece in pieces:
            graphs.append(capture(lambda piece=piece, size=size: [layer[:size].add_(1) for layer in piece]))
    for graph in graphs:
        graph.replay()


@refused(207005, says=("reset graphs that aren't needed",), limits=few_streams(16))
def communication_streams_of_a_deep_model(mended: bool) -> None:
    """vllm-ascend #3869: one capture size is too much, as each of a deep model's pieces forks its communication
    streams."""
    comm = [torch.npu.Stream(), torch.npu.Stream()]
    layers = [torch.ones(4, device="npu") for _ in range(6)]

    def run(piece: list[torch.Tensor]) -> None:
        main = torch.npu.current_stream()
        for stream in comm:
            stream.wait_stream(main)
        for layer in piece:
            layer.add_(1)
        for stream in comm:
            main.wait_stream(stream)

    pieces = [layers] if mended else [[layer] for layer in layers]
    graphs = [capture(lambda piece=piece: run(piece)) for piece in pieces]
    for graph in graphs:
        graph.replay()


@refused(207005, says=("Capture fewer sizes",), limits=few_streams(14))
def draft_layers_are_not_counted(mended: bool) -> None:
    """vllm-ascend #2481: the number of sizes that fit is computed from the target's layers, and then the draft's
    are captured too."""
    target, draft = 3, 2
    usable = 14 - 2  # the capture stream, and the default one
    counted = target + draft if mended else target
    graphs = []
    for _ in range(usable // counted):
        graphs += [capture(lambda: torch.ones(4, device="npu")) for _ in range(target + draft)]
    for graph in graphs:
        graph.replay()


@refused(207008, says=("stream 'side' cannot be made", "capture fewer sizes"), limits=few_streams(12))
def stream_for_every_layer(mended: bool) -> None:
    """vllm-ascend PR #3667: a stream for the shared experts of each layer, where one for all would do."""
    shared = torch.npu.Stream()
    main = torch.npu.current_stream()
    x = torch.ones(4, device="npu")
    for _ in range(16):
        side = shared if mended else torch.npu.Stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            x = x * 2
        main.wait_stream(side)


@refused(107030, says=("_local_scalar_dense makes the host wait",))
def item_in_a_capture(mended: bool) -> None:
    """vllm-ascend #6002: the model asks for a value on the host while it is captured."""
    x = torch.ones(4, device="npu")

    def model() -> torch.Tensor:
        largest = x.max() if mended else x.max().item()
        return x / largest

    capture(model).replay()


@refused(107030, says=("index",))
def boolean_mask_in_a_capture(mended: bool) -> None:
    """vllm-ascend #3885: MTP selects rows by `x[positions == 0]`, whose size only the host can learn."""
    x = torch.ones(4, 8, device="npu")
    positions = torch.tensor([0, 1, 2, 0], device="npu")

    def model() -> torch.Tensor:
        first = positions == 0
        return x.masked_fill(~first.unsqueeze(1), 0.0) if mended else x[first]

    capture(model).replay()


@refused(107030, says=("repeat_interleave",))
def repeats_that_only_the_device_knows(mended: bool) -> None:
    """vllm-ascend #16457: repeat_interleave asks the device for the sum of its repeats, if nobody says it."""
    lora = torch.tensor([0, 1, 2], device="npu")
    rows = torch.tensor([1, 2, 1], device="npu")

    def model() -> torch.Tensor:
        return lora.repeat_interleave(rows, output_size=4 if mended else None)

    capture(model).replay()


@refused(107027, says=("nothing runs during a capture",))
def stream_is_synchronised_in_a_capture(mended: bool) -> None:
    """vllm-ascend #10309: a synchronous copy waits for the stream that is being captured."""
    x = torch.ones(4, device="npu")

    def model() -> None:
        x.add_(1)
        if not mended:
            torch.npu.current_stream().synchronize()

    capture(model).replay()
    torch.npu.synchronize()


@refused(107030, says=("copy pageable host to device",))
def upload_from_pageable_memory(mended: bool) -> None:
    """vllm-ascend #11912: an upload called non-blocking comes from memory that isn't pinned, so it blocks."""
    x = torch.zeros(4, device="npu")
    lengths = torch.ones(4)
    lengths = lengths.pin_memory() if mended else lengths
    capture(lambda: x.copy_(lengths, non_blocking=True)).replay()


@refused(107030, says=("the host waits for", "mode 'global'"))
def another_thread_synchronises_under_global_mode(mended: bool) -> None:
    """vllm-ascend #8992: the thread of the KV transfer waits for its own stream while the model is captured."""
    transfer = torch.npu.Stream()
    blocks = torch.zeros(4, device="npu")
    x = torch.ones(4, device="npu")

    def connector() -> None:
        with torch.npu.stream(transfer):
            blocks.add_(1)
        transfer.synchronize()

    def model() -> None:
        x.add_(1)
        with ThreadPoolExecutor(1) as beside:
            beside.submit(connector).result()

    capture(model, capture_error_mode="thread_local" if mended else "global").replay()


@refused(207019, says=("stands in a task group", "outside the group"))
def op_in_a_group_that_cannot_be_updated(mended: bool) -> None:
    """vllm-ascend #13688: an op that the device cannot update stands inside a task group."""
    attend = Attention()

    def model() -> None:
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        attend(4)
        if not mended:
            attend.out.add_(1)
        torch.npu.graph_task_group_end(stream)

    capture(model).replay()


@refused(107025, says=("offload joined the capture", ".wait_stream(offload)` before the capture ends"))
def offload_stream_is_not_joined(mended: bool) -> None:
    """vllm-ascend #3818: the offloader's copy stream is forked from the capture and not joined."""
    offload = torch.npu.Stream()
    x = torch.ones(4, device="npu")

    def model() -> None:
        main = torch.npu.current_stream()
        offload.wait_stream(main)
        with torch.npu.stream(offload):
            x.clone()
        if mended:
            main.wait_stream(offload)

    capture(model).replay()


@refused(107025, says=("comm joined the capture",))
def join_comes_before_the_last_op(mended: bool) -> None:
    """xllm #2284: the communication stream is joined, and then it is given one more op."""
    comm = torch.npu.Stream()
    x = torch.ones(4, device="npu")

    def model() -> None:
        main = torch.npu.current_stream()
        comm.wait_stream(main)
        with torch.npu.stream(comm):
            x.mul_(2)
        main.wait_stream(comm)
        with torch.npu.stream(comm):
            x.add_(1)
        if mended:
            main.wait_stream(comm)

    capture(model).replay()


@refused(107031, says=("the default stream would wait",))
def default_stream_depends_on_the_capture(mended: bool) -> None:
    """Ascend's 107031: helper work goes to the default stream, which waits for the stream being captured."""
    helper = torch.npu.Stream() if mended else torch.npu.default_stream()
    x = torch.ones(4, device="npu")

    def model() -> None:
        main = torch.npu.current_stream()
        helper.wait_stream(main)
        with torch.npu.stream(helper):
            x.add_(1)
        main.wait_stream(helper)

    capture(model).replay()


@refused(107024, says=("recorded outside the capture", "before the capture begins"))
def capture_waits_for_an_event_from_outside(mended: bool) -> None:
    """vLLM-Ascend, order of a capture: the offloader's last load is waited for inside the capture, not before."""
    load = torch.npu.Stream()
    weights = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(load):
        weights.fill_(1)
        loaded = load.record_event()

    def model() -> torch.Tensor:
        if not mended:
            torch.npu.current_stream().wait_event(loaded)
        return weights * 2

    torch.npu.current_stream().wait_event(loaded)
    capture(model).replay()


@refused(507903, says=("broke before its end", "_local_scalar_dense"))
def swallowed_error_breaks_the_capture_later(mended: bool) -> None:
    """vllm-ascend #2383: an error inside the capture is caught by the model; what is seen is its end failing."""
    x = torch.ones(4, device="npu")

    def model() -> torch.Tensor:
        scale = 1.0
        with suppress(SoftError):
            scale = x[0] if mended else x[0].item()
        return x * scale

    capture(model).replay()

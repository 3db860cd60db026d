"""Memory that is somebody else's by now, and inputs that lie elsewhere than at the capture."""

from __future__ import annotations

from typing import Any

import torch

from slipstream.device import soft
from tests.device.scenarios.parts import Attention, update_task
from tests.device.scenarios.registry import finds


def weak(tensor: torch.Tensor) -> Any:
    """Return the same bytes without keeping them, as vLLM-Ascend does with the outputs of its graphs."""
    import torch_npu

    return torch_npu._C._weak_ref_tensor(tensor)


@finds("lifetime", buffer="doubled", says=("given to tripled",), mend="keep doubled alive")
def output_is_held_weakly_and_a_later_graph_takes_its_block(mended: bool) -> Any:
    """sglang #37606: an input of a break is held weakly, and the pool carves a later graph's tensor from it."""
    x = torch.ones(8, device="npu")
    pool = torch.npu.graph_pool_handle()
    first = torch.npu.NPUGraph()
    second = torch.npu.NPUGraph()
    with torch.npu.graph(first, pool=pool):
        doubled = x * 2
        kept = doubled if mended else None
        doubled = weak(doubled)
    with torch.npu.graph(second, pool=pool):
        tripled = x * 3
    first.replay()
    second.replay()
    return (doubled + tripled)[0].item(), kept is None


@finds("lifetime", buffer="merged", says=("given to workspace", "npu_fused_infer"), mend="keep merged alive")
def workspace_is_held_weakly_and_a_later_graph_takes_its_block(mended: bool) -> Any:
    """vllm-ascend #16794: a graph's workspace is held weakly; after the next capture an update writes over that
    graph's output."""
    update = torch.npu.Stream()
    attend = Attention()
    pool = torch.npu.graph_pool_handle()
    encoder = torch.npu.NPUGraph()
    decoder = torch.npu.NPUGraph()
    with torch.npu.graph(encoder, pool=pool):
        stream = torch.npu.current_stream()
        workspace = torch.empty(1024, dtype=torch.uint8, device="npu")
        kept = workspace if mended else None
        attend.workspace = workspace = weak(workspace)
        torch.npu.graph_task_group_begin(stream)
        attend(4)
        handle = torch.npu.graph_task_group_end(stream)
    x = torch.ones(256, device="npu")
    with torch.npu.graph(decoder, pool=pool):
        merged = x * 2
    decoder.replay()
    update_task(update, handle, attend, 8)
    torch.npu.synchronize()
    encoder.replay()
    return merged[0].item(), kept is None


@finds("lifetime", buffer="logits", says=("given to table",), mend="keep logits alive")
def temporary_of_a_capture_is_freed(mended: bool) -> Any:
    """vllm #40038: a table made before the capture is read and written by the graph, and freed; a later tensor
    lies there when the graph is replayed."""
    x = torch.ones(8, device="npu")
    table = torch.zeros(8, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        table.copy_(x)
        table.sum()
    kept = table if mended else None
    del table
    logits = torch.full((8,), 5.0, device="npu")
    graph.replay()
    return logits[0].item(), kept is None


@finds("lifetime", streams=("main",), buffer="page_sizes", mend="tensor.record_stream(main)")
def tensor_of_the_plan_stream_is_freed_while_main_reads_it(mended: bool) -> None:
    """sglang PR #28034: a plan's tensor is let go while main still reads it, and the next plan gets its block."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    kv = torch.ones(64, device="npu")
    torch.npu.synchronize()
    for _ in range(2):
        with torch.npu.stream(plan):
            page_sizes = torch.arange(16, device="npu")
        main.wait_stream(plan)
        with torch.npu.stream(main):
            kv.index_select(0, page_sizes)
        if mended:
            page_sizes.record_stream(main)
        del page_sizes


@finds("lifetime", streams=("main", "side"), mend="side.wait_stream(main)")
def graphs_of_one_pool_are_replayed_at_once(mended: bool) -> Any:
    """vLLM-Ascend, one pool for every graph: the encoder's graph is replayed beside the decoder's, and both
    keep their temporaries in the same blocks."""
    main = torch.npu.Stream()
    side = torch.npu.Stream()
    x = torch.ones(64, device="npu")
    pool = torch.npu.graph_pool_handle()
    encoder = torch.npu.NPUGraph()
    decoder = torch.npu.NPUGraph()
    with torch.npu.graph(decoder, pool=pool):
        hidden = (x + 1) * 2
    with torch.npu.graph(encoder, pool=pool):
        pixels = (x - 1) * 3
    torch.npu.synchronize()
    with torch.npu.stream(main):
        decoder.replay()
    if mended:
        side.wait_stream(main)
    with torch.npu.stream(side):
        encoder.replay()
    torch.npu.synchronize()
    return hidden[0].item(), pixels[0].item()


@finds("reset-running", code=107037, streams=("main",), mend="`main.synchronize()` before the reset")
def sleep_resets_a_graph_that_runs(mended: bool) -> None:
    """vllm-ascend #13005: going to sleep drops the graphs while the last replay may still run."""
    main = torch.npu.Stream()
    x = torch.ones(8, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.add_(1)
    torch.npu.synchronize()
    with torch.npu.stream(main):
        graph.replay()
    if mended:
        main.synchronize()
    graph.reset()


@finds("stale-address", says=("`args[0]`",), mend="static.copy_(args[0])")
def positional_input_has_moved(mended: bool) -> Any:
    """vllm #37395: a piece is replayed with a fresh tensor of the op before it, and reads the old place."""
    static = torch.ones(8, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = static * 2
    soft.note_inputs(graph, static)
    fresh = torch.full((8,), 3.0, device="npu")
    given = static.copy_(fresh) if mended else fresh
    soft.note_inputs(graph, given)
    graph.replay()
    return out[0].item()


@finds("stale-address", says=("`inputs_embeds`",), mend="static.copy_(inputs_embeds)")
def keyword_input_has_moved(mended: bool) -> Any:
    """vllm PR #53915: models are called with keywords, and the check of addresses looks at positions only."""
    static = torch.ones(8, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = static * 2
    soft.note_inputs(graph, inputs_embeds=static)
    fresh = torch.full((8,), 3.0, device="npu")
    given = static.copy_(fresh) if mended else fresh
    soft.note_inputs(graph, inputs_embeds=given)
    graph.replay()
    return out[0].item()

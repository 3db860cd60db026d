"""Updates of tasks: at the wrong time, of the wrong task, too few of them."""

from __future__ import annotations

import torch

from tests.device.scenarios.parts import Attention, Decoder, update_task
from tests.device.scenarios.registry import finds, refused


class Ungated:
    """A graph of one attention with a task, and no gate before it."""

    def __init__(self) -> None:
        self.attend = Attention()
        self.graph = torch.npu.NPUGraph()
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            torch.npu.graph_task_group_begin(stream)
            self.attend(1)
            self.handle = torch.npu.graph_task_group_end(stream)


@finds("race", code=107037, streams=("main", "update"), says=("update of a task that may be running",))
def task_is_updated_while_its_replay_runs(mended: bool) -> None:
    """sglang #16498: the graph is updated for the next replay while the last one still runs."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    graph = Ungated()
    for length in (3, 4):
        if mended:
            update.wait_stream(main)
        update_task(update, graph.handle, graph.attend, length)
        main.wait_stream(update)
        with torch.npu.stream(main):
            graph.graph.replay()


@finds(
    "race",
    code=107037,
    streams=("update", "main"),
    says=("update of a task",),
    mend="main.wait_stream(update)",
)
def replay_does_not_wait_for_the_update(mended: bool) -> None:
    """vllm-ascend PR #16798: the rebind comes before the replay in the program, and nothing says so to the
    device."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    graph = Ungated()
    update_task(update, graph.handle, graph.attend, 4)
    if mended:
        main.wait_stream(update)
    with torch.npu.stream(main):
        graph.graph.replay()


@finds("task-count", streams=("main",), says=("3 captured tasks, of them 2 updated", "left out: task 3"))
def gate_is_opened_without_an_update(mended: bool) -> list[float]:
    """vllm-ascend #15405: the first attention group's backend is asked for the update, and the other group's gate
    is opened all the same: its op runs with the lengths of the capture."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    decoder = Decoder(layers=3)
    updated = 3 if mended else 2
    with torch.npu.stream(main):
        decoder.graph.replay()
    for layer, (handle, attend) in enumerate(zip(decoder.handles, decoder.layers, strict=True)):
        if layer < updated:
            update_task(update, handle, attend, 4)
        decoder.gates[layer].record(update)
    return decoder.lengths()


@finds("update-mixed", streams=("main", "update"), mend="by graph, not by the number of tokens")
def graphs_of_two_widths_share_their_handles(mended: bool) -> None:
    """vllm #49548: with a dynamic number of drafts, 8 tokens are 4 requests of 2 or 2 of 4; the later capture's
    handles took the earlier one's place."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    two_wide = Ungated()
    four_wide = Ungated()
    handles = {(8, 2) if mended else 8: two_wide}
    handles[8] = four_wide
    asked = handles.get((8, 2), handles[8])
    update_task(update, asked.handle, asked.attend, 4)
    main.wait_stream(update)
    with torch.npu.stream(main):
        two_wide.graph.replay()


@refused(107040, says=("was captured with", "npu_fused_infer_attention_score.out", "_npu_paged_attention"))
def records_of_two_ops_are_mixed(mended: bool) -> None:
    """vllm-ascend #8370: the records of paged attention and of fused attention lie in one list, and an update
    issues the one op for the other's task."""
    update = torch.npu.Stream()
    graph = Ungated()
    op = graph.attend if mended else graph.attend.paged
    update_task(update, graph.handle, op, 4)
    torch.npu.synchronize()
    graph.graph.replay()


@refused(107040, says=("doesn't hold it",))
def handle_is_of_an_earlier_capture(mended: bool) -> None:
    """vllm-ascend #4208: an error at the update, as its handle is of a graph that was captured anew since."""
    update = torch.npu.Stream()
    graph = Ungated()
    handle = graph.handle
    graph.graph.reset()
    with torch.npu.graph(graph.graph):
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        graph.attend(1)
        fresh = torch.npu.graph_task_group_end(stream)
    update_task(update, fresh if mended else handle, graph.attend, 4)
    torch.npu.synchronize()
    graph.graph.replay()


@refused(None, says=("2 operators that need to be updated", "only 0 elements"))
def count_of_lists_differs_from_the_captured_ops(mended: bool) -> list[float]:
    """sglang PR #27371: NPUGraph.update gets no lists where the graph holds two updatable ops."""
    import torch_npu

    layers = [Attention(), Attention()]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        outs = [
            torch_npu.npu_fused_infer_attention_score(at.query, at.key, at.value, actual_seq_lengths_kv=[1])[
                0
            ]
            for at in layers
        ]
    graph.replay()
    graph.update([{"actual_seq_lengths_kv": [4]}] * (2 if mended else 0))
    return [out[0, 0, 0].item() for out in outs]


@finds(
    "update-mixed",
    streams=("update",),
    buffer="table",
    says=("is updated with table",),
    mend="keep tasks by name",
)
def updates_are_zipped_in_another_order(mended: bool) -> list[float]:
    """vllm-ascend #9257: the keys of the metadata don't come in the order of the capture, so each layer gets the
    other's length and block table."""
    main = torch.npu.Stream()
    update = torch.npu.Stream()
    decoder = Decoder(layers=2)
    metadata = {"layer.2": (4, decoder.layers[0].table), "layer.10": (20, decoder.layers[1].table)}
    names = sorted(metadata, key=lambda name: int(name[6:])) if mended else sorted(metadata)
    with torch.npu.stream(main):
        decoder.graph.replay()
    for name, handle, gate, attend in zip(names, decoder.handles, decoder.gates, decoder.layers, strict=True):
        update_task(update, handle, attend, *metadata[name])
        gate.record(update)
    return decoder.lengths()

"""A target and a draft graph, each with a task, which one update stream serves. The first argument says who waits:

sync    the host waits for the main stream before a FULL target replay, and only there
wait    the update stream waits for the main stream at the beginning of every step
none    nobody

The others say how the target runs, step by step: "full" replays its graph, "eager" launches its ops.
"""

import sys

import torch
import torch_npu

query = torch.zeros(1, 1, 8, device="npu")
key = torch.zeros(1, 32, 8, device="npu")
value = torch.ones(1, 32, 8, device="npu").cumsum(1)
lse = torch.zeros(0, device="npu")
workspace = torch.zeros(1024, dtype=torch.uint8, device="npu")


class Model:
    def __init__(self):
        self.out = torch.zeros(1, 1, 8, device="npu")
        self.graph = torch.npu.NPUGraph()
        self.event = torch.npu.ExternalEvent()
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            self.event.wait(stream)
            self.event.reset(stream)
            torch.npu.graph_task_group_begin(stream)
            self.attention(1)
            self.task = torch.npu.graph_task_group_end(stream)

    def attention(self, length):
        torch_npu.npu_fused_infer_attention_score.out(
            query, key, value, actual_seq_lengths_kv=[length], workspace=workspace, out=[self.out, lse]
        )

    def update(self, length):
        with torch.npu.stream(update):
            torch.npu.graph_task_update_begin(update, self.task)
            self.attention(length)
            torch.npu.graph_task_update_end(update)
            self.event.record(update)


waits, target_modes = sys.argv[1], sys.argv[2:]
target = Model()
draft = Model()
main = torch.npu.Stream()
update = torch.npu.Stream()
torch.npu.synchronize()
with torch.npu.stream(main):
    for step, mode in enumerate(target_modes):
        if waits == "wait":
            update.wait_stream(main)
        if mode == "full":
            if waits == "sync":
                main.synchronize()
            target.graph.replay()
            target.update(3 + step)
        else:
            target.attention(3 + step)
        draft.graph.replay()
        draft.update(3 + step)
torch.npu.synchronize()

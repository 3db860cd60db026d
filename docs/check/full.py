"""Steps of a FULL graph with a task a layer. The arguments say what a step does, in order:

sync     the host waits for the main stream
wait     the update stream waits for what the main stream was given so far
back     the main stream waits for what the update stream was given so far
ahead2   the host waits for the replay before the last one
replay   the graph is replayed on the main stream
update   every task is updated on the update stream, and its event recorded
"""

import sys

import torch
import torch_npu

LAYERS, STEPS = 2, 4
query = torch.zeros(1, 1, 8, device="npu")
key = torch.zeros(1, 32, 8, device="npu")
value = torch.ones(1, 32, 8, device="npu").cumsum(1)
outs = [torch.zeros(1, 1, 8, device="npu") for _ in range(LAYERS)]
lse = torch.zeros(0, device="npu")
workspace = torch.zeros(1024, dtype=torch.uint8, device="npu")


def attention(layer, length):
    torch_npu.npu_fused_infer_attention_score.out(
        query, key, value, actual_seq_lengths_kv=[length], workspace=workspace, out=[outs[layer], lse]
    )


graph = torch.npu.NPUGraph()
events, tasks = [], []
with torch.npu.graph(graph):
    stream = torch.npu.current_stream()
    for layer in range(LAYERS):
        event = torch.npu.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        attention(layer, 1)
        tasks.append(torch.npu.graph_task_group_end(stream))
        events.append(event)

main = torch.npu.Stream()
update = torch.npu.Stream()
torch.npu.synchronize()
replayed = []


def replay(step):
    with torch.npu.stream(main):
        graph.replay()
    replayed.append(main.record_event())


def update_all(step):
    with torch.npu.stream(update):
        for layer in range(LAYERS):
            torch.npu.graph_task_update_begin(update, tasks[layer])
            attention(layer, 3 + step)
            torch.npu.graph_task_update_end(update)
            events[layer].record(update)


DEEDS = {
    "sync": lambda step: main.synchronize(),
    "wait": lambda step: update.wait_stream(main),
    "back": lambda step: main.wait_stream(update),
    "ahead2": lambda step: replayed[step - 2].synchronize() if step >= 2 else None,
    "replay": replay,
    "update": update_all,
}

for step in range(STEPS):
    for word in sys.argv[1:]:
        DEEDS[word](step)
torch.npu.synchronize()

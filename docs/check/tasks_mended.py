import torch
import torch_npu

query = torch.zeros(1, 1, 8, device="npu")
key = torch.zeros(1, 32, 8, device="npu")
value = torch.ones(1, 32, 8, device="npu").cumsum(1)
out = torch.zeros(1, 1, 8, device="npu")
lse = torch.zeros(0, device="npu")
workspace = torch.zeros(1024, dtype=torch.uint8, device="npu")


def attention(length):
    torch_npu.npu_fused_infer_attention_score.out(
        query, key, value, actual_seq_lengths_kv=[length], workspace=workspace, out=[out, lse]
    )


graph = torch.npu.NPUGraph()
event = torch.npu.ExternalEvent()
with torch.npu.graph(graph):
    stream = torch.npu.current_stream()
    event.wait(stream)  # holds the replay until its length is there
    event.reset(stream)
    torch.npu.graph_task_group_begin(stream)
    attention(1)
    task = torch.npu.graph_task_group_end(stream)

main = torch.npu.Stream()
update = torch.npu.Stream()
torch.npu.synchronize()
for length in (3, 4, 5):
    update.wait_stream(main)  # the replay before has taken its opening
    with torch.npu.stream(main):
        graph.replay()
    with torch.npu.stream(update):
        torch.npu.graph_task_update_begin(update, task)
        attention(length)
        torch.npu.graph_task_update_end(update)
        event.record(update)  # lets the replay go on
torch.npu.synchronize()
print("out", out[0, 0, 0].item())

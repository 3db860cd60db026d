"""Steps of PIECEWISE graphs: two pieces, attention between them launched anew, inputs from a pinned buffer.

The argument says what is waited for before a step: "sync" the main stream, "copied" the copy of the step before
from the pinned buffer, "nothing" nothing.
"""

import sys

import torch
import torch_npu

STEPS = 4
hidden = torch.zeros(1, 1, 8, device="npu")
query = torch.zeros(1, 1, 8, device="npu")
key = torch.zeros(1, 32, 8, device="npu")
value = torch.ones(1, 32, 8, device="npu").cumsum(1)
attended = torch.zeros(1, 1, 8, device="npu")
lse = torch.zeros(0, device="npu")
workspace = torch.zeros(1024, dtype=torch.uint8, device="npu")
result = torch.zeros(1, 1, 8, device="npu")
staging = torch.zeros(1, 1, 8, pin_memory=True)

first = torch.npu.NPUGraph()
with torch.npu.graph(first):
    query.copy_(hidden * 2)
second = torch.npu.NPUGraph()
with torch.npu.graph(second):
    result.copy_(attended + hidden)

main = torch.npu.Stream()
torch.npu.synchronize()
copied = None
with torch.npu.stream(main):
    for step in range(STEPS):
        if sys.argv[1] == "sync":
            main.synchronize()
        if sys.argv[1] == "copied" and copied is not None:
            copied.synchronize()
        staging.fill_(step)
        hidden.copy_(staging, non_blocking=True)
        copied = main.record_event()
        first.replay()
        torch_npu.npu_fused_infer_attention_score.out(
            query, key, value, actual_seq_lengths_kv=[3 + step], workspace=workspace, out=[attended, lse]
        )
        second.replay()
torch.npu.synchronize()

import torch

main = torch.npu.current_stream()
plan = torch.npu.Stream()
rows = torch.arange(8, device="npu")
lengths = torch.zeros(8, dtype=torch.int64, device="npu")
torch.npu.synchronize()

for _ in range(3):
    with torch.npu.stream(plan):
        lengths.add_(1)
    total = (rows * lengths).sum()
print("total", total.item())

"""torch.npu and torch_npu, as programs for Ascend know them, over the software NPU."""

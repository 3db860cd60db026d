"""The host beside the device: pinned buffers that it rewrites, results that it reads too early."""

from __future__ import annotations

import torch

from tests.device.scenarios.registry import finds


@finds(
    "host-buffer", streams=("upload",), says=("host buffer block_table_cpu",), mend="`upload.synchronize()`"
)
def condense_moves_a_row_that_is_being_copied(mended: bool) -> None:
    """vllm-ascend #9727: condensing the batch moves a row of the block table whose upload is still in flight."""
    upload = torch.npu.Stream()
    block_table = torch.zeros(4, 8, dtype=torch.int64, device="npu")
    block_table_cpu = torch.arange(32).view(4, 8).pin_memory()
    torch.npu.synchronize()
    with torch.npu.stream(upload):
        block_table.copy_(block_table_cpu, non_blocking=True)
        copied = upload.record_event()
    if mended:
        copied.synchronize()
    block_table_cpu[1] = block_table_cpu[3]


@finds(
    "host-buffer",
    streams=("upload",),
    says=("numpy", "host buffer seq_lens_cpu"),
    mend="`upload.synchronize()`",
)
def lengths_of_the_next_step_overrun_the_upload(mended: bool) -> None:
    """vllm-ascend #8721: with async scheduling the host adds to its lengths before the last step's are copied."""
    upload = torch.npu.Stream()
    seq_lens = torch.zeros(4, dtype=torch.int32, device="npu")
    seq_lens_cpu = torch.ones(4, dtype=torch.int32).pin_memory()
    numpy_lens = seq_lens_cpu.numpy()
    torch.npu.synchronize()
    for _ in range(2):
        with torch.npu.stream(upload):
            seq_lens.copy_(seq_lens_cpu, non_blocking=True)
        if mended:
            upload.synchronize()
        numpy_lens[:] += 1


@finds("race", streams=("main",), says=("tolist",), mend="`main.synchronize()`")
def lengths_are_read_before_they_arrive(mended: bool) -> list[int]:
    """vllm-ascend #10895: the host plans with lengths whose copy from the device isn't done: optimistic ones."""
    main = torch.npu.Stream()
    seq_lens = torch.tensor([5, 9], device="npu")
    seq_lens_cpu = torch.tensor([8, 12]).pin_memory()
    torch.npu.synchronize()
    with torch.npu.stream(main):
        seq_lens.add_(1)
        seq_lens_cpu.copy_(seq_lens, non_blocking=True)
        arrived = main.record_event()
    if mended:
        arrived.synchronize()
    return seq_lens_cpu.tolist()


@finds("race", streams=("copy",), buffer="accepted", mend="copy.wait_stream(forward)")
def results_are_copied_without_waiting_for_the_forward(mended: bool) -> None:
    """sglang PR #37318: the copy stream takes the accepted lengths before verify has written them."""
    forward = torch.npu.Stream()
    copy = torch.npu.Stream()
    accepted = torch.zeros(4, dtype=torch.int64, device="npu")
    on_host = torch.zeros(4, dtype=torch.int64).pin_memory()
    torch.npu.synchronize()
    with torch.npu.stream(forward):
        accepted.add_(3)
    if mended:
        copy.wait_stream(forward)
    with torch.npu.stream(copy):
        on_host.copy_(accepted, non_blocking=True)
    copy.synchronize()
    on_host.tolist()

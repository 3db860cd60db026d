"""Sixty messages of failed graphs as users met them, rebuilt in our own words from the tables of reported threads.

What the runtime itself prints (function names, codes, its fixed phrases) stands as it prints it; hosts, paths,
models and the talk around are ours. The first of each is the thread that had it, or the table of codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.graph.failure_kinds import FailureKind as K


@dataclass(frozen=True)
class Message:
    """What was seen where, and what it is."""

    seen: str
    kind: K
    text: str


_BEGIN = "capture_begin:torch_npu/NPUGraph.cpp:1 NPU function error: acl::AclmdlRICaptureBegin(stream, mode)"
_END = "capture_end:torch_npu/NPUGraph.cpp:2 NPU function error: acl::AclmdlRICaptureEnd(stream, &model)"
_STORAGE = (
    "[ERROR] 2026-04-17-09:16:39 (PID:180293, Device:0, RankID:-1) ERR00100 PTA call acl api failed\n"
    "[Error]: Failed to apply for memory.\n        Check the remaining storage space in the "
    "hardware environment.\n"
)
_HINT = (
    "Since the operator is called asynchronously, the stack may be wrong; please set "
    "ASCEND_LAUNCH_BLOCKING=1 for an "
    "accurate one, and unset ASCEND_LAUNCH_BLOCKING in time after debugging.\n"
)

MESSAGES: tuple[Message, ...] = (
    # Streams.
    Message(
        "vllm-ascend#9564",
        K.STREAMS,
        "(Worker_TP3 pid=207018) ERROR 04-20 21:27:00 [multiproc_executor.py:932] New capture stream failed, "
        "stream_id=1987, event_id=[-1->70037].[FUNC:GetCaptureStream]\nstream wait event failed, "
        "runtime result = 207005",
    ),
    Message(
        "vllm-ascend#9596",
        K.STREAMS,
        "rtStreamWaitEvent execution failed, reason=driver error:resource alloc fail[FUNC:FuncErrorReason]\n"
        "        stream wait event failed, runtime result = 207005[FUNC:ReportCallError]",
    ),
    Message(
        "vllm-ascend#8393",
        K.STREAMS,
        f"{_BEGIN}, error code is 207005\n{_STORAGE}EE9999: Inner Error!\n[SqCqManage]Alloc sq cq fail, "
        "stream_id=1984, "
        "retCode=0x7020023.[FUNC:Setup]",
    ),
    Message(
        "vllm-ascend#2629", K.STREAMS, f"RuntimeError: {_BEGIN}, error code is 207005\n{_STORAGE}{_HINT}"
    ),
    Message("vllm-ascend#8393, its text alone", K.STREAMS, f"error code is 207005\n{_STORAGE}"),
    Message(
        "vllm-ascend#9691",
        K.STREAMS,
        f"{_BEGIN}, error code is 207008\n[Error]: Stream resources are insufficient.\n"
        "Insufficient_Stream_Resources(EL0009): The stream resources are insufficient.",
    ),
    Message("vllm-ascend#3869", K.STREAMS, "begin capture stream failed, runtime result = 207008[LINE:148]"),
    Message(
        "vllm-ascend#3389",
        K.STREAMS,
        "rtStreamBeginCapture execution failed, reason=driver error:no stream resource",
    ),
    Message(
        "vllm-ascend#2481",
        K.STREAMS,
        "eagle3: torch_npu/npu/graphs.py, in capture_begin\nRuntimeError: capture_begin: NPU function error, "
        "error code is 207008",
    ),
    Message(
        "vllm-ascend#12998",
        K.STREAMS,
        "halSqCqAllocate failed\nNormalSqCqAllocate:[drv api] SqCq allocate failed: device_id=3, "
        "drvRetCode=14!",
    ),
    Message(
        "our software NPU",
        K.STREAMS,
        "207008 ACL_ERROR_RT_NO_STREAM_RESOURCE: the capture forked 2049 streams, and 1800 can be used.",
    ),
    Message(
        "vllm-ascend#9564, as the executor repeats it",
        K.STREAMS,
        "RuntimeError: Worker failed with error 'Create capture stream failed, stream_id=1987, "
        "error=117571619'; disk "
        "and memory of the host were free",
    ),
    # Operations in a capture.
    Message(
        "vllm-ascend#6002",
        K.ILLEGAL_OP,
        "rtMemcpy:ErrCode=107030, desc=[the current capture mode does not support this operation], "
        "InnerCode=0x703001c\nMemCopySync:Memory copy sync failed, cnt=456, kind=1.",
    ),
    Message(
        "vllm-ascend#11514",
        K.ILLEGAL_OP,
        "synchronized memcpy failed, kind = 1, runtime result = "
        "107030\nAclQueryEventRecordedStatus(event), error code "
        "is 507011\n[Error]: Model execution failed.",
    ),
    Message(
        "vllm-ascend#11912",
        K.ILLEGAL_OP,
        "[ERROR] ASCENDCL(507011,): aclrtMemcpyImpl:synchronized memcpy failed, kind = 1, runtime "
        "result = 107030",
    ),
    Message(
        "vllm#46673",
        K.ILLEGAL_OP,
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ),
    Message(
        "vllm-ascend#3885",
        K.ILLEGAL_OP,
        "mtp: hidden[positions == 0] copies a mask to the host; error code is 107030 while the graph is "
        "captured",
    ),
    Message(
        "vllm-ascend#10309",
        K.ILLEGAL_OP,
        "synchronize stream failed, runtime result = 107027\nsynchronized memcpy failed, kind = 2, "
        "runtime result = "
        "107030\nDuring handling of the above exception, another exception occurred:\nerror code is 507903",
    ),
    Message(
        "vllm-ascend#16457",
        K.ILLEGAL_OP,
        "310P, LoRA: repeat_interleave needs its counts on the host: error code is 107027",
    ),
    Message(
        "vllm-ascend#2138",
        K.ILLEGAL_OP,
        "RunOpApiV2: NPU function error: c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream), error "
        "code is 107027",
    ),
    Message("table of codes", K.ILLEGAL_OP, "event record failed, runtime result = 107028"),
    Message(
        "table of codes", K.ILLEGAL_OP, "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT: work on the default stream"
    ),
    Message(
        "table of codes", K.ILLEGAL_OP, "aclrtMemcpyAsync failed, retCode=107041: host memory is not pinned"
    ),
    Message(
        "our cpu device",
        K.ILLEGAL_OP,
        "graph 'verify 4x2' reads a device value on the host inside its capture (aten::_local_scalar_dense).",
    ),
    Message(
        "vllm-ascend#8992",
        K.THREAD,
        "Mooncake connector: aclrtMemcpy on its own thread, capture mode conflict, error code is 107032\n"
        "MTE DDR address out of range",
    ),
    Message("table of codes", K.THREAD, "capture end failed, runtime result = 107038"),
    Message("vllm-ascend#3818", K.UNJOINED, f"{_END}, error code is 107025"),
    Message(
        "vllm-ascend#13792",
        K.UNJOINED,
        "offloader: stream was forked and not joined before the capture ended (107025)",
    ),
    Message(
        "xllm#2284", K.UNJOINED, "CaptureEnd returned ACL_ERROR_RT_STREAM_UNJOINED from the torchair stream"
    ),
    Message(
        "cuda", K.UNJOINED, "CUDA error: capturing stream has unjoined work (cudaErrorStreamCaptureUnjoined)"
    ),
    Message("table of codes", K.CAPTURE_ORDER, "rtStreamWaitEvent: result=107024"),
    Message("table of codes", K.CAPTURE_ORDER, "model execute refused, runtime result = 107026"),
    Message(
        "table of codes, without a text of its own",
        K.CAPTURE_ORDER,
        "NPU function error, error code is 107046",
    ),
    Message(
        "vllm-ascend#2383",
        K.INVALIDATED,
        "aclmdlRICaptureStatus::ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE INTERNAL ASSERT FAILED\n" + _HINT,
    ),
    Message("vllm-ascend#3885, its last line", K.INVALIDATED, f"{_END}, error code is 507903"),
    Message(
        "vllm-ascend#7150",
        K.LATE_CAPTURE,
        "RuntimeError: CUDA graph capturing detected at an inappropriate time. This operation is "
        "currently disabled.",
    ),
    # Tasks.
    Message(
        "vllm-ascend#13688", K.TASK_GROUP, "HCCL AIV inside a task group: error code is 507009\nreplay waits"
    ),
    Message("table of codes", K.TASK_GROUP, "graph_task_group_end: ACL_ERROR_STREAM_TASK_GROUP_STATUS"),
    Message("table of codes", K.TASK_GROUP, "the op cannot be updated, runtime result = 207019"),
    Message("table of codes", K.TASK_GROUP, "task group interrupted, error code is 107034"),
    Message(
        "vllm-ascend#4233",
        K.UPDATE,
        "A single record operation cannot be associated with multiple wait operations",
    ),
    Message("vllm-ascend#4180", K.UPDATE, "graph_task_update_end failed: error code is 107040"),
    Message("sglang#16498", K.UPDATE, "update of a running graph, error code is 107037"),
    Message(
        "vllm-ascend#8370",
        K.UPDATE,
        "ValueError: not enough values to unpack (expected 13, got 9) in update_graph_params",
    ),
    Message(
        "vllm-ascend, its encoder",
        K.UPDATE,
        "RuntimeError: encoder graph bookkeeping inconsistent: 24 handles, 23 events",
    ),
    Message(
        "vllm-ascend#7290",
        K.LENGTHS,
        "eagle3: seq_lens_list is one shorter than num_reqs; the tail holds the last batch's value",
    ),
    Message(
        "vllm-ascend#7144",
        K.LENGTHS,
        "aclnnFusedInferAttentionScore: actualSeqLengths last element should equal T of query, but 24 and 20",
    ),
    Message(
        "vllm#37363",
        K.ADDRESS,
        "AssertionError: Input addresses for cudagraphs are different during replay. Expected [1, 2], "
        "got [1, 3]",
    ),
    # On the device.
    Message(
        "vllm-ascend#16794",
        K.REPLAY,
        "finishedNPUExecutionInternal: error code is 507011\n[Error]: Model execution failed.\n" + _HINT,
    ),
    Message("vllm-ascend#8818", K.REPLAY, "wait event to be complete failed, runtime result = 507011"),
    Message("vllm-ascend#2763", K.KERNEL, "RuntimeError: ACL stream synchronize failed, error code:507035"),
    Message(
        "vllm-ascend#16581",
        K.KERNEL,
        "error code is 507015: the MTE DDR address is out of range; mte error info: 0x61060000c3",
    ),
    Message("vllm#46324", K.KERNEL, "CUDA error: an illegal memory access was encountered (MTP, PIECEWISE)"),
    Message("vllm-ascend#13826", K.TIMEOUT, "TimeoutError: RPC call to execute_model timed out."),
    Message("vllm-ascend#4208", K.TIMEOUT, "aclrtSynchronizeStreamWithTimeout, error code is 507046"),
    Message("vllm-ascend#1972", K.TIMEOUT, "ACL stream synchronize failed, error code:507034"),
    # Memory and disks, where it is really these.
    Message(
        "vllm-ascend#14293",
        K.MEMORY,
        "RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB (NPU 6; 60.97 GiB total capacity; "
        "19.79 MiB free)",
    ),
    Message("vllm#50488", K.MEMORY, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    Message("table of codes", K.MEMORY, "aclrtMalloc failed, runtime result = 207018"),
    Message(
        "a compilation cache", K.DISK, "OSError: [Errno 28] No space left on device: '/cache/torch_compile'"
    ),
    # Settings.
    Message(
        "vllm-ascend#3574",
        K.CONFIG,
        "ValueError: ACL graph is incompatible with ASCEND_LAUNCH_BLOCKING=1. Please unset "
        "ASCEND_LAUNCH_BLOCKING.",
    ),
    Message("vllm#28207", K.CONFIG, "ValueError: No valid cudagraph sizes after rounding to multiple of 5"),
    Message(
        "torch_npu", K.CONFIG, "capture_begin: do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture"
    ),
    Message("not a capture", K.DEVICE, "rtSetDevice: error code is 507033"),
    Message("not a capture", K.DEVICE, "heartbeat lost, runtime result = 507901"),
)

#: Texts that hold numbers and words like those of failures, and are none.
HARMLESS: tuple[str, ...] = (
    "| 4  0 | 107030 |  | 8489 |\n| 4  1 | 207018 |  | 18369 |",
    "(Worker pid=207008) INFO 04-20 21:27:00 [gpu_model_runner.py:1] Graph capturing finished in 12 "
    "secs, took 1.2 GiB",
    "[ERROR] RUNTIME(107025,4):2026-07-11 something else went wrong [api_c.cc:1081]507011 rtInfo",
    "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True\nTASK_QUEUE_ENABLE=2\nASCEND_LAUNCH_BLOCKING=0",
    "INFO Available KV cache memory: 20.1 GiB; --gpu-memory-utilization 0.9",
    "stream_id=207005 event_id=507903 took 1.107025 ms, port 107040",
    "ModuleNotFoundError: No module named 'vllm'",
    _HINT,
)

"""The kinds of graph failures: what each means, and what to change. Pure: no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FailureKind(Enum):
    """What failed."""

    STREAMS = "stream resources"
    RESOURCES = "device resources"
    ILLEGAL_OP = "illegal operation in a capture"
    THREAD = "another thread in a capture"
    UNJOINED = "unjoined stream"
    CAPTURE_ORDER = "order of capture calls"
    INVALIDATED = "capture invalidated"
    LATE_CAPTURE = "capture after the warm-up"
    TASK_GROUP = "task group"
    UPDATE = "task update"
    LENGTHS = "lengths of a batch"
    ADDRESS = "moved input"
    REPLAY = "replay fault"
    KERNEL = "kernel fault"
    TIMEOUT = "execution timeout"
    MEMORY = "device memory"
    HOST_MEMORY = "host memory"
    DISK = "disk"
    CONFIG = "configuration"
    DEVICE = "device"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What to say of a kind: what it means, and what to change, best first."""

    meaning: str
    change: tuple[str, ...]


_K = FailureKind

EXPLANATIONS: dict[FailureKind, Explanation] = {
    _K.STREAMS: Explanation(
        "The device has no stream left for the capture. A captured graph keeps the streams that it forked, and "
        "pieces take layers x sizes x communication groups of 2,048. Neither memory nor a disk is full, whatever "
        "the text advises.",
        (
            "capture fewer sizes: a shorter cudagraph_capture_sizes, or a lower max_cudagraph_capture_size "
            "(`slipstream graphs plan --layers L --tp T` says how many fit)",
            "take FULL_DECODE_ONLY or FULL for uniform decode: one graph a size instead of one a layer",
            "HCCL_OP_EXPANSION_MODE=AIV, where communication needs fewer streams",
            'HDK 25.5.1 and CANN 8.5.0 or newer, which lift the limit ("alloc sq cq fail" comes from older ones)',
            "run once without graphs, to be sure that it is this",
        ),
    ),
    _K.RESOURCES: Explanation(
        "The device has no event or no graph left.",
        (
            "capture fewer sizes",
            "take FULL_DECODE_ONLY: fewer graphs",
            "look for events that are never freed",
        ),
    ),
    _K.ILLEGAL_OP: Explanation(
        "An operation that a capture forbids ran inside one: usually a copy between host and device that blocks, "
        "as .item(), .cpu(), a boolean mask, or an upload from memory that is not pinned.",
        (
            "find the op: `slipstream check FILE` names its line, on any machine",
            "compute the value before the capture, or keep it on the device",
            "pin host memory that is uploaded",
            'if it came from another thread (a KV connector), give the capture capture_error_mode="thread_local"',
        ),
    ),
    _K.THREAD: Explanation(
        'Two threads, or two captures, were on the device at once, and a capture in mode "global" forbids that.',
        (
            'capture with capture_error_mode="thread_local"',
            "let the other thread (a KV connector, a data loader) wait until captures are done",
        ),
    ),
    _K.UNJOINED: Explanation(
        "A stream began to wait on the capture and nothing of the capture waited for it again before the end.",
        (
            "`slipstream check FILE` names the fork",
            "wait for every forked stream before the capture ends: capture_stream.wait_stream(forked)",
            "look at what forks by itself: an offloader, communication, another compiler",
        ),
    ),
    _K.CAPTURE_ORDER: Explanation(
        "Calls of a capture came in an order that the device refuses: an event that the capture did not record, a "
        "stream that is not captured, a graph that is still being captured.",
        (
            "record an event inside the capture before a captured wait on it",
            "begin and end the capture on one stream, and replay only after the end",
            "`slipstream check FILE` names the line",
        ),
    ),
    _K.INVALIDATED: Explanation(
        "The capture had failed before this message; the cause is an earlier error, often one that was caught.",
        (
            "look at the first error of the log, not the last",
            "`slipstream check FILE` shows what broke the capture",
        ),
    ),
    _K.LATE_CAPTURE: Explanation(
        "A batch came in a shape that no graph was captured for, after captures were closed.",
        (
            "add the shape to the capture sizes (`slipstream graphs plan` shows which batches have no graph)",
            "after new weights or a wake-up, capture again before serving",
        ),
    ),
    _K.TASK_GROUP: Explanation(
        "A task group is not as the device wants it: an op inside that cannot be updated, or begin and end that "
        "do not match.",
        (
            "keep only updatable ops (attention) between graph_task_group_begin and _end",
            "with HCCL in AIV mode, keep communication out of the group",
            "end every group on the stream that began it, also when an error is raised",
        ),
    ),
    _K.UPDATE: Explanation(
        "An update did not meet its task: the graph was running ungated, or tasks that were captured and tasks "
        "that were updated differ in number or order.",
        (
            "wait for the update before the replay, or gate each task (ExternalEvent) and open it once a replay",
            "keep tasks with the graph that captured them, by name, and compare the counts",
            "never two graphs under one key (LoRA and base, two draft widths)",
        ),
    ),
    _K.LENGTHS: Explanation(
        "The lengths that attention was given do not fit the rows of the graph.",
        (
            "pad the host's lists to the captured requests; the last query length equals the rows",
            "give padded rows a length of 0, never the one of an earlier batch",
        ),
    ),
    _K.ADDRESS: Explanation(
        "A graph reads where its inputs stood at the capture, and one of them stands somewhere else now. It would "
        "have computed with old values.",
        (
            "copy inputs into static buffers instead of passing new tensors",
            "let the op before a piece write to a buffer that stays",
        ),
    ),
    _K.REPLAY: Explanation(
        "A replayed graph failed on the device; the code says no more. Seen causes: memory of the graph that was "
        "freed or moved, indices out of range in padded rows, a blocking copy during a replay.",
        (
            "look for an earlier error of the same replay in the log and in plog",
            "run once without graphs: if it fails too, it is the kernel and not the graph",
            "`slipstream check FILE` finds stale addresses, reused memory and races",
        ),
    ),
    _K.KERNEL: Explanation(
        "A kernel failed, mostly by an address out of range. In graphs: sizes that are no multiple of the decode "
        "width, indices of padded rows, memory that was freed after the capture.",
        (
            "run once without graphs, to tell the kernel from the graph",
            "in PIECEWISE with drafts, capture only multiples of the decode width",
            "set padded rows to safe indices",
        ),
    ),
    _K.TIMEOUT: Explanation(
        "Something waited that nothing moved on. In graphs: a gate that was never opened, an update that did not "
        "come, or a rank that replays while another runs eagerly.",
        (
            "`slipstream check FILE` names who waits, on which gate, and who could have opened it",
            "look whether all ranks take the same mode and size in every step",
            "look at the first rank that stopped, not at the one that reports",
        ),
    ),
    _K.MEMORY: Explanation(
        "The device's memory is full. Graphs are rarely part of the memory that the KV cache was sized with.",
        (
            "leave room: a lower gpu_memory_utilization, or a smaller KV cache",
            "capture fewer or smaller sizes",
            "do not capture sizes above what can run (max-requests x width)",
        ),
    ),
    _K.HOST_MEMORY: Explanation(
        "The host's memory is full.", ("give the process more memory, or run fewer",)
    ),
    _K.DISK: Explanation(
        "A disk is full: the system said so itself.",
        ("make room where compilation caches and logs are written",),
    ),
    _K.CONFIG: Explanation(
        "Settings exclude each other.",
        ("`slipstream graphs plan` shows which rules fire and why", "change what the message names"),
    ),
    _K.DEVICE: Explanation(
        "The device itself is not there; that has nothing to do with graphs.",
        ("look at npu-smi and the driver's log", "restart the device, or the container"),
    ),
    _K.UNKNOWN: Explanation(
        "No known failure of graphs stands in this text.",
        (
            "give the whole log: the cause often stands well above the last line",
            "run once without graphs, to see whether they are involved",
        ),
    ),
}

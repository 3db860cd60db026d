"""What graph failures look like, as data: Ascend's error codes, and signatures in the text. Pure: no torch.

torch_npu explains codes up
to 107019 and 207018 only, so most codes of captures and updates come without a word, and 207005 comes with a wrong
one: "check the remaining storage space" means that no stream was left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slipstream.graph.failure_kinds import FailureKind


@dataclass(frozen=True, slots=True)
class Code:
    """One of Ascend's error codes: what it says, and of which kind it is. The rest as in `Signature`."""

    number: int
    meaning: str
    kind: FailureKind
    strength: int = 0
    guess: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Words that tell a failure.

    Attributes:
        kind: which.
        pattern: to be looked for in text of small letters.
        strength: 0 names the cause, 1 may be a cause or follow from one, 2 follows from one, 3 is a guess. Of all
            that match, the lowest counts, and among equals the earliest.
        why: what the words show, for people.
        seen: threads that had it.
        guess: the words alone do not prove it.
    """

    kind: FailureKind
    pattern: re.Pattern[str]
    strength: int
    why: str
    seen: tuple[str, ...] = ()
    guess: bool = False


_K = FailureKind

CODES: dict[int, Code] = {
    code.number: code
    for code in (
        Code(107024, "a captured wait on an event that the capture did not record", _K.CAPTURE_ORDER),
        Code(107025, "a stream was forked from the capture and not joined before its end", _K.UNJOINED, 1),
        Code(107026, "the graph is being captured, so it cannot be replayed or reset", _K.CAPTURE_ORDER),
        Code(107027, "the call is not allowed on a stream that is captured", _K.ILLEGAL_OP),
        Code(107028, "the event belongs to a capture, so nothing outside may use it", _K.ILLEGAL_OP),
        Code(107029, "the call is for streams that are captured, and this one is not", _K.CAPTURE_ORDER, 1),
        Code(107030, "the capture mode forbids the call, as a blocking copy", _K.ILLEGAL_OP),
        Code(107031, "the capture would depend on the default stream", _K.ILLEGAL_OP),
        Code(107032, "two captures would depend on each other", _K.THREAD),
        Code(107033, "a task group is begun twice, or ended without a beginning", _K.TASK_GROUP),
        Code(107034, "a task group was interrupted", _K.TASK_GROUP),
        Code(107036, "begin and end of a capture or a task group do not match", _K.TASK_GROUP),
        Code(107037, "the graph is running", _K.UPDATE),
        Code(107038, "the capture belongs to another thread", _K.THREAD),
        Code(107040, "the update of a graph's tasks failed", _K.UPDATE),
        Code(
            107041,
            "an asynchronous copy became a blocking one, as from memory that is not pinned",
            _K.ILLEGAL_OP,
        ),
        Code(207001, "no device memory", _K.MEMORY, 1),
        Code(207005, "a device resource could not be had; of captures, streams", _K.STREAMS, 1, guess=True),
        Code(207007, "no event is left", _K.RESOURCES),
        Code(207008, "no stream is left", _K.STREAMS),
        Code(207010, "no graph (model) is left", _K.RESOURCES),
        Code(207018, "the device is out of memory", _K.MEMORY, 1),
        Code(207019, "an op of the task group cannot be updated", _K.TASK_GROUP),
        Code(507009, "the task group holds a task of a type that cannot stand in one", _K.TASK_GROUP),
        Code(507011, "a replayed graph failed on the device", _K.REPLAY, 2),
        Code(507014, "an AI core did not end in time", _K.TIMEOUT, 2),
        Code(507015, "a kernel on an AI core failed", _K.KERNEL, 1),
        Code(507033, "the device did not start", _K.DEVICE, 1),
        Code(507034, "a vector core did not end in time", _K.TIMEOUT, 2),
        Code(507035, "a kernel on a vector core failed", _K.KERNEL, 1),
        Code(507046, "waiting for a stream took too long", _K.TIMEOUT, 2),
        Code(507047, "waiting for an event took too long", _K.TIMEOUT, 2),
        Code(507901, "the connection to the device broke", _K.DEVICE, 1),
        Code(507903, "an earlier error invalidated the capture", _K.INVALIDATED, 2),
    )
}

#: Codes of captures and updates that Ascend's headers leave between those above.
CAPTURE_FAMILY = range(107020, 107047)

#: Ascend's names of codes, which logs may show instead of the number.
CODE_NAMES: dict[str, int] = {
    "ACL_ERROR_RT_CAPTURE_DEPENDENCY": 107024,
    "ACL_ERROR_RT_STREAM_UNJOINED": 107025,
    "ACL_ERROR_RT_MODEL_CAPTURED": 107026,
    "ACL_ERROR_RT_STREAM_CAPTURED": 107027,
    "ACL_ERROR_RT_EVENT_CAPTURED": 107028,
    "ACL_ERROR_RT_STREAM_NOT_CAPTURED": 107029,
    "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT": 107030,
    "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT": 107031,
    "ACL_ERROR_STREAM_CAPTURE_CONFLICT": 107032,
    "ACL_ERROR_STREAM_TASK_GROUP_STATUS": 107033,
    "ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED": 107036,
    "ACL_ERROR_RT_MODEL_RUNNING": 107037,
    "ACL_ERROR_RT_MODEL_UPDATE_FAILED": 107040,
    "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL": 207005,
    "ACL_ERROR_RT_NO_STREAM_RESOURCE": 207008,
    "ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP": 207019,
    "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT": 507046,
    "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT": 507047,
}


def _signature(
    kind: FailureKind, strength: int, why: str, pattern: str, *seen: str, guess: bool = False
) -> Signature:
    # Far faster than ignoring case. No class of characters but \d, \b and the like stands in a pattern.
    return Signature(kind, re.compile(pattern.lower()), strength, why, seen, guess)


#: What stands before a code, so that a process or a stream of the same number is none.
_SAID = r"(?:code(?: is|:)|result ?=|ErrCode=) ?"

SIGNATURES: tuple[Signature, ...] = (
    # Streams, in all their faces.
    _signature(
        _K.STREAMS,
        0,
        "an old driver found no queue for a stream",
        r"alloc(?:ate)? sq cq fail|sqcq ?allocate failed",
        "vllm-ascend#8393",
        "vllm-ascend#2629",
    ),
    _signature(
        _K.STREAMS,
        0,
        "the capture found no stream",
        r"(?:new|create|get) capture stream failed",
        "vllm-ascend#9564",
    ),
    _signature(
        _K.STREAMS,
        0,
        "the runtime says so",
        r"insufficient[_ ]stream[_ ]resources?|stream resources? (?:are|is) insufficient|no stream resource",
        "vllm-ascend#9691",
    ),
    _signature(
        _K.STREAMS,
        0,
        "a wait inside a capture found no stream",
        r"resource alloc fail(?s:.{0,400})stream wait event failed|"
        rf"stream wait event failed(?s:.{{0,400}})(?:resource alloc fail|{_SAID}207005)",
        "vllm-ascend#9596",
    ),
    _signature(
        _K.STREAMS,
        0,
        "the capture could not begin for want of a resource",
        rf"(?:capture_?begin|begin capture stream failed)(?s:.{{0,300}}){_SAID}20700[58]",
        "vllm-ascend#2629",
    ),
    _signature(
        _K.STREAMS,
        1,
        "torch_npu's text for 207005, which is not about memory or disks",
        r"failed to apply for memory(?s:.{0,200})remaining storage space",
        "vllm-ascend#8393",
        guess=True,
    ),
    _signature(
        _K.STREAMS,
        0,
        "a resource could not be had, and it was a stream",
        rf"(?:RESOURCE_ALLOC_FAIL|{_SAID}207005)[^\n]{{0,200}}\bstreams?\b",
    ),
    _signature(
        _K.RESOURCES, 0, "events ran out", r"event resources? (?:are|is) insufficient|no event resource"
    ),
    _signature(
        _K.RESOURCES, 0, "graphs ran out", r"no model resource|model resources? (?:are|is) insufficient"
    ),
    # Operations that a capture forbids.
    _signature(
        _K.ILLEGAL_OP,
        0,
        "a call that a capture forbids",
        r"capture mode does not support|not (?:permitted|allowed|supported) (?:in|during|while|when) "
        r"(?:graph |stream )?(?:captur|stream is captur)|"
        r"cannot be (?:called|used) (?:during|while|in) (?:a )?captur|"
        r"cudaErrorStreamCapture(?:Unsupported|Implicit|Isolation)|cudaErrorCapturedEvent",
        "vllm-ascend#6002",
        "vllm-ascend#10309",
    ),
    _signature(
        _K.ILLEGAL_OP,
        0,
        "a value was read on the host inside a capture",
        r"(?:\.item\(\)|\.tolist\(\)|\.cpu\(\)|nonzero|masked_select|synchroni[sz]e)[^\n]{0,120}"
        r"(?:during|inside|in|while)[^\n]{0,20}captur|reads a device value on the host inside its capture",
        "vllm-ascend#3885",
    ),
    _signature(
        _K.THREAD,
        0,
        "another thread used the device while a capture ran",
        r"capture mode conflict|cudaErrorStreamCaptureWrongThread|"
        r"capture(?:d)? (?:is |was )?(?:begun|started|owned)(?: by| on| in)? (?:a )?(?:different|another) thread",
        "vllm-ascend#8992",
    ),
    _signature(
        _K.UNJOINED,
        1,
        "a stream of the capture was not waited for",
        r"unjoined (?:work|stream)|stream(?:s)? (?:is|are|was|were) (?:forked and )?not joined|"
        r"cudaErrorStreamCaptureUnjoined|capturing stream has unjoined",
        "vllm-ascend#3818",
        "vllm-ascend#13792",
    ),
    _signature(
        _K.INVALIDATED,
        2,
        "the capture was broken by something before",
        r"CAPTURE_STATUS_ACTIVE|previous error during capture|cudaErrorStreamCaptureInvalidated|"
        r"capture (?:was|is|has been) invalidated|current graph was not captured",
        "vllm-ascend#2383",
    ),
    _signature(
        _K.LATE_CAPTURE,
        0,
        "a shape that no graph was captured for came after the warm-up",
        r"graph captur(?:ing|e) detected at an inappropriate time|"
        r"captur(?:e|ing) is not (?:enabled|allowed) (?:now|any)",
        "vllm-ascend#7150",
    ),
    # Tasks.
    _signature(
        _K.TASK_GROUP,
        0,
        "an op that cannot stand in a task group",
        r"(?:not support|unsupported|cannot be)[^\n]{0,60}(?:task group|updat(?:e|ed|able))|"
        r"task ?group[^\n]{0,80}(?:not support|unsupported|not in pairs|interrupted|unmatched|status)",
        "vllm-ascend#13688",
    ),
    _signature(
        _K.UPDATE,
        0,
        "a gate was waited for twice and opened once",
        r"single record operation cannot be associated with multiple wait",
        "vllm-ascend#4233",
    ),
    _signature(
        _K.UPDATE,
        0,
        "an update failed",
        r"(?:graph_?task_?update|aclmdlRICaptureTaskUpdate|task update)_?(?:begin|end)?[^\n]{0,80}fail|"
        r"model update failed",
        "vllm-ascend#4180",
    ),
    _signature(
        _K.UPDATE,
        0,
        "tasks that were captured and tasks that are updated do not match",
        r"book-?keeping inconsistent|"
        r"(?:number|count)s? of (?:tasks|handles|events|cpu_update_input)[^\n]{0,60}(?:differ|match|expected)",
        "vllm-ascend#9257",
    ),
    _signature(
        _K.UPDATE,
        1,
        "two records of a graph's tasks have different lengths",
        r"expected \d+,? (?:but )?got \d+",
        "vllm-ascend#8370",
        guess=True,
    ),
    _signature(
        _K.LENGTHS,
        0,
        "the lengths do not fit the rows of the graph",
        r"actual_?seq_?len[^\n]{0,160}(?:should|must|equal|not|invalid|mismatch)|"
        r"(?:query_start_loc|seq_lens_list|num_reqs_padded)[^\n]{0,100}"
        r"(?:mismatch|shorter|not equal|must|invalid)",
        "vllm-ascend#7290",
        "vllm-ascend#7144",
    ),
    _signature(
        _K.ADDRESS,
        0,
        "an input stands somewhere else than at the capture",
        r"input address(?:es)? [^\n]{0,60}(?:different|differ|changed)|"
        r"static (?:address|input)[^\n]{0,40}(?:moved|changed)|"
        r"data_ptr[^\n]{0,60}(?:changed|differ)",
        "vllm#37363",
    ),
    # On the device.
    _signature(
        _K.REPLAY,
        2,
        "a replayed graph failed",
        r"model (?:stream )?execut(?:e|ion) failed",
        "vllm-ascend#11514",
    ),
    _signature(
        _K.KERNEL,
        1,
        "a kernel read or wrote where it may not",
        r"MTE[^\n]{0,40}out of range|address out of range|illegal memory access|cudaErrorIllegalAddress|"
        r"fftsplus aicore error|(?:aicore|vector core) exception",
        "vllm-ascend#8992",
        "vllm#46324",
    ),
    _signature(
        _K.TIMEOUT,
        2,
        "nothing moved for too long",
        r"(?:stream|event) sync(?:hroni[sz]e)?[^\n]{0,20} time(?:d )?out|"
        r"(?:execute_model|sample_tokens) timed out|"
        r"(?:aicore|vector core) (?:execution )?time(?:d )?out|notify wait (?:execution )?time(?:d )?out|"
        r"watchdog (?:caught )?[^\n]{0,40}timeout",
        "vllm-ascend#4233",
        "vllm-ascend#13826",
    ),
    # Memory and disk, where it is really these.
    _signature(
        _K.MEMORY,
        1,
        "the allocator found no memory",
        r"(?:NPU|CUDA|HIP|XPU|GPU|device)(?: error)?:? (?:is )?out of memory|OutOfMemoryError|EL0004|"
        r"no available memory for the cache blocks|available KV cache memory: -",
        "vllm-ascend#14293",
        "vllm#50488",
    ),
    _signature(
        _K.HOST_MEMORY,
        1,
        "the host has no memory",
        r"std::bad_alloc|cannot allocate memory|DefaultCPUAllocator: not enough memory",
    ),
    _signature(_K.DISK, 1, "the disk is full", r"no space left on device|\bENOSPC\b|disk quota exceeded"),
    # Configuration.
    _signature(
        _K.CONFIG,
        0,
        "launches that wait and graphs exclude each other",
        # torch_npu advises to set the variable below every error: only beside graphs does it mean something.
        r"ASCEND_LAUNCH_BLOCKING[^\n]{0,160}graph|graph[^\n]{0,160}ASCEND_LAUNCH_BLOCKING",
        "vllm-ascend#3574",
    ),
    _signature(
        _K.CONFIG,
        0,
        "the task queue or pinned segments do not go with a capture",
        r"(?:TASK_QUEUE_ENABLE|pin_memory_expandable_segments)[^\n]{0,120}captur|"
        r"captur[^\n]{0,120}(?:TASK_QUEUE_ENABLE|pin_memory_expandable_segments)",
    ),
    _signature(
        _K.CONFIG,
        0,
        "the capture sizes do not fit",
        r"(?:cudagraph|capture)[_ ](?:capture[_ ])?sizes?[^\n]{0,120}"
        r"(?:empty|inconsistent|multiple|must|contradict|conflict|do(?:es)? not)|"
        r"no valid cudagraph sizes|max_cudagraph_capture_size[^\n]{0,100}(?:inconsistent|must|conflict|does not)|"
        r"(?:padded|num_tokens)[^\n]{0,40}% ?(?:uniform_decode_query_len|q)\b",
        "vllm#28207",
    ),
    _signature(
        _K.CONFIG,
        0,
        "the mode is not one that the backend can give",
        r"cudagraph_?mode[^\n]{0,100}(?:is )?not supported|not support[^\n]{0,60}cudagraph_?mode|"
        r"requires? piecewise compilation",
        "vllm-ascend#3574",
    ),
    _signature(
        _K.DEVICE, 1, "the device is not there", r"device start(?:-?up)? fail|HDC (?:connection )?disconnect"
    ),
)

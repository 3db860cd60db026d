"""What the device refuses at once, each with Ascend's own code and name.

The codes and names are those of CANN's `rt_error_codes.h`. A rule that lives in torch_npu and not in the
runtime has no code: `code` is None and `ascend` says so.
"""

from __future__ import annotations


class SoftError(RuntimeError):
    """A refusal of the device. Base of all of them.

    Attributes:
        code: Ascend's error code, or None where torch_npu itself refuses.
        ascend: the name of the constant.
        sentence: what was done, and what to do instead.
    """

    code: int | None = None
    ascend = "TORCH_CHECK"

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence
        head = (
            f"{self.code} {self.ascend}"
            if self.code is not None
            else f"torch_npu's own check ({self.ascend})"
        )
        super().__init__(f"{head}: {sentence}")


class CaptureDependency(SoftError):
    """A captured wait on an event whose record isn't part of the capture."""

    code, ascend = 107024, "ACL_ERROR_RT_CAPTURE_DEPENDENCY"


class UnjoinedStream(SoftError):
    """A stream was forked from the capture and not joined before its end."""

    code, ascend = 107025, "ACL_ERROR_RT_STREAM_UNJOINED"


class GraphCaptured(SoftError):
    """The graph is being captured, so it cannot be replayed or reset."""

    code, ascend = 107026, "ACL_ERROR_RT_MODEL_CAPTURED"


class StreamCaptured(SoftError):
    """The call isn't allowed on a stream that is capturing."""

    code, ascend = 107027, "ACL_ERROR_RT_STREAM_CAPTURED"


class EventCaptured(SoftError):
    """The event was recorded inside a capture, so nothing outside the graph can wait for it."""

    code, ascend = 107028, "ACL_ERROR_RT_EVENT_CAPTURED"


class StreamNotCaptured(SoftError):
    """The call is for streams that are capturing, and this one isn't."""

    code, ascend = 107029, "ACL_ERROR_RT_STREAM_NOT_CAPTURED"


class CaptureForbids(SoftError):
    """The capture's mode forbids the call: host synchronisation, a blocking copy."""

    code, ascend = 107030, "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT"


class DefaultStreamDependency(SoftError):
    """A capture would depend on the default stream, or the default stream on it."""

    code, ascend = 107031, "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT"


class CaptureConflict(SoftError):
    """Two captures would depend on each other."""

    code, ascend = 107032, "ACL_ERROR_STREAM_CAPTURE_CONFLICT"


class TaskGroupStatus(SoftError):
    """A task group or an update is begun twice, ended without a beginning, or left open."""

    code, ascend = 107033, "ACL_ERROR_STREAM_TASK_GROUP_STATUS"


class CaptureUnmatched(SoftError):
    """The capture is ended on another stream than it was begun on."""

    code, ascend = 107036, "ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED"


class GraphRunning(SoftError):
    """The graph is running, so it cannot be reset."""

    code, ascend = 107037, "ACL_ERROR_RT_MODEL_RUNNING"


class UpdateFailed(SoftError):
    """The update doesn't fit the tasks of its handle."""

    code, ascend = 107040, "ACL_ERROR_RT_MODEL_UPDATE_FAILED"


class OutOfResources(SoftError):
    """No stream is left for the capture: what the device says when it happens inside one."""

    code, ascend = 207005, "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL"


class OutOfStreams(SoftError):
    """No stream is left."""

    code, ascend = 207008, "ACL_ERROR_RT_NO_STREAM_RESOURCE"


class NotUpdatable(SoftError):
    """An op inside a task group cannot be updated."""

    code, ascend = 207019, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP"


class StreamSyncTimeout(SoftError):
    """The host waits for a stream that nothing can ever move on. The finding beside it says why."""

    code, ascend = 507046, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"


class EventSyncTimeout(SoftError):
    """The host waits for an event that nothing can ever reach. The finding beside it says why."""

    code, ascend = 507047, "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT"


class CaptureInvalidated(SoftError):
    """The capture broke at an earlier error, so it cannot be ended well."""

    code, ascend = 507903, "ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED"


class GraphCheck(SoftError):
    """torch_npu's own checks of a graph: never captured, captured twice, captured on the default stream."""


class DivergedError(RuntimeError):
    """A reported order doesn't fit the program any more: it issued other commands than when it was reported."""

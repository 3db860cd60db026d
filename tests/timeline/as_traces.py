"""A run on the virtual device as profilers would have written it: Kineto's JSON with cuda_sync, Ascend's text."""

from __future__ import annotations

from typing import Any

from slipstream.timeline.table import Kind
from tests.timeline.virtual import Work, World
from tests.timeline.writers import EPOCH_NS, us, us_text

_CATEGORY = {Kind.KERNEL: "kernel", Kind.COMM: "kernel", Kind.COPY: "gpu_memcpy", Kind.SET: "gpu_memset"}


def kineto_of(world: World, rank: int = 0) -> list[dict[str, Any]]:
    """Events of one rank, as Kineto writes them with `enable_cuda_sync_events`."""
    works = [work for work in world.works if work.rank == rank]
    streams = _stream_ids(works)
    ids = {id(work): 100 + number for number, work in enumerate(w for w in works if w.stream == "thread")}
    events: list[dict[str, Any]] = []
    for work in works:
        if work.stream == "thread":
            args: dict[str, Any] = {"correlation": ids[id(work)]}
            runtime = work.name.startswith("cuda")
            events.append(
                _event("cuda_runtime" if runtime else "cpu_op", work, 100, 100, args if runtime else {})
            )
            if work.kind == Kind.SYNC:
                args = {
                    "cuda_sync_kind": "Stream Sync",
                    "stream": streams.get(work.waited, 7),
                    "device": 0,
                    **args,
                }
                events.append(_event("cuda_sync", work, 0, args["stream"], args) | {"name": "Stream Sync"})
            continue
        assert work.call is not None
        args = {"device": 0, "context": 1, "stream": streams[work.stream], "correlation": ids[id(work.call)]}
        if work.kind == Kind.WAIT:
            assert work.record is not None
            args |= {
                "cuda_sync_kind": "Stream Wait Event",
                "wait_on_stream": streams[work.waited],
                "wait_on_cuda_event_record_corr_id": ids[id(work.record)],
                "wait_on_cuda_event_id": 1,
            }
            events.append(_event("cuda_sync", work, 0, streams[work.stream], args))
            continue
        if work.graph >= 0:
            args |= {"graph id": work.graph + 1, "graph node id": (work.graph + 1) << 32 | work.node}
        events.append(_event(_CATEGORY[work.kind], work, 0, streams[work.stream], args))
    for text, start, end in world.ranks[rank].marks:
        where = {"pid": 100, "tid": 100, "ts": us(start), "dur": us(end - start), "args": {}}
        events.append({"ph": "X", "cat": "user_annotation", "name": text, **where})
    return events


def _stream_ids(works: list[Work]) -> dict[str, int]:
    names = sorted(
        {work.stream for work in works if work.stream != "thread"}, key=lambda name: (name != "main", name)
    )
    return {name: 7 + number for number, name in enumerate(names)}


def _event(category: str, work: Work, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    where = {"pid": pid, "tid": tid, "ts": us(work.start), "dur": us(work.end - work.start)}
    return {"ph": "X", "cat": category, "name": work.name, **where, "args": args}


_TASKS = {Kind.KERNEL: "AI_CORE", Kind.RECORD: "EVENT_RECORD_SQE", Kind.WAIT: "EVENT_WAIT_SQE"}
_CALLS = {
    "cudaEventRecord": "AscendCL@aclrtRecordEvent",
    "cudaStreamWaitEvent": "AscendCL@aclrtStreamWaitEvent",
    "cudaStreamSynchronize": "AscendCL@aclrtSynchronizeStreamWithTimeout",
    "cudaLaunchKernel": "Node@launch",
}


def ascend_of(world: World) -> list[dict[str, Any]]:
    """Events of one rank, as torch_npu writes them; waits do not say for which record they wait."""
    hardware, cann, python = (900 << 10) | (13 << 5), (900 << 10) | (7 << 5), 900
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": hardware, "tid": 0, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "process_name", "pid": cann, "tid": 0, "args": {"name": "CANN"}},
        {"ph": "M", "name": "process_name", "pid": python, "tid": 0, "args": {"name": "Python"}},
    ]
    streams = _stream_ids(world.works)
    ids = {
        id(work): 10 + number for number, work in enumerate(w for w in world.works if w.stream == "thread")
    }
    for number, work in enumerate(world.works):
        where = {"ts": us_text(EPOCH_NS + work.start), "dur": us(work.end - work.start)}
        if work.stream == "thread":
            if work.name in _CALLS:
                args: dict[str, Any] = {"level": "acl", "connection_id": ids[id(work)]}
                events.append(
                    {"ph": "X", "name": _CALLS[work.name], "pid": cann, "tid": 5, **where, "args": args}
                )
            else:
                events.append(
                    {
                        "ph": "X",
                        "cat": "cpu_op",
                        "name": work.name,
                        "pid": python,
                        "tid": 5,
                        **where,
                        "args": {},
                    }
                )
            continue
        assert work.call is not None
        args = {
            "Model Id": 4294967295,
            "Task Type": _TASKS[work.kind],
            "Physic Stream Id": streams[work.stream],
            "Task Id": number,
            "Batch Id": 0,
            "Subtask Id": 4294967295,
            "connection_id": ids[id(work.call)],
        }
        name = work.name if work.kind == Kind.KERNEL else _TASKS[work.kind].removesuffix("_SQE")
        events.append(
            {"ph": "X", "name": name, "pid": hardware, "tid": streams[work.stream], **where, "args": args}
        )
    return events

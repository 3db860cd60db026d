"""HTA's `cuda_sync` traces: the edges that its own tests expect, and its critical path of one of them, whole.

HTA (HolisticTraceAnalysis, tests/test_critical_path_analysis.py) names edges by rows of its table; here the same
are named by correlation.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from slipstream.timeline.edge_types import Confidence, EdgeKind
from slipstream.timeline.edges import Dependencies, find_dependencies
from slipstream.timeline.host import innermost
from slipstream.timeline.path import Path, Piece, critical_path
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Timeline
from tests.timeline.places import real

#: (name, begin and length in us): what an operation is known by in both.
Op = tuple[str, int, int]


def _read(name: str) -> Dependencies:
    folder = real(f"kineto/hta-critical-path/{name}")
    return find_dependencies(open_timeline(next(folder.glob("*.gz"))))


def _row(table: Timeline, correlation: int, *, device: bool) -> int:
    """Return the work of a device, or the call of a thread, of a correlation."""
    which = table.is_work if device else ~table.on_device
    (row,) = np.flatnonzero((table.correlation == correlation) & which).tolist()
    return int(row)


#: (trace, what is waited for, what waits, whether that is on the device, how it is known)
EXPECTED = [
    # the gemm of stream 20, the memset of stream 24
    ("cuda_event_sync_multi_stream", 27, 1411, True, EdgeKind.EVENT),
    ("alexnet", 5606, 5629, True, EdgeKind.EVENT),  # fft2d_c2r of stream 20, an addition on stream 7
    ("cuda_event_sync", 1526, 1536, False, EdgeKind.HOST),  # the spin kernel, cudaEventSynchronize
    ("cuda_event_sync", 1526, 1549, False, EdgeKind.HOST),  # the spin kernel, cudaDeviceSynchronize
    ("simple_add", 5889, 5894, False, EdgeKind.HOST),  # the last kernel, cudaDeviceSynchronize
    ("simple_add", 5597, 5604, True, EdgeKind.STREAM),  # an fft, the gemm behind it on its stream
]


@pytest.mark.parametrize(("name", "before", "after", "on_device", "kind"), EXPECTED)
def test_an_edge_that_htas_tests_expect(
    name: str, before: int, after: int, on_device: bool, kind: EdgeKind
) -> None:
    deps = _read(name)
    src, dst = _row(deps.timeline, before, device=True), _row(deps.timeline, after, device=on_device)
    (edge,) = [e for e in deps.edges_into(dst) if deps.edges.src[e] == src]
    assert deps.edges.kind[edge] == kind
    assert deps.edges.confidence[edge] == Confidence.GIVEN


@pytest.mark.parametrize("correlation", [5597, 5604])
def test_a_launch_that_htas_tests_expect(correlation: int) -> None:
    deps = _read("simple_add")
    kernel = _row(deps.timeline, correlation, device=True)
    call = _row(deps.timeline, correlation, device=False)
    (edge,) = [e for e in deps.edges_into(kernel) if deps.edges.src[e] == call]
    assert deps.edges.kind[edge] == EdgeKind.LAUNCH
    begun = deps.timeline.start_ns
    assert int(begun[kernel] - begun[call]) > 0


def test_an_event_is_waited_for_on_the_stream_that_recorded_it() -> None:
    """Not what the host launched last before the record, on another stream: the one event edge of that trace."""
    deps = _read("cuda_event_sync_multi_stream")
    table = deps.timeline
    (edge,) = np.flatnonzero(deps.edges.kind == EdgeKind.EVENT).tolist()
    src, dst = int(deps.edges.src[edge]), int(deps.edges.dst[edge])
    assert (table.streams[table.stream[src]].key, table.streams[table.stream[dst]].key) == (20, 24)


def test_what_cupti_writes_of_no_stream_is_on_none() -> None:
    names = {stream.name for stream in _read("simple_add").timeline.streams if stream.device is not None}
    assert names == {"stream 7", "stream 20", "no stream"}


# The critical path that HTA found in end_to_end/simple_add, as the overlay that it wrote. Theirs is a chain of
# begins and ends: an operation is on it if it has either, so also one in which no time passes but its inner ones'.
# Ours is a sum of time: an operation is on it with the time in which nothing inside it ran.

STOOD = "a call that stood until its copy was over: ours says that as the delay behind the copy"
BEHIND = "behind the last work of the device, where our stretch ends; HTA's goes on to the annotation's end"


def _theirs() -> tuple[set[Op], Counter[str]]:
    """Return the operations of HTA's path, and its edges between host and device by their sort."""
    folder = real("kineto/hta-critical-path/end_to_end/simple_add")
    with gzip.open(folder / "output" / "overlaid_critical_path_trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    critical = [event for event in events if (event.get("args") or {}).get("critical")]
    ops = {(event["name"], event["ts"], event["dur"]) for event in critical if event["ph"] == "X"}
    edges = Counter(event["args"]["type"] for event in critical if event["ph"] == "s")
    return ops, edges


def _op(table: Timeline, row: int) -> Op:
    return (
        table.name_of(row),
        (int(table.start_ns[row]) + table.base_ns) // 1000,
        int(table.dur_ns[row]) // 1000,
    )


def _ours(table: Timeline, path: Path) -> set[Op]:
    """Return the operations that our path's time belongs to: the device's work, the host's innermost ones."""
    found = {_op(table, row) for row in path.row[path.piece == Piece.WORK].tolist()}
    host = path.piece == Piece.HOST
    threads = np.unique(table.stream[path.row[host]])
    assert len(threads) == 1
    rows = np.flatnonzero(table.stream == threads[0])
    cut = innermost(table, int(threads[0]))
    begins, ends = path.starts_ns[host], path.ends_ns[host]
    for start, end, name in zip(cut.start_ns.tolist(), cut.end_ns.tolist(), cut.name.tolist(), strict=True):
        if ((begins < end) & (ends > start)).any():
            around = rows[
                (table.start_ns[rows] <= start) & (table.end_ns[rows] >= end) & (table.name[rows] == name)
            ]
            found.add(_op(table, int(around[-1])))
    return found


def _reason(table: Timeline, path: Path, op: Op) -> str | None:
    """Say why an operation of HTA's path is not on ours; None: for no reason that is known."""
    rows = [row for row in np.flatnonzero(~table.on_device).tolist() if _op(table, row) == op]
    if len(rows) != 1:
        return None
    (row,) = rows
    if table.start_ns[row] >= path.end_ns:
        return BEHIND
    behind_copies = path.row[(path.piece == Piece.DELAY) & (path.edge == EdgeKind.HOST)]
    stood = table.kind[row] == Kind.SYNC and row in behind_copies and row in path.through
    return STOOD if stood else None


def test_the_path_is_htas_but_for_differences_with_a_reason() -> None:
    theirs, edges = _theirs()
    deps = _read("end_to_end/simple_add/input")
    table = deps.timeline
    begin = min(start for _, start, _ in theirs) * 1000 - table.base_ns
    path = critical_path(deps, begin, int(table.end_ns[table.is_work].max()))
    ours = _ours(table, path)
    assert len(theirs) == 352 + 250 + 22  # operators, calls, operations of the device
    assert ours - theirs == set()
    reasons = Counter(_reason(table, path, op) for op in theirs - ours)
    assert reasons == {STOOD: 16, BEHIND: 11}
    # It crosses from the host to the device and back as often as HTA's, whose last wait lies behind our end.
    rows = path.through[::-1]
    down = (~table.on_device[rows[:-1]] & table.on_device[rows[1:]]).sum()
    back = (table.on_device[rows[:-1]] & ~table.on_device[rows[1:]]).sum()
    assert down == edges["critical_path_kernel_launch_delay"] == 17
    assert back == edges["critical_path_sync_dependency"] - 1 == 16


def test_a_wait_for_a_device_that_was_done_is_not_what_held_the_path_up() -> None:
    """HTA's path comes from the device to the last wait; the device was done 235 us before the host came to it."""
    theirs, _ = _theirs()
    deps = _read("end_to_end/simple_add/input")
    table = deps.timeline
    begin = min(start for _, start, _ in theirs) * 1000 - table.base_ns
    wait, last = _row(table, 5894, device=False), _row(table, 5889, device=True)
    assert {_op(table, wait), _op(table, last)} <= theirs
    assert int(table.start_ns[wait] - table.end_ns[last]) == 235_000
    path = critical_path(deps, begin, int(table.end_ns[wait]), last=wait)
    ours = _ours(table, path)
    assert _op(table, wait) in ours
    instead = {_op(table, row) for row in np.flatnonzero(table.is_work).tolist()} & (theirs - ours)
    assert len(instead) == 6

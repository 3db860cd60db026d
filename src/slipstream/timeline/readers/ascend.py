"""What the Ascend readers share: what a task is, which are parts of a collective, who launched what."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.part import Part, first_of
from slipstream.timeline.table import Bool, Group, Int64, Kind, Source, VendorStep

#: hcom_allReduce__586_3_1: the third collective (from 0) of the group whose number ends in 586.
COLLECTIVE: Final = re.compile(r"^hcom_\w+?_{1,2}(\d+)_(\d{1,9})_\d+$")
_GROUP_LANE: Final = re.compile(r"^Group (.*?) ?Communication$")

#: Where the profiler says "none": of a model, a subtask, a connection.
NOTHING: Final = 4294967295

_RECORD: Final = re.compile(r"(?i)^(?:EVENT|NOTIFY)_RECORD")
_WAIT: Final = re.compile(r"(?i)^(?:EVENT|NOTIFY)_WAIT")
_COPY: Final = re.compile(r"(?i)^MEMCPY|^PCIE_DMA|^SDMA_SQE")
_SET: Final = re.compile(r"(?i)^MEMSET")
#: Steps of a collective, as FFTS+ runs them on the stream of communication.
_STEP: Final = re.compile(
    r"(?i)^(?:SDMA|Write Value|Notify (?:Wait|Record)|RDMA\w*|Reduce_?Inline|Memcpy|Inter\w*|UB\w*)$"
)
#: The device's own bookkeeping: no work, and no part of any.
_BOOKKEEPING: Final = re.compile(
    r"(?i)^PROFILING_|^PLACE_HOLDER|^NOP|^EVENT_RESET|^CAPTURE_|^CALLBACK|^MAINTENANCE"
)

_SYNC: Final = re.compile(r"(?i)synchronize(?:stream|device|event)|(?:stream|device|event)synchronize")
_LAUNCH: Final = re.compile(r"(?i)aclmdlRIExecute|aclmdlExecute|^Runtime@ModelExecute|^Model@(?!.*load)")

#: How people name their annotations: the profiler stores them among the operators.
_ANNOTATION: Final = re.compile(
    r"(?i)^(?!.*::)(?:.*[ \[#].*|forward|prefill|(?:draft|verify|accept|extend|decode|sample|target|execute)_?\w*"
    r"|async_state_update|schedule\w*)$"
)


def task_kind(task_type: str, name: str) -> Kind:
    """What a task of the device is. SUBTASK: a step of a collective, or bookkeeping."""
    for text in (name, task_type):
        if _RECORD.match(text):
            return Kind.RECORD
        if _WAIT.match(text):
            return Kind.WAIT
    if _STEP.match(task_type) or _BOOKKEEPING.match(task_type) or _BOOKKEEPING.match(name):
        return Kind.SUBTASK
    # A set may be done by the engine that copies.
    if _SET.match(name) or _SET.match(task_type):
        return Kind.SET
    return Kind.COPY if _COPY.match(name) or _COPY.match(task_type) else Kind.KERNEL


def is_step(task_type: str) -> bool:
    """Whether a task is a step of a collective."""
    return bool(_STEP.match(task_type))


def call_kind(name: str) -> Kind:
    """What a call of the host is."""
    if _LAUNCH.search(name):
        return Kind.LAUNCH
    return Kind.SYNC if _SYNC.search(name) else Kind.HOST


def is_annotation(name: str) -> bool:
    """Whether an entry among PyTorch's operators is what somebody wrote there."""
    return bool(_ANNOTATION.match(name))


def settle(part: Part, device: Bool, calls: Bool, steps: Bool) -> None:
    """Find the parts of collectives, and the call that launched each row.

    Args:
        part: `correlation` is the connection of a row; collectives are COMM already.
        device: bool [N], rows of a device.
        calls: bool [N], calls that have a connection.
        steps: bool [N], tasks that are steps of a collective.
    """
    columns = part.columns
    kind, correlation = part.column("kind"), part.column("correlation")
    correlation[correlation == NOTHING] = -1
    parent = part.column("parent")
    collectives = np.flatnonzero(device & (kind == Kind.COMM))
    work = np.isin(kind, (Kind.KERNEL, Kind.COPY, Kind.SET, Kind.SUBTASK))
    tasks = np.flatnonzero(device & work & (parent < 0) & (correlation >= 0))
    parent[tasks] = _enclosing(columns, collectives, tasks)
    kind[parent >= 0] = Kind.SUBTASK
    _move_to_their_streams(part, collectives)
    alone = steps & (parent < 0) & (kind == Kind.SUBTASK)
    if alone.any():
        kind[alone] = Kind.COMM
        part.column("kind_source")[alone] = Source.RULE
        part.note("missing", int(alone.sum()), "steps of communication whose collective is not in the trace")
    launch = part.column("launch")
    rows = np.flatnonzero(device & (correlation >= 0))
    ours = np.flatnonzero(calls & (correlation >= 0))
    # A launch of a graph before other calls with its connection, then the first.
    ours = ours[np.lexsort((columns["start_ns"][ours], kind[ours] != Kind.LAUNCH))]
    launch[rows] = first_of(correlation[ours], ours, correlation[rows])
    clipped = int((device & (launch < 0) & (kind <= Kind.COMM)).sum())
    if clipped:
        part.note("clipped", clipped, "device operations whose launch is not in the trace")


def link_queue(part: Part) -> None:
    """The thread that takes work from a queue was given it by another: the column `queue` says by which call.

    The column is taken away.
    """
    queue = part.columns.pop("queue")
    names = np.array([name.startswith("Dequeue") for name in part.names], np.bool_)
    taken = names[part.columns["name"]] if len(part) else np.empty(0, np.bool_)
    takings, puttings = np.flatnonzero(taken & (queue >= 0)), np.flatnonzero(~taken & (queue >= 0))
    part.column("launch")[takings] = first_of(queue[puttings], puttings, queue[takings])


def _enclosing(columns: dict[str, Any], collectives: Int64, tasks: Int64) -> Int64:
    """For each task the collective with its connection during which it began, -1 if there is none."""
    if not len(collectives):
        return np.full(len(tasks), -1, np.int64)
    both = np.concatenate([collectives, tasks])
    start_ns, connection = columns["start_ns"][both], columns["correlation"][both]
    is_task = np.arange(len(both)) >= len(collectives)
    order = np.lexsort((is_task, start_ns, connection))
    # The latest collective before each place, in this order.
    latest = np.maximum.accumulate(np.where(is_task[order], -1, np.arange(len(order))))
    place = np.empty(len(both), np.int64)
    place[order] = latest
    before = place[len(collectives) :]
    found = np.where(before >= 0, both[order[before]], -1)
    same = (found >= 0) & (columns["correlation"][found] == columns["correlation"][tasks])
    same &= columns["start_ns"][tasks] <= columns["end_ns"][found]
    return np.where(same, found, -1)


def _move_to_their_streams(part: Part, collectives: Int64) -> None:
    """A collective runs on the stream of its parts; the profiler shows it on a lane of its own."""
    columns = part.columns
    parts = np.flatnonzero(columns["parent"] >= 0)
    first = first_of(columns["parent"][parts].astype(np.int64), parts, collectives)
    known = first >= 0
    columns["stream"][collectives[known]] = columns["stream"][first[known]]


_COLUMNS: Final = {
    "computing": "Computing",
    "communication_not_overlapped": "Communication(Not Overlapped)",
    "overlapped": "Overlapped",
    "communication": "Communication",
    "free": "Free",
    "stage": "Stage",
    "bubble": "Bubble",
    "communication_not_overlapped_and_exclude_receive": "Communication(Not Overlapped and Exclude Receive)",
    "preparing": "Preparing",
}


def vendor_step(rank: int, row: dict[str, Any]) -> VendorStep:
    """A line of the vendor's totals, in microseconds, from the file or the database."""
    totals = {}
    for key, value in row.items():
        name = _COLUMNS.get(key, key)
        if name in ("Step", "step", "Device_id", "deviceId") or value in (None, "", "N/A"):
            continue
        totals[name] = round(float(value) * 1000)
    return VendorStep(rank, str(row.get("Step", row.get("step")) or ""), totals)


def read_step_times(part: Part, path: Path) -> None:
    """Add the vendor's totals of `step_trace_time.csv`."""
    try:
        part.vendor += [vendor_step(part.rank or 0, row) for row in read_csv(path)]
    except (ValueError, TypeError, OverflowError):
        part.note("unreadable", 1, f"{path.name} has no numbers where they should be")


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a small table.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace").replace("\0", " ")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    rows = list(csv.reader(text.splitlines()))
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]] if rows else []


def rank_of(folder: Path) -> int | None:
    """The rank of a profile's folder, from `profiler_info_N.json` or the like, None if nothing says it."""
    for place in (folder, folder.parent):
        for name in sorted(place.glob("profiler_info_*.json")):
            match = re.fullmatch(r"profiler_info_(\d{1,7})\.json", name.name)
            if match:
                return int(match.group(1))
    return None


def whole(value: Any) -> int:
    """A number of a stream, task or model; -1 where it is none."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if 0 <= number < 1 << 31 or number == NOTHING else -1


def group_of(name: str, lane: str, hashes: Mapping[str, str]) -> Group:
    """The group of a collective, the same on all ranks.

    Args:
        name: of the collective; it ends its group's hash in three digits.
        lane: where the timeline shows it, for names that say nothing.
        hashes: from `group_hashes`.
    """
    match = COLLECTIVE.match(name)
    if match:
        return Group(f"hcom {hashes.get(name, match.group(1))}")
    shown = _GROUP_LANE.match(lane)
    return Group(shown.group(1) if shown else lane)


def group_hashes(folder: Path) -> dict[str, str]:
    """The whole hash of each collective's group, from `communication.json`; {} where there is none."""
    try:
        steps = msgspec.json.decode((folder / "communication.json").read_bytes())
        names = [name for kinds in steps.values() for found in kinds.values() for name in found]
    except (OSError, msgspec.DecodeError, AttributeError, TypeError):
        return {}
    return {name: group for name, _, group in (each.partition("@") for each in names) if group}

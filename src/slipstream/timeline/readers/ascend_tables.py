"""Ascend's tables, where there is no timeline: `kernel_details.csv`, else `communication.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.part import Part, Pool, check_times, nanoseconds
from slipstream.timeline.readers.ascend import (
    COLLECTIVE,
    NOTHING,
    group_hashes,
    group_of,
    rank_of,
    read_csv,
    read_step_times,
    whole,
)
from slipstream.timeline.readers.sides import node_key
from slipstream.timeline.replays import GRAPH_KEY, NODE_KEY
from slipstream.timeline.table import Kind, Role, Stream

_FIELDS: Final = ("start_ns", "end_ns", "name", "stream", "kind", "sequence", "group", GRAPH_KEY, NODE_KEY)


def _communication_of(device: int) -> Stream:
    """The lane of collectives, whose streams the tables do not say."""
    return Stream(0, device, "communication", -1, Role.COMM)


def read_tables(folder: Path) -> Part:
    """Read what tables an Ascend profile has: kernels and collectives, no host, no events.

    Raises:
        TraceError: a file cannot be read, or is broken.
    """
    part = Part(str(folder), "ascend text", rank_of(folder))
    if (folder / "kernel_details.csv").is_file():
        _kernels(part, folder / "kernel_details.csv")
    elif (folder / "communication.json").is_file():
        _communication(part, folder / "communication.json")
    totals = folder / "step_trace_time.csv"
    if totals.is_file():
        read_step_times(part, totals)
    return part


def _kernels(part: Part, path: Path) -> None:
    rows = read_csv(path)
    part.read = len(rows)
    start_ns, bad = nanoseconds([row.get("Start Time(us)") for row in rows])
    dur_ns, bad_dur = nanoseconds([row.get("Duration(us)") for row in rows])
    lost = bad | bad_dur
    part.drop("time", int(lost.sum()))
    table = _Table(path.parent)
    # A profile is of one device; rows of collectives may leave it out, as older versions all do.
    device = max((whole(row.get("Device_id")) for row in rows), default=0)
    device = 0 if device in (-1, NOTHING) else device
    for row, at, dur, skip in zip(rows, start_ns.tolist(), dur_ns.tolist(), lost, strict=True):
        if skip:
            continue
        name, core = row.get("Name") or "", row.get("Accelerator Core") or ""
        collective = core == "COMMUNICATION" or name.startswith("hcom_")
        stream, model = whole(row.get("Stream ID")), whole(row.get("Model ID"))
        where = Stream(0, device, f"stream {stream}", stream) if stream >= 0 else _communication_of(device)
        key = node_key(stream, whole(row.get("Task ID")))
        in_graph = model not in (-1, NOTHING)
        table.add(at, at + dur, name, where, collective, *((model, key) if in_graph else (-1, -1)))
    table.fill(part)
    part.note(
        "missing", 1, "no timeline (trace_view.json): kernels and collectives only, no host, events or copies"
    )


def _communication(part: Part, path: Path) -> None:
    """Collectives only; their times are floats that lost the last quarter of a microsecond."""
    try:
        steps = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, dict[str, Any]]])
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path} is not the profiler's table of communication: {error}") from error
    table = _Table(path.parent)
    for kinds in steps.values():
        for name, about in ((name, about) for found in kinds.values() for name, about in found.items()):
            part.read += 1
            facts = about.get("Communication Time Info", {}) if isinstance(about, dict) else {}
            start_us, took_ms = facts.get("Start Timestamp(us)"), facts.get("Elapse Time(ms)")
            if (
                name.startswith("Total")
                or not isinstance(start_us, int | float)
                or not isinstance(took_ms, int | float)
            ):
                part.drop("sum" if name.startswith("Total") else "time")
                continue
            start_ns = round(start_us * 1000)
            table.add(
                start_ns,
                start_ns + round(took_ms * 1e6),
                name.partition("@")[0],
                _communication_of(0),
                True,
                -1,
                -1,
            )
    table.fill(part)
    part.note(
        "missing", 1, "no timeline and no kernels: collectives only, and their times are good to 0.25 us"
    )


class _Table:
    """Columns in the making."""

    def __init__(self, folder: Path) -> None:
        self.hashes = group_hashes(folder)
        self.names, self.streams, self.groups = Pool(), Pool(), Pool()
        self.columns: dict[str, list[int]] = {key: [] for key in _FIELDS}

    def add(
        self, start_ns: int, end_ns: int, name: str, stream: Stream, collective: bool, graph: int, node: int
    ) -> None:
        match = COLLECTIVE.match(name)
        values = (
            start_ns,
            end_ns,
            self.names[name],
            self.streams[stream],
            Kind.COMM if collective else Kind.KERNEL,
            int(match.group(2)) if match else -1,
            self.groups[group_of(name, "", self.hashes)] if match else -1,
            graph,
            node,
        )
        for key, value in zip(_FIELDS, values, strict=True):
            self.columns[key].append(value)

    def fill(self, part: Part) -> None:
        part.names, part.streams, part.groups = list(self.names), list(self.streams), list(self.groups)
        part.columns = {key: np.array(value, np.int64) for key, value in self.columns.items()}
        part.columns["kind"] = part.columns["kind"].astype(np.uint8)
        check_times(part)

"""The lanes of a page and what lies on them, in columns: rows and marks together, E of them.

lane        a device's stream or a host's thread
sub         a strip of a lane; within one nothing overlaps: marks, then operations, parts of operations, events
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.timeline.analysis import Analysis
from slipstream.timeline.breakdown import short_name
from slipstream.timeline.host import main_thread
from slipstream.timeline.report.choice import Chosen
from slipstream.timeline.report.tracks import side_by_side
from slipstream.timeline.table import Bool, Int32, Int64, Kind, Role, Source, Timeline

#: A mark's kind on a page, after those of rows.
MARK = len(Kind)
#: Strips of a lane: what they hold, and how many there are at most; more lie over each other in the last.
_STRIPS = (("mark", 6), ("op", 12), ("part", 24), ("tick", 1))
#: A thread that launches less than this share of what its rank's busiest one does is not shown at first.
_BUSY_THREAD = 0.02


@dataclass(frozen=True)
class Scene:
    """What a page draws.

    Attributes:
        columns: by name, [E] each, sorted by (start, end descending).
        lanes: descriptions, in the order in which they are shown.
        names, shorts: of operations; a short name is "" where it is the name.
        place: int32 [N + 1], of each row its position among the E, -1 where it is left out (and of row -1).
    """

    columns: Mapping[str, Any]
    lanes: list[dict[str, Any]]
    names: list[str]
    shorts: list[str]
    place: Int32

    def at(self, rows: Any) -> Any:
        """Return the positions of rows."""
        return self.place[rows]


def make_scene(analysis: Analysis, chosen: Chosen) -> Scene:
    """Return the scene of some rows."""
    table = analysis.timeline
    rows = chosen.rows
    marks = _marks_kept(table, rows)
    count = len(rows)
    start = np.concatenate((table.start_ns[rows], table.marks.start_ns[marks]))
    end = np.concatenate((table.end_ns[rows], table.marks.end_ns[marks]))
    order = np.lexsort((-end, start))
    position = np.empty(len(order) + 1, np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    place = np.full(len(table) + 1, -1, np.int32)
    place[rows] = position[:count]

    def column(values: Any, of_marks: Any) -> Any:
        return np.concatenate((np.asarray(values, np.int64), np.broadcast_to(of_marks, len(marks))))[order]

    used, name = np.unique(column(table.name[rows], table.marks.name[marks]), return_inverse=True)
    names = [table.names[number] for number in used.tolist()]
    stream = column(table.stream[rows], table.marks.stream[marks])
    strip = column(_strips(table, rows), 0)
    lanes, lane_of = _lanes(analysis, stream, column(table.kind[rows], MARK))
    sub = _subs(lanes, lane_of[stream], strip, start[order], end[order])
    deps = analysis.deps
    edge = deps.binding[rows]
    held = edge >= 0
    edges = deps.edges
    at = np.maximum(edge, 0) if len(edges) else edge
    none = np.full(count, -1, np.int64)
    columns = {
        "start": start[order],
        "dur": (end - start)[order],
        "name": name,
        "lane": lane_of[stream],
        "sub": sub,
        "kind": column(table.kind[rows], MARK),
        "source": column(table.kind_source[rows], int(Source.GIVEN)),
        "launch": column(place[table.launch[rows]], -1),
        "parent": column(place[table.parent[rows]], -1),
        "correlation": column(table.correlation[rows], -1),
        "bytes": column(table.bytes[rows], -1),
        "graph": column(table.graph[rows], -1),
        "replay": column(table.replay[rows], -1),
        "node": column(table.node[rows], -1),
        "group": column(table.group[rows], -1),
        "sequence": column(table.sequence[rows], -1),
        "round": column(analysis.rounds.round_of[rows], -1),
        "phase": column(analysis.rounds.phase_of[rows], -1),
        "held": column(np.where(held, place[edges.src[at]], -1) if len(edges) else none, -1),
        "heldBy": column(np.where(held, edges.kind[at], -1) if len(edges) else none, -1),
        "heldSure": column(np.where(held, edges.confidence[at], -1) if len(edges) else none, -1),
    }
    shorts = ["" if (short := short_name(text)) == text else short for text in names]
    return Scene(columns, lanes, names, shorts, place)


def _marks_kept(table: Timeline, rows: Int64) -> Int64:
    """Return the marks that reach into the time of the rows."""
    if len(rows) == len(table):
        return np.arange(len(table.marks))
    low, high = int(table.start_ns[rows].min()), int(table.end_ns[rows].max())
    return np.flatnonzero((table.marks.end_ns >= low) & (table.marks.start_ns <= high))


def _strips(table: Timeline, rows: Int64) -> Int32:
    """Return of each row which of _STRIPS it lies in."""
    kind = table.kind[rows]
    strip = np.full(len(rows), 1, np.int32)
    strip[kind == Kind.SUBTASK] = 2
    strip[is_echo(table, rows)] = 3
    return strip


def is_echo(table: Timeline, rows: Int64) -> Bool:
    """Return bool, the rows on a device's stream that only say what the host did: no time of the stream is theirs.

    CUDA's waits and synchronisations stand at the time of the host's call; records take none.
    """
    kind = table.kind[rows]
    launch = np.maximum(table.launch[rows], 0)
    called = (table.launch[rows] >= 0) & (table.start_ns[rows] >= table.start_ns[launch])
    called &= table.end_ns[rows] <= table.end_ns[launch]
    waits = (kind == Kind.WAIT) & (called | (table.dur_ns[rows] == 0))
    found: Bool = table.on_device[rows] & (waits | (kind == Kind.SYNC) | (kind == Kind.RECORD))
    return found


def _lanes(analysis: Analysis, stream: Int64, kind: Int64) -> tuple[list[dict[str, Any]], Int32]:
    """Return the lanes in their order, and of each stream its lane."""
    table = analysis.timeline
    held = np.bincount(stream, minlength=len(table.streams))
    work = table.is_work
    busy = np.bincount(table.stream[work], table.dur_ns[work], len(table.streams))
    calls = np.bincount(table.stream[table.launch[table.launch >= 0]], minlength=len(table.streams))
    most_calls: dict[int, int] = {}
    for number, one in enumerate(table.streams):
        if one.device is None:
            most_calls[one.rank] = max(most_calls.get(one.rank, 0), int(calls[number]))
    lanes: list[tuple[Any, int, dict[str, Any]]] = []
    roles = (Role.COMPUTE, Role.COMM, Role.COPY, Role.OTHER, Role.HOST)
    for number in np.flatnonzero(held).tolist():
        one = table.streams[number]
        home = analysis.rounds.home.get(one.rank, -1) == number
        host = one.device is None
        main = host and main_thread(analysis.deps, one.rank) == number
        shown = not host or main or calls[number] > _BUSY_THREAD * most_calls[one.rank]
        lane = {
            "rank": one.rank,
            "device": one.device,
            "name": one.name,
            "role": one.role.value,
            "roleSource": int(one.role_source),
            "home": home,
            "main": main,
            "shown": bool(shown),
            "rows": int(held[number]),
            "busy": int(busy[number]),
        }
        weight = -float(busy[number]) if not host else -float(calls[number])
        lanes.append(((one.rank, host, not (home or main), roles.index(one.role), weight), number, lane))
    lanes.sort(key=lambda item: (item[0], item[1]))
    lane_of = np.full(len(table.streams), -1, np.int32)
    for place, (_, number, _) in enumerate(lanes):
        lane_of[number] = place
    return [lane for _, _, lane in lanes], lane_of


def _subs(lanes: list[dict[str, Any]], lane: Int32, strip: Int64, start: Int64, end: Int64) -> Int32:
    """Return of each of the E its strip on its lane; write each lane's strips into its description."""
    sub = np.zeros(len(lane), np.int32)
    by_lane = np.argsort(lane, kind="stable")
    bounds = np.searchsorted(lane[by_lane], np.arange(len(lanes) + 1))
    for number, one in enumerate(lanes):
        mine = by_lane[bounds[number] : bounds[number + 1]]
        strips: list[str] = []
        for which, (what, most) in enumerate(_STRIPS):
            some = mine[strip[mine] == which]
            if not len(some):
                continue
            track = np.minimum(side_by_side(start[some], end[some]), most - 1)
            sub[some] = track + len(strips)
            strips += [what] * (int(track.max()) + 1)
        one["strips"] = strips
    return sub

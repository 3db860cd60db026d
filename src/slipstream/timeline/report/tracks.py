"""Lanes for rows: which rows of a stream can share one, so that none lies over another."""

from __future__ import annotations

import heapq

import numpy as np

from slipstream.timeline.table import Int32, Int64


def side_by_side(start_ns: Int64, end_ns: Int64) -> Int32:
    """Return int32 [N], the lowest track of each row on which it overlaps no other.

    A call that encloses others lies above them, so nested calls become one track a level.

    Args:
        start_ns, end_ns: int64 [N], sorted by (start, end descending).
    """
    count = len(start_ns)
    track = np.zeros(count, np.int32)
    if not count or not _overlap(start_ns, end_ns):
        return track
    free: list[int] = []  # tracks on which nothing runs
    busy: list[tuple[int, int]] = []  # (end, track)
    made = 0
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            mine = heapq.heappop(free)
        else:
            mine, made = made, made + 1
        track[row] = mine
        # A row without length still takes its moment: nothing else begins there on its track.
        heapq.heappush(busy, (max(end, start + 1), mine))
    return track


def nested(start_ns: Int64, end_ns: Int64) -> Int32:
    """Return int32 [N], the lowest track of each row on which it lies within or beside the others, never across.

    Args:
        start_ns, end_ns: int64 [N], sorted by (start, end descending).
    """
    track = np.zeros(len(start_ns), np.int32)
    open_ends: list[list[int]] = []  # of each track, the ends of what is open, the innermost last
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for mine, ends in enumerate(open_ends):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                track[row] = mine
                break
        else:
            track[row] = len(open_ends)
            open_ends.append([end])
    return track


def _overlap(start_ns: Int64, end_ns: Int64) -> bool:
    """Tell whether any row begins before all earlier ones have ended, or at the moment of one without length."""
    reach = np.maximum.accumulate(np.maximum(end_ns, start_ns + 1))
    return bool((start_ns[1:] < reach[:-1]).any())

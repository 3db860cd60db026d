"""Dependencies between rows: who could not begin before whom, how that is known, and how surely.

    release   the moment at which a row's own work began: its start; of a wait its end; of a collective the
              arrival of the last rank
    ready     the moment at which an edge let its row go: the end of the row waited for, at most the release

The edge with the latest `ready` is the one that held the row up: its binding edge. What lies between `ready`
and `release` is delay that no row explains. N rows, E edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from slipstream.timeline import events, inference, meetings, order
from slipstream.timeline.edge_types import Confidence, EdgeKind, EdgeList, concatenate
from slipstream.timeline.own_order import program_edges
from slipstream.timeline.table import Bool, Int32, Int64, Note, Timeline

__all__ = ["Confidence", "Dependencies", "EdgeKind", "EdgeList", "find_dependencies"]

#: Of edges that let go at one moment, the one that is named: by kind, the last of these first.
_RANKING = (
    EdgeKind.LAUNCH,
    EdgeKind.HOST,
    EdgeKind.EVENT_INFERRED,
    EdgeKind.COLLECTIVE,
    EdgeKind.GRAPH,
    EdgeKind.EVENT,
    EdgeKind.STREAM,
)
_PREFERENCE = np.zeros(len(EdgeKind), np.int64)
for _place, _kind in enumerate(_RANKING):
    _PREFERENCE[_kind] = _place


class Origin(IntEnum):
    """Where a row has no binding edge."""

    NONE = -1


@dataclass(frozen=True)
class Dependencies:
    """The rows of a timeline and the edges between them.

    Attributes:
        timeline: the rows.
        edges: E of them, sorted by the row that depends.
        first: int32 [N + 1], edges of row n are first[n] .. first[n + 1].
        release_ns: int64 [N].
        done_ns: int64 [N], when a row's own work was over: its end, but of a call that stood in its own copy
            when it had issued that.
        place: int32 [N], the stream in whose order a row runs: its own, but of a collective the one its parts
            run on.
        collectives: the rows of each collective that was matched across ranks, the last to arrive first.
        notes: what was left out, and why.
        threads, main_threads: what `host` has found out about threads.
    """

    timeline: Timeline
    edges: EdgeList
    first: Int32
    release_ns: Int64
    done_ns: Int64
    place: Int32
    collectives: tuple[Int32, ...] = ()
    notes: tuple[Note, ...] = ()
    threads: dict[int, Any] = field(default_factory=dict, repr=False)
    main_threads: dict[int, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def impossible_collectives(self) -> int:
        """How many collectives one rank left before another came: who came last to others is not sure then."""
        return sum(note.count for note in self.notes if note.what == "clocks")

    @cached_property
    def finish_ns(self) -> Int64:
        """int64 [E], when what an edge waits for was done."""
        table, edges = self.timeline, self.edges
        return np.where(edges.from_start, table.start_ns[edges.src], self.done_ns[edges.src])

    @cached_property
    def own_time(self) -> Bool:
        """bool [E], the order of a thread's calls: what lies between them is the thread's own work.

        Not what lies before a call that takes from a queue: there the thread may have waited for it to fill.
        """
        table, edges = self.timeline, self.edges
        host = (edges.kind == EdgeKind.HOST) & ~table.on_device[edges.src] & ~table.on_device[edges.dst]
        stood = self.done_ns[edges.src] != table.end_ns[edges.src]
        own: Bool = host & ~stood & (table.launch[edges.dst] < 0)
        return own

    @cached_property
    def ready_ns(self) -> Int64:
        """int64 [E], when an edge let its row go; a thread works until its next call."""
        reached = np.where(self.own_time, self.timeline.start_ns[self.edges.dst], self.finish_ns)
        return np.minimum(reached, self.release_ns[self.edges.dst])

    @cached_property
    def lag_ns(self) -> Int64:
        """int64 [E], from there to the row's own work; negative where the row began before."""
        return self.release_ns[self.edges.dst] - self.finish_ns

    @cached_property
    def binding(self) -> Int32:
        """int32 [N], the edge that held the row up, -1 where a row waits for nothing known."""
        count = len(self.timeline)
        bound = np.full(count, Origin.NONE, np.int32)
        if not len(self.edges):
            return bound
        key = self.ready_ns * len(EdgeKind) + _PREFERENCE[self.edges.kind]
        heads = np.flatnonzero(self.first[1:] > self.first[:-1])
        best = np.maximum.reduceat(key, self.first[heads])
        highest = np.flatnonzero(key == np.repeat(best, np.diff(self.first)[heads]))
        # Written from the last to the first, so the first of equals stays.
        bound[self.edges.dst[highest[::-1]]] = highest[::-1]
        return bound

    @cached_property
    def joining(self) -> Int32:
        """int32 [J], the rows that wait for another stream, ascending."""
        edges = self.edges
        cross = np.isin(edges.kind, [EdgeKind.EVENT, EdgeKind.EVENT_INFERRED, EdgeKind.GRAPH])
        return np.unique(edges.dst[cross & (self.place[edges.src] != self.place[edges.dst])])

    @cached_property
    def longest_ns(self) -> int:
        """How long the longest work of a device takes: what began earlier cannot reach a moment."""
        return int(self.timeline.dur_ns[self.timeline.is_work].max(initial=0))

    @cached_property
    def chain(self) -> tuple[list[int], list[int], list[int]]:
        """(binding edge, the row it waits for, its ready time) of each row: lists, as a walk takes them singly."""
        bound = np.maximum(self.binding, 0)
        if not len(self.edges):
            count = len(self.timeline)
            return [-1] * count, [-1] * count, [0] * count
        return self.binding.tolist(), self.edges.src[bound].tolist(), self.ready_ns[bound].tolist()

    def edges_into(self, row: int) -> range:
        """Return the numbers of the edges that a row depends by."""
        return range(int(self.first[row]), int(self.first[row + 1]))

    def count_by_kind(self) -> dict[EdgeKind, int]:
        """Return how many edges of each kind there are, kinds without one left out."""
        counts = np.bincount(self.edges.kind, minlength=len(EdgeKind)).tolist()
        return {kind: counts[kind] for kind in EdgeKind if counts[kind]}


def find_dependencies(timeline: Timeline, *, infer: bool = True) -> Dependencies:
    """Return every dependency that a trace tells of.

    Args:
        timeline: the rows.
        infer: whether to conclude what the trace does not say: waits without a record, forks and joins of
            a replay, collectives without a number. Such edges are marked.
    """
    rows = order.Rows.of(timeline)
    found: list[EdgeList] = [order.launch_edges(rows), order.host_edges(rows, infer=infer)]
    graph_edges = events.graph_edges(rows)
    inside = events.known_graphs(timeline)[timeline.graph]
    program = program_edges(timeline)
    found.append(program if len(program) else order.stream_edges(rows, inside))
    found += [graph_edges, events.replay_edges(rows, graph_edges)]
    recorded, unresolved = events.recorded_edges(rows)
    found.append(recorded)
    found.append(events.sync_edges(rows, infer=infer))
    notes: list[Note] = []
    if infer:
        inferred, notes_inferred = inference.inferred_waits(rows, unresolved)
        found.append(inferred)
        notes += notes_inferred
    matched = meetings.match(rows, infer=infer)
    found.append(matched.edges)
    release = rows.release_ns.copy()
    release[matched.rows] = matched.release_ns
    notes += matched.notes
    together = _sorted(rows, found, release, matched.members, notes)
    if infer:
        guessed = inference.guessed_joins(rows, together.first, together.lag_ns)
        if len(guessed):
            lists = [together.edges, guessed]
            together = _sorted(rows, lists, release, matched.members, together.notes)
    return together


def _sorted(
    rows: order.Rows,
    lists: Sequence[EdgeList],
    release_ns: Int64,
    collectives: Sequence[Int32],
    notes: Iterable[Note],
) -> Dependencies:
    """Return edges as Dependencies; those that would let a row wait for its own future are left out.

    Of two edges between the same rows the surer one stays.
    """
    timeline = rows.timeline
    edges = concatenate(lists)
    notes = list(notes)
    possible = (edges.src != edges.dst) & (timeline.start_ns[edges.src] <= release_ns[edges.dst])
    impossible = int(len(edges) - possible.sum())
    if impossible:
        notes.append(
            Note(
                "out of order",
                impossible,
                "a row begins before what it depends on; that dependency is left out",
            )
        )
        edges = edges.take(possible)
    # By row, then by what it waits for, the surest first.
    surest = np.lexsort((edges.kind, edges.confidence, edges.src, edges.dst))
    edges = edges.take(surest)
    if len(edges):
        again = (edges.src[1:] == edges.src[:-1]) & (edges.dst[1:] == edges.dst[:-1])
        edges = edges.take(np.concatenate(([True], ~again)))
    first = np.searchsorted(edges.dst, np.arange(len(timeline) + 1)).astype(np.int32)
    return Dependencies(
        timeline, edges, first, release_ns, rows.done_ns, rows.place, tuple(collectives), tuple(notes)
    )

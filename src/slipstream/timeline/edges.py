"""Dependencies between rows: who could not begin before whom, how that is known, and how surely.

    release   the moment at which a row's own work began: its start; of a wait its end; of a collective the
              arrival of the last rank
    ready     the moment at which an edge let its row go: the end of the row waited for, at most the release

The edge with the latest `ready` is the one that held the row up: its binding edge. What lies between `ready`
and `release` is delay that no row explains. N rows, E edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from slipstream.timeline import collectives, events, inference, order
from slipstream.timeline.edge_types import Confidence, EdgeKind, EdgeList, concatenate
from slipstream.timeline.table import Bool, Int32, Int64, Note, Timeline, UInt8

__all__ = ["Confidence", "Dependencies", "EdgeKind", "EdgeList", "build_edges", "find_dependencies"]

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
        place: int32 [N], the stream in whose order a row runs: its own, but of a collective the one its parts
            run on.
        notes: what was left out, and why.
    """

    timeline: Timeline
    edges: EdgeList
    first: Int32
    release_ns: Int64
    place: Int32
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.edges)

    @cached_property
    def finish_ns(self) -> Int64:
        """int64 [E], when what an edge waits for was done."""
        table, edges = self.timeline, self.edges
        return np.where(edges.from_start, table.start_ns[edges.src], table.end_ns[edges.src])

    @cached_property
    def ready_ns(self) -> Int64:
        """int64 [E], when an edge let its row go."""
        return np.minimum(self.finish_ns, self.release_ns[self.edges.dst])

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
    found: list[EdgeList] = [order.launch_edges(rows), order.host_edges(rows)]
    graph_edges = events.graph_edges(rows)
    found.append(_outside_known_replays(order.stream_edges(rows), timeline))
    found += [graph_edges, events.replay_edges(rows, graph_edges)]
    recorded, unresolved = events.recorded_edges(rows)
    found.append(recorded)
    found.append(events.sync_edges(rows, infer=infer))
    notes: list[Note] = []
    if infer:
        inferred, notes_inferred = inference.inferred_waits(rows, unresolved)
        found.append(inferred)
        notes += notes_inferred
    matched = collectives.match(rows, infer=infer)
    found.append(matched.edges)
    release = rows.release_ns.copy()
    release[matched.rows] = matched.release_ns
    notes += matched.notes
    together = build_edges(timeline, found, release, rows.place, notes)
    if infer:
        guessed = inference.guessed_joins(rows, together.first, together.lag_ns)
        if len(guessed):
            together = build_edges(timeline, [together.edges, guessed], release, rows.place, together.notes)
    return together


def _outside_known_replays(edges: EdgeList, timeline: Timeline) -> EdgeList:
    """Leave out the stream order inside replays whose true edges are known: a graph's streams are no order."""
    known = np.array([graph.edges is not None for graph in timeline.graphs] + [False], np.bool_)
    graph, replay = timeline.graph, timeline.replay
    same = (
        known[graph[edges.src]]
        & (graph[edges.src] == graph[edges.dst])
        & (replay[edges.src] == replay[edges.dst])
    )
    return edges.take(~same)


def build_edges(
    timeline: Timeline,
    lists: Sequence[EdgeList],
    release_ns: Int64,
    place: Int32,
    notes: Iterable[Note] = (),
) -> Dependencies:
    """Return edges as Dependencies; those that would let a row wait for its own future are left out.

    Args:
        timeline: the rows.
        lists: the edges, in any order; of two between the same rows the surer one stays.
        release_ns: int64 [N].
        place: int32 [N].
        notes: to go along.
    """
    edges = concatenate(lists)
    notes = list(notes)
    possible = (edges.src != edges.dst) & (
        timeline.start_ns[edges.src] <= release_ns[edges.dst]
    )
    impossible = int(len(edges) - possible.sum())
    if impossible:
        notes.append(
            Note("out of order", impossible, "a row begins before what it depends on; that dependency is left out")
        )
        edges = edges.take(possible)
    # By row, then by what it waits for, the surest first.
    surest = np.lexsort((edges.kind, edges.confidence, edges.src, edges.dst))
    edges = edges.take(surest)
    if len(edges):
        again = (edges.src[1:] == edges.src[:-1]) & (edges.dst[1:] == edges.dst[:-1])
        edges = edges.take(np.concatenate(([True], ~again)))
    first = np.searchsorted(edges.dst, np.arange(len(timeline) + 1)).astype(np.int32)
    return Dependencies(timeline, edges, first, release_ns, place, tuple(notes))

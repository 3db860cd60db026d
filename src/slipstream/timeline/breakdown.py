"""What the path of a round is made of: phases, the seams between them by the host's own words, joins, bubbles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.timeline.belonging import Belonging, Stretches
from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.host import BETWEEN, host_work, main_thread
from slipstream.timeline.overlap import Intervals, Share, share, union
from slipstream.timeline.path import Path, Piece
from slipstream.timeline.rounds import Round
from slipstream.timeline.table import Bool, Int32, Kind, Role


@dataclass
class Stretch:
    """The time of a path that lies in a phase, or in the seam between two.

    Attributes:
        label: "verify", or "draft → verify" for a seam.
        seam: whether it is one.
        work_ns: of devices.
        host_ns: of threads.
        delay_ns: launch latency, the stream's own, events'.
        unknown_ns: nothing known held it up.
        host: the host's time by its operations' names.
        meanwhile: what the host did while nothing known held the path up.
    """

    label: str
    seam: bool
    work_ns: int = 0
    host_ns: int = 0
    delay_ns: int = 0
    unknown_ns: int = 0
    host: Counter[str] = field(default_factory=Counter)
    meanwhile: Counter[str] = field(default_factory=Counter)

    @property
    def took_ns(self) -> int:
        """All of it."""
        return self.work_ns + self.host_ns + self.delay_ns + self.unknown_ns


def stretches(deps: Dependencies, belonging: Belonging, item: Round, path: Path) -> list[Stretch]:
    """Return the path of a round by phases and seams, in the order of time; they sum to the path's length.

    Args:
        deps: rows and edges.
        belonging: what belongs to which phase.
        item: the round.
        path: its path.
    """
    cut = belonging.of(item, path)
    names, took = cut.names, cut.end_ns - cut.start_ns
    key = cut.before.astype(np.int64) * len(names) + cut.after
    found: list[Stretch] = []
    values, first = np.unique(key, return_index=True)
    for value in values[np.argsort(first)].tolist():
        mine = key == value
        one, other = names[value // len(names)], names[value % len(names)]
        sums = np.bincount(cut.piece[mine], took[mine], len(Piece)).astype(np.int64).tolist()
        stretch = Stretch(one if one == other else f"{one} → {other}", one != other, *sums)
        stretch.host = _host_names(deps, cut, mine & (cut.piece == Piece.HOST))
        unknown = mine & (cut.piece == Piece.UNKNOWN)
        thread = main_thread(deps, item.rank) if unknown.any() else -1
        if thread >= 0:
            idle = Intervals(cut.start_ns[unknown], cut.end_ns[unknown])
            stretch.meanwhile = host_work(deps, thread, idle)
        found.append(stretch)
    return found


def _host_names(deps: Dependencies, cut: Stretches, which: Bool) -> Counter[str]:
    """Name the host's time of some pieces, each by the thread that it belongs to."""
    found: Counter[str] = Counter()
    rows = cut.row[which]
    threads = np.where((rows >= 0) & ~deps.timeline.on_device[rows], deps.timeline.stream[rows], -1)
    for thread in np.unique(threads).tolist():
        mine = threads == thread
        starts, ends = cut.start_ns[which][mine], cut.end_ns[which][mine]
        if thread < 0:
            found[BETWEEN] += int((ends - starts).sum())
        else:
            found.update(host_work(deps, thread, Intervals(starts, ends)))
    return found


#: A branch is followed back over so many operations.
_LONGEST_BRANCH = 1_000
#: Looked up once: a member of an enumeration costs more than all else that a walk does for a row.
_EVENTS = (int(Kind.RECORD), int(Kind.WAIT))
_COLLECTIVE = int(EdgeKind.COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Join:
    """A place where an operation waited for more than one stream.

    Attributes:
        row: what waited.
        branch: the work that was done last.
        other: the work that was done before it, on another stream.
        since_ns: when the other was done.
        waited_ns: how much later the branch was done: what the join would gain if it were faster.
        kind: the EdgeKind that the branch was waited for by.
        confidence: of that edge.
        on_path: whether the path runs through what waited; only there it costs the round anything.
        side_by_side: whether the two ran beside each other; else the one merely followed the other.
    """

    row: int
    branch: int
    other: int
    since_ns: int
    waited_ns: int
    kind: int
    confidence: int
    on_path: bool
    side_by_side: bool


def joins(deps: Dependencies, path: Path, *, rank: int) -> list[Join]:
    """Return the joins of a rank in the stretch of a path: of branches side by side first, then those on the path.

    Not those where communication only stood behind other communication on its own stream, as it does most of the
    time: nothing waits there for a branch.

    Args:
        deps: rows and edges.
        path: what waits begins its own work in the same stretch.
        rank: whose.
    """
    on_path = set(path.through.tolist())
    table, edges = deps.timeline, deps.edges
    release = deps.release_ns[deps.joining]
    inside = deps.joining[(release >= path.start_ns) & (release < path.end_ns)]
    found: list[Join] = []
    for last, second in _last_two(deps, inside[table.rank[inside] == rank]):
        row = int(edges.dst[last])
        role = table.streams[deps.place[row]].role
        if role is Role.COMM and edges.kind[last] == EdgeKind.STREAM:
            continue
        branch = work_behind(deps, int(edges.src[last]))
        other = work_behind(deps, int(edges.src[second]))
        found.append(
            Join(
                row,
                branch,
                other,
                int(deps.ready_ns[second]),
                int(deps.ready_ns[last] - deps.ready_ns[second]),
                int(edges.kind[last]),
                int(edges.confidence[last]),
                row in on_path,
                _begun(deps, branch) < int(table.end_ns[other]),
            )
        )
    return sorted(found, key=lambda join: (not join.side_by_side, not join.on_path, -join.waited_ns))


def _last_two(deps: Dependencies, rows: Int32) -> list[list[int]]:
    """Return, of each row that waits for two streams or more, the edges of those that were ready last and before.

    Args:
        rows: int32 [J], ascending.
    """
    edges = deps.edges
    counts = deps.first[rows + 1] - deps.first[rows]
    # The edges of a row follow one another: all of them, row by row.
    into = np.repeat(deps.first[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    src = edges.src[into]
    into = into[deps.timeline.on_device[src] & (edges.kind[into] != _COLLECTIVE)]
    place = deps.place[edges.src[into]]
    # Of each place the last to be ready, of equals the first.
    order = np.lexsort((-into, deps.ready_ns[into], place, edges.dst[into]))
    into, place = into[order], place[order]
    dst = edges.dst[into]
    into = into[np.append((dst[1:] != dst[:-1]) | (place[1:] != place[:-1]), True)[: len(into)]]
    order = np.lexsort((into, -deps.ready_ns[into], edges.dst[into]))
    into = into[order]
    dst = edges.dst[into]
    begins = np.append(True, dst[1:] != dst[:-1])[: len(into)]
    pairs = np.flatnonzero(begins[:-1] & ~begins[1:])
    found: list[list[int]] = np.stack((into[pairs], into[pairs + 1]), axis=1).tolist()
    return found


def waited_together(found: Sequence[Join], item: Round) -> int:
    """Return how much of a round's time some joins waited: what several wait for at one time counts once."""
    since = np.array([join.since_ns for join in found], np.int64)
    waited = np.array([join.waited_ns for join in found], np.int64)
    return union(since, since + waited).clip(item.start_ns, item.end_ns).total_ns


def _begun(deps: Dependencies, row: int) -> int:
    """Return when the branch that a row ends began: back along its stream as long as that held it up."""
    for _ in range(_LONGEST_BRANCH):
        edge = int(deps.binding[row])
        if edge < 0 or deps.place[deps.edges.src[edge]] != deps.place[row]:
            break
        row = int(deps.edges.src[edge])
    return int(deps.release_ns[row])


def work_behind(deps: Dependencies, row: int) -> int:
    """Return the work that a record or a wait stands behind; a row that is work stays."""
    seen: set[int] = set()
    while deps.timeline.kind[row] in _EVENTS and row not in seen:
        seen.add(row)
        edge = int(deps.binding[row])
        if edge < 0 or not deps.timeline.on_device[deps.edges.src[edge]]:
            break
        row = int(deps.edges.src[edge])
    return row


def short_name(name: str) -> str:
    """Return a kernel's name without its return type, template arguments and parameters, 60 characters at most.

    >>> short_name("void at::native::reduce_kernel<512, 1>(int)")
    'at::native::reduce_kernel'
    """
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    text = re.split(r"[<(]", text, maxsplit=1)[0] or name
    return text if len(text) <= 60 else f"{text[:57]}..."


_FAMILY = re.compile(r"^(?:void\s+)?([^(<]*)")


def family(name: str) -> str:
    """Return what sort of communication a name means: without sizes, numbers and template arguments.

    >>> family("hcom_allReduce__586_0_1@123")
    'hcom_allReduce'
    >>> family("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)")
    'ncclDevKernel_AllReduce'
    """
    name = name.replace("(anonymous namespace)::", "")
    match = _FAMILY.match(name)
    text = (match[1] if match else name).split("@")[0].split("__")[0] or name
    if text.startswith(("nccl", "rccl")):
        text = "_".join(re.split(r"_(?:Sum|Max|Min|Prod|Avg|RING|TREE|COLLNET|NVLS|f\d|bf|u?int)", text)[:1])
    return text.strip()


def communication(deps: Dependencies, item: Round) -> list[Share]:
    """Return the communication of a round in total, then by family: how much computation covers, what is exposed.

    Only what lies in the round's time counts. Empty where there is none.
    """
    table = deps.timeline
    low, high = np.searchsorted(table.start_ns, [item.start_ns - deps.longest_ns, item.end_ns])
    rows = np.arange(low, high)
    rows = rows[table.is_work[rows] & (table.rank[rows] == item.rank) & (table.end_ns[rows] > item.start_ns)]
    start = np.maximum(table.start_ns[rows], item.start_ns)
    end = np.minimum(table.end_ns[rows], item.end_ns)
    comm = table.kind[rows] == Kind.COMM
    if not comm.any():
        return []
    computing = table.kind[rows] == Kind.KERNEL
    cover = union(start[computing], end[computing])
    found = [share("communication", start[comm], end[comm], cover)]
    ids, which = np.unique(table.name[rows[comm]], return_inverse=True)
    families = [family(table.names[name]) for name in ids.tolist()]
    for name in sorted(set(families)):
        mine = np.array([each == name for each in families])[which]
        found.append(share(name, start[comm][mine], end[comm][mine], cover))
    return [found[0], *sorted(found[1:], key=lambda part: -part.exposed_ns)]

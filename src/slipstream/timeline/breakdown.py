"""What the path of a round is made of: phases, the seams between them by the host's own words, joins, bubbles."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from slipstream.timeline.edge_types import EdgeKind
from slipstream.timeline.edges import Dependencies
from slipstream.timeline.overlap import Share, share, union
from slipstream.timeline.path import Path, Piece
from slipstream.timeline.rounds import Round, Rounds
from slipstream.timeline.table import Kind

#: How the host's time is called in which its thread shows no operation.
BETWEEN = "(no operation of the host in the trace)"


# Members of an enum are slow to reach in a loop.
_WORK, _HOST, _DELAY = int(Piece.WORK), int(Piece.HOST), int(Piece.DELAY)


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
    """

    label: str
    seam: bool
    work_ns: int = 0
    host_ns: int = 0
    delay_ns: int = 0
    unknown_ns: int = 0
    host: Counter[str] = field(default_factory=Counter)

    @property
    def took_ns(self) -> int:
        """All of it."""
        return self.work_ns + self.host_ns + self.delay_ns + self.unknown_ns


def stretches(deps: Dependencies, rounds: Rounds, item: Round, path: Path) -> list[Stretch]:
    """Return the path of a round by phases and seams, in the order of time; they sum to the path's length.

    Args:
        deps: rows and edges.
        rounds: all of them.
        item: the round.
        path: its path.
    """
    labels = _labels(deps, rounds, item, path)
    found: dict[str, Stretch] = {}
    took_ns = (path.ends_ns - path.starts_ns).tolist()
    for index, (piece, took, (before, label, after)) in enumerate(
        zip(path.piece.tolist(), took_ns, labels, strict=True)
    ):
        text = label or (before if before == after else f"{before} → {after}")
        stretch = found.get(text)
        if stretch is None:
            stretch = found[text] = Stretch(text, label is None and before != after)
        if piece == _WORK:
            stretch.work_ns += took
        elif piece == _HOST:
            stretch.host_ns += took
            stretch.host.update(_host_names(deps, path, index))
        elif piece == _DELAY:
            stretch.delay_ns += took
        else:
            stretch.unknown_ns += took
    return list(found.values())


def _labels(
    deps: Dependencies, rounds: Rounds, item: Round, path: Path
) -> list[tuple[str, str | None, str]]:
    """Return for each piece (phase before, own phase or None, phase after)."""
    rows = np.maximum(path.row, 0)
    own: list[str | None] = [None] * len(path)
    names: dict[tuple[int, int, int], str] = {}
    columns = (deps.timeline.rank[rows], rounds.round_of[rows], rounds.phase_of[rows])
    for index in np.flatnonzero((path.piece == _WORK) & (path.row >= 0)).tolist():
        key = (int(columns[0][index]), int(columns[1][index]), int(columns[2][index]))
        if key not in names:
            names[key] = _phase_name(rounds, item, *key)
        own[index] = names[key]
    first = next((name for name in own if name is not None), item.phases[0].name if item.phases else "")
    before: list[str] = []
    last = "previous round" if item.number else first
    for name in own:
        last = name if name is not None else last
        before.append(last)
    after: list[str] = []
    following = "next round" if item.following >= 0 else last
    for name in reversed(own):
        following = name if name is not None else following
        after.append(following)
    return list(zip(before, own, reversed(after), strict=True))


def _phase_name(rounds: Rounds, item: Round, rank: int, number: int, index: int) -> str:
    """Name the phase of a row, as seen from a round."""
    mine = rounds.of_rank.get(rank, ())
    if number < 0 or number >= len(mine):
        return "outside"
    if number < item.number:
        return "previous round"
    return mine[number].phases[index].name if 0 <= index < len(mine[number].phases) else "outside"


def _host_names(deps: Dependencies, path: Path, index: int) -> Counter[str]:
    """Name the host's time of a piece by the thread that the piece belongs to."""
    row = int(path.row[index])
    table = deps.timeline
    if row < 0 or table.on_device[row]:
        return Counter({BETWEEN: int(path.ends_ns[index] - path.starts_ns[index])})
    return host_work(deps, int(table.stream[row]), int(path.starts_ns[index]), int(path.ends_ns[index]))


def host_work(deps: Dependencies, thread: int, start_ns: int, end_ns: int) -> Counter[str]:
    """Return what a thread did in a stretch: time by the name of the innermost operation.

    Args:
        deps: rows and edges.
        thread: the stream of the thread.
        start_ns, end_ns: the stretch; the times sum to its length.
    """
    table = deps.timeline
    low, high = _reach(deps, thread, start_ns), int(np.searchsorted(table.start_ns, end_ns))
    rows = np.arange(low, high)
    rows = rows[(table.stream[low:high] == thread) & (table.end_ns[low:high] > start_ns)]
    took: Counter[str] = Counter()
    now, stack = start_ns, []
    for row in [*rows.tolist(), -1]:
        begin = max(int(table.start_ns[row]), start_ns) if row >= 0 else end_ns
        while stack and table.end_ns[stack[-1]] <= begin:
            top = stack.pop()
            end = min(int(table.end_ns[top]), end_ns)
            if end > now:
                took[table.name_of(top)] += end - now
                now = end
        if begin > now:
            took[table.name_of(stack[-1]) if stack else BETWEEN] += begin - now
            now = begin
        stack.append(row)
    return took


#: How far back an operation may have begun that still runs; the host's outermost ones are no help in naming.
_LOOK_BACK = 4096


def _reach(deps: Dependencies, thread: int, start_ns: int) -> int:
    """Return the earliest row that can reach into a stretch, within a bound."""
    at = int(np.searchsorted(deps.timeline.start_ns, start_ns))
    return max(0, at - _LOOK_BACK)


@dataclass(frozen=True, slots=True)
class Join:
    """A place where an operation waited for more than one stream.

    Attributes:
        row: what waited.
        branch: the work that was done last.
        other: the work that was done before it, on another stream.
        waited_ns: how much later the branch was done: what the join would gain if it were faster.
        kind: the EdgeKind that the branch was waited for by.
        confidence: of that edge.
    """

    row: int
    branch: int
    other: int
    waited_ns: int
    kind: int
    confidence: int


def joins(deps: Dependencies, start_ns: int, end_ns: int, *, rank: int) -> list[Join]:
    """Return the joins of a rank in a stretch of time, the longest wait first.

    Args:
        deps: rows and edges.
        start_ns, end_ns: what waits begins its own work in here.
        rank: whose.
    """
    table, edges = deps.timeline, deps.edges
    release = deps.release_ns[deps.joining]
    inside = deps.joining[(release >= start_ns) & (release < end_ns)]
    found: list[Join] = []
    for row in inside[table.rank[inside] == rank].tolist():
        latest: dict[int, int] = {}  # place -> its edge that was ready last
        for edge in deps.edges_into(row):
            src = int(edges.src[edge])
            if not table.on_device[src] or edges.kind[edge] == EdgeKind.COLLECTIVE:
                continue
            place = int(deps.place[src])
            if place not in latest or deps.ready_ns[edge] > deps.ready_ns[latest[place]]:
                latest[place] = edge
        ordered = sorted(latest.values(), key=lambda edge: int(deps.ready_ns[edge]), reverse=True)
        if len(ordered) < 2:
            continue
        last, second = ordered[:2]
        found.append(
            Join(
                row,
                work_behind(deps, int(edges.src[last])),
                work_behind(deps, int(edges.src[second])),
                int(deps.ready_ns[last] - deps.ready_ns[second]),
                int(edges.kind[last]),
                int(edges.confidence[last]),
            )
        )
    return sorted(found, key=lambda join: -join.waited_ns)


def work_behind(deps: Dependencies, row: int) -> int:
    """Return the work that a record or a wait stands behind; a row that is work stays."""
    seen: set[int] = set()
    while deps.timeline.kind[row] in (Kind.RECORD, Kind.WAIT) and row not in seen:
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
    families = np.array([family(table.name_of(row)) for row in rows[comm].tolist()])
    for name in np.unique(families).tolist():
        mine = families == name
        found.append(share(name, start[comm][mine], end[comm][mine], cover))
    return [found[0], *sorted(found[1:], key=lambda part: -part.exposed_ns)]


"""The one table that every trace becomes: a row an operation, in numpy columns, times in nanoseconds.

    row       what one stream or thread did from start_ns to end_ns, and what the trace says about it
    stream    where: a device's stream, or a host's thread; it knows its rank
    mark      what somebody wrote over a stretch of time (a phase's name); no work, so not a row

N rows, S streams, M marks. A column that does not apply holds -1. Where a value was inferred and not read,
the row's `kind_source` or the stream's `role_source` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

Args = dict[str, object]


class Kind(IntEnum):
    """What a row is.

    RECORD and WAIT are those of a device's streams. A host's call to record or to let a stream wait is HOST.
    SYNC on a thread is the host standing still; on a device's stream (Kineto's `cuda_sync`) it is the echo of
    such a call, no work. A SUBTASK is a part of another row of its rank (of a collective, of a replay) and
    counts in no sum.
    """

    KERNEL = 0
    COPY = 1
    SET = 2
    COMM = 3
    RECORD = 4
    WAIT = 5
    HOST = 6
    LAUNCH = 7  # the host launches a graph
    SYNC = 8
    SUBTASK = 9


class Source(IntEnum):
    """How something is known."""

    GIVEN = 0  # the trace says it
    RULE = 1  # a rule on the name says it
    INFERRED = 2  # concluded from what runs around it; every answer that rests on it is marked
    USER = 3  # the user said it, by an option; of answers only


class Role(StrEnum):
    """What a stream is for."""

    COMPUTE = "compute"
    COMM = "communication"
    COPY = "copy"
    HOST = "host"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Stream:
    """A device's stream or a host's thread.

    Attributes:
        rank: whose; 0 where the trace knows no ranks.
        device: the device's number, None for a host's thread.
        name: as a person calls it: "stream 7", "main", "thread 4711".
        key: the trace's own id of it.
        role: what it is for.
        role_source: how that is known.
    """

    rank: int
    device: int | None
    name: str
    key: int
    role: Role = Role.OTHER
    role_source: Source = Source.GIVEN


@dataclass(frozen=True, slots=True)
class Group:
    """A communication group.

    Attributes:
        name: the trace's name or hash of it.
        ranks: its members, empty if the trace does not say.
    """

    name: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured graph that the trace replays.

    Attributes:
        rank: whose.
        key: the trace's id of it ("model 45", "graph 12"), or one made from its kernels ("static 3").
        source: GIVEN where the trace names the graph, INFERRED where equal sequences of kernels were taken
            for one.
        nodes: how many operations one replay has.
        edges: int32 [E, 2], node then dependent node, from a dump of the topology; None without one.
    """

    rank: int
    key: str
    source: Source
    nodes: int
    edges: Int32 | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something about the data that a reader of an answer should know.

    Attributes:
        what: a short fixed word: "dropped", "clipped", "repaired", "truncated", "negative", "unresolved",
            "missing" ...
        count: how many rows, events or files.
        why: a sentence.
        rank: whose, or None.
    """

    what: str
    count: int
    why: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that was read.

    `read` = `rows` + `marks` + the sum of `dropped`: nothing is lost without a reason.

    Attributes:
        path: where it was.
        format: "kineto", "ascend text", "ascend db", "slipstream".
        rank: whose it is.
        read: events in the file, or rows of its tables.
        rows: how many became rows of the table.
        marks: how many became marks.
        dropped: reason -> count of the others.
    """

    path: str
    format: str
    rank: int
    read: int
    rows: int
    marks: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VendorStep:
    """A line of the vendor's own totals (`step_trace_time.csv`, `StepTraceTime`), in nanoseconds.

    Attributes:
        rank: whose.
        step: the profiler's step, "" where it has none.
        totals: by the vendor's column, as "Computing", "Communication(Not Overlapped)", "Overlapped",
            "Communication", "Free".
    """

    rank: int
    step: str
    totals: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Advanced:
    """What one round gave, from a side file.

    Attributes:
        round: its number in the file's counting, -1 if the file does not count.
        advanced: tokens of each request of the round: accepted drafts + 1.
        start_ns: when it began, on the table's clock, or None.
        rank: on whose clock that was; -1 where a file beside the trace says it.
    """

    round: int
    advanced: tuple[int, ...]
    start_ns: int | None = None
    rank: int = -1


@dataclass(frozen=True, slots=True)
class Clock:
    """How the times of a rank were brought to the clock of the others.

    Attributes:
        rank: whose.
        moved_ns: what was added to its times; of a clock that drifts, in the middle of its collectives.
        drift_ppm: what was added more by the time, in microseconds a second; 0 where it does not drift.
        collectives: it rests on the ends of so many.
        spread_ns: of their differences about that.
    """

    rank: int
    moved_ns: int
    drift_ppm: float
    collectives: int
    spread_ns: int


@dataclass(frozen=True)
class Marks:
    """Annotations, sorted by (start, end descending).

    Attributes:
        start_ns, end_ns: int64 [M].
        name: int32 [M], into the table's `names`.
        stream: int32 [M], into the table's `streams`: the thread that wrote it, or the device's stream that a
            profiler mirrored it to (`gpu_user_annotation`).
        args: what else was written, by mark.
    """

    start_ns: Int64
    end_ns: Int64
    name: Int32
    stream: Int32
    args: Mapping[int, Args] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Timeline:
    """One run, all its ranks, on one clock. Rows are sorted by (start, end descending).

    Attributes:
        start_ns, end_ns: int64 [N], from `base_ns`; end >= start.
        name: int32 [N], into `names`.
        stream: int32 [N], into `streams`.
        kind: uint8 [N], a Kind.
        kind_source: uint8 [N], a Source.
        correlation: int64 [N], the trace's launch id, -1 none. Unique within a rank at most; larger ids than
            64 bits were numbered.
        launch: int32 [N], the row of the host's call that issued it, -1 unknown. Many rows may have one launch.
        graph: int32 [N], into `graphs`, -1 not in a graph. Also set at the LAUNCH row.
        replay: int32 [N], the how-manieth replay of that graph in this trace, from 0. Also set at the LAUNCH
            row.
        node: int32 [N], the row's position in its graph, from 0; edges of the Graph speak of it.
        group: int32 [N], into `groups`.
        bytes: int64 [N], moved or sent, -1 unknown.
        sequence: int64 [N], the collective's number within its group; equal on all its ranks. -1 unknown.
        parent: int32 [N], of a SUBTASK the row it is a part of, -1 unknown.
        record: int32 [N], of WAIT and SYNC: the row it waits for. A RECORD row where the device's records are
            in the trace, else the host's call (`cudaEventRecord`): then what that call covers is the last
            operation that was issued before it to the stream `waited`. -1 unknown.
        waited: int32 [N], of WAIT and SYNC: the stream waited for, -1 unknown.
        details: what else the trace says of a row, for few kinds (communication, waits, graphs, our own
            phases).
        base_ns: what was subtracted from the trace's clock.
        clocks: of ranks whose times were moved to the others' clock.
    """

    start_ns: Int64
    end_ns: Int64
    name: Int32
    stream: Int32
    kind: UInt8
    kind_source: UInt8
    correlation: Int64
    launch: Int32
    graph: Int32
    replay: Int32
    node: Int32
    group: Int32
    bytes: Int64
    sequence: Int64
    parent: Int32
    record: Int32
    waited: Int32
    names: tuple[str, ...]
    streams: tuple[Stream, ...]
    marks: Marks
    groups: tuple[Group, ...] = ()
    graphs: tuple[Graph, ...] = ()
    details: Mapping[int, Args] = field(default_factory=dict)
    base_ns: int = 0
    notes: tuple[Note, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    vendor: tuple[VendorStep, ...] = ()
    advanced: tuple[Advanced, ...] = ()
    clocks: tuple[Clock, ...] = ()

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def dur_ns(self) -> Int64:
        """int64 [N]."""
        return self.end_ns - self.start_ns

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that the trace has, ascending."""
        return tuple(sorted({stream.rank for stream in self.streams}))

    @cached_property
    def rank(self) -> Int32:
        """int32 [N], of each row."""
        return np.array([stream.rank for stream in self.streams], np.int32)[self.stream]

    @cached_property
    def on_device(self) -> Bool:
        """bool [N], whether the row is a device's."""
        return np.array([stream.device is not None for stream in self.streams], np.bool_)[self.stream]

    @cached_property
    def device(self) -> Int32:
        """int32 [N], which device each row is of, counted over all ranks; -1 for a host's."""
        numbers: dict[tuple[int, int], int] = {}
        of_stream = [
            -1 if stream.device is None else numbers.setdefault((stream.rank, stream.device), len(numbers))
            for stream in self.streams
        ]
        return np.array(of_stream, np.int32)[self.stream]

    @cached_property
    def is_work(self) -> Bool:
        """bool [N], whether a device is busy with it: kernels, copies, sets and communication; no parts."""
        return self.on_device & (self.kind <= Kind.COMM)

    @cached_property
    def takings(self) -> Int32:
        """int32 [T], calls of the host that took what another thread had put into a queue, by (thread, start).

        Their `launch` is the putting; see `dispatch`.
        """
        found = np.flatnonzero((self.launch >= 0) & ~self.on_device)
        return found[np.lexsort((self.start_ns[found], self.stream[found]))].astype(np.int32)

    def name_of(self, row: int) -> str:
        """Return the name of a row."""
        return self.names[int(self.name[row])]

    def args(self, row: int) -> Args:
        """Return what else the trace says of a row; empty where nothing was kept."""
        return self.details.get(row, {})

"""Runs on the virtual device in Slipstream's own format, a file a rank: as a runtime writes it whose devices time
their operations, through the recorder and the writer that our engine uses.

main          [verify .............................]      phases, with what the engine knows of them
main graph     [norm][attention]    [join][mlp]           what they are made of
branch graph         [indexer     ]
comm                                         [all-reduce]
host          [call]   [call]                             arrows: launches, waits, the host standing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slipstream.timeline.table import Kind
from slipstream.trace import Flow, Recorder, Slice, names, write_chrome
from slipstream.trace.events import COMMUNICATION, KERNEL, KIND, Args, Event
from tests.timeline.speculative import Shape
from tests.timeline.virtual import Node, Rank, Work, World

#: What a rank's phase says of itself, and what a call of the host does: by (rank, name), of which round.
Said = Callable[[int, str, int], Args]


def write_ours(
    folder: Path, world: World, graphs: Sequence[list[Node]], said: Said | None = None
) -> list[Path]:
    """Write a file a rank; there are no side files: what a graph's nodes wait for is in the trace."""
    for rank in world.ranks:
        recorder = Recorder()
        for event in _Own(world, rank, graphs, said or (lambda *_: {})).events():
            recorder.add(event)
        about = {"rank": rank.rank, "world_size": len(world.ranks), "dropped": recorder.dropped}
        write_chrome(folder / f"own.{rank.rank}.json.gz", recorder.events(), metadata=about)
    return []


def said_by(shape: Shape) -> Said:
    """What our engine says of its phases (`graph.runner.trace_args`) and of the tokens of a round."""

    def said(rank: int, name: str, number: int) -> Args:
        if name == names.PUBLISH:
            return {"advanced": advanced_by(shape, number)}
        if name not in (names.DRAFT, names.VERIFY, names.EXTEND):
            return {}
        eager = name == names.EXTEND and rank in shape.eager_extend
        width = shape.width - (name == names.DRAFT)
        bucket = shape.requests if eager else shape.bucket
        return {
            "route": "eager" if eager else "replay",
            "reason": "no graph" if eager else "captured",
            "requests": shape.requests,
            "bucket": bucket,
            "width": width,
            "rows": bucket * width,
            "padded_rows": (bucket - shape.requests) * width,
        }

    return said


def advanced_by(shape: Shape, number: int) -> int:
    """The tokens of a round, all requests together."""
    return shape.requests * 2 + number % 3


class _Own:
    """The events of one rank."""

    def __init__(self, world: World, rank: Rank, graphs: Sequence[list[Node]], said: Said) -> None:
        self.world, self.rank, self.graphs, self.said = world, rank.rank, graphs, said
        self.works = rank.works
        self.tail: dict[str, Work] = {}
        self.blocked: dict[str, int] = {}  # until when a stream stands in waits
        self.recorded: dict[int, dict[str, Work]] = {}
        self.replays: dict[tuple[int, int], list[Work]] = {}
        self.published = 0

    def events(self) -> Iterator[Event]:
        yield from self._phases()
        for work in self.works:
            if work.stream == "thread":
                yield from self._host(work)
            elif work.kind == Kind.WAIT:
                assert work.record is not None
                done = self.recorded[id(work.record)][work.waited]
                yield self._wait(work.stream, done, self.world.costs.event)
            else:
                yield from self._device(work)

    def _phases(self) -> Iterator[Event]:
        """A slice over each phase, and over each replay outside of phases, on the stream that it begins on."""
        found: dict[tuple[object, ...], list[Work]] = {}
        for work in self.works:
            if work.kind <= Kind.COMM and (work.phase or work.graph >= 0):
                key = (work.phase,) if work.phase else (work.graph, work.replay)
                found.setdefault(key, []).append(work)
        for works in found.values():
            name, first = _phase(works[0]), works[0]
            end = max(work.end for work in works)
            said = self.said(self.rank, name, int((first.phase or "0").split()[0]))
            if first.graph >= 0:
                said = {"route": "replay", **said}
            yield Slice(first.stream, name, first.start, end - first.start, said)

    def _host(self, work: Work) -> Iterator[Event]:
        name, said = work.name, {}
        if name == "process_batch_result":
            name = names.PUBLISH
            said = self.said(self.rank, name, self.published)
            self.published += 1
        yield Slice(names.HOST, name, work.start, work.end - work.start, said)
        if name == "cudaEventRecord":
            self.recorded[id(work)] = dict(self.tail)
        elif work.kind == Kind.SYNC and work.waited in self.tail:
            done = self.tail[work.waited].end
            yield Flow(f"host waits for {work.waited}", work.waited, done, names.HOST, work.end)

    def _wait(self, stream: str, done: Work, delay: int) -> Flow:
        before = self.tail[stream].end if stream in self.tail else 0
        ended = max(before, self.blocked.get(stream, 0), done.end + delay)
        self.blocked[stream] = ended
        return Flow(f"{stream} waits for {done.stream}", done.stream, done.end, stream, ended)

    def _device(self, work: Work) -> Iterator[Event]:
        after: tuple[int, ...] = ()
        if work.graph >= 0:
            replay = self.replays.setdefault((work.graph, work.replay), [])
            replay.append(work)
            after = self.graphs[work.graph][work.node].after
            for other in after:
                if replay[other].stream != work.stream:
                    yield self._wait(work.stream, replay[other], 0)
        if not after:
            assert work.call is not None
            yield Flow("launch", names.HOST, work.call.end, work.stream, work.start)
        args: Args = {KIND: KERNEL}
        track = work.stream
        if work.kind == Kind.COMM:
            args = {KIND: COMMUNICATION, "group": "world", "sequence": work.number}
        elif work.phase or work.graph >= 0:
            track, args["phase"] = names.graph_track(track), _phase(work)
        yield Slice(track, work.name, work.start, work.end - work.start, args)
        self.tail[work.stream] = work


def _phase(work: Work) -> str:
    return work.phase.split(" ", 1)[1] if work.phase else f"graph {work.graph}"

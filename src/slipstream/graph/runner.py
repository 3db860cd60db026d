"""The graphs of one engine: captures them, runs a phase as the dispatcher says, drops and captures them again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from slipstream.device.api import Device, Graph, Stream
from slipstream.errors import CaptureError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import MIXED, Dispatch, Dispatcher
from slipstream.graph.failures import classify
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.pieces import Live, capture_pieces, capture_whole
from slipstream.graph.stats import GraphStats
from slipstream.graph.switch import GraphSaving, ShapeSaving, pays
from slipstream.graph.tasks import GraphTasks, TaskBook
from slipstream.graph.wrapper import CaptureGate, Entry, GraphWrapper, eager
from slipstream.trace import NullRecorder, Recorder, Slice, names

#: Runs one phase in one shape, over the static buffers of that shape.
PhaseFunction = Callable[[BatchDescriptor], Any]


class _Job(NamedTuple):
    """One graph to capture: the padded batch, and the modes to try in their order."""

    shape: BatchDescriptor
    modes: tuple[GraphMode, ...]


class _PhaseGraphs(NamedTuple):
    """A phase's wrappers: whole around pieces around the function."""

    whole: GraphWrapper
    pieces: GraphWrapper

    def of(self, mode: GraphMode) -> GraphWrapper:
        return self.whole if mode is GraphMode.FULL else self.pieces


class GraphRunner:
    """The graphs of one engine.

    Args:
        device: captures and replays.
        dispatcher: chooses the route.
        phases: what each phase runs. The functions read `StepBuffers` only.
        check: compare static addresses at every replay, not at the first one only.
        recorder: takes a slice a phase.
        observe: is told the time of each captured shape in nanoseconds.
        tasks: of the graphs, where ops take numbers from the host.
    """

    def __init__(
        self,
        device: Device,
        dispatcher: Dispatcher,
        phases: Mapping[str, PhaseFunction],
        *,
        check: bool = False,
        recorder: Recorder | None = None,
        observe: Callable[[BatchDescriptor, int], None] | None = None,
        tasks: TaskBook | None = None,
    ) -> None:
        self.device = device
        self.dispatcher = dispatcher
        self.stats = GraphStats()
        self.recorder = recorder or NullRecorder()
        self.gate = CaptureGate()
        self._observe = observe or (lambda key, time_ns: None)
        self._book = tasks
        self._phases = dict(phases)
        self._stream = device.current_stream()
        self._wrappers = {phase: self._wrap(function, check) for phase, function in phases.items()}
        self._jobs: list[_Job] = []
        self._kernels_gone: dict[str, int] = {}

    def _wrap(self, function: PhaseFunction, check: bool) -> _PhaseGraphs:
        pieces = GraphWrapper(
            GraphMode.PIECEWISE,
            eager(function),
            lambda key, call: capture_pieces(self.device, key, call, self._stream),
            self.gate,
            check=check,
        )
        whole = GraphWrapper(
            GraphMode.FULL,
            pieces,
            lambda key, call: capture_whole(self.device, key, call, self._stream, self._book),
            self.gate,
            check=check,
        )
        return _PhaseGraphs(whole, pieces)

    def capture(self, widths: Mapping[str, Sequence[int]], stream: Stream, mixed: Sequence[str] = ()) -> None:
        """Capture phase by phase, the largest shapes first.

        A warm-up run comes before each; of the chunks of prompts, which take as long as prefills, before the
        first.

        What cannot be captured runs eagerly from then on, and says why; `retry` tries again. A later call captures
        more.

        Args:
            widths: rows a request that each decode phase is captured for.
            stream: what is captured, and where.
            mixed: phases of mixed batches, captured at the dispatcher's sizes where its mode has pieces for them.
        """
        self._stream = stream
        self.dispatcher.admit(widths)
        # Chunks of prompts first: smaller graphs then fit into the memory that theirs share.
        jobs = [*self._mixed_jobs(mixed), *self._decode_jobs(widths)]
        self._jobs += jobs
        self._capture_jobs(jobs)

    def _decode_jobs(self, widths: Mapping[str, Sequence[int]]) -> Iterator[_Job]:
        modes = self.dispatcher.decode_modes()
        for phase, phase_widths in widths.items() if modes else ():
            shapes = [BatchDescriptor(phase, b, w) for b in self.dispatcher.buckets for w in phase_widths]
            for shape in sorted(shapes, key=lambda shape: (shape.rows, shape.width), reverse=True):
                yield _Job(shape, modes)

    def _mixed_jobs(self, mixed: Sequence[str]) -> Iterator[_Job]:
        if self.dispatcher.mode.mixed is GraphMode.PIECEWISE:
            for phase in mixed:
                for size in reversed(self.dispatcher.mixed_sizes):
                    yield _Job(BatchDescriptor(phase, 1, size), (GraphMode.PIECEWISE,))

    def _capture_jobs(self, jobs: Sequence[_Job]) -> None:
        # Once a width has failed, its smaller shapes are not tried: what is wrong is seldom the size.
        broken: dict[tuple[GraphMode, str, int], str] = {}
        with self.gate.open():
            for shape, modes in jobs:
                for mode in modes:
                    key, width = self.dispatcher.key(mode, shape), 0 if shape.phase in MIXED else shape.width
                    try:
                        if (mode, shape.phase, width) in broken:
                            raise CaptureError(broken[mode, shape.phase, width])
                        self._capture_one(mode, key, shape)
                        break
                    except CaptureError as error:
                        broken[mode, shape.phase, width] = str(error)
                        self.dispatcher.fail(mode, key, f"capture failed: {error}{_known(error)}")

    def _capture_one(self, mode: GraphMode, key: BatchDescriptor, shape: BatchDescriptor) -> None:
        wrapper = self._wrappers[key.phase].of(mode)
        live = Live(1, key.rows) if key.num_reqs is None else Live(shape.slots, key.rows)
        with self._stream:
            if key not in wrapper.entries:
                if key.phase not in MIXED or shape.rows == self.dispatcher.mixed_sizes[-1]:
                    with torch.inference_mode(), self._book.warm_up() if self._book else nullcontext():
                        self._phases[key.phase](shape)  # warm-up
                wrapper(mode, key, live)
                self._note(mode, key, wrapper.entries[key])
            if shape.phase not in MIXED:
                replay = wrapper.entries[key].graph.replay
                self._observe(shape, self._cost_ns(lambda: replay(Live(shape.slots, shape.rows))))
        self.dispatcher.mend(mode, key)

    def _note(self, mode: GraphMode, key: BatchDescriptor, entry: Entry) -> None:
        graph = entry.graph
        self.stats.note_capture(
            mode,
            key,
            entry.capture_ns,
            pieces=len(graph.graphs),
            memory_bytes=graph.memory_bytes,
            streams=max((each.num_streams for each in graph.graphs), default=0),
            tasks=len(graph.tasks or ()),
        )

    def _cost_ns(self, run: Callable[[], Any]) -> int:
        """Return the best of three runs: the shape's cost before the first request needs it."""
        times = []
        self.device.synchronize()
        for _ in range(3):
            started = time.perf_counter_ns()
            if self._book is not None:
                self._book.lists.hold()
            run()
            self.device.synchronize()
            times.append(time.perf_counter_ns() - started)
        return min(times)

    def run(self, dispatch: Dispatch, num_requests: int, stream: Stream) -> Any:
        """Run a phase on `stream` as dispatched, and return the function's results.

        Results of a replay are valid until the next replay of the same graph.

        Raises:
            CaptureError: the dispatched graph does not exist.
            ReplayError: a static input has moved.
        """
        key, started = dispatch.key, time.perf_counter_ns()
        with stream:
            result = self._wrappers[key.phase].whole(dispatch.mode, key, Live(num_requests, dispatch.rows))
        ended = time.perf_counter_ns()
        self.stats.count(dispatch, ended - started)
        if self._book is not None and dispatch.mode is GraphMode.FULL:
            tasks = self._wrappers[key.phase].whole.entries[key].graph.tasks
            if tasks is not None:
                self.stats.graphs[dispatch.mode, key].update_ns += tasks.stats.last_ns
        if self.recorder.enabled and key.phase not in MIXED:
            self._record(stream.name, dispatch, started, ended)
        return result

    def _record(self, track: str, dispatch: Dispatch, started_ns: int, ended_ns: int) -> None:
        if dispatch.route is Route.REPLAY:
            for graph in (
                self._wrappers[dispatch.key.phase].of(dispatch.mode).entries[dispatch.key].graph.graphs
            ):
                self.recorder.parts(names.graph_track(track), dispatch.key.phase, graph.group_times())
        duration = ended_ns - started_ns
        self.recorder.add(Slice(track, dispatch.key.phase, started_ns, duration, trace_args(dispatch)))
        self.recorder.add(Slice(names.HOST, names.RECORD, ended_ns, time.perf_counter_ns() - ended_ns))

    @property
    def tasks(self) -> dict[BatchDescriptor, GraphTasks]:
        """The tasks of the captured graphs that have some, by shape."""
        found = {}
        for wrappers in self._wrappers.values():
            for key, entry in wrappers.whole.entries.items():
                if entry.graph.tasks:
                    found[key] = entry.graph.tasks
        return found

    def sleep(self) -> None:
        """Drop every graph and the memory that they share; batches run eagerly until `wake`."""
        self._kernels_gone = self.kernel_ns()
        for wrappers in self._wrappers.values():
            for wrapper in wrappers:
                wrapper.clear()
        self.device.synchronize()
        self.device.drop_pool()
        self.dispatcher.sleep(True)

    def wake(self) -> None:
        """Capture again what `sleep` dropped. The static buffers have to hold safe values, as at first."""
        self.dispatcher.sleep(False)
        self._capture_jobs(self._jobs)

    def retry(self) -> None:
        """Try again what could not be captured. The static buffers have to hold safe values."""
        self._capture_jobs([job for job in self._jobs if not self._captured(job)])

    def _captured(self, job: _Job) -> bool:
        wrappers, mode = self._wrappers[job.shape.phase], job.modes[0]
        return self.dispatcher.key(mode, job.shape) in wrappers.of(mode).entries

    def saving(self, phase: str, asked: str, *, measure: bool) -> GraphSaving:
        """Return what the graphs of a phase cost and save.

        Args:
            phase: one that was captured.
            asked: "auto", or "on".
            measure: whether to run the smallest and the largest bucket of the largest width, replayed and eagerly;
                the static buffers then have to hold safe values.
        """
        shapes = [job.shape for job in self._jobs if job.shape.phase == phase and self._captured(job)]
        records = [record for (_, key), record in self.stats.graphs.items() if key.phase == phase]
        width = max((shape.width for shape in shapes), default=0)
        widest = sorted((shape for shape in shapes if shape.width == width), key=lambda shape: shape.slots)
        measured = tuple(self._measure(s) for s in dict.fromkeys((*widest[:1], *widest[-1:])) if measure)
        return GraphSaving(
            phase,
            asked,
            graphs=sum(record.pieces for record in records),
            memory_bytes=sum(record.memory_bytes for record in records),
            capture_ns=sum(record.capture_ns for record in records),
            shapes=measured,
            kept=bool(shapes) and (not measure or pays(measured)),
        )

    def _measure(self, shape: BatchDescriptor) -> ShapeSaving:
        dispatch = self.dispatcher.dispatch(shape.phase, shape.slots, shape.width)
        run, live = self._wrappers[shape.phase].whole, Live(shape.slots, shape.rows)
        with self._stream:
            replay_ns = self._cost_ns(lambda: run(dispatch.mode, dispatch.key, live))
            eager_ns = self._cost_ns(lambda: run(GraphMode.NONE, shape, live))
        return ShapeSaving(shape, replay_ns, eager_ns)

    def drop(self, phase: str, reason: str) -> None:
        """Drop the graphs of a phase for good; it runs eagerly from now on, with `reason`."""
        self._kernels_gone = self.kernel_ns()
        for wrapper in self._wrappers[phase]:
            wrapper.clear()
        for graph in self.device_graphs():
            for kernel, spent in graph.spent_ns().items():
                self._kernels_gone[kernel] -= spent
        self._jobs = [job for job in self._jobs if job.shape.phase != phase]
        self.stats.forget(phase)
        self.dispatcher.disable(phase, reason)

    def kernel_ns(self) -> dict[str, int]:
        """Return the time of all replays so far by kernel, in nanoseconds, over all graphs."""
        total = dict(self._kernels_gone)
        for graph in self.device_graphs():
            for kernel, spent in graph.spent_ns().items():
                total[kernel] = total.get(kernel, 0) + spent
        return total

    def device_graphs(self) -> Iterator[Graph]:
        """Yield the device's graphs: one of a whole phase, several of one in pieces."""
        for wrappers in self._wrappers.values():
            for wrapper in wrappers:
                for entry in wrapper.entries.values():
                    yield from entry.graph.graphs

    @property
    def graphs(self) -> dict[BatchDescriptor, Graph]:
        """The graphs of whole phases by shape."""
        return {
            key: entry.graph.graphs[0]
            for wrappers in self._wrappers.values()
            for key, entry in wrappers.whole.entries.items()
        }

    def captured(self) -> list[tuple[GraphMode, BatchDescriptor]]:
        """Return mode and key of every graph there is."""
        wrappers = [wrapper for both in self._wrappers.values() for wrapper in both]
        return [(wrapper.mode, key) for wrapper in wrappers for key in wrapper.entries]


def _known(error: CaptureError) -> str:
    """Return what is known of such failures, to be put behind the error's own text."""
    diagnosis = classify(error)
    return f" ({diagnosis.sentence})" if diagnosis.known else ""


def trace_args(dispatch: Dispatch) -> dict[str, int | float | str]:
    """Return what a trace says of a phase's route and rows."""
    args: dict[str, int | float | str] = {
        "route": dispatch.route.value,
        "reason": dispatch.reason,
        "requests": dispatch.num_reqs,
        "bucket": dispatch.bucket,
        "width": dispatch.shape.width,
        "rows": dispatch.shape.rows,
        "padded_rows": dispatch.padded_rows,
    }
    if dispatch.mode is GraphMode.PIECEWISE:
        args["mode"] = dispatch.mode.value
    return args

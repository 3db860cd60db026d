"""Captures the phases' graphs, and runs a phase by replay or eagerly as the dispatcher says."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from slipstream.device.api import Device, Graph, Stream
from slipstream.errors import CaptureError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.dispatch import Dispatch, Dispatcher
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.stats import GraphStats
from slipstream.graph.tasks import TaskBook
from slipstream.trace import NullRecorder, Recorder, Slice, names

#: Runs one phase in one shape, over the static buffers of that shape.
PhaseFunction = Callable[[BatchDescriptor], Any]


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
        phases: dict[str, PhaseFunction],
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
        self._phases = phases
        self._observe = observe or (lambda key, time_ns: None)
        self._graphs: dict[BatchDescriptor, Graph] = {}
        self._unchecked: set[BatchDescriptor] = set()
        self._check = check
        self._tasks = tasks

    def capture(self, widths: dict[str, tuple[int, ...]], stream: Stream) -> None:
        """Capture every phase at every bucket and width, largest first; a warm-up run comes before each.

        A phase that cannot be captured runs eagerly from then on, and says why.
        """
        if self.dispatcher.mode is GraphMode.NONE:
            return
        for phase, phase_widths in widths.items():
            for width in phase_widths:
                for bucket in reversed(self.dispatcher.buckets):
                    try:
                        self._capture_one(BatchDescriptor(phase, bucket, width), stream)
                    except CaptureError as error:
                        self.dispatcher.fail(phase, width, f"capture failed: {error}")
                        break

    def _capture_one(self, key: BatchDescriptor, stream: Stream) -> None:
        started = time.perf_counter_ns()
        function = self._phases[key.phase]
        with stream, torch.inference_mode(), self._tasks.warm_up() if self._tasks else nullcontext():
            function(key)
        graph = self.device.graph(str(key))
        with self._tasks.capture(key, graph) if self._tasks else nullcontext():
            graph.capture(lambda: function(key), stream)
        self._graphs[key] = graph
        self._unchecked.add(key)
        self.stats.captures += 1
        captured = time.perf_counter_ns()
        self.stats.capture_ns += captured - started
        with stream:
            cost_ns = self._cost_ns(key, graph)
        self._observe(key, cost_ns)

    def _replay(self, key: BatchDescriptor, graph: Graph) -> Any:
        return graph.replay() if self._tasks is None else self._tasks.replay(key, graph)

    def _cost_ns(self, key: BatchDescriptor, graph: Graph) -> int:
        """Return the best of three replays: the shape's cost before the first request needs it."""
        times = []
        self.device.synchronize()
        for _ in range(3):
            started = time.perf_counter_ns()
            if self._tasks is not None:
                self._tasks.lists.hold()
            self._replay(key, graph)
            self.device.synchronize()
            times.append(time.perf_counter_ns() - started)
        return min(times)

    def run(self, dispatch: Dispatch, num_requests: int, stream: Stream) -> Any:
        """Run a phase on `stream` as dispatched, and return the function's results.

        Results of a replay are valid until the next replay of the same graph.
        """
        key = dispatch.key
        started = time.perf_counter_ns()
        with stream:
            if dispatch.route is Route.REPLAY:
                graph = self._graphs[key]
                if self._check or key in self._unchecked:
                    graph.check_addresses()
                    self._unchecked.discard(key)
                result = self._replay(key, graph)
            else:
                with torch.inference_mode():
                    result = self._phases[key.phase](key)
        ended = time.perf_counter_ns()
        self.stats.count(dispatch, num_requests, ended - started)
        if self.recorder.enabled:
            if dispatch.route is Route.REPLAY:
                times = self._graphs[key].group_times()
                self.recorder.parts(names.graph_track(stream.name), key.phase, times)
            self.recorder.add(_slice(stream.name, dispatch, num_requests, started, ended))
        return result

    def kernel_ns(self) -> dict[str, int]:
        """Return the time of all replays so far by kernel, in nanoseconds, over all graphs."""
        total: dict[str, int] = {}
        for graph in self._graphs.values():
            for kernel, spent in graph.spent_ns().items():
                total[kernel] = total.get(kernel, 0) + spent
        return total

    @property
    def graphs(self) -> dict[BatchDescriptor, Graph]:
        """The captured graphs by shape."""
        return dict(self._graphs)


def _slice(track: str, dispatch: Dispatch, num_requests: int, started_ns: int, ended_ns: int) -> Slice:
    key = dispatch.key
    args: dict[str, int | float | str] = {
        "route": dispatch.route.value,
        "reason": dispatch.reason,
        "requests": num_requests,
        "bucket": key.num_reqs,
        "width": key.width,
        "rows": key.rows,
        "padded_rows": key.padded_rows(num_requests),
    }
    return Slice(track, key.phase, started_ns, ended_ns - started_ns, args)

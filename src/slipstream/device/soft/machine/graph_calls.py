"""Calls that capture, replay and update graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.device.soft.machine import errors
from slipstream.device.soft.machine.commands import UPDATE, Command
from slipstream.device.soft.machine.core import Core
from slipstream.device.soft.machine.graphs import Graph, Replay, Task, foreign, launch
from slipstream.device.soft.machine.places import Place
from slipstream.device.soft.machine.regions import Region


@dataclass
class _Update:
    """An update in progress on a stream."""

    task: Task
    place: Place
    kernels: list[Command]


class GraphCalls(Core):
    """Graphs and their tasks."""

    def begin_capture(self, stream: int, graph: Graph, mode: str = "global") -> None:
        """Begin to capture what is issued to the stream, and to streams that join it through events.

        Raises:
            GraphCheck, StreamCaptured, OutOfResources: see `errors`.
        """
        self._captures.begin(self._streams[stream], graph, mode, self._place())

    def end_capture(self, stream: int) -> Graph:
        """End the capture, on the stream on which it was begun.

        Raises:
            UnjoinedStream, CaptureUnmatched, CaptureInvalidated, StreamNotCaptured, TaskGroupStatus: see `errors`.
        """
        return self._captures.end(self._streams[stream])

    def is_capturing(self, stream: int) -> Graph | None:
        """Return the graph that the stream is being captured into, if it is."""
        capture = self._streams[stream].capture
        return capture.graph if capture is not None else None

    def bind_inputs(self, graph: Graph, inputs: Mapping[str, Region]) -> None:
        """Note where the inputs of a graph lie at capture, by name (or position); `replay` compares."""
        graph.inputs, graph.input_place = dict(inputs), self._place()

    def replay(self, stream: int, graph: Graph, inputs: Mapping[str, Region] | None = None) -> None:
        """Replay the graph on a stream. `inputs` are where its inputs lie now, by the names of `bind_inputs`.

        Raises:
            GraphCheck, GraphCaptured, StreamCaptured: see `errors`.
        """
        actor, place = self._streams[stream], self._place()
        self._captures.check_replay(actor, graph)
        for name, region in (inputs or {}).items():
            old = graph.inputs.get(name)
            if old is not None and (old.buffer is not region.buffer or old[1:5] != region[1:5]):
                self._reporter.stale_address(graph, name, old, region, place)
        launch(self._issue, self._host, graph, actor, Replay(graph, actor, place, self._reporter))
        self._after_call()

    def reset(self, graph: Graph) -> None:
        """Drop what the graph holds; it can be captured anew.

        Raises:
            GraphCaptured: it is being captured.
            GraphRunning: a replay of it hasn't finished.
        """
        self._captures.check_reset(graph)
        last = graph.last
        if last is not None and last.end is not None and self.executes:
            if not last.done or last.end.tick > self._host.clock.get(last.actor.id, 0):
                self._reporter.reset_running(graph, last, self._place())
            if not last.done:
                raise errors.GraphRunning(
                    f"{graph.name} is running (replayed at {last.place.where}); "
                    f"synchronise {last.actor.name} before the reset"
                )
        graph.clear()

    def begin_task(self, stream: int) -> None:
        """Begin a task group: the kernels captured until `end_task` can be updated.

        Raises:
            StreamNotCaptured: the stream isn't capturing.
            TaskGroupStatus: a group is open.
        """
        self._captures.begin_task(self._streams[stream], self._place())

    def end_task(self, stream: int) -> Task:
        """End the task group and return its handle.

        Raises:
            StreamNotCaptured, TaskGroupStatus: see `errors`.
        """
        return self._captures.end_task(self._streams[stream])

    def begin_update(self, stream: int, task: Task) -> None:
        """Begin an update: the kernels issued to the stream until `end_update` take the place of the task's.

        Raises:
            StreamCaptured: the stream is capturing.
            TaskGroupStatus: an update is open on it.
            UpdateFailed: the task's graph isn't captured any more.
        """
        actor = self._streams[stream]
        self._captures.check_update(actor, task)
        actor.update = _Update(task, self._place(), [])

    def end_update(self, stream: int) -> None:
        """End the update.

        Raises:
            TaskGroupStatus: none is open.
            UpdateFailed: the kernels aren't as many, or other ops, than the task's.
        """
        actor = self._streams[stream]
        update = actor.update
        actor.update = None
        self._captures.check_end_update(actor, update)
        found = foreign(update.task, update.kernels)
        if found is not None:
            self._reporter.tasks_mixed(update.task, *found)
        for node, kernel in zip(update.task.nodes, update.kernels, strict=True):
            command = Command(
                UPDATE, actor, f"update of {kernel.op}", (), (update.task.region,), None, kernel.place
            )
            command.change = (node, kernel)
            self._issue(command)
        self._after_call()

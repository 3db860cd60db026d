"""The rules of capture, each refused with Ascend's code and a sentence that says what to do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from slipstream.device.soft.machine import errors
from slipstream.device.soft.machine.commands import Actor, Command, Event, Node
from slipstream.device.soft.machine.graphs import Capture, Graph, Task
from slipstream.device.soft.machine.places import Place, called

if TYPE_CHECKING:
    from slipstream.device.soft.machine.core import Core

MODES = ("global", "thread_local", "relaxed")


class Captures:
    """The captures in progress, and what they allow."""

    def __init__(self, machine: Core) -> None:
        self._machine = machine
        self._active: list[Capture] = []

    # --- begin, command, end ----------------------------------------------------------------------------

    def begin(self, actor: Actor, graph: Graph, mode: str, place: Place) -> None:
        """Begin a capture."""
        if mode not in MODES:
            raise ValueError(f"a capture's mode is one of {', '.join(MODES)}, not {mode!r}")
        if self._is_default(actor):
            raise errors.GraphCheck(
                f"{graph.name} cannot be captured on the default stream; make it `with torch.npu.stream(s)` "
                "current first"
            )
        if actor.capture is not None:
            raise errors.StreamCaptured(
                f"{actor.name} is being captured into {actor.capture.graph.name} already; end that capture first"
            )
        if graph.state != "new":
            raise errors.GraphCheck(f"{graph.name} was captured before; reset it, or use a new graph")
        self._take_stream(graph)
        capture = Capture(graph, actor, mode, self._machine.current_host, place)
        graph.state, graph.origin = "capturing", actor.name
        actor.capture = capture
        self._active.append(capture)

    def kernel(self, command: Command, updatable: bool) -> Node:
        """Capture a kernel."""
        capture = command.actor.capture
        assert capture is not None
        if capture.group is not None and command.actor is capture.group_actor and not updatable:
            self._break(
                capture,
                errors.NotUpdatable(
                    f"{command.op} ({command.place.where}) stands in a task group of {capture.graph.name}, but it "
                    "cannot be updated; issue it outside the group"
                ),
            )
        return capture.add(command)

    def wait(self, command: Command, event: Event) -> None:
        """Capture a wait, which may let its stream join the capture."""
        actor = command.actor
        if event.captured is None:
            self._wait_outside(actor, event)
            return
        capture, node, seen = event.captured
        if capture not in self._active:
            raise errors.EventCaptured(
                f"{event.name} was recorded inside the capture of {capture.graph.name}, so it belongs to the "
                f"graph and {actor.name} cannot wait for it; record an event after the replay instead"
            )
        if actor.capture is None:
            if self._is_default(actor):
                self._break(
                    capture,
                    errors.DefaultStreamDependency(
                        f"the default stream would wait for {event.name}, which {capture.graph.name}'s capture "
                        "records; use another stream inside the capture"
                    ),
                )
            self._take_stream(capture.graph, capture)
            capture.join(actor, command.place)
        elif actor.capture is not capture:
            self._break(
                capture,
                errors.CaptureConflict(
                    f"{actor.name} is captured into {actor.capture.graph.name} and would wait for {event.name} of "
                    f"{capture.graph.name}; two captures cannot depend on each other"
                ),
            )
        capture.wait(command, node, seen)

    def end(self, actor: Actor) -> Graph:
        """End a capture."""
        capture = actor.capture
        if capture is None:
            raise errors.StreamNotCaptured(f"{actor.name} isn't capturing, so there is no capture to end")
        graph = capture.graph
        if actor is not capture.origin:
            raise errors.CaptureUnmatched(
                f"the capture of {graph.name} was begun on {capture.origin.name} and is ended on {actor.name}"
            )
        self._active.remove(capture)
        capture.end("broken")
        if capture.broken is not None:
            raise errors.CaptureInvalidated(
                f"the capture of {graph.name} broke before its end: {capture.broken}; mend that and capture again"
            )
        if capture.group is not None:
            raise errors.TaskGroupStatus(
                f"the capture of {graph.name} ends inside the task group begun at {capture.group.place.where}"
            )
        unjoined = capture.unjoined()
        if unjoined:
            side, fork = capture.actors[unjoined[0]], capture.forks[unjoined[0]]
            raise errors.UnjoinedStream(
                f"{side.name} joined the capture of {graph.name} at {fork.where} and isn't joined back; "
                f"`{called(capture.origin.name)}.wait_stream({called(side.name)})` before the capture ends"
            )
        graph.state = "captured"
        graph.sides = [
            self._machine.graph_actor(f"{side.name} in {graph.name}", side) for side in capture.actors[1:]
        ]
        return graph

    # --- what a capture forbids -------------------------------------------------------------------------

    def forbid_synchronise(self, stream: int | None) -> None:
        """Refuse a host's wait for a stream, or for all (None)."""
        if not self._active:
            return
        if stream is not None:
            actor = self._machine.actor_of(stream)
            if actor.capture is not None:
                self._break(
                    actor.capture,
                    errors.StreamCaptured(
                        f"the host cannot wait for {actor.name}, which is being captured into "
                        f"{actor.capture.graph.name}: nothing runs during a capture; wait before or after it"
                    ),
                )
        self._forbid("the host waits for the device")

    def forbid_copy(self, stream: int, what: str) -> None:
        """Refuse a blocking copy."""
        capture = self._machine.actor_of(stream).capture
        if capture is not None:
            self._refuse(capture, f"{what} makes the host wait for {self._machine.stream_name(stream)}")
        self._forbid(f"{what} makes the host wait for the device")

    def forbid_event(self, event: Event) -> None:
        """Refuse a host's wait for an event, or a question about it."""
        if event.captured is not None:
            capture = event.captured[0]
            error = errors.EventCaptured(
                f"{event.name} was recorded inside the capture of {capture.graph.name}: the host cannot wait for "
                "it; record another event outside the capture"
            )
            if capture in self._active:
                self._break(capture, error)
            raise error
        if self._active:
            self._forbid(f"the host waits for {event.name}")

    # --- graphs and tasks -------------------------------------------------------------------------------

    def check_replay(self, actor: Actor, graph: Graph) -> None:
        """Refuse a replay that has nothing to replay, or that stands in a capture."""
        if graph.state == "capturing":
            raise errors.GraphCaptured(f"{graph.name} is being captured; end the capture before its replay")
        if graph.state != "captured":
            why = "its capture failed" if graph.state == "broken" else "it was never captured"
            raise errors.GraphCheck(f"{graph.name} cannot be replayed: {why}")
        if actor.capture is not None:
            self._break(
                actor.capture,
                errors.StreamCaptured(
                    f"{graph.name} cannot be replayed on {actor.name}, which is being captured into "
                    f"{actor.capture.graph.name}"
                ),
            )

    def check_reset(self, graph: Graph) -> None:
        """Refuse the reset of a graph that is being captured."""
        if graph.state == "capturing":
            raise errors.GraphCaptured(f"{graph.name} is being captured; end the capture before its reset")

    def begin_task(self, actor: Actor, place: Place) -> None:
        """Begin a task group."""
        capture = actor.capture
        if capture is None:
            raise errors.StreamNotCaptured(
                f"a task group can only be begun on a stream that is being captured, and {actor.name} isn't"
            )
        if capture.group is not None:
            self._break(
                capture,
                errors.TaskGroupStatus(
                    f"a task group of {capture.graph.name} is open since {capture.group.place.where}; end it first"
                ),
            )
        capture.group, capture.group_actor = Task(capture.graph, len(capture.graph.tasks) + 1, place), actor

    def end_task(self, actor: Actor) -> Task:
        """End a task group."""
        capture = actor.capture
        if capture is None:
            raise errors.StreamNotCaptured(
                f"{actor.name} isn't being captured, so no task group is open on it"
            )
        task = capture.group
        if task is None or capture.group_actor is not actor:
            raise errors.TaskGroupStatus(f"no task group is open on {actor.name}")
        capture.group = None
        if task.nodes:
            capture.graph.tasks.append(task)
        return task

    def check_update(self, actor: Actor, task: Task) -> None:
        """Refuse an update on a capturing stream, inside another, or of a graph that is gone."""
        if actor.capture is not None:
            self._break(
                actor.capture,
                errors.StreamCaptured(
                    f"{task} cannot be updated on {actor.name}, which is being captured into "
                    f"{actor.capture.graph.name}; use a stream that isn't"
                ),
            )
        if actor.update is not None:
            raise errors.TaskGroupStatus(
                f"an update is open on {actor.name} since {actor.update.place.where}; end it first"
            )
        if task.graph.state != "captured" or task not in task.graph.tasks:
            raise errors.UpdateFailed(
                f"{task} cannot be updated: {task.graph.name} doesn't hold it (any more)"
            )

    def check_end_update(self, actor: Actor, update: Any) -> None:
        """Refuse an update that doesn't fit its task."""
        if update is None:
            raise errors.TaskGroupStatus(f"no update is open on {actor.name}")
        captured = [node.op for node in update.task.nodes]
        given = [kernel.op for kernel in update.kernels]
        if captured != given:
            raise errors.UpdateFailed(
                f"{update.task} was captured with {', '.join(captured)} and is updated with "
                f"{', '.join(given) or 'nothing'}; an update issues the same ops in the same order"
            )

    # --- inside -----------------------------------------------------------------------------------------

    def _wait_outside(self, actor: Actor, event: Event) -> None:
        if event.record is None:
            return
        assert actor.capture is not None
        recorder = event.record.actor
        kind = errors.DefaultStreamDependency if self._is_default(recorder) else errors.CaptureDependency
        self._break(
            actor.capture,
            kind(
                f"{actor.name} is being captured into {actor.capture.graph.name} and would wait for {event.name}, "
                f"which {recorder.name} recorded outside the capture ({event.record.place.where}); wait for it "
                "before the capture begins, or record it on a stream that takes part"
            ),
        )

    def _forbid(self, what: str) -> None:
        for capture in self._active:
            here = (self._machine.current_host, threading.get_ident())
            same_thread = (capture.rank, capture.thread) == here
            if capture.mode == "global" or (capture.mode == "thread_local" and same_thread):
                self._refuse(capture, what)

    def _refuse(self, capture: Capture, what: str) -> None:
        self._break(
            capture,
            errors.CaptureForbids(
                f"{what} while {capture.graph.name} is being captured (mode {capture.mode!r}); do it before or "
                "after the capture"
            ),
        )

    def _break(self, capture: Capture, error: errors.SoftError) -> None:
        capture.broken = error.sentence
        raise error

    def _is_default(self, actor: Actor) -> bool:
        return self._machine.is_default(actor)

    def _take_stream(self, graph: Graph, capture: Capture | None = None) -> None:
        """Take a stream for a graph; if none is left, a capture in progress is broken by that."""
        machine = self._machine
        usable = machine.limits.streams - machine.limits.reserved_streams
        if machine.streams_used >= usable:
            error = errors.OutOfResources(
                f"New capture stream failed for {graph.name}: streams are used up, not memory (the device's own "
                f"code for that is 207008, {errors.OutOfStreams.ascend}); {usable} can be used. Capture fewer "
                "sizes, or reset graphs that aren't needed"
            )
            if capture is not None:
                self._break(capture, error)
            raise error
        graph.streams += 1

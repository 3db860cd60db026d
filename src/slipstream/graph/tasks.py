"""Ops of captured graphs that take numbers from the host, and how each replay gets new ones.

    book.call("layer 3", Source(COMMITTED, size=8, offset=4, most=512), op)     in a phase, in place of the op

Run eagerly, that is the op with the numbers as they are. Inside a capture the op becomes a task of the graph that
is being captured, behind a gate of its own:

    main     [gate 0][op 0] ... [gate 1][op 1] ...            a replay: each op waits for its numbers
    update   [update 0][open 0][update 1][open 1] ...         its refresh, on a stream of its own

Tasks belong to their graph and to no other, in the order of the capture and by name. One rule orders a refresh and
replays (docs/check.md): it comes after the graph's last replay has run, for which the update stream waits by an
event; the host never does. The gates do the rest, whichever of the two is issued first.

At each replay the tasks captured, updated and opened are compared. What is missing or too much raises at once and
names graph and op.

Where ops read such numbers on the device, as on the CPU, these are static inputs like all others: nothing comes by
here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from slipstream.device.api import Device, Event, Gate, Graph, HostOp, Stream, Task
from slipstream.errors import CaptureError, ReplayError
from slipstream.graph.host_lists import HostLists, Source, TaskOrder


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """One task: what changes of it, and all that its update needs.

    Attributes:
        name: unique in its graph.
        source: what its numbers are made of.
        op: the op; it holds the tensors that were captured.
        outputs: what the op writes.
        gate: holds the op until it is refreshed.
        task: the device's.
    """

    name: str
    source: Source
    op: HostOp
    outputs: Sequence[torch.Tensor]
    gate: Gate
    task: Task


@dataclass(slots=True)
class TaskStats:
    """What refreshes did so far. Times in nanoseconds of the host, which waits for none of them.

    Attributes:
        refreshes: how many; one a replay.
        plan_ns: finding out what is to be written.
        issue_ns: the device's calls.
        last_ns: both, of the last one.
    """

    refreshes: int = 0
    plan_ns: int = 0
    issue_ns: int = 0
    last_ns: int = 0

    def note(self, plan_ns: int, issue_ns: int) -> None:
        """Count a refresh."""
        self.refreshes += 1
        self.plan_ns += plan_ns
        self.issue_ns += issue_ns
        self.last_ns = plan_ns + issue_ns


class GraphTasks:
    """The tasks of one graph.

    Args:
        graph: whose.
        device: makes gates and the event.
        lists: what the ops' numbers are made of.
        update: the stream of the refreshes.
        order: what is issued first.
        workspace: scratch memory for every op of the graph; held as long as the graph is.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        lists: HostLists,
        update: Stream,
        order: TaskOrder,
        workspace: torch.Tensor | None,
    ) -> None:
        self.graph = graph
        self.stats = TaskStats()
        self.replays = 0
        self._device, self._lists, self._update, self._order = device, lists, update, order
        self._workspace = workspace
        self._slots: list[TaskSlot] = []
        self._sources: list[Source] = []  # those of the slots, each once
        self._index: list[int] = []  # of each slot's source
        self._seen = -1  # the lists' version at the last refresh
        self._ran: Event = device.event()  # behind the last replay
        self._broken: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of the tasks, in the order of the capture."""
        return [slot.name for slot in self._slots]

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the scratch memory."""
        return 0 if self._workspace is None else self._workspace.nbytes

    def __len__(self) -> int:
        return len(self._slots)

    # --- capture -----------------------------------------------------------------------------------------

    def add(self, name: str, source: Source, op: HostOp) -> torch.Tensor:
        """Capture an op as a task, and return its result.

        Raises:
            CaptureError: the name is taken, or the op was not there in the warm-up.
        """
        what = f"graph {self.graph.name!r}: task {name!r}"
        if name in self.names:
            raise CaptureError(f"{what} was captured already; every task needs a name of its own.")
        workspace = self._workspace
        if workspace is None:
            raise CaptureError(
                f"{what} has no workspace: the warm-up before the capture did not run it. Both have to run the "
                "same ops."
            )
        stream = self._device.current_stream()
        values = self._lists.read(source)
        gate, outputs = self._device.gate(), op.outputs()
        gate.wait(stream)
        task = self.graph.task(partial(op.issue, values, workspace, outputs), stream)
        self._slots.append(TaskSlot(name, source, op, outputs, gate, task))
        if source not in self._sources:
            self._sources.append(source)
        self._index.append(self._sources.index(source))
        return outputs[0]

    def seal(self) -> None:
        """End the capture.

        Raises:
            CaptureError: the graph has tasks that are not these.
        """
        if self.graph.num_tasks != len(self):
            raise CaptureError(
                f"graph {self.graph.name!r} has {self.graph.num_tasks} tasks, of which {len(self)} can be "
                f"refreshed ({', '.join(self.names) or 'none'}); the others would wait for ever. Capture all "
                "tasks by TaskBook.call."
            )

    # --- replay ------------------------------------------------------------------------------------------

    def replay(self) -> object:
        """Replay the graph on the current stream with the lists' numbers as they are now, and return its results.

        Raises:
            ReplayError: the lists are old or out of range: nothing was issued. Or a task was not refreshed:
                the graph has run all the same, with old numbers, so that nothing waits for it for ever.
        """
        started = time.perf_counter_ns()
        values = self.plan()
        planned = time.perf_counter_ns()
        self._compare(self.replays)
        main = self._device.current_stream()
        self._wait_for_last_replay()
        update_first = self._order is TaskOrder.UPDATE_FIRST
        result = None if update_first else self._launch(main)
        began = time.perf_counter_ns()
        failure = self._refresh(values)
        self.stats.note(planned - started, time.perf_counter_ns() - began)
        if update_first:
            result = self._launch(main)
        self._seen = self._lists.version
        if failure is not None:
            self._broken = f"a refresh failed ({failure})"
            raise failure
        self._compare(self.replays)
        return result

    def plan(self) -> list[list[int]]:
        """Return each task's numbers for the next replay; no call of the device.

        Raises:
            ReplayError: as `replay`.
        """
        if self._broken is not None:
            raise ReplayError(
                f"graph {self.graph.name!r} cannot be replayed: {self._broken}; capture it again."
            )
        if self._lists.version == self._seen:
            raise ReplayError(
                f"graph {self.graph.name!r}: no host list was written since its last replay, so task "
                f"{self._slots[0].name!r} would run with old numbers. Write the lists for every round."
            )
        by_source = [self._lists.read(source) for source in self._sources]
        return [by_source[index] for index in self._index]

    def _wait_for_last_replay(self) -> None:
        """Let the refresh wait until the last replay has taken its openings; not for the next: that hangs."""
        if self.replays:
            self._ran.wait(self._update)

    def _launch(self, main: Stream) -> object:
        try:
            result = self.graph.replay_with_tasks()
        except Exception as error:
            if self._order is TaskOrder.UPDATE_FIRST:
                self._broken = f"its gates are open, and the replay behind them failed ({error})"
            raise
        self.replays += 1
        self._ran.record(main)
        return result

    @torch.inference_mode()
    def _refresh(self, values: Sequence[Sequence[int]]) -> Exception | None:
        """Update every task and open its gate. Where an update fails its gate opens all the same.

        Returns:
            The first failure, or None.
        """
        failure: Exception | None = None
        update, workspace = self._update, self._workspace
        assert workspace is not None
        with update:
            for slot, numbers in zip(self._slots, values, strict=True):
                try:
                    slot.task.update(partial(slot.op.issue, numbers, workspace, slot.outputs), update)
                except Exception as error:  # whatever it is: the gates behind this one have to open
                    failure = failure or self._failed(slot, error)
                slot.gate.open(update)
        return failure

    def _failed(self, slot: TaskSlot, error: Exception) -> ReplayError:
        failed = ReplayError(
            f"graph {self.graph.name!r}: task {slot.name!r} could not be updated, and ran with old numbers: what "
            f"this replay computed is wrong. {error}"
        )
        failed.__cause__ = error
        return failed

    def _compare(self, replays: int) -> None:
        """Compare what was captured, updated and opened.

        Raises:
            ReplayError: a task has more or fewer updates or openings than the graph has replays.
        """
        for slot in self._slots:
            updates, openings = slot.task.updates, slot.gate.openings
            if updates != replays or openings != replays:
                self._mismatch(slot, replays)

    def _mismatch(self, slot: TaskSlot, replays: int) -> None:
        updated = sum(other.task.updates >= replays for other in self._slots)
        opened = sum(other.gate.openings >= replays for other in self._slots)
        told = (
            f"updated {slot.task.updates} times and opened {slot.gate.openings} times for {replays} replays"
        )
        self._broken = f"task {slot.name!r} was {told}"
        for other in self._slots:  # or the device would stand still, and the host at its next wait
            while other.gate.openings < replays:
                other.gate.open(self._update)
        raise ReplayError(
            f"graph {self.graph.name!r}: of {len(self)} captured tasks {updated} were updated and {opened} "
            f"opened; task {slot.name!r} was {told}. Refresh tasks by GraphTasks.replay alone, and capture again."
        )


class TaskBook:
    """Where ops become tasks: of the graph that is being captured, which owns them; of no other, and in no list.

    Args:
        device: of the graphs.
        lists: what the ops' numbers are made of.
        order: what is issued first at a replay.
    """

    def __init__(self, device: Device, lists: HostLists, order: TaskOrder = TaskOrder.REPLAY_FIRST) -> None:
        self.lists = lists
        self.order = order
        self._device = device
        self._update = device.stream("update")
        self._measuring = False
        self._workspace: torch.Tensor | None = None  # the largest one of the warm-up
        self._capturing: GraphTasks | None = None

    def call(self, name: str, source: Source, op: HostOp) -> torch.Tensor:
        """Run an op with numbers of the host, or capture it as a task; return its result.

        Args:
            name: unique among those of a phase.
            source: what its numbers are made of.
            op: over tensors that stay where they are.
        """
        if self._capturing is not None:
            return self._capturing.add(name, source, op)
        if self._measuring:
            workspace = op.workspace()
            if self._workspace is None or workspace.nbytes > self._workspace.nbytes:
                self._workspace = workspace
        return op.run(self.lists.read(source))

    @contextmanager
    def warm_up(self) -> Iterator[None]:
        """Note the largest workspace that the ops inside ask for, for the capture that follows."""
        self._measuring, self._workspace = True, None
        try:
            yield
        finally:
            self._measuring = False

    @contextmanager
    def capture(self, graph: Graph) -> Iterator[GraphTasks]:
        """Make the ops inside, which `graph` captures, its tasks; yields these. After a failure nothing is left.

        Raises:
            CaptureError: another capture is in progress, or the graph holds tasks that are not these.
        """
        if self._capturing is not None:
            raise CaptureError(
                f"graph {graph.name!r} cannot be captured: {self._capturing.graph.name!r} is being captured."
            )
        tasks = GraphTasks(graph, self._device, self.lists, self._update, self.order, self._workspace)
        self._capturing = tasks
        try:
            yield tasks
            tasks.seal()
        finally:
            self._capturing, self._workspace = None, None

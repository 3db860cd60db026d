"""Calls that put a command on a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream.device.soft.machine.commands import (
    COLLECTIVE,
    KERNEL,
    OPEN,
    RECORD,
    TAKE,
    WAIT,
    Command,
    Event,
    Gate,
    Run,
)
from slipstream.device.soft.machine.core import Core
from slipstream.device.soft.machine.places import NOWHERE, here
from slipstream.device.soft.machine.regions import Region


class StreamCalls(Core):
    """Kernels, records, waits, gates and collectives."""

    def kernel(
        self,
        stream: int,
        op: str,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        run: Run | None = None,
        updatable: bool = True,
    ) -> None:
        """Issue a kernel. `run` is called when it runs; what it raises goes to whoever let it run.

        Args:
            updatable: whether the op may be part of a task group.

        Raises:
            NotUpdatable: it may not, and the stream captures a group.
        """
        actor = self._streams[stream]
        command = Command(KERNEL, actor, op, reads, writes, run, here() if self.stacks else NOWHERE)
        if actor.capture is not None:
            self._captures.kernel(command, updatable)
            return
        if actor.update is not None:
            actor.update.kernels.append(command)
            return
        self._issue(command)
        self._after_call()

    def record(self, stream: int, event: Event) -> None:
        """Let the event mark the point that the stream has reached."""
        actor = self._streams[stream]
        command = Command(RECORD, actor, f"record of {event.name}", place=self._place())
        command.event = event
        if actor.capture is not None:
            actor.capture.record(command, event)
            return
        event.record, event.captured = command, None
        self._issue(command)
        self._after_call()

    def wait(self, stream: int, event: Event) -> None:
        """Let what the stream does next wait for the latest record of the event; nothing if there is none.

        Raises:
            CaptureDependency, CaptureConflict, DefaultStreamDependency, EventCaptured: see `errors`.
        """
        actor = self._streams[stream]
        command = Command(WAIT, actor, f"wait for {event.name}", place=self._place())
        command.event = event
        if actor.capture is not None or event.captured is not None:
            self._captures.wait(command, event)
            return
        if event.record is None:
            return
        command.deps = (event.record,)
        self._issue(command)
        self._after_call()

    def open(self, stream: int, gate: Gate) -> None:
        """Open the gate when the stream gets here."""
        self._gate_command(OPEN, stream, gate, f"opening of {gate.name}")

    def wait_gate(self, stream: int, gate: Gate) -> None:
        """Hold the stream until the gate is open, then close it."""
        self._gate_command(TAKE, stream, gate, f"wait for {gate.name}")

    def collective(
        self,
        stream: int,
        group: Sequence[int],
        name: str,
        reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
        run: Callable[[list[Any]], object] | None = None,
        payload: Any = None,
    ) -> None:
        """Issue this rank's part of a collective; it runs when every rank of the group has got there.

        Args:
            group: the ranks.
            run: called once, the lowest rank's, with every rank's payload in the order of the ranks.
            payload: whatever `run` needs of this rank.
        """
        actor = self._streams[stream]
        ranks = tuple(sorted(group))
        if self._host.rank not in ranks:
            raise ValueError(f"rank {self._host.rank} is not part of the group {list(ranks)}")
        command = Command(COLLECTIVE, actor, name, reads, writes, run, self._place())  # type: ignore[arg-type]
        if actor.capture is not None:
            self._captures.kernel(command, False).group = (ranks, payload)
            return
        self._host.meet(command, ranks, payload)
        self._issue(command)
        self._after_call()

    def _gate_command(self, kind: int, stream: int, gate: Gate, op: str) -> None:
        actor = self._streams[stream]
        command = Command(kind, actor, op, place=self._place())
        command.gate = gate
        if actor.capture is not None:
            actor.capture.add(command)
            return
        self._issue(command)
        self._after_call()

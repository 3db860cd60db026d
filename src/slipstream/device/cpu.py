"""The embedded default device: the CPU.

Work runs in program order, which is a legal order of every correct stream program; streams are names (and
tracks of a trace), a wait for earlier work is already satisfied. A captured graph is a tape of ops, run as one
native program where every op has a native form.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from slipstream.config import GRAPH_MODES
from slipstream.device.api import Device, Event, Gate, Graph, Span, Stream
from slipstream.device.arena import ArenaPool
from slipstream.device.caps import Caps
from slipstream.device.crossing import Relocation
from slipstream.device.native_replay import NativeReplay, native_replay
from slipstream.device.tape import Node, Tape, active_tape, recording
from slipstream.errors import CaptureError, HangError, ReplayError, UnknownNameError
from slipstream.native import library
from slipstream.trace import PartTimes

#: Settings of branches side by side.
BRANCHES = ("auto", "on", "off")


class CpuStream(Stream):
    """A name for work that runs at once."""

    def __init__(self, device: CpuDevice, name: str) -> None:
        self.name = name
        self._device = device

    def __enter__(self) -> Self:
        self._device._current.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._device._current.pop()

    def wait_stream(self, other: Stream) -> None:
        """In program order all that `other` was given is done; a capture takes the order in."""
        tape = active_tape()
        if tape is not None:
            tape.note_wait(self.name, other.name)

    def synchronize(self) -> None:
        """Nothing to do: the work is done when the call that asks for it returns."""


class _Point:
    """Where in a capture a stream was, for a later wait in the same capture."""

    def __init__(self, stream: Stream) -> None:
        self._tape = active_tape()
        self._stream = stream.name
        self._position = len(self._tape.nodes) if self._tape is not None else 0

    def waited_by(self, stream: Stream) -> None:
        tape = active_tape()
        if tape is not None and tape is self._tape:
            tape.note_wait(stream.name, self._stream, self._position)


class CpuEvent(Event):
    """Knows whether it was recorded, and where in a capture."""

    def __init__(self) -> None:
        self._point: _Point | None = None

    def record(self, stream: Stream) -> None:
        self._point = _Point(stream)

    def wait(self, stream: Stream) -> None:
        if self._point is None:
            raise HangError(
                f"stream {stream.name!r} waits for an event that was never recorded. "
                "Record it first: in program order nothing can record it later."
            )
        self._point.waited_by(stream)


class CpuGate(Gate):
    """One bit, and who set it."""

    def __init__(self) -> None:
        self._point: _Point | None = None

    def open(self, stream: Stream) -> None:
        self._point = self._point or _Point(stream)

    def wait(self, stream: Stream) -> None:
        if self._point is None:
            raise HangError(
                f"stream {stream.name!r} waits at a closed gate. The cpu device runs in program order, so "
                "nothing can open it any more: open it before the wait."
            )
        self._point.waited_by(stream)
        self._point = None


class CpuGraph(Graph):
    """A tape of ops, replayed by one call: a native program, or the tape's own walk."""

    def __init__(self, device: CpuDevice, name: str) -> None:
        self.name = name
        self._device = device
        self._tape: Tape | None = None
        self._replay: Callable[[], Any] | None = None
        self._addresses: list[tuple[str, torch.Tensor, int]] = []
        self._inputs: list[torch.Tensor] = []
        self._open: ExitStack | None = None
        self._memory_bytes = 0
        self._shared = 0

    def capture(self, function: Callable[[], Any], stream: Stream) -> Any:
        if self._replay is not None:
            raise CaptureError(f"graph {self.name!r} was captured before; make a new one.")
        tape = Tape(self.name, stream.name, lambda: self._device.current_stream().name)
        with stream, torch.inference_mode(), recording(tape):
            result = function()
        tape.finish(result)
        # Only a complete capture leaves a trace: after a failure the graph is as new.
        native = native_replay(tape, result, self._device.arenas, self._device.branches)
        self._replay = native or tape.compile()
        self._tape = tape
        self._addresses = [(where, tensor, tensor.data_ptr()) for where, tensor in tape.static_inputs()]
        self._inputs = [tensor for _, tensor, _ in self._addresses]
        self._note_memory(tape, result)
        tape.release()
        return result

    def begin(self, stream: Stream, pool_of: Graph | None = None) -> None:
        if self._tape is not None:
            raise CaptureError(f"graph {self.name!r} was captured before; make a new one.")
        self._tape = Tape(self.name, stream.name, lambda: self._device.current_stream().name)
        self._open = ExitStack()
        for context in (stream, torch.inference_mode(), recording(self._tape)):
            self._open.enter_context(context)

    def end(self, error: BaseException | None = None) -> bool:
        tape, self._tape = self._tape, None
        if self._open is None or tape is None:
            raise CaptureError(f"graph {self.name!r}: a piece ends that did not begin.")
        self._open.close()
        self._open = None
        if error is None:
            self._tape = tape
            self._inputs = [tensor for _, tensor in tape.static_inputs()]
        return bool(tape.nodes)

    def seal(self, readers: Iterable[torch.Tensor]) -> None:
        tape = self._tape
        if tape is None or self._replay is not None:
            raise CaptureError(f"graph {self.name!r} has no piece to seal.")
        wanted = list(readers)
        # All that shares memory with what is read outside stays; of what is read, the tape's own is filled.
        made = tape.made(wanted)
        tape.finish(made)
        native = native_replay(tape, wanted, self._device.arenas, self._device.branches)
        walk = tape.compile()
        self._replay = native or (lambda: _fill(made, walk()))
        self._addresses = [(where, tensor, tensor.data_ptr()) for where, tensor in tape.static_inputs()]
        self._note_memory(tape, wanted)
        tape.release()

    def inputs(self) -> list[torch.Tensor]:
        return self._inputs

    def made(self) -> list[torch.Tensor]:
        return self._tape.tensors if self._tape is not None else []

    def relocate(self, relocation: Relocation) -> None:
        """Let a piece that is not sealed work where its memory moved to."""
        assert self._tape is not None
        natives = [node.lowered.nodes for node in self._tape.nodes if node.lowered is not None]
        relocation.redirect([native for nodes in natives for native in nodes])
        relocation.move(self._tape.tensors)
        self._shared = relocation.storage.data_ptr()

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    @property
    def num_streams(self) -> int:
        return len({node.stream for node in self._tape.nodes}) if self._tape is not None else 0

    def _note_memory(self, tape: Tape, results: Any) -> None:
        """Count what the tape made and keeps: results, and what lies in no shared arena."""
        native = isinstance(self._replay, NativeReplay)
        kept = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tape.kept(results, native)
        }
        kept.pop(self._shared, None)
        self._memory_bytes = sum(kept.values())

    def replay(self) -> Any:
        if self._replay is None:
            raise ReplayError(f"graph {self.name!r} was never captured; capture it first.")
        if isinstance(self._replay, NativeReplay):
            return self._replay()
        with torch.inference_mode():
            return self._replay()

    def check_addresses(self) -> None:
        for where, tensor, address in self._addresses:
            if tensor.data_ptr() != address:
                raise ReplayError(
                    f"graph {self.name!r}: a static input moved since the capture ({where}). "
                    "Write new values into the buffer that was captured, or capture again."
                )

    def spent_ns(self) -> dict[str, int]:
        return self._replay.spent_ns() if isinstance(self._replay, NativeReplay) else {}

    def group_times(self) -> list[PartTimes]:
        return self._replay.group_times() if isinstance(self._replay, NativeReplay) else []

    @property
    def num_sections(self) -> int:
        return self._replay.num_sections if isinstance(self._replay, NativeReplay) else 0

    @property
    def callbacks(self) -> dict[str, int]:
        return self._count(lambda node: node.callback)

    def topology(self) -> list[dict[str, Any]]:
        nodes = self._tape.nodes if self._tape else []
        made_by: dict[int, int] = {}
        dump = []
        for index, node in enumerate(nodes):
            inputs = sorted({made_by[register] for register in node.reads if register in made_by})
            dump.append({"index": index, "op": node.name, "stream": node.stream, "inputs": inputs})
            made_by.update(dict.fromkeys(node.outputs, index))
        return dump

    @property
    def node_counts(self) -> dict[str, int]:
        return self._count(lambda node: True)

    def _count(self, wanted: Callable[[Node], bool]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for node in filter(wanted, self._tape.nodes if self._tape else []):
            counts[node.name] = counts.get(node.name, 0) + 1
        return counts


class CpuDevice(Device):
    """The CPU, in program order.

    Args:
        branches: whether a graph's independent branches run side by side: "auto" where the cost model says that it
            pays (never below two cores a branch), "on" wherever the team is large enough, "off".
    """

    name = "cpu"

    def __init__(self, branches: str = "auto") -> None:
        if branches not in BRANCHES:
            raise UnknownNameError("branches setting", branches, BRANCHES)
        self.branches = branches
        self.torch_device = torch.device("cpu")
        self.caps = cpu_caps()
        self.arenas = ArenaPool()
        self.crossings = ArenaPool()
        self._current: list[CpuStream] = [CpuStream(self, "default")]

    def stream(self, name: str) -> Stream:
        return CpuStream(self, name)

    def event(self) -> Event:
        return CpuEvent()

    def gate(self) -> Gate:
        return CpuGate()

    def graph(self, name: str) -> Graph:
        return CpuGraph(self, name)

    def current_stream(self) -> Stream:
        return self._current[-1]

    def synchronize(self) -> None:
        """Nothing to do."""

    def memory_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def share(
        self, spans: Sequence[Span], graphs: Sequence[Graph], outside: Iterable[torch.Tensor]
    ) -> frozenset[int]:
        relocation = Relocation(spans, self.crossings)
        for graph in graphs:
            assert isinstance(graph, CpuGraph)
            relocation.move(graph.inputs())
        relocation.move(outside)
        for graph in graphs:
            assert isinstance(graph, CpuGraph)
            graph.relocate(relocation)
        return frozenset({relocation.storage.data_ptr()})

    def pool_bytes(self) -> int:
        return self.arenas.nbytes + self.crossings.nbytes

    def drop_pool(self) -> None:
        self.arenas.clear()
        self.crossings.clear()


def _fill(kept: list[torch.Tensor], fresh: list[torch.Tensor]) -> None:
    """Put the results of a replay where those of the capture lie."""
    for old, new in zip(kept, fresh, strict=True):
        if new.data_ptr() != old.data_ptr():
            old.copy_(new)


def usable_cores() -> int:
    """Return how many physical cores this process may use: affinity mask and cgroup quota respected."""
    if hasattr(os, "sched_getaffinity"):
        cores = physical_cores(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def physical_cores(processors: set[int], folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return how many cores these processors are: hardware threads of one core share what the kernels need.

    A processor whose core the system does not tell counts as a core.
    """
    cores = set()
    for processor in processors:
        try:
            cores.add((folder / f"cpu{processor}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(processor))
    return len(cores)


def cpu_caps() -> Caps:
    """Return what this machine's processor can do."""
    return Caps(
        device="cpu",
        dtypes=("q4", "f32", "bf16"),
        graph_modes=GRAPH_MODES,
        parallel_streams=False,
        row_invariant=("q4", "f32", "bf16"),
        default_threads=usable_cores(),
        native_isa=library.best_isa(),
    )

"""One callable in one graph mode: run eagerly, captured or replayed, by (mode, key). Wrappers nest.

    whole = GraphWrapper(GraphMode.FULL, GraphWrapper(GraphMode.PIECEWISE, eager(function), ...), ...)

    asked              does
    another mode       passes through to what is inside: so whole passes when pieces are dispatched, pieces pass
    while
                       whole is captured, and with NONE the function is run eagerly
    a key it has       checks addresses the first time, replays
    a key it lacks     captures, if captures are allowed now; else says which key came late, and the nearest it has

A capture that fails leaves the wrapper as it was: the next call captures again. What a graph returns is owned
by it and held strongly: it stays until the graph's next replay, whatever else is replayed or captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from slipstream.errors import CaptureError, ReplayError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.modes import GraphMode
from slipstream.graph.pieces import Live, Replayable

#: What a wrapper holds: another wrapper, or the function itself behind `eager`.
Runnable = Callable[..., Any]

#: Captures (key, function) and returns the graph with what the function returned.
Capture = Callable[[BatchDescriptor, Callable[[], Any]], tuple[Replayable, Any]]


@dataclass(slots=True)
class CaptureGate:
    """Whether graphs may be captured now: in serving, a new key is a stall and often an error."""

    allowed: bool = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Allow captures inside the block."""
        before, self.allowed = self.allowed, True
        try:
            yield
        finally:
            self.allowed = before


@dataclass(slots=True)
class Entry:
    """One captured graph of a wrapper.

    Attributes:
        graph: what is replayed.
        arguments: name, tensor and address of every tensor that the capturing call was given.
        capture_ns: what the capture took.
        checked: whether a replay has compared the addresses.
    """

    graph: Replayable
    arguments: list[tuple[str, torch.Tensor, int]]
    capture_ns: int
    checked: bool = False


def eager(function: Callable[..., Any]) -> Runnable:
    """Return what runs a function whatever mode and key it is asked for: the innermost of nested wrappers."""

    def run(mode: GraphMode, key: BatchDescriptor, live: Live, /, *args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode():
            return function(key, *args, **kwargs)

    return run


class GraphWrapper:
    """Graphs of one callable in one mode.

    Args:
        mode: FULL or PIECEWISE.
        inside: what is captured, or run where another mode is asked.
        capture: captures in that mode.
        gate: whether captures are allowed now.
        check: compare addresses at every replay, not at the first one only.
    """

    def __init__(
        self, mode: GraphMode, inside: Runnable, capture: Capture, gate: CaptureGate, *, check: bool = False
    ) -> None:
        if mode not in (GraphMode.FULL, GraphMode.PIECEWISE):
            raise ValueError(f"a wrapper captures in full or piecewise, not in {mode.value}")
        self.mode = mode
        self.entries: dict[BatchDescriptor, Entry] = {}
        self._inside, self._capture, self._gate, self._check = inside, capture, gate, check

    def __call__(
        self, mode: GraphMode, key: BatchDescriptor, live: Live, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run the callable as asked.

        Raises:
            CaptureError: the key has no graph and captures are not allowed now, or the capture failed.
            ReplayError: a tensor of the call, or a static input of the graph, is not where it was at capture.
        """
        if mode is not self.mode:
            return self._inside(mode, key, live, *args, **kwargs)
        entry = self.entries.get(key)
        if entry is None:
            return self._capture_now(key, live, args, kwargs)
        if self._check or not entry.checked:
            self._check_addresses(key, entry, args, kwargs)
            entry.checked = True
        return entry.graph.replay(live)

    def clear(self) -> None:
        """Drop every graph."""
        self.entries.clear()

    def _capture_now(
        self, key: BatchDescriptor, live: Live, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self._gate.allowed:
            raise CaptureError(
                f"{self.mode.value} graph '{key}' was asked for after the captures were closed, and does not "
                f"exist; {self._nearest(key)}. Capture its size at the start, or dispatch it eagerly."
            )
        started = time.perf_counter_ns()
        arguments = _tensors(args, kwargs)
        graph, result = self._capture(key, lambda: self._inside(self.mode, key, live, *args, **kwargs))
        # Only here, so that a capture that failed leaves nothing behind.
        self.entries[key] = Entry(graph, arguments, time.perf_counter_ns() - started)
        return result

    def _nearest(self, key: BatchDescriptor) -> str:
        known = [other for other in self.entries if other.phase == key.phase] or list(self.entries)
        if not known:
            return f"no {self.mode.value} graph was captured"
        nearest = min(known, key=lambda other: (abs(other.rows - key.rows), other.rows))
        return f"the nearest that was captured is '{nearest}'"

    def _check_addresses(
        self, key: BatchDescriptor, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        given = _tensors(args, kwargs)
        if len(given) != len(entry.arguments):
            raise ReplayError(
                f"graph '{key}' was captured with {len(entry.arguments)} tensors and is called with {len(given)}."
            )
        for (name, _, address), (now, tensor, _) in zip(entry.arguments, given, strict=True):
            if name != now or tensor.data_ptr() != address:
                raise ReplayError(
                    f"graph '{key}': {now} is not the tensor that was captured as {name}, or has moved since. "
                    "Write new values into the buffer that was captured, or capture again."
                )
        entry.graph.check_addresses()


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, torch.Tensor, int]]:
    """Return every tensor of a call with its name and address, keyword arguments in order of their names."""
    named = [(f"argument {index}", value) for index, value in enumerate(args)]
    named += [(f"argument {name!r}", kwargs[name]) for name in sorted(kwargs)]
    return [
        (name, leaf, leaf.data_ptr())
        for name, value in named
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    ]

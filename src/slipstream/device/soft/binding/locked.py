"""The machine for programs with several Python threads: each call is one step. All threads are one host to it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from slipstream.device.soft.machine import Machine

_CALLS = (
    "stream",
    "graph",
    "kernel",
    "record",
    "wait",
    "open",
    "wait_gate",
    "collective",
    "host_access",
    "synchronize",
    "synchronize_event",
    "query",
    "sync_copy",
    "begin_capture",
    "end_capture",
    "is_capturing",
    "bind_inputs",
    "replay",
    "reset",
    "begin_task",
    "end_task",
    "begin_update",
    "end_update",
    "finish",
)


class LockedMachine(Machine):
    """A machine that lets one thread in at a time.

    Attributes:
        lock: also held while memory is handed out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.lock = threading.RLock()
        super().__init__(*args, **kwargs)


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: LockedMachine, *args: Any, **kwargs: Any) -> Any:
        if (
            self._baton is not None
        ):  # simulated ranks take turns inside these calls, and are never two at once
            return method(self, *args, **kwargs)
        with self.lock:
            return method(self, *args, **kwargs)

    return call


for _name in _CALLS:
    setattr(LockedMachine, _name, _locked(getattr(Machine, _name)))

"""Programs of nodes: run by one call, without the interpreter lock."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from slipstream.errors import DeviceError
from slipstream.native import library
from slipstream.native.node import Kernel, Node, Times
from slipstream.trace import PartTimes

OUT_OF_RANGE = (
    "a native kernel met a token, KV slot or position out of range, or had no memory. The results of this forward "
    "are not valid. Run again with --check, which poisons stale inputs."
)


def run_nodes(nodes: Sequence[Node], threads: int) -> None:
    """Run a few nodes once.

    Raises:
        DeviceError: as `Program.run`.
    """
    loaded = library.load()
    if loaded is None:
        raise RuntimeError("there is no native library to run nodes with")
    array = nodes[0] if len(nodes) == 1 else (Node * len(nodes))(*nodes)
    if loaded.ss_run(ctypes.addressof(array), len(nodes), threads, None):
        raise DeviceError(OUT_OF_RANGE)


class Program:
    """Nodes in order. Whoever makes one keeps alive what its addresses point to.

    Args:
        nodes: the operations.
        groups: names of the groups that the nodes' `group` counts; a group is measured as a whole.
    """

    def __init__(self, nodes: Sequence[Node], groups: Sequence[str] = ("all",)) -> None:
        self._nodes = (Node * len(nodes))(*nodes)
        self._address = ctypes.addressof(self._nodes)
        self._count = len(nodes)
        loaded = library.load()
        if loaded is None:
            raise RuntimeError("there is no native library to run a program with")
        self._run = loaded.ss_run
        self._groups = tuple(groups)
        self._spent = (ctypes.c_int64 * len(Kernel))()
        self._began, self._ended = ((ctypes.c_int64 * len(groups))() for _ in range(2))
        self._times = Times(*(ctypes.addressof(array) for array in (self._spent, self._began, self._ended)))
        self._times_address = ctypes.addressof(self._times)

    def run(self) -> None:
        """Run the nodes on the threads that are set for this process.

        Raises:
            DeviceError: a kernel met a token, slot or position out of range, or had no memory.
        """
        if self._run(self._address, self._count, library.setting.threads, self._times_address):
            raise DeviceError(OUT_OF_RANGE)

    def spent_ns(self) -> dict[str, int]:
        """Return the time of all runs so far by kernel, in nanoseconds, waits for the slowest thread included."""
        return {kernel.name.lower(): self._spent[kernel] for kernel in Kernel if self._spent[kernel]}

    def group_times(self) -> PartTimes:
        """Return when each group of the last run began and ended, on the monotonic clock."""
        return PartTimes(self._groups, bytes(self._began), bytes(self._ended))

"""Finds and loads the native library, and says what runs: a setting of the process, as PyTorch's threads are."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache

from slipstream.errors import UsageError
from slipstream.native.build import LIBRARY
from slipstream.native.node import Node

#: Environment variable that names another build of the library, as one with sanitizers.
LIBRARY_VARIABLE = "SLIPSTREAM_NATIVE_LIBRARY"

#: Instruction sets that the library is built for, best first.
ISAS = ("avx512vnni", "avxvnni", "avx2", "neon", "portable")


#: Branches side by side at most (`SS_BRANCHES`).
MAX_BRANCHES = 8


@dataclass(slots=True)
class Setting:
    """What this process runs.

    Attributes:
        native: whether ops run on native kernels.
        threads: how many threads these run on.
        best_isa: the best instruction set here, known once the library is loaded.
    """

    native: bool = False
    threads: int = 1
    best_isa: str | None = None


#: Read by every op; changed by `use`.
setting = Setting()


@cache
def load() -> ctypes.CDLL | None:
    """Return the library, or None where it was not built or is not for this machine.

    Raises:
        UsageError: $SLIPSTREAM_NATIVE_LIBRARY names a library, and it cannot be used.
    """
    given = os.environ.get(LIBRARY_VARIABLE)
    try:
        library = ctypes.CDLL(given or str(LIBRARY))
        if library.ss_node_bytes() != ctypes.sizeof(Node):
            raise OSError("it is of another version of Slipstream; build it anew")
    except (OSError, AttributeError) as error:
        if given:
            raise UsageError(f"{LIBRARY_VARIABLE}={given} cannot be used: {error}") from error
        return None
    library.ss_run.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)
    library.ss_run.restype = ctypes.c_int
    library.ss_choose.argtypes = (ctypes.c_char_p,)
    library.ss_choose.restype = ctypes.c_char_p
    setting.best_isa = library.ss_choose(None).decode()
    return library


def best_isa() -> str | None:
    """Return the instruction set that native kernels would use here, or None where there are none."""
    load()
    return setting.best_isa


def choose_isa(isa: str | None) -> str:
    """Use the kernels of one instruction set, the best for None; return what runs then.

    An instruction set that this processor lacks gives the portable kernels.
    """
    library = load()
    if library is None:
        raise RuntimeError("there is no native library; build it with python -m slipstream.native.build")
    chosen: bytes = library.ss_choose(None if isa is None else isa.encode())
    return chosen.decode()


def use(native: bool, threads: int) -> None:
    """Say whether ops run on native kernels from now on, and on how many threads."""
    setting.native = native and load() is not None
    setting.threads = threads


def active() -> bool:
    """Return whether ops run on native kernels."""
    return setting.native

"""The C structure of one native operation (`ss_node` in slipstream_native.h), and programs of them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from enum import IntEnum

_POINTERS, _SIZES = 8, 10


class Kernel(IntEnum):
    """Operations, in the order of `enum ss_op`."""

    LINEAR_Q4 = 0
    LINEAR_Q8 = 1
    LINEAR_F32 = 2
    LINEAR_BF16 = 3
    EMBED_Q8 = 4
    EMBED_BF16 = 5
    GATHER = 6
    COPY = 7
    RMS_NORM = 8
    ROPE_STORE = 9
    ATTENTION = 10
    GATED_SILU = 11
    ARGMAX = 12
    PLAN_ROWS = 13
    VERIFY_IDS = 14
    ACCEPT_COUNTS = 15
    COMMIT = 16
    TOP_SHARE = 17
    LAST_ROWS = 18
    PUT_ROWS = 19


class Node(ctypes.Structure):
    """One operation over fixed addresses."""

    _fields_ = (
        ("op", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("section", ctypes.c_int32),
        ("branch", ctypes.c_int16),
        ("branches", ctypes.c_int16),
        ("p", ctypes.c_void_p * _POINTERS),
        ("n", ctypes.c_int64 * _SIZES),
        ("f", ctypes.c_double),
    )


class Times(ctypes.Structure):
    """Where a run puts what it measures (`ss_times`): addresses of int64 arrays."""

    _fields_ = (("spent", ctypes.c_void_p), ("began", ctypes.c_void_p), ("ended", ctypes.c_void_p))


#: The same structure for `struct`, which fills it several times faster than ctypes does.
_LAYOUT = struct.Struct(f"iiihh{_POINTERS}Q{_SIZES}qd")


def make_node(kernel: Kernel, pointers: Sequence[int], sizes: Sequence[int], f: float = 0.0) -> Node:
    """Return a node; pointers are addresses, 0 for none."""
    unused = (0,) * (_POINTERS - len(pointers)), (0,) * (_SIZES - len(sizes))
    return Node.from_buffer_copy(
        _LAYOUT.pack(kernel, 0, 0, 0, 1, *pointers, *unused[0], *sizes, *unused[1], f)
    )

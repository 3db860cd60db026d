"""What a page carries of a trace: columns and a description, deflated, as base64.

    u32        length of the description
    JSON       the description; its "columns" says of each column {type, at, count, least, delta}
    ...        the columns, each at a multiple of 8 bytes from the end of the description

A column is written in the smallest unsigned type that holds its values above `least`; what needs more than 32 bits
is a float64, or an int64 where one of its values is beyond 2**53, up to which float64 is exact. Of a column with
`delta` each value but the first is the step from the one before.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

#: A number of JavaScript holds every whole number up to this.
EXACT = 1 << 53
#: Zlib's own middle: higher levels take twice as long for 2 % less.
_LEVEL = 6


def pack(description: Mapping[str, Any], columns: Mapping[str, Any]) -> str:
    """Return text for a page.

    Args:
        description: whatever JSON can hold.
        columns: integer arrays by name.
    """
    places: dict[str, dict[str, Any]] = {}
    blocks: list[bytes] = []
    at = 0
    for name, values in columns.items():
        kind, least, delta, block = _column(np.asarray(values))
        places[name] = {"type": kind, "at": at, "count": len(values), "least": least, "delta": delta}
        padding = -len(block) % 8
        blocks.append(block + b"\0" * padding)
        at += len(block) + padding
    text = msgspec.json.encode({**description, "columns": places})
    text += b" " * (-(len(text) + 4) % 8)
    packed = zlib.compress(struct.pack("<I", len(text)) + text + b"".join(blocks), _LEVEL)
    return base64.b64encode(packed).decode("ascii")


def _column(values: Any) -> tuple[str, int, bool, bytes]:
    """Return (type, least, delta, bytes) of a column, by whichever of the two is narrower."""
    if not len(values):
        return "u8", 0, False, b""
    values = values.astype(np.int64)
    if int(values.max()) > EXACT or int(values.min()) < -EXACT:
        return "i64", 0, False, values.astype("<i8").tobytes()
    steps = np.concatenate((values[:1], np.diff(values)))
    plain, ascending = _width(values), _width(steps)
    delta = ascending < plain or (ascending == plain == 8 and int(np.abs(steps).max()) <= EXACT)
    kept = steps if delta else values
    width, least = min(plain, ascending), int(kept.min())
    if width == 8:
        return "f64", 0, delta, kept.astype("<f8").tobytes()
    return f"u{8 * width}", least, delta, (kept - least).astype(f"<u{width}").tobytes()


def _width(values: Any) -> int:
    """Return how many bytes hold what values have above the least of them; 8 for more than 32 bits."""
    span = int(values.max()) - int(values.min())
    return next((width for width in (1, 2, 4) if span < 1 << (8 * width)), 8)

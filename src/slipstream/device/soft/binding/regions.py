"""Which bytes a tensor covers, exactly where its strides allow it.

A matrix's rows are one run of bytes; its columns are a run every row. Two column slices side by side share no
byte, and must not look as if they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: A tensor that would need more pieces than this is taken as one run from its first byte to its last.
MAX_PIECES = 64


class Span(NamedTuple):
    """Bytes of a buffer, from `start` to `stop`: all of them, or `width` bytes every `step` bytes."""

    start: int
    stop: int
    step: int = 0
    width: int = 0


def spans(offset: int, sizes: Sequence[int], strides: Sequence[int], item_bytes: int) -> list[Span]:
    """Return the bytes of a strided tensor.

    Args:
        offset: where its first element lies, in bytes.
        sizes, strides: in elements.
        item_bytes: bytes of an element.
    """
    if 0 in sizes:
        return []
    # Largest stride first. A dimension of one element, or of none to step over (expand), adds no byte.
    dims = sorted(
        (
            (stride * item_bytes, size)
            for size, stride in zip(sizes, strides, strict=True)
            if size > 1 and stride
        ),
        reverse=True,
    )
    width = item_bytes
    while dims and dims[-1][0] <= width:  # elements side by side, or overlapping, are one run
        stride, size = dims.pop()
        width += stride * (size - 1)
    dims = _merged(dims)
    if not dims:
        return [Span(offset, offset + width)]
    step, count = dims.pop()
    starts = _starts(offset, dims)
    length = step * (count - 1) + width
    if starts is None:
        last = sum(stride * (size - 1) for stride, size in dims)
        return [Span(offset, offset + last + length)]
    return [Span(start, start + length, step, width) for start in starts]


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (stride, size) pairs with those taken together that are one longer dimension."""
    merged: list[tuple[int, int]] = []
    for stride, size in dims:
        if merged and merged[-1][0] == stride * size:
            merged[-1] = (stride, merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return merged


def _starts(offset: int, dims: list[tuple[int, int]]) -> list[int] | None:
    """Return where each piece of the outer dimensions begins, or None if there are too many."""
    starts = [offset]
    for stride, size in dims:
        if len(starts) * size > MAX_PIECES:
            return None
        starts = [start + stride * index for start in starts for index in range(size)]
    return starts

"""Which decode batches have a graph, which have not, and what to set. Pure: no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm

from slipstream.graph.buckets import pick_bucket
from slipstream.graph.modes import GraphMode


@dataclass(frozen=True, slots=True)
class Coverage:
    """Every decode batch from 1 request to the most that may run.

    Attributes:
        width: rows a request.
        sizes: of batch r, at place r - 1: the size that it is padded to, or None where it runs eagerly.
    """

    width: int
    sizes: tuple[int | None, ...]

    @property
    def uncovered(self) -> tuple[int, ...]:
        """Requests of the batches without a graph."""
        return tuple(requests for requests, size in enumerate(self.sizes, 1) if size is None)

    def padded_rows(self, requests: int) -> int | None:
        """Return the rows of a batch's replay that belong to no request; None where it runs eagerly."""
        size = self.sizes[requests - 1]
        return None if size is None else size - requests * self.width


def decode_sizes(sizes: Sequence[int], mode: GraphMode, width: int, max_requests: int) -> tuple[int, ...]:
    """Return the sizes that a uniform decode batch may take.

    Where decode has graphs of its own, vLLM captures those that hold a request at least and no more than may run.
    """
    if mode is GraphMode.NONE:
        return ()
    if mode.decode is GraphMode.FULL and mode.is_pair:
        return tuple(size for size in sizes if width <= size <= width * max_requests)
    return tuple(sizes)


def cover(
    sizes: Sequence[int], mode: GraphMode, width: int, max_requests: int, *, ranks: int = 1
) -> Coverage:
    """Return which size each decode batch is padded to.

    Args:
        sizes: captured rows, ascending.
        mode: what is captured at them.
        width: rows a request.
        max_requests: requests that decode together.
        ranks: with sequence parallelism, rows are rounded up to a multiple of these before a size is looked for.
    """
    own = decode_sizes(sizes, mode, width, max_requests)
    # A batch without a whole graph takes the pieces of mixed batches, if there are some.
    mixed = tuple(sizes) if mode.mixed is GraphMode.PIECEWISE else ()
    found = []
    for requests in range(1, max_requests + 1):
        rows = -(-requests * width // ranks) * ranks
        size = pick_bucket(own, rows)
        found.append(pick_bucket(mixed, rows) if size is None else size)
    return Coverage(width, tuple(found))


def covering_size(mode: GraphMode, width: int, max_requests: int, *, ranks: int = 1) -> int:
    """Return the size that the fullest decode batch needs."""
    step = lcm(width, ranks) if mode.decode is GraphMode.FULL else ranks
    return -(-max_requests * width // step) * step


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as people write them: "3, 17 to 20"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join(" to ".join(map(str, part)) for part in parts)

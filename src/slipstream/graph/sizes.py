"""Capture sizes: the default lists of vLLM and of Ascend, a user's list, and what the rules make of them.

A size is the rows (tokens) of one captured batch; a decode batch of r requests has r x width of them. In a graph
of whole decode batches a size is bucket x width. The lists and their rules are those of vLLM 0.33.0 and
vllm-ascend of August 2026. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from math import lcm

from slipstream.errors import UsageError

#: No default list goes further, whatever may run.
DEFAULT_CEILING = 512

#: More rows than this in one graph are a typing mistake, not a plan.
MAX_SIZE = 65536

#: Sizes that Ascend's A5 (950) captures in pieces until its driver takes more.
A5_SIZES = 4


class SizeSource(Enum):
    """Whose default list."""

    ASCEND = "ascend"
    VLLM = "vllm"


def stride_sizes(maximum: int, *, interactive: bool = False) -> tuple[int, ...]:
    """Return 1, 2, 4, then steps of 8 up to 248, then steps of 16, none above `maximum`.

    Args:
        maximum: rows, at least 1.
        interactive: every size up to 32 first, as vLLM's performance mode "interactivity" has it.
    """
    small = range(1, 33) if interactive else (1, 2, 4)
    grid = {*small, *range(8, 256, 8), *range(256, maximum + 1, 16)}
    return tuple(sorted(size for size in grid if size <= maximum))


def default_maximum(
    source: SizeSource, max_requests: int, width: int, max_batched_tokens: int | None = None
) -> int:
    """Return the largest rows that a default list may hold.

    vLLM leaves room for twice the decode rows, Ascend for exactly these; both stop at 512 and at what a step may
    compute.
    """
    rows = max_requests * width * (2 if source is SizeSource.VLLM else 1)
    maximum = min(rows, DEFAULT_CEILING)
    return maximum if max_batched_tokens is None else min(maximum, max_batched_tokens)


def default_sizes(
    source: SizeSource,
    max_requests: int,
    width: int,
    *,
    maximum: int | None = None,
    max_batched_tokens: int | None = None,
    interactive: bool = False,
) -> tuple[int, ...]:
    """Return a default list, ascending.

    vLLM adds the decode batches themselves to the grid, but only where it set the maximum itself. Ascend's default
    counts as one that the user set, so its list ends at a step of the grid: most maxima leave the fullest batches
    without a graph.

    Args:
        source: whose list.
        max_requests: requests that decode together.
        width: rows a request.
        maximum: rows, where the user set them.
        max_batched_tokens: rows that a step computes at most.
        interactive: as in `stride_sizes`.
    """
    limit = default_maximum(source, max_requests, width, max_batched_tokens) if maximum is None else maximum
    if max_batched_tokens is not None:
        limit = min(limit, max_batched_tokens)
    sizes = set(stride_sizes(limit, interactive=interactive))
    if max_batched_tokens is not None and max_batched_tokens <= limit:
        sizes.add(max_batched_tokens)
    if source is SizeSource.VLLM and maximum is None:
        counts = (max_requests,) if width == 1 else (*stride_sizes(max_requests), max_requests)
        sizes.update(count * width for count in counts if count * width <= limit)
    return tuple(sorted(sizes))


def check_sizes(sizes: Sequence[int], maximum: int | None = None) -> tuple[int, ...]:
    """Return a user's list as it stands.

    Raises:
        UsageError: it is empty, not ascending, holds a number twice or one that is not possible, or does not end
            with `maximum` where one was set.
    """
    if not sizes:
        raise UsageError("the list of sizes is empty; give at least one, as 1,2,4,8, or --mode none.")
    for size in sizes:
        if not 1 <= size <= MAX_SIZE:
            raise UsageError(f"size {size} is not possible; a size is 1 to {MAX_SIZE} rows.")
    for before, after in pairwise(sizes):
        if before == after:
            raise UsageError(f"size {after} stands twice in the list; write each once.")
        if before > after:
            ascending = ",".join(map(str, sorted(set(sizes))))
            raise UsageError(f"the sizes do not ascend: {after} comes after {before}; write {ascending}.")
    if maximum is not None and sizes[-1] != maximum:
        what = "is over" if sizes[-1] > maximum else "is not"
        raise UsageError(
            f"the largest size {sizes[-1]} {what} the maximum {maximum}; let the list end with {maximum}, or give "
            "one of the two only."
        )
    return tuple(sizes)


def round_to_width(
    sizes: Sequence[int], width: int, *, maximum: int | None = None, ranks: int = 1
) -> tuple[int, ...]:
    """Return the sizes rounded up to multiples of the decode width, each once, none above `maximum`.

    A graph of a whole uniform batch holds whole requests, so vLLM rounds for it; sizes of pieces stay.
    With sequence parallelism a size is a multiple of the ranks as well.

    Args:
        sizes: ascending.
        width: rows a request.
        maximum: rows; by default the largest size.
        ranks: ranks that share the rows of a sequence, 1 without sequence parallelism.

    Raises:
        UsageError: not even one request fits.
    """
    limit = sizes[-1] if maximum is None else maximum
    step = lcm(width, ranks)
    rounded = sorted({-(-size // step) * step for size in sizes})
    kept = tuple(size for size in rounded if size <= limit)
    if kept:
        return kept
    if step <= limit:
        return (step,)
    whole = f"of {width} rows" if ranks == 1 else f"of {width} rows, split over {ranks} ranks"
    raise UsageError(
        f"the largest size {limit} holds no decode request {whole}, and vLLM does not start so; give a size of "
        f"{step} or more, as --sizes {step}."
    )


def sequence_parallel_sizes(sizes: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return the sizes that split evenly over the ranks of a sequence.

    Raises:
        UsageError: none does.
    """
    kept = tuple(size for size in sizes if size % ranks == 0)
    if not kept:
        raise UsageError(
            f"sequence parallelism over {ranks} ranks keeps multiples of {ranks}, and none of "
            f"{','.join(map(str, sizes))} is one; add {-(-sizes[-1] // ranks) * ranks}."
        )
    return kept


def sample_sizes(sizes: Sequence[int], keep: int) -> tuple[int, ...]:
    """Return `keep` of the sizes, evenly by place in the list, the first and the last among them.

    Of one place the last size is kept: it holds every batch. This is how vllm-ascend cuts a list.
    """
    if keep >= len(sizes):
        return tuple(sizes)
    if keep <= 1:
        return (sizes[-1],)
    step = (len(sizes) - 1) / (keep - 1)
    return tuple(sizes[round(number * step)] for number in range(keep))


def size_table(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return, for every number of rows from 0 to the largest size, the size that it is padded to; 0 stays 0."""
    table = [0]
    for size in sizes:
        table.extend([size] * (size - len(table) + 1))
    return tuple(table)

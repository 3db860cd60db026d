"""What a plan function may touch, and the proof that it touches nothing else.

A plan function declares the state fields and buffers that it reads and the buffers that it writes. It is handed
views that know only these, so a declaration that lies raises at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from slipstream import ops
from slipstream.errors import PlanAccessError
from slipstream.graph.buffers import PlanBuffers, StepBuffers
from slipstream.speculative.state import RoundState

#: What every plan function may read: the batch's request slots and page tables, uploaded by the scheduler.
COMMON_READS = frozenset({"slots", "pages"})


@dataclass(frozen=True, slots=True)
class PlanAccess:
    """What one plan function declares.

    Attributes:
        name: the function's name.
        state: fields of `RoundState` that it reads.
        reads: buffers that it reads.
        writes: buffers that it writes.
    """

    name: str
    state: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]


class PlanContext:
    """What a plan function is given: one batch, seen through its declaration.

    Attributes:
        bucket: request slots of the shape that is planned, padding included.
        page_size: slots a page.
        slots_B: int64, the batch's pool rows.
    """

    def __init__(
        self, access: PlanAccess, buffers: StepBuffers, state: RoundState, bucket: int, page_size: int
    ) -> None:
        self.bucket = bucket
        self.page_size = page_size
        self._access = access
        self._state = state
        self._buffers = PlanBuffers(buffers, access.name, access.reads, access.writes)
        self.slots_B = self._buffers.read("slots", bucket)

    def state(self, field: str) -> torch.Tensor:
        """Return a declared state field, all rows of the pool: [M, ...]."""
        if field not in self._access.state:
            declared = ", ".join(sorted(self._access.state)) or "nothing"
            raise PlanAccessError(
                f"plan {self._access.name!r} may not read state {field!r}; it declares: {declared}."
            )
        pool: torch.Tensor = getattr(self._state, field)
        return pool

    def read(self, name: str) -> torch.Tensor:
        """Return the bucket's rows of a declared buffer."""
        return self._buffers.read(name, self.bucket)

    def write(self, name: str, value: torch.Tensor) -> None:
        """Copy `value` into the first rows of a declared buffer."""
        self._buffers.write(name, value)

    def out(self, name: str, width: int = 1) -> torch.Tensor:
        """Return the first bucket x width rows of a declared buffer, for an op to write."""
        return self._buffers.out(name, self.bucket * width)

    def rows(self, phase: str, width: int, offset: int = 0, suffix: str = "") -> None:
        """Write a phase's positions and KV slots: `width` rows a request, behind its committed tokens."""
        ops.plan_rows.direct(
            self.state("lengths_M"),
            self.slots_B,
            self.read("pages"),
            self.page_size,
            offset,
            self.out(f"{phase}.positions{suffix}", width),
            self.out(f"{phase}.slots{suffix}", width),
        )


class PlanFunction:
    """A function with its declaration. Called with (buffers, state, bucket, page_size, *arguments)."""

    def __init__(self, function: Callable[..., None], access: PlanAccess) -> None:
        self.access = access
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(
        self, buffers: StepBuffers, state: RoundState, bucket: int, page_size: int, *arguments: object
    ) -> None:
        self._function(PlanContext(self.access, buffers, state, bucket, page_size), *arguments)
        if buffers.check:
            self._check_written(buffers, bucket)

    def _check_written(self, buffers: StepBuffers, bucket: int) -> None:
        """In checking mode: a buffer that was declared and left as it was would be read stale."""
        unwritten = [name for name in sorted(self.access.writes) if buffers.poisoned(name, bucket)]
        if unwritten:
            raise PlanAccessError(
                f"plan {self.access.name!r} declares that it writes {', '.join(unwritten)}, and did not."
            )


def plan_function(
    *, state: tuple[str, ...] = (), reads: tuple[str, ...] = (), writes: tuple[str, ...]
) -> Callable[[Callable[..., None]], PlanFunction]:
    """Declare what a plan function touches."""

    def wrap(function: Callable[..., None]) -> PlanFunction:
        access = PlanAccess(
            function.__name__, frozenset(state), COMMON_READS | frozenset(reads), frozenset(writes)
        )
        return PlanFunction(function, access)

    return wrap

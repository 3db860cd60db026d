"""What a plan function may touch, and the proof that it touches nothing else.

A plan function declares the state fields and buffers that it reads and the buffers that it writes. It is handed
views that know only these, so a declaration that lies raises at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from slipstream.errors import PlanAccessError
from slipstream.graph.buffers import PlanBuffers, StepBuffers
from slipstream.kv.cache import slots_of
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
    """

    def __init__(
        self, access: PlanAccess, buffers: StepBuffers, state: RoundState, bucket: int, page_size: int
    ) -> None:
        self.bucket = bucket
        self.page_size = page_size
        self._access = access
        self._state = state
        self._buffers = PlanBuffers(buffers, access.name, access.reads, access.writes)
        self._slots_B = self._buffers.read("slots", bucket)

    def state(self, field: str) -> torch.Tensor:
        """Return a declared state field at the batch's request slots, [bucket, ...]."""
        if field not in self._access.state:
            declared = ", ".join(sorted(self._access.state)) or "nothing"
            raise PlanAccessError(
                f"plan {self._access.name!r} may not read state {field!r}; it declares: {declared}."
            )
        rows: torch.Tensor = getattr(self._state, field).index_select(0, self._slots_B)
        return rows

    def read(self, name: str) -> torch.Tensor:
        """Return the bucket's rows of a declared buffer."""
        return self._buffers.read(name, self.bucket)

    def write(self, name: str, value: torch.Tensor) -> None:
        """Copy `value` into the first rows of a declared buffer."""
        self._buffers.write(name, value)

    def kv_slots(self, positions_BW: torch.Tensor) -> torch.Tensor:
        """Return the KV slots of positions, int64 [bucket, W]."""
        return slots_of(self.read("pages"), positions_BW, self.page_size)


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

"""`StepBuffers`: the only owner of what graphs read.

Two kinds of named buffers, all int64 or float32 and of fixed size and address:

    uploaded   written by the scheduler into a host mirror, then copied to the device in one upload a round
    planned    written on the device by a plan function (`speculative.plans`)

A graph of bucket b reads the first b rows (or b x width) of a buffer. Rows behind the batch's own are padding:
the upload names a request that does not exist for them (the pool's last row, scratch page 0), so that whatever
a plan function computes for them is safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from slipstream.errors import PlanAccessError, nearest_name

#: What unwritten integers hold in checking mode: as a token, a position or a slot it is out of range, so that
#: PyTorch refuses to index with it.
POISON = -(2**40)


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One named buffer.

    Attributes:
        name: as "verify.ids".
        shape: of the largest bucket.
        uploaded: whether the host writes it; otherwise a plan function does.
        floating: float32 instead of int64.
    """

    name: str
    shape: tuple[int, ...]
    uploaded: bool = False
    floating: bool = False


class StepBuffers:
    """The static inputs of all graphs.

    Args:
        specs: which buffers there are.
        device: where they live.
        check: poison planned buffers before every round, so that a stale read is found.
    """

    def __init__(self, specs: Iterable[BufferSpec], device: torch.device, *, check: bool = False) -> None:
        specs = tuple(specs)
        self.check = check
        self._buffers: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[str, int], torch.Tensor] = {}
        self.host: dict[str, torch.Tensor] = {}
        uploaded = [spec for spec in specs if spec.uploaded]
        total = sum(torch.Size(spec.shape).numel() for spec in uploaded)
        # One flat pair, so that a round needs one copy however many buffers there are.
        self._host_flat = torch.zeros(total, dtype=torch.int64, pin_memory=device.type != "cpu")
        self._device_flat = torch.zeros(total, dtype=torch.int64, device=device)
        start = 0
        for spec in uploaded:
            part = slice(start, start + torch.Size(spec.shape).numel())
            self.host[spec.name] = self._host_flat[part].view(spec.shape)
            self._buffers[spec.name] = self._device_flat[part].view(spec.shape)
            start = part.stop
        for spec in specs:
            if not spec.uploaded:
                dtype = torch.float32 if spec.floating else torch.int64
                self._buffers[spec.name] = torch.zeros(spec.shape, dtype=dtype, device=device)
        self._planned = [spec.name for spec in specs if not spec.uploaded]

    def upload(self) -> None:
        """Copy the host mirrors to the device; in checking mode, first poison what plans must write.

        The host goes on while the copy runs: it may write the mirrors again once it has waited for anything that
        the stream was given later, as for a round's tokens.
        """
        if self.check:
            for name in self._planned:
                buffer = self._buffers[name]
                buffer.fill_(float("nan") if buffer.is_floating_point() else POISON)
        self._device_flat.copy_(self._host_flat, non_blocking=True)

    def view(self, name: str, rows: int) -> torch.Tensor:
        """Return the first `rows` rows of a buffer; for the same rows, the same tensor.

        So a view that a warm-up made is a static input of the capture that follows, not a node of it.
        """
        view = self._views.get((name, rows))
        if view is None:
            view = self._views[name, rows] = self._buffers[name].narrow(0, 0, rows)
        return view

    def poisoned(self, name: str, rows: int) -> bool:
        """Return whether one of the first `rows` rows is still as `upload` left it in checking mode."""
        view = self.view(name, rows)
        return bool((view.isnan() if view.is_floating_point() else view == POISON).any())

    def rows(self, name: str) -> int:
        """Return how many rows a buffer has."""
        return self._buffers[name].shape[0]

    def names(self) -> list[str]:
        """Return the buffers' names, sorted."""
        return sorted(self._buffers)


class PlanBuffers:
    """What one plan function may touch: it reads and writes what it declares, and nothing else.

    Raises:
        PlanAccessError: on any other name.
    """

    def __init__(self, buffers: StepBuffers, plan: str, reads: Iterable[str], writes: Iterable[str]) -> None:
        self._buffers = buffers
        self._plan = plan
        self._reads = frozenset(reads)
        self._writes = frozenset(writes)

    def read(self, name: str, rows: int) -> torch.Tensor:
        """Return the first `rows` rows of a buffer that the plan declares as read."""
        self._allow(name, self._reads, "read")
        return self._buffers.view(name, rows)

    def out(self, name: str, rows: int) -> torch.Tensor:
        """Return the first `rows` rows of a buffer that the plan declares as written."""
        self._allow(name, self._writes, "write")
        return self._buffers.view(name, rows)

    def write(self, name: str, value: torch.Tensor) -> None:
        """Copy `value` into the first rows of a buffer that the plan declares as written."""
        self._allow(name, self._writes, "write")
        self._buffers.view(name, value.shape[0]).copy_(value)

    def _allow(self, name: str, declared: frozenset[str], verb: str) -> None:
        if name not in declared:
            nearest = nearest_name(name, self._buffers.names())
            hint = f" (nearest buffer: {nearest!r})" if nearest and nearest != name else ""
            raise PlanAccessError(
                f"plan {self._plan!r} may not {verb} {name!r}{hint}; it declares: "
                f"{', '.join(sorted(declared)) or 'nothing'}."
            )

"""Which route a batch takes, and why. Pure: no torch.

Two kinds of batches. A decode batch is uniform: every request has the same rows. A mixed one is not: here, a
chunk of a prompt. A mode names a routine for each; of those that were captured, the whole graph goes before the
pieces, and both before the eager route.

                        decode          mixed
    none                eager           eager
    piecewise           pieces          pieces
    full                whole           eager: whole prompts would be captured for nothing (docs/structure.md)
    full_decode_only    whole           eager
    full_and_piecewise  whole, else     pieces
                        pieces
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slipstream.graph.buckets import pick_bucket
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.modes import GraphMode, Route
from slipstream.graph.reasons import Reason

#: Phases whose pieces know rows only, so that requests of any shape share a graph. A draft stacks a request's
#: drafts and an extend picks a request's last row: their pieces know the requests.
RELAXED = frozenset({"verify", "prefill"})

#: Phases of mixed batches.
MIXED = frozenset({"prefill"})

#: How much of a batch a mode captures: what ranks agree on is the least of theirs.
_DEPTH = {GraphMode.NONE: 0, GraphMode.PIECEWISE: 1, GraphMode.FULL: 2}


# Compared and hashed as the object that it is: a dispatcher gives the same one for the same batch, and counting a
# step is then one look-up.
@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """One decision.

    Attributes:
        mode: NONE, PIECEWISE or FULL: what a runner is told.
        route: eager or replay.
        key: of the graph; on the eager route, the shape to run in.
        shape: the padded batch, bucket x width; eager shapes have no padding, unless only this phase is eager.
        reason: why this route, in words that a table can show.
        kind: the kind of reason.
        num_reqs: requests of the batch.
        rows: rows of the batch; the shape's others are padding.
    """

    mode: GraphMode
    route: Route
    key: BatchDescriptor
    shape: BatchDescriptor
    reason: str
    kind: Reason
    num_reqs: int
    rows: int

    @property
    def bucket(self) -> int:
        """Request slots that the batch is padded to."""
        return self.shape.slots

    @property
    def padded_rows(self) -> int:
        """Rows that belong to no request."""
        return self.shape.rows - self.rows


class Dispatcher:
    """Chooses among the graphs that were captured.

    Args:
        mode: what may be captured at all.
        buckets: request slots of decode batches, ascending.
        widths: rows a request that each phase is captured for; None for any.
        mixed_sizes: rows of mixed batches, ascending.
        disabled: phases that run eagerly, with the words why.
    """

    def __init__(
        self,
        mode: GraphMode,
        buckets: Sequence[int],
        widths: Mapping[str, Sequence[int]] | None = None,
        mixed_sizes: Sequence[int] = (),
        disabled: Mapping[str, str] | None = None,
    ) -> None:
        self.mode = mode
        self.buckets = tuple(buckets)
        self.mixed_sizes = tuple(mixed_sizes)
        self._widths = None if widths is None else {phase: tuple(known) for phase, known in widths.items()}
        self._disabled = dict(disabled or {})
        self._asleep = False
        self._failed: dict[tuple[GraphMode, BatchDescriptor], str] = {}
        self._known: dict[tuple[str, int, int], Dispatch] = {}

    def fail(self, mode: GraphMode, key: BatchDescriptor, reason: str) -> None:
        """Note that a graph could not be captured."""
        self._failed[mode, key] = reason
        self._known.clear()

    def mend(self, mode: GraphMode, key: BatchDescriptor) -> None:
        """Note that a graph which had failed is captured now."""
        if self._failed.pop((mode, key), None) is not None:
            self._known.clear()

    def disable(self, phase: str, reason: str) -> None:
        """Let a phase run eagerly from now on."""
        self._disabled[phase] = reason
        self._known.clear()

    def admit(self, widths: Mapping[str, Sequence[int]]) -> None:
        """Note that phases are captured for more widths."""
        if self._widths is not None:
            for phase, more in widths.items():
                self._widths[phase] = tuple(dict.fromkeys((*self._widths.get(phase, ()), *more)))
            self._known.clear()

    def sleep(self, asleep: bool) -> None:
        """Note that all graphs were dropped, or captured again."""
        self._asleep = asleep
        self._known.clear()

    def key(self, mode: GraphMode, shape: BatchDescriptor) -> BatchDescriptor:
        """Return the key of the graph that serves a padded batch in FULL or PIECEWISE."""
        relaxed = mode is GraphMode.PIECEWISE and shape.phase in RELAXED
        return BatchDescriptor.relaxed(shape.phase, shape.rows) if relaxed else shape

    def decode_modes(self) -> tuple[GraphMode, ...]:
        """Return the runtime modes of decode batches, best first; pieces stand in where a whole graph failed."""
        modes = (self.mode.decode, self.mode.mixed) if self.mode.is_pair else (self.mode,)
        return tuple(mode for mode in modes if mode is not GraphMode.NONE)

    def dispatch(
        self, phase: str, num_requests: int, width: int, at_most: GraphMode = GraphMode.FULL
    ) -> Dispatch:
        """Return the route for a decode batch of `num_requests` requests of `width` rows in `phase`.

        Args:
            phase: draft, verify or extend.
            num_requests: requests of the batch; where ranks run together, the most of any.
            width: rows a request.
            at_most: FULL, PIECEWISE or NONE: what all ranks agreed on, the least of what each would take.
        """
        asked = (phase, num_requests, width)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._decode(phase, num_requests, width, GraphMode.FULL)
        if _DEPTH[known.mode] <= _DEPTH[at_most]:
            return known
        return self._decode(phase, num_requests, width, at_most)

    def dispatch_mixed(self, phase: str, rows: int) -> Dispatch:
        """Return the route for one request's `rows` rows of a prompt."""
        asked = (phase, 0, rows)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._mixed(phase, rows)
        return known

    def _decode(self, phase: str, num_requests: int, width: int, at_most: GraphMode) -> Dispatch:
        modes = self.decode_modes()
        bucket = pick_bucket(self.buckets, num_requests) if modes else None
        # The bucket depends on the requests alone: what one phase of a round is padded to, the others are too.
        shape = BatchDescriptor(phase, num_requests if bucket is None else bucket, width)
        eager = Dispatch(
            GraphMode.NONE, Route.EAGER, shape, shape, "", Reason.DISABLED, num_requests, num_requests * width
        )
        if not modes:
            return replace(eager, reason="graphs are off (--graph none)")
        if phase in self._disabled:
            return replace(eager, reason=self._disabled[phase])
        if bucket is None:
            reason = f"{num_requests} requests exceed the largest bucket {self.buckets[-1]}"
            return replace(eager, reason=reason, kind=Reason.TOO_LARGE)
        missing = self._missing(phase, width)
        if missing is not None:
            return replace(eager, reason=missing[1], kind=missing[0])
        failed = None
        for mode in modes:
            key = self.key(mode, shape)
            if (mode, key) in self._failed:
                failed = failed or self._failed[mode, key]
            elif _DEPTH[mode] > _DEPTH[at_most]:
                reason = f"{mode.value} here, {at_most.value} on another rank"
                return replace(eager, reason=reason, kind=Reason.RANK_DISAGREED)
            else:
                return replace(
                    eager, mode=mode, route=Route.REPLAY, key=key, reason="captured", kind=Reason.CAPTURED
                )
        return replace(eager, reason=failed or "", kind=Reason.FAILED)

    def _missing(self, phase: str, width: int) -> tuple[Reason, str] | None:
        if self._asleep:
            return Reason.NOT_CAPTURED, "the graphs were dropped for sleep; wake captures them again"
        if self._widths is None:
            return None
        if phase not in self._widths:
            return Reason.NOT_CAPTURED, f"{phase} is not captured"
        if width in self._widths[phase]:
            return None
        known = ", ".join(map(str, sorted(self._widths[phase])))
        return Reason.WIDTH_DIFFERS, f"width {width}; captured: {known}"

    def _mixed(self, phase: str, rows: int) -> Dispatch:
        exact = BatchDescriptor(phase, 1, rows)
        eager = Dispatch(GraphMode.NONE, Route.EAGER, exact, exact, "", Reason.DISABLED, 1, rows)
        if self.mode is GraphMode.NONE:
            return replace(eager, reason="graphs are off (--graph none)")
        if phase in self._disabled:
            return replace(eager, reason=self._disabled[phase])
        if self.mode.mixed is GraphMode.NONE:
            reason = f"a chunk of a prompt is not uniform, and {self.mode.value} captures nothing else"
            return replace(eager, reason=reason, kind=Reason.NOT_UNIFORM)
        if self.mode.mixed is GraphMode.FULL or not self.mixed_sizes:
            return replace(eager, reason=f"{phase} is not captured", kind=Reason.NOT_CAPTURED)
        size = pick_bucket(self.mixed_sizes, rows)
        if size is None:
            reason = f"{rows} rows exceed the largest captured size {self.mixed_sizes[-1]}"
            return replace(eager, reason=reason, kind=Reason.TOO_LARGE)
        if self._asleep:
            reason = "the graphs were dropped for sleep; wake captures them again"
            return replace(eager, reason=reason, kind=Reason.NOT_CAPTURED)
        mode, shape = GraphMode.PIECEWISE, BatchDescriptor(phase, 1, size)
        key = self.key(mode, shape)
        failed = self._failed.get((mode, key))
        if failed is not None:
            return replace(eager, reason=failed, kind=Reason.FAILED)
        return Dispatch(mode, Route.REPLAY, key, shape, "captured", Reason.CAPTURED, 1, rows)

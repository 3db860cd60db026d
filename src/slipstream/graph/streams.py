"""How many sizes an Ascend device has streams for: the historic budget, and a measured one. Pure: no torch.

A captured graph keeps the streams that it forked, and a device has 2,048. Until June 2026 vllm-ascend cut its list
of sizes by the formula below (`update_aclgraph_sizes`); from HDK 25.5.1 and CANN 8.5.0 on the limit is lifted. It
is still the best public predictor for older stacks. Its constants are of one stack, so what a probe capture really
took stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slipstream.errors import UsageError
from slipstream.graph.modes import GraphMode

#: 2,048 hardware streams less a reserve of 248.
STREAMS = 1800

#: Streams that each communication group takes from the budget without AIV, and context parallelism besides.
_GROUP_STREAMS, _CONTEXT_STREAMS = 40, 100


class Hccl(Enum):
    """How communication is expanded (HCCL_OP_EXPANSION_MODE)."""

    AIV = "aiv"
    FFTS = "ffts"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the budget depends on.

    Attributes:
        layers: of the model.
        draft_layers: of the draft model; None without one.
        tp: ranks of tensor parallelism.
        dp: ranks of data parallelism.
        pcp: ranks of prefill context parallelism.
        dcp: ranks of decode context parallelism.
        moe: whether the model has experts.
        expert_parallel: whether they are spread over the ranks.
        shared_expert_overlap: whether the shared expert runs on a stream of its own.
    """

    layers: int
    draft_layers: int | None = None
    tp: int = 1
    dp: int = 1
    pcp: int = 1
    dcp: int = 1
    moe: bool = False
    expert_parallel: bool = False
    shared_expert_overlap: bool = False

    def validate(self) -> None:
        """Raise UsageError for a number that is not possible."""
        draft = 1 if self.draft_layers is None else self.draft_layers
        for what, value in (
            ("layers", self.layers),
            ("draft-layers", draft),
            ("tp", self.tp),
            ("dp", self.dp),
            ("pcp", self.pcp),
            ("dcp", self.dcp),
        ):
            if not 1 <= value <= 65536:
                raise UsageError(f"{what} {value} is not possible; it is 1 to 65536.")

    @property
    def graphs_per_size(self) -> int:
        """Graphs of one size in pieces: each layer's, one more, and the same of a draft model."""
        return self.layers + 1 + (0 if self.draft_layers is None else self.draft_layers + 1)

    @property
    def groups(self) -> int:
        """Communication groups that the formula counts; pipeline parallelism it leaves out."""
        return (self.dp > 1) + (self.tp > 1)


@dataclass(frozen=True, slots=True)
class StreamBudget:
    """What the formula says of one way of communicating.

    Attributes:
        hccl: that way.
        streams_per_graph: that one captured piece takes.
        streams_per_size: that one size takes: of all its pieces, or of its whole graphs.
        max_sizes: sizes that fit, 0 or more.
    """

    hccl: Hccl
    streams_per_graph: int
    streams_per_size: int
    max_sizes: int

    def fits(self, num_sizes: int) -> bool:
        """Whether so many sizes can be captured."""
        return num_sizes <= self.max_sizes


def stream_budget(facts: StreamFacts, mode: GraphMode, hccl: Hccl, num_sizes: int) -> StreamBudget:
    """Return what the historic formula says.

    Args:
        facts: the model and its ranks.
        mode: what is captured. Whole graphs take one stream a size; the formula was made for pieces.
        hccl: how communication is expanded.
        num_sizes: sizes that are asked for: with FULL_AND_PIECEWISE each takes one stream more.
    """
    whole = 1 if facts.draft_layers is None else 2
    if not mode.has_piecewise:
        streams = whole if mode.has_full else 0
        return StreamBudget(hccl, 1, streams, STREAMS // streams if streams else 0)
    budget = max(0, STREAMS - num_sizes) if mode.has_full else STREAMS
    graphs, groups = facts.graphs_per_size, facts.groups
    if hccl is Hccl.AIV:
        each = 1 + groups + facts.expert_parallel + facts.shared_expert_overlap
        if facts.moe:
            each += facts.dp > 1
        else:
            budget -= each * graphs
    else:
        each = 1 + 2 * groups
        budget -= _CONTEXT_STREAMS * ((facts.pcp > 1) + (facts.dcp > 1)) + _GROUP_STREAMS * groups
    per_size = graphs * each + (1 if mode.has_full else 0)
    return StreamBudget(hccl, each, per_size, max(0, budget // (graphs * each)))


def measured_max_sizes(streams_per_size: int, *, reserved: int = 0) -> int:
    """Return how many sizes fit, given what a probe capture of one size took.

    Args:
        streams_per_size: streams in use after the probe less those before it.
        reserved: streams that are in use without graphs, beyond the formula's reserve of 248.

    Raises:
        UsageError: the probe cannot be one.
    """
    if not 1 <= streams_per_size <= STREAMS:
        raise UsageError(
            f"a probe of {streams_per_size} streams a size is not possible; it is 1 to {STREAMS}, the streams in "
            "use after capturing one size less those before."
        )
    return max(0, STREAMS - reserved) // streams_per_size


@dataclass(frozen=True, slots=True)
class MemoryProbe:
    """What the first two captures, largest first, took of device memory, in MiB.

    Graphs share a pool, so the largest takes its activations and every other little more than its own records.
    """

    first_mib: float
    next_mib: float

    def validate(self) -> None:
        """Raise UsageError for a number that is not possible."""
        for value in (self.first_mib, self.next_mib):
            if not 0 <= value < float("inf"):
                raise UsageError(f"a probe of {value} MiB is not possible; write it as 512,24.")

    def total_mib(self, num_graphs: int) -> float:
        """Return what so many graphs take."""
        return self.first_mib + self.next_mib * (num_graphs - 1) if num_graphs else 0.0

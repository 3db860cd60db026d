"""What a plan of graphs is asked and what it holds. Pure: no torch."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import UsageError
from slipstream.graph.best_sizes import MAX_BUDGET
from slipstream.graph.change import Change
from slipstream.graph.coverage import Coverage
from slipstream.graph.histogram import Histogram
from slipstream.graph.modes import AttentionSupport, GraphMode
from slipstream.graph.platform_rules import PlatformSettings
from slipstream.graph.sizes import MAX_SIZE, SizeSource
from slipstream.graph.streams import Hccl, MemoryProbe, StreamBudget, StreamFacts

#: Requests and rows a request beyond these are a typing mistake.
MAX_REQUESTS, MAX_WIDTH = 4096, 64


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is asked.

    Attributes:
        max_requests: requests that decode together.
        width: rows a request of a decode batch: 1, or with drafts 1 + the drafts verified together.
        sizes: whose default list, or a list of rows.
        max_size: the largest rows, where the user set them.
        max_batched_tokens: rows that a step computes at most; None for no limit.
        interactive: the default list with every size up to 32.
        mode: what is captured.
        support: the least of the attention backends.
        splitting_possible: whether the model can be split at attention.
        fallback: whether a lesser mode will do.
        state_blocks: of a model with a recurrent state.
        sequence_ranks: ranks that share the rows of a sequence; 1 without sequence parallelism.
        platform: what Ascend's check of the configuration reads; None leaves it out. Its mode is `mode`, and with
            drafts it is speculative.
        histogram: how often each decode batch is seen; None for all alike.
        budget: graphs that the best list may have; None for as many as the planned one, and one more where that
            leaves batches without a graph.
        streams: of the stream budget; None leaves it out.
        hccl: how communication is expanded.
        probe_streams: streams that a probe capture of one size took.
        probe_memory: memory that probe captures took.
        unread: what was asked and nothing reads, in words.
    """

    max_requests: int
    width: int = 1
    sizes: SizeSource | tuple[int, ...] = SizeSource.ASCEND
    max_size: int | None = None
    max_batched_tokens: int | None = None
    interactive: bool = False
    mode: GraphMode = GraphMode.FULL_AND_PIECEWISE
    support: AttentionSupport = AttentionSupport.ALWAYS
    splitting_possible: bool = True
    fallback: bool = True
    state_blocks: int | None = None
    sequence_ranks: int = 1
    platform: PlatformSettings | None = None
    histogram: Histogram | None = None
    budget: int | None = None
    streams: StreamFacts | None = None
    hccl: Hccl = Hccl.FFTS
    probe_streams: int | None = None
    probe_memory: MemoryProbe | None = None
    unread: tuple[str, ...] = ()

    def validate(self) -> None:
        """Raise UsageError for a number that is not possible."""
        for what, value, most in (
            ("max-requests", self.max_requests, MAX_REQUESTS),
            ("num-draft-tokens", self.width, MAX_WIDTH),
            ("max-size", self.max_size, MAX_SIZE),
            ("max-batched-tokens", self.max_batched_tokens, 2**31),
            ("budget", self.budget, MAX_BUDGET),
            ("tp", self.sequence_ranks, 65536),
        ):
            if value is not None and not 1 <= value <= most:
                raise UsageError(f"{what} {value} is not possible; it is 1 to {most}.")
        if self.interactive and not isinstance(self.sizes, SizeSource):
            raise UsageError("a list of sizes stands as it is; interactive is for --sizes ascend or vllm.")
        if self.streams is not None:
            self.streams.validate()
        elif self.probe_streams is not None:
            raise UsageError("a probe of streams stands beside the formula: give --layers as well.")
        if self.probe_memory is not None:
            self.probe_memory.validate()


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """One captured size.

    Attributes:
        size: rows of the captured batch.
        bucket: requests that fit.
        decode: whether uniform decode batches replay it.
        whole: whether it is one graph for these, not pieces.
        mixed: whether other batches replay it.
        requests: decode batches that are padded to it, (fewest, most); None if none is.
        share: of the decode steps.
        mean_padded_rows: of these steps.
        most_padded_rows: of these batches.
        streams: that it takes by the formula; None without a budget.
        memory_mib: of all graphs from the largest down to this one; None without a probe.
    """

    size: int
    bucket: int
    decode: bool
    whole: bool
    mixed: bool
    requests: tuple[int, int] | None
    share: float
    mean_padded_rows: float
    most_padded_rows: int
    streams: int | None
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class ListCost:
    """A list of sizes and what it costs on the decode batches.

    Attributes:
        sizes: ascending.
        padded: expected padded rows of a decode step; a step without a graph runs eagerly and pads nothing.
        eager_share: of the decode steps that have no graph.
        uncovered: requests of the batches without a graph, seen or not.
    """

    sizes: tuple[int, ...]
    padded: float
    eager_share: float
    uncovered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamReport:
    """Streams: the formula for both ways of communicating, and the probe.

    Attributes:
        facts: what the formula was given.
        hccl: the way that the plan takes.
        budgets: by way, for the plan's mode.
        pieces: the same for PIECEWISE alone.
        kept: the sizes that old stacks would keep.
        probe_streams: streams that a captured size really took; None without a probe.
        probe_max_sizes: sizes that fit by the probe.
    """

    facts: StreamFacts
    hccl: Hccl
    budgets: dict[Hccl, StreamBudget]
    pieces: dict[Hccl, StreamBudget]
    kept: tuple[int, ...]
    probe_streams: int | None
    probe_max_sizes: int | None

    @property
    def budget(self) -> StreamBudget:
        """What the formula says of the plan."""
        return self.budgets[self.hccl]


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """What would be captured, and what that means.

    Attributes:
        request: what was asked.
        mode: what is captured.
        graphs: by size, ascending.
        coverage: of every decode batch.
        planned: the cost of the planned list.
        completed: the same with the graph that it lacks for the fullest batch; None where it lacks none, or can
            have none. The best list of one graph more than planned never pads more than this one.
        default: of the default list for the same numbers.
        best: the list of least expected padded rows within the budget, over the batches that were seen.
        covering: the same, made to hold every batch up to the most that may run; None where `best` does.
        budget: graphs that these two may have.
        streams: None where the model is not known.
        changes: of settings, in the order of the launch.
        notes: what the reader should know and do.
        settings: of the platform, as they would run; None where it was left out.
    """

    request: PlanRequest
    mode: GraphMode
    graphs: tuple[PlannedGraph, ...]
    coverage: Coverage
    planned: ListCost
    completed: ListCost | None
    default: ListCost
    best: ListCost
    covering: ListCost | None
    budget: int
    streams: StreamReport | None
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    settings: PlatformSettings | None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Captured rows, ascending."""
        return self.planned.sizes

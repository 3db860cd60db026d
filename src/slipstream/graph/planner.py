"""One plan of graphs, before anything is launched: sizes, what they cover, what they pad, what they take.

`plan_graphs` goes the way of the real launch: the platform's rules, the list of sizes, what the attention backend
can give, rounding to the decode width. Then it asks what came of it. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import lcm

from slipstream.errors import UsageError
from slipstream.graph.best_sizes import MAX_BUDGET, best_sizes
from slipstream.graph.change import Change
from slipstream.graph.coverage import Coverage, cover, covering_size, decode_sizes
from slipstream.graph.modes import GraphMode
from slipstream.graph.plan_notes import completed_sizes, plan_notes, steps
from slipstream.graph.plan_types import GraphPlan, ListCost, PlannedGraph, PlanRequest, StreamReport
from slipstream.graph.platform_rules import normalise
from slipstream.graph.sizes import (
    SizeSource,
    check_sizes,
    default_sizes,
    round_to_width,
    sample_sizes,
    sequence_parallel_sizes,
)
from slipstream.graph.streams import Hccl, measured_max_sizes, stream_budget
from slipstream.graph.support import check_state_blocks, resolve_mode


@dataclass
class _Ledger:
    changes: list[Change] = field(default_factory=list)

    def change(self, what: str, asked: str, got: str, why: str, rule: str) -> None:
        if asked != got:
            self.changes.append(Change(what, asked, got, why, rule))


def plan_graphs(request: PlanRequest) -> GraphPlan:
    """Return the plan.

    Raises:
        UsageError: what is asked is not possible.
    """
    request.validate()
    ledger = _Ledger()
    mode, settings = request.mode, request.platform
    if settings is not None:
        speculative = settings.speculative or request.width > 1
        settings, changes = normalise(replace(settings, graph_mode=mode, speculative=speculative))
        mode = settings.graph_mode
        ledger.changes += changes
        if not request.fallback:
            _refuse_other_mode(changes)
    sizes = _sizes(request, ledger)
    mode, changes = resolve_mode(
        mode, request.support, request.splitting_possible, request.width, fallback=request.fallback
    )
    ledger.changes += changes
    check_state_blocks(mode, request.max_requests, request.state_blocks)
    sizes = _shaped(request, mode, sizes, None if settings is None else settings.max_sizes, ledger)
    weights = _weights(request)
    coverage = cover(sizes, mode, request.width, request.max_requests, ranks=request.sequence_ranks)
    # A list that leaves batches out is compared with one that may have the graph that it lacks.
    lacking = 1 if coverage.uncovered else 0
    budget = min(request.budget or max(1, len(sizes) + lacking), MAX_BUDGET)
    streams = _streams(request, mode, sizes)
    best, covering = _best(request, mode, weights, budget)
    whole = completed_sizes(request, mode, sizes) if lacking else None
    plan = GraphPlan(
        request,
        mode,
        _graphs(request, mode, sizes, coverage, weights, streams),
        coverage,
        _cost(request, mode, sizes, weights),
        None if whole is None else _cost(request, mode, whole, weights),
        _cost(request, mode, _default(request, mode), weights),
        best,
        covering,
        budget,
        streams,
        tuple(ledger.changes),
        (),
        settings,
    )
    return replace(plan, notes=plan_notes(plan))


def _refuse_other_mode(changes: tuple[Change, ...]) -> None:
    for change in changes:
        if change.what == "graph_mode":
            raise UsageError(
                f"mode {change.asked} is not possible on Ascend: {change.why} ({change.rule}). Take --mode "
                f"{change.got}, or allow falling back."
            )


# Sizes.


def _sizes(request: PlanRequest, ledger: _Ledger) -> tuple[int, ...]:
    """Return the list before any mode is looked at."""
    if isinstance(request.sizes, SizeSource):
        return default_sizes(
            request.sizes,
            request.max_requests,
            request.width,
            maximum=request.max_size,
            max_batched_tokens=request.max_batched_tokens,
            interactive=request.interactive,
        )
    asked = check_sizes(request.sizes, request.max_size)
    limit = request.max_batched_tokens
    kept = asked if limit is None else tuple(size for size in asked if size <= limit)
    if not kept:
        raise UsageError(
            f"every size is over max-batched-tokens {limit}, so nothing is captured; the smallest is {asked[0]}."
        )
    ledger.change(
        "sizes", steps(asked), steps(kept), f"a step computes at most {limit} rows", "max-batched-tokens"
    )
    return kept


def _shaped(
    request: PlanRequest, mode: GraphMode, sizes: tuple[int, ...], most: int | None, ledger: _Ledger
) -> tuple[int, ...]:
    """Return the list as the mode, the ranks and the hardware leave it."""
    if mode is GraphMode.NONE:
        return ()
    if request.sequence_ranks > 1:
        kept = sequence_parallel_sizes(sizes, request.sequence_ranks)
        why = f"rows are split over {request.sequence_ranks} ranks"
        ledger.change("sizes", steps(sizes), steps(kept), why, "sequence-parallel")
        sizes = kept
    if most is not None and mode.has_piecewise:
        kept = sample_sizes(sizes, most)
        why = f"this hardware captures pieces at {most} sizes"
        ledger.change("sizes", steps(sizes), steps(kept), why, "a5-sizes")
        sizes = kept
    if mode.decode is GraphMode.FULL and request.width > 1:
        rounded = round_to_width(sizes, request.width, ranks=request.sequence_ranks)
        why = f"a whole decode graph holds whole requests of {request.width} rows"
        ledger.change("sizes", steps(sizes), steps(rounded), why, "decode-width")
        sizes = rounded
    return sizes


def _default(request: PlanRequest, mode: GraphMode) -> tuple[int, ...]:
    """Return what the default list would become; of a user's own list, Ascend's default."""
    source = request.sizes if isinstance(request.sizes, SizeSource) else SizeSource.ASCEND
    sizes = default_sizes(
        source, request.max_requests, request.width, max_batched_tokens=request.max_batched_tokens
    )
    try:
        return _shaped(request, mode, sizes, None, _Ledger())
    except UsageError:
        return ()  # the default holds not even one request; the plan itself says so where it is taken


# Costs.


def _weights(request: PlanRequest) -> dict[int, int]:
    """Return how often each decode batch is seen, by requests; without a histogram, each once."""
    if request.histogram is None:
        return dict.fromkeys(range(1, request.max_requests + 1), 1)
    return request.histogram.requests(request.width, request.max_requests).counts


def _cost(
    request: PlanRequest, mode: GraphMode, sizes: tuple[int, ...], weights: Mapping[int, int]
) -> ListCost:
    coverage = cover(sizes, mode, request.width, request.max_requests, ranks=request.sequence_ranks)
    padded = eager = 0
    for requests, weight in weights.items():
        rows = coverage.padded_rows(requests)
        padded += weight * (rows or 0)
        eager += weight if rows is None else 0
    total = sum(weights.values())
    return ListCost(sizes, padded / total, eager / total, coverage.uncovered)


def _best(
    request: PlanRequest, mode: GraphMode, weights: Mapping[int, int], budget: int
) -> tuple[ListCost, ListCost | None]:
    """Return the best list over what was seen, and over all that may run where that is another."""
    if mode is GraphMode.NONE:
        return _cost(request, mode, (), weights), None
    step = request.sequence_ranks
    if mode.decode is GraphMode.FULL:
        step = lcm(step, request.width)
    limit = covering_size(mode, request.width, request.max_requests, ranks=request.sequence_ranks)
    if mode is GraphMode.FULL_DECODE_ONLY:
        # vLLM captures no decode graph of more requests than may run, and here there are no pieces beside it.
        limit = min(limit, request.width * request.max_requests)
    for most in (request.max_size, request.max_batched_tokens):
        limit = limit if most is None else min(limit, most)
    candidates = range(step, limit + 1, step)
    possible = {
        requests * request.width: weight
        for requests, weight in weights.items()
        if candidates and requests * request.width <= candidates[-1]
    }
    if not any(possible.values()):
        return _cost(request, mode, (), weights), None
    best = _cost(request, mode, best_sizes(possible, budget, candidates).sizes, weights)
    fullest = min(request.max_requests, candidates[-1] // request.width) * request.width
    if fullest <= best.sizes[-1]:
        return best, None
    all_of_them = best_sizes({**possible, fullest: possible.get(fullest, 0)}, budget, candidates)
    return best, _cost(request, mode, all_of_them.sizes, weights)


def _graphs(
    request: PlanRequest,
    mode: GraphMode,
    sizes: tuple[int, ...],
    coverage: Coverage,
    weights: Mapping[int, int],
    streams: StreamReport | None,
) -> tuple[PlannedGraph, ...]:
    own = set(decode_sizes(sizes, mode, request.width, request.max_requests))
    total = sum(weights.values())
    graphs = []
    for number, size in enumerate(sizes):
        batches = [requests for requests, found in enumerate(coverage.sizes, 1) if found == size]
        seen = sum(weights.get(requests, 0) for requests in batches)
        padding = {requests: size - requests * request.width for requests in batches}
        weighted = sum(weights.get(requests, 0) * rows for requests, rows in padding.items())
        graphs.append(
            PlannedGraph(
                size,
                size // request.width,
                bool(batches) or size in own,
                mode.decode is GraphMode.FULL and size in own,
                mode.mixed is not GraphMode.NONE,
                (batches[0], batches[-1]) if batches else None,
                seen / total,
                weighted / seen if seen else 0.0,
                max(padding.values(), default=0),
                None if streams is None else streams.budget.streams_per_size,
                None if request.probe_memory is None else request.probe_memory.total_mib(len(sizes) - number),
            )
        )
    return tuple(graphs)


def _streams(request: PlanRequest, mode: GraphMode, sizes: tuple[int, ...]) -> StreamReport | None:
    facts, probe = request.streams, request.probe_streams
    if facts is None:
        return None
    budgets = {hccl: stream_budget(facts, mode, hccl, len(sizes)) for hccl in Hccl}
    pieces = {hccl: stream_budget(facts, GraphMode.PIECEWISE, hccl, len(sizes)) for hccl in Hccl}
    kept = sample_sizes(sizes, budgets[request.hccl].max_sizes) if sizes else ()
    most = None if probe is None else measured_max_sizes(probe)
    return StreamReport(facts, request.hccl, budgets, pieces, kept, probe, most)

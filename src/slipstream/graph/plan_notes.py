"""What the reader of a plan should know and do, in words. Pure: no torch."""

from __future__ import annotations

from slipstream.graph.coverage import covering_size, ranges
from slipstream.graph.modes import GraphMode
from slipstream.graph.plan_types import GraphPlan, PlanRequest


def completed_sizes(request: PlanRequest, mode: GraphMode, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a list with the size that the fullest decode batch needs; None if there can be no such graph."""
    need = covering_size(mode, request.width, request.max_requests, ranks=request.sequence_ranks)
    most = request.max_batched_tokens
    if mode is GraphMode.NONE or (most is not None and most < need):
        return None
    if mode is GraphMode.FULL_DECODE_ONLY and need > request.width * request.max_requests:
        return None
    return tuple(sorted({*sizes, need}))


def plan_notes(plan: GraphPlan) -> tuple[str, ...]:
    """Return the notes of a plan, what matters most first."""
    return (
        *_mode_notes(plan),
        *_coverage_notes(plan),
        *_size_notes(plan),
        *_stream_notes(plan),
        *plan.request.unread,
    )


def words(sizes: tuple[int, ...]) -> str:
    """Return a list as people write it."""
    return ",".join(map(str, sizes)) or "none"


def steps(sizes: tuple[int, ...]) -> str:
    """Return a list in short, for tables: "1, 2, 4, 8 to 248 by 8"."""
    parts = []
    place = 0
    while place < len(sizes):
        last = place + 1
        while last < len(sizes) and sizes[last] - sizes[last - 1] == sizes[place + 1] - sizes[place]:
            last += 1
        if last - place >= 4:
            step = sizes[place + 1] - sizes[place]
            parts.append(f"{sizes[place]} to {sizes[last - 1]}{'' if step == 1 else f' by {step}'}")
            place = last
        else:
            parts.append(str(sizes[place]))
            place += 1
    return ", ".join(parts) or "none"


def _mode_notes(plan: GraphPlan) -> list[str]:
    if plan.mode is GraphMode.NONE:
        return ["nothing is captured: every step runs eagerly"]
    return []


def _coverage_notes(plan: GraphPlan) -> list[str]:
    request, uncovered = plan.request, plan.coverage.uncovered
    if not uncovered or plan.mode is GraphMode.NONE:
        return []
    width = request.width
    need = covering_size(plan.mode, width, request.max_requests, ranks=request.sequence_ranks)
    many = "batch" if len(uncovered) == 1 else "batches"
    said = f"decode {many} of {ranges(uncovered)} requests run eagerly: no graph holds them"
    if plan.graphs:
        said += f" (the largest holds {plan.coverage.uncovered[0] - 1})"
    most = request.max_batched_tokens
    if most is not None and most < need:
        return [
            f"{said}; raise max-batched-tokens from {most} to {need}, or lower max-requests to {most // width}"
        ]
    if completed_sizes(request, plan.mode, plan.sizes) is None:
        return [f"{said}; set max-requests to {need // width}, which splits evenly over the ranks"]
    add = f"--sizes {words(tuple(sorted((*plan.sizes, need))))}"
    if request.max_size is not None:
        add += f" --max-size {need}"
    return [f"{said}; add {need} to the sizes: {add}"]


def _size_notes(plan: GraphPlan) -> list[str]:
    notes = []
    width = plan.request.width
    rows = width * plan.request.max_requests
    if plan.mode.mixed is GraphMode.NONE:
        never = [graph.size for graph in plan.graphs if graph.requests is None]
        if never:
            notes.append(
                f"no decode batch is padded to {words(tuple(never))}: leave them out, each takes time, streams "
                "and memory"
            )
    odd = [size for size in plan.sizes if size % width]
    if odd and plan.mode.has_piecewise and width > 1:
        notes.append(
            f"pieces are not rounded to the width, and {len(odd)} of {len(plan.sizes)} sizes are no multiple of "
            f"{width}: hybrid models with drafts read beyond their rows there (vllm#46324); take multiples of it"
        )
    if plan.best.uncovered and plan.covering is not None and plan.covering.sizes:
        notes.append(
            f"the best list has no graph for {ranges(plan.best.uncovered)} requests, which the histogram never "
            f"shows; with them the best is {words(plan.covering.sizes)}"
        )
    if plan.best.sizes and plan.best.sizes != plan.sizes:
        notes.append(f"to take the best list: --sizes {words(plan.best.sizes)}")
    if plan.request.histogram is None:
        notes.append(f"no histogram: every decode batch from 1 to {rows // width} requests counts alike")
    return notes


def _stream_notes(plan: GraphPlan) -> list[str]:
    report = plan.streams
    if report is None or not plan.sizes:
        return []
    notes = []
    budget = report.budget
    if not budget.fits(len(plan.sizes)):
        advice = (
            f"stacks older than HDK 25.5.1 and CANN 8.5.0 have streams for {budget.max_sizes} of the "
            f"{len(plan.sizes)} sizes ({report.hccl.value})"
        )
        if budget.max_sizes == 0:
            notes.append(f"{advice}: pieces are not possible there; take --mode full_decode_only")
        else:
            notes.append(f"{advice}, and would keep {words(report.kept)}; or take --mode full_decode_only")
    if report.probe_max_sizes is not None and report.probe_max_sizes < len(plan.sizes):
        notes.append(
            f"by the probe ({report.probe_streams} streams a size) {report.probe_max_sizes} sizes fit, and "
            f"{len(plan.sizes)} are planned"
        )
    return notes

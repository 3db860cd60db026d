"""KV pages out of a bounded memory: what the graphs leave, which is measured before the cache is made."""

from __future__ import annotations

import gc
from dataclasses import replace

from slipstream.device.api import Device
from slipstream.engine.core import build_core
from slipstream.errors import UsageError
from slipstream.model.llama import Llama
from slipstream.model.nextn import NextnHead
from slipstream.plan import Decision, EnginePlan
from slipstream.trace import NullRecorder


def fit_pages(plan: EnginePlan, device: Device, target: Llama, head: NextnHead | None) -> EnginePlan:
    """Return the plan with as many KV pages as its memory holds beside the graphs, and not more than it wants.

    All graphs are captured once over a cache of one request, and dropped again; the memory that they share stays
    for those that follow.

    Raises:
        UsageError: what is left does not hold one request of the longest kind.
    """
    if plan.memory_mb is None:
        return plan
    graph_bytes = _graph_bytes(replace(plan, num_pages=plan.pages_per_request), device, target, head)
    layers = target.config.num_layers
    page_bytes = plan.slot_bytes * plan.page_size * (layers + (head is not None)) // layers
    budget = plan.memory_mb * 1_000_000
    # One page more is the scratch page of padding.
    pages = min(plan.num_pages, (budget - graph_bytes) // page_bytes - 1)
    told = f"{plan.memory_mb} MB less {graph_bytes / 1e6:.1f} MB of graphs, measured"
    if pages < plan.pages_per_request:
        least = graph_bytes + (plan.pages_per_request + 1) * page_bytes
        raise UsageError(
            f"memory-mb {plan.memory_mb} is not enough: {told}, leaves {max(pages, 0)} KV pages, and one request "
            f"of {plan.max_model_len} tokens takes {plan.pages_per_request}. Give at least "
            f"{-(-least // 1_000_000)} MB, lower --max-model-len, or capture fewer --buckets."
        )
    decision = Decision("num_pages", "default", str(pages), told)
    return replace(
        plan,
        num_pages=pages,
        kv_bytes=(pages + 1) * plan.page_size * plan.slot_bytes,
        decisions=(*(each for each in plan.decisions if each.what != "num_pages"), decision),
    )


def _graph_bytes(plan: EnginePlan, device: Device, target: Llama, head: NextnHead | None) -> int:
    """Return what the graphs of a plan hold: results, workspaces, and the memory that they share."""
    core = build_core(plan, device, target, head, NullRecorder())
    held = sum(record.memory_bytes for record in core.runner.stats.graphs.values()) + device.pool_bytes()
    del core
    gc.collect()  # a graph and what it was captured from know each other
    return held

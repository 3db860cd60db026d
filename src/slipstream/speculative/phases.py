"""What the graphs hold: the draft, verify and extend forwards, over `StepBuffers` and nothing else.

Each is captured once a shape (`graph.runner`) and can run eagerly in any shape. Where attention takes lengths from
the host, each layer of each forward is a task of the graph: a draft graph has num_steps - 1 of the head's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream import ops
from slipstream.graph.buffers import StepBuffers
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.runner import PhaseFunction
from slipstream.kv.cache import KvCache
from slipstream.model.host_attention import ForwardLengths, HostAttention
from slipstream.model.llama import Llama
from slipstream.model.nextn import NextnHead


@dataclass(frozen=True, slots=True)
class Verified:
    """Results of a verify forward, for R = bucket x width rows.

    Attributes:
        tokens_R: int64, the target's argmax behind each row.
        logits_RV: float32.
        hidden_RH: float32, before the final norm.
    """

    tokens_R: torch.Tensor
    logits_RV: torch.Tensor
    hidden_RH: torch.Tensor


def verify_phase(
    target: Llama, cache: KvCache, buffers: StepBuffers, attention: HostAttention | None = None
) -> PhaseFunction:
    """Return the target's forward over the bonus token and the drafts."""

    def verify(key: BatchDescriptor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden_RH = target.forward(
            buffers.view("verify.ids", key.rows),
            buffers.view("verify.positions", key.rows),
            buffers.view("verify.slots", key.rows),
            # Pieces know no requests: whose rows these are, the attention between them is told.
            buffers.view("pages", key.num_reqs or buffers.rows("pages")),
            cache,
            _full_width(attention, key),
        )
        logits_RV = target.logits(hidden_RH)
        return ops.argmax(logits_RV), logits_RV, hidden_RH

    return verify


def prefill_phase(target: Llama, cache: KvCache, buffers: StepBuffers) -> PhaseFunction:
    """Return the target's forward over a chunk of one prompt; its logits are nobody's but the last row's."""

    def prefill(key: BatchDescriptor) -> torch.Tensor:
        return target.forward(
            buffers.view("prefill.ids", key.rows),
            buffers.view("prefill.positions", key.rows),
            buffers.view("prefill.slots", key.rows),
            buffers.view("prefill.pages", 1),
            cache,
        )

    return prefill


def draft_phase(
    head: NextnHead, cache: KvCache, buffers: StepBuffers, attention: HostAttention | None = None
) -> PhaseFunction:
    """Return the whole roll-out of `width` drafts: candidate 1 is given, width - 1 forwards make the others."""

    def draft(key: BatchDescriptor) -> torch.Tensor:
        bucket = key.slots
        pages_BP = buffers.view("pages", bucket)
        ids_B = buffers.view("draft.ids", bucket)
        hidden_BH = buffers.view("draft.hidden", bucket)
        candidates = [ids_B]
        for step in range(key.width - 1):
            positions_B = buffers.view(f"draft.positions.{step}", bucket)
            slots_B = buffers.view(f"draft.slots.{step}", bucket)
            lengths = None
            if attention is not None:
                lengths = attention.behind(bucket, step + 1, f"step {step}")
            hidden_BH = head.forward(ids_B, hidden_BH, positions_B, slots_B, pages_BP, cache, lengths)
            ids_B = head.tokens(head.logits(hidden_BH))
            candidates.append(ids_B)
        return ops.stack_columns(candidates)

    return draft


def extend_phase(
    head: NextnHead, cache: KvCache, buffers: StepBuffers, attention: HostAttention | None = None
) -> PhaseFunction:
    """Return the head's forward over the full width; its LM head sees each request's last advanced row only."""

    def extend(key: BatchDescriptor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden_RH = head.forward(
            buffers.view("extend.ids", key.rows),
            buffers.view("extend.hidden", key.rows),
            buffers.view("extend.positions", key.rows),
            buffers.view("extend.slots", key.rows),
            buffers.view("pages", key.slots),
            cache,
            _full_width(attention, key),
        )
        last_BH = ops.select_rows(hidden_RH, buffers.view("extend.rows", key.slots))
        logits_BN = head.logits(last_BH)
        return head.tokens(logits_BN), last_BH, ops.top_share(logits_BN)

    return extend


def _full_width(attention: HostAttention | None, key: BatchDescriptor) -> ForwardLengths | None:
    return None if attention is None else attention.behind(key.slots, key.width)

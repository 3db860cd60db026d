"""The plan functions: they write the static inputs of the next graph, on the device.

                     reads                                        may start after
    draft plan       state: lengths, candidate, hidden            the previous round
    verify plan      state: lengths, bonus; the drafts            draft
    extend plan A    state: lengths                               at once: nothing it reads changes in the round
    extend plan B    accepted lengths, tokens, hidden rows        accept

Padded rows need no case of their own: the upload gives them the pool's last row and the scratch page, and what
follows from these is safe.
"""

from __future__ import annotations

import torch

from slipstream import ops
from slipstream.graph.buffers import BufferSpec
from slipstream.speculative.accept import Accepted
from slipstream.speculative.planning import PlanContext, PlanFunction, plan_function


def buffer_specs(
    max_rows: int, num_steps: int, pages_per_request: int, hidden_size: int, chunk_rows: int = 0
) -> list[BufferSpec]:
    """Return the static inputs of all phases.

    Args:
        max_rows: request slots of the largest shape.
        num_steps: drafts a round, 0 for plain decoding.
        pages_per_request: pages of a page table's row.
        hidden_size: H.
        chunk_rows: rows of the largest captured chunk of a prompt, 0 where none is.
    """
    chunk = [BufferSpec(f"prefill.{what}", (chunk_rows,)) for what in ("ids", "positions", "slots")]
    chunk.append(BufferSpec("prefill.pages", (1, pages_per_request)))
    rows = max_rows * (num_steps + 1)
    steps = [
        spec
        for step in range(num_steps - 1)
        for spec in (
            BufferSpec(f"draft.positions.{step}", (max_rows,)),
            BufferSpec(f"draft.slots.{step}", (max_rows,)),
        )
    ]
    return [
        BufferSpec("slots", (max_rows,), uploaded=True),
        BufferSpec("pages", (max_rows, pages_per_request), uploaded=True),
        BufferSpec("drafts", (max_rows, num_steps), uploaded=True),
        BufferSpec("greedy", (max_rows,), uploaded=True),
        BufferSpec("from_host", (max_rows,), uploaded=True),
        BufferSpec("draft.ids", (max_rows,)),
        BufferSpec("draft.hidden", (max_rows, hidden_size), floating=True),
        *steps,
        BufferSpec("verify.ids", (rows,)),
        BufferSpec("verify.positions", (rows,)),
        BufferSpec("verify.slots", (rows,)),
        BufferSpec("extend.ids", (rows,)),
        BufferSpec("extend.positions", (rows,)),
        BufferSpec("extend.slots", (rows,)),
        BufferSpec("extend.hidden", (rows, hidden_size), floating=True),
        BufferSpec("extend.rows", (max_rows,)),
        *(chunk if chunk_rows else ()),
    ]


def draft_plan_for(num_steps: int) -> PlanFunction:
    """Return the draft plan for `num_steps`: its declaration names one pair of buffers a forward."""
    forwards = range(num_steps - 1)
    writes = (
        "draft.ids",
        "draft.hidden",
        *(f"draft.{what}.{step}" for step in forwards for what in ("positions", "slots")),
    )

    @plan_function(state=("lengths_M", "candidate_M", "hidden_MH"), writes=writes)
    def draft_plan(plan: PlanContext) -> None:
        ops.draft_inputs.direct(
            plan.state("candidate_M"),
            plan.state("hidden_MH"),
            plan.slots_B,
            plan.out("draft.ids"),
            plan.out("draft.hidden"),
        )
        for step in forwards:
            plan.rows("draft", 1, offset=step, suffix=f".{step}")

    return draft_plan


@plan_function(state=("lengths_M", "bonus_M"), writes=("verify.ids", "verify.positions", "verify.slots"))
def verify_plan(plan: PlanContext, drafts_BS: torch.Tensor) -> None:
    """Rows of a request: the bonus token, then its drafts, at the positions behind the committed ones.

    Args:
        plan: the batch.
        drafts_BS: int64, -1 for none; read after draft.
    """
    width = drafts_BS.shape[1] + 1
    ops.verify_rows.direct(
        plan.state("lengths_M"),
        plan.state("bonus_M"),
        plan.slots_B,
        plan.read("pages"),
        plan.page_size,
        drafts_BS,
        plan.out("verify.ids", width),
        plan.out("verify.positions", width),
        plan.out("verify.slots", width),
    )


@plan_function(state=("lengths_M",), writes=("extend.positions", "extend.slots"))
def extend_plan_a(plan: PlanContext, width: int) -> None:
    """The geometry of extend, over the full width. Reads nothing that verify or accept writes."""
    plan.rows("extend", width)


@plan_function(writes=("extend.ids", "extend.hidden", "extend.rows"))
def extend_plan_b(plan: PlanContext, accepted: Accepted, hidden_RH: torch.Tensor) -> None:
    """The values of extend: the target's tokens, its hidden rows, and which row is the last one advanced to."""
    width = accepted.tokens_BW.shape[1]
    ops.extend_inputs.direct(
        accepted.tokens_BW,
        accepted.advanced_B,
        hidden_RH,
        plan.out("extend.ids", width),
        plan.out("extend.hidden", width),
        plan.out("extend.rows"),
    )

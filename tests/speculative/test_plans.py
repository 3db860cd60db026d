"""Plan functions touch what they declare, and give padded rows inputs that are safe."""

from __future__ import annotations

import pytest
import torch

from slipstream.errors import PlanAccessError
from slipstream.graph.buffers import POISON, StepBuffers
from slipstream.speculative import plans
from slipstream.speculative.accept import accept_greedy
from slipstream.speculative.planning import PlanContext, PlanFunction, plan_function
from slipstream.speculative.plans import buffer_specs, draft_plan_for
from slipstream.speculative.state import RoundState

REQUESTS, BUCKET, STEPS, WIDTH, PAGES, HIDDEN, PAGE_SIZE = 2, 4, 3, 4, 4, 8, 4
PADDING = REQUESTS  # the pool's last row

# Two requests at 5 and 9 committed tokens, in slots 1 and 0, on pages that are not in order.
LENGTHS = [9, 5]
TABLES = {1: [3, 1, 5, 0], 0: [2, 8, 4, 7]}


def make_state() -> RoundState:
    state = RoundState.empty(REQUESTS, HIDDEN, torch.device("cpu"))
    slots = torch.tensor([0, 1])
    hidden = torch.arange(2 * HIDDEN, dtype=torch.float32).view(2, HIDDEN)
    return state.put(
        slots,
        lengths_M=torch.tensor(LENGTHS),
        bonus_M=torch.tensor([40, 50]),
        candidate_M=torch.tensor([41, 51]),
        hidden_MH=hidden,
    )


def make_buffers() -> StepBuffers:
    """The batch [slot 1, slot 0], uploaded in checking mode: what no plan writes stays poisoned."""
    specs = buffer_specs(BUCKET, STEPS, PAGES, HIDDEN)
    buffers = StepBuffers(specs, torch.device("cpu"), check=True)
    buffers.host["slots"].copy_(torch.tensor([1, 0, PADDING, PADDING]))
    buffers.host["pages"].zero_()
    buffers.host["pages"][:2] = torch.tensor([TABLES[1], TABLES[0]])
    buffers.upload()
    return buffers


def kv_slot(slot: int, position: int) -> int:
    return TABLES[slot][position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


def written(buffers: StepBuffers) -> set[str]:
    """The planned buffers that are not all poison any more."""
    found = set()
    for name in buffers.names():
        values = buffers.view(name, buffers.rows(name))
        poisoned = values.isnan() if values.is_floating_point() else values == POISON
        if name not in buffers.host and not poisoned.all():
            found.add(name)
    return found


class TestDeclarations:
    def run_all(self, buffers: StepBuffers, plan: PlanFunction) -> None:
        slots_C = torch.zeros(1, dtype=torch.int64)
        nothing_held = torch.zeros(BUCKET, STEPS, dtype=torch.int64), torch.ones(BUCKET, WIDTH).long()
        accepted, _ = accept_greedy(make_state(), slots_C, *nothing_held)
        arguments: dict[str, tuple[object, ...]] = {
            "verify_plan": (torch.zeros(BUCKET, STEPS, dtype=torch.int64),),
            "extend_plan_a": (WIDTH,),
            "extend_plan_b": (accepted, torch.zeros(BUCKET * WIDTH, HIDDEN)),
        }
        plan(buffers, make_state(), BUCKET, PAGE_SIZE, *arguments.get(plan.access.name, ()))

    @pytest.mark.parametrize(
        "plan",
        [draft_plan_for(STEPS), plans.verify_plan, plans.extend_plan_a, plans.extend_plan_b],
        ids=lambda plan: plan.access.name,
    )
    def test_every_plan_writes_all_that_it_declares_and_nothing_else(self, plan: PlanFunction) -> None:
        buffers = make_buffers()
        self.run_all(buffers, plan)
        assert written(buffers) == plan.access.writes

    def test_extend_plan_a_reads_nothing_that_a_round_changes(self) -> None:
        """What lets it overlap verify and accept: committed lengths of the round's start, and page tables."""
        assert plans.extend_plan_a.access.state == {"lengths_M"}
        assert plans.extend_plan_a.access.reads == {"slots", "pages"}

    def test_extend_plans_share_no_buffer(self) -> None:
        assert not plans.extend_plan_a.access.writes & plans.extend_plan_b.access.writes


class TestUndeclaredAccess:
    def refuse(self, function: PlanFunction, *words: str) -> None:
        with pytest.raises(PlanAccessError) as caught:
            function(make_buffers(), make_state(), BUCKET, PAGE_SIZE)
        for word in ("'lying_plan'", *words):
            assert word in str(caught.value)

    def test_reading_a_buffer(self) -> None:
        @plan_function(writes=("verify.ids",))
        def lying_plan(plan: PlanContext) -> None:
            plan.read("verify.slots")

        self.refuse(lying_plan, "may not read 'verify.slots'", "pages, slots")

    def test_writing_a_buffer_that_is_only_read(self) -> None:
        @plan_function(reads=("drafts",), writes=("verify.ids",))
        def lying_plan(plan: PlanContext) -> None:
            plan.write("drafts", plan.read("drafts"))

        self.refuse(lying_plan, "may not write 'drafts'", "declares: verify.ids")

    def test_a_misspelt_buffer_gets_the_nearest_name(self) -> None:
        @plan_function(writes=("verify.ids",))
        def lying_plan(plan: PlanContext) -> None:
            plan.write("verify.idss", torch.zeros(1, dtype=torch.int64))

        self.refuse(lying_plan, "nearest buffer: 'verify.ids'")

    def test_reading_state(self) -> None:
        @plan_function(state=("lengths_M",), writes=("verify.ids",))
        def lying_plan(plan: PlanContext) -> None:
            plan.state("bonus_M")

        self.refuse(lying_plan, "may not read state 'bonus_M'", "declares: lengths_M")


class TestWhatPlansWrite:
    def test_verify_rows_are_the_bonus_then_the_drafts_behind_the_committed_tokens(self) -> None:
        buffers = make_buffers()
        candidates = torch.tensor([[51, 52, -1], [41, -1, -1], [-1, -1, -1], [-1, -1, -1]])
        plans.verify_plan(buffers, make_state(), BUCKET, PAGE_SIZE, candidates)
        ids = buffers.view("verify.ids", 8).view(2, 4).tolist()
        assert ids == [[50, 51, 52, 0], [40, 41, 0, 0]]
        assert buffers.view("verify.positions", 8).view(2, 4).tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
        slots = buffers.view("verify.slots", 8).view(2, 4).tolist()
        assert slots == [[kv_slot(1, p) for p in range(5, 9)], [kv_slot(0, p) for p in range(9, 13)]]

    def test_extend_takes_the_last_advanced_row(self) -> None:
        buffers = make_buffers()
        target = torch.arange(16).view(BUCKET, WIDTH)
        candidates = torch.tensor([[0, 1, 99], [99, 5, 6], [-1, -1, -1], [-1, -1, -1]])
        accepted, _ = accept_greedy(make_state(), torch.zeros(1, dtype=torch.int64), candidates, target)
        hidden = torch.randn(BUCKET * WIDTH, HIDDEN)
        plans.extend_plan_b(buffers, make_state(), BUCKET, PAGE_SIZE, accepted, hidden)
        assert buffers.view("extend.rows", 2).tolist() == [2, 4]
        assert buffers.view("extend.ids", 16).tolist() == list(range(16))
        assert buffers.view("extend.hidden", 16).equal(hidden)

    def test_draft_forwards_stand_behind_each_other(self) -> None:
        buffers = make_buffers()
        draft_plan_for(STEPS)(buffers, make_state(), BUCKET, PAGE_SIZE)
        assert buffers.view("draft.ids", 2).tolist() == [51, 41]
        assert buffers.view("draft.hidden", 2).equal(make_state().hidden_MH[[1, 0]])
        for step in range(STEPS - 1):
            assert buffers.view(f"draft.positions.{step}", 2).tolist() == [5 + step, 9 + step]
            expected = [kv_slot(1, 5 + step), kv_slot(0, 9 + step)]
            assert buffers.view(f"draft.slots.{step}", 2).tolist() == expected

    def test_padded_rows_stay_on_the_scratch_page(self) -> None:
        buffers = make_buffers()
        plans.verify_plan(buffers, make_state(), BUCKET, PAGE_SIZE, torch.full((BUCKET, STEPS), -1))
        plans.extend_plan_a(buffers, make_state(), BUCKET, PAGE_SIZE, WIDTH)
        draft_plan_for(STEPS)(buffers, make_state(), BUCKET, PAGE_SIZE)
        for name in ("verify.slots", "extend.slots"):
            assert buffers.view(name, 16)[8:].max() < PAGE_SIZE
        for name in ("verify.ids", "verify.positions", "extend.positions"):
            assert 0 <= buffers.view(name, 16)[8:].min() <= buffers.view(name, 16)[8:].max() < WIDTH
        for step in range(STEPS - 1):
            assert buffers.view(f"draft.slots.{step}", 4)[2:].max() < PAGE_SIZE

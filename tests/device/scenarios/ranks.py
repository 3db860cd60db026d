"""Ranks that part: collectives that one rank issues and another doesn't, or issues in another order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.device.scenarios.parts import all_reduce, everyone, from_rank_0, run_ranks
from tests.device.scenarios.registry import finds


def captured(body: Callable[[], object]) -> torch.npu.NPUGraph:  # type: ignore[name-defined]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        body()
    return graph


@finds("collective", says=("all_reduce[4]", "all_reduce[3]"), mend="one order on every rank", ranks=2)
def one_rank_pads_for_its_graph(mended: bool) -> None:
    """vllm-ascend #13826: the ranks don't agree on the mode, so one pads to its graph's size and one doesn't."""

    def rank(can_replay: bool) -> None:
        replays = everyone(can_replay) if mended else can_replay
        hidden = torch.ones(4 if replays else 3, device="npu")
        all_reduce(hidden)
        hidden.tolist()

    run_ranks(lambda: rank(True), lambda: rank(False))


@finds(
    "collective", says=("waits for ever", "rank 1 never issues"), mend="an idle rank must take part", ranks=2
)
def idle_rank_skips_its_collectives(mended: bool) -> None:
    """sglang #29144: a rank without requests leaves the draft-extend out, and with it the collectives."""

    def rank(requests: int) -> None:
        hidden = torch.ones(4, device="npu")
        all_reduce(hidden)
        takes_part = True if mended else requests > 0
        if takes_part:
            all_reduce(hidden)
        hidden.tolist()

    run_ranks(lambda: rank(2), lambda: rank(0))


@finds("collective", says=("waits for ever", "rank 1 never issues"), ranks=2)
def ranks_draft_different_numbers_of_steps(mended: bool) -> None:
    """sglang PR #35898: the adaptive number of draft steps is chosen by each rank for itself."""

    def rank(number: int, steps: int) -> None:
        hidden = torch.ones(4, device="npu")
        for _ in range(from_rank_0(number, steps) if mended else steps):
            all_reduce(hidden)
        hidden.tolist()

    run_ranks(lambda: rank(0, 3), lambda: rank(1, 1))


@finds("collective", says=("all_reduce[8]", "all_reduce[6]"), ranks=2)
def ranks_plan_different_budgets(mended: bool) -> None:
    """sglang #31195: each rank plans how many tokens it verifies; only one rank's plan may hold for all."""

    def rank(number: int, budget: int) -> None:
        agreed = from_rank_0(number, budget) if mended else budget
        rows = torch.ones(agreed, device="npu")
        all_reduce(rows)
        rows.tolist()

    run_ranks(lambda: rank(0, 8), lambda: rank(1, 6))


@finds("collective", says=("all_reduce[8]", "all_reduce[4]"), mend="one order on every rank", ranks=2)
def ranks_capture_in_different_orders(mended: bool) -> None:
    """vllm-ascend #3413: a warm-up run with collectives stands before each capture, and the ranks go through the
    sizes in different orders."""

    def rank(sizes: list[int]) -> None:
        for size in sorted(sizes, reverse=True) if mended else sizes:
            rows = torch.ones(size, device="npu")
            all_reduce(rows)
            torch.npu.synchronize()
            captured(lambda rows=rows: all_reduce(rows))

    run_ranks(lambda: rank([8, 4]), lambda: rank([4, 8]))


@finds("collective", says=("all_reduce[2]", "all_reduce[3]"), ranks=2)
def ranks_accept_different_numbers(mended: bool) -> None:
    """sglang #28815: greedy verify isn't broadcast, and a tie in the logits is broken differently on two ranks."""

    def rank(number: int, accepted: int) -> None:
        agreed = from_rank_0(number, accepted) if mended else accepted
        hidden = torch.ones(agreed, device="npu")
        all_reduce(hidden)
        hidden.tolist()

    run_ranks(lambda: rank(0, 3), lambda: rank(1, 2))


@finds("collective", says=("all_gather[4]", "all_reduce[4]"), ranks=2)
def one_rank_replays_and_one_runs_eagerly(mended: bool) -> None:
    """sglang PR #30839: one rank has the seed for its draft graph, the other drops to eager, whose communication
    differs."""

    def rank(has_seed: bool) -> None:
        hidden = torch.ones(4, device="npu")
        graph = captured(lambda: all_reduce(hidden))
        replays = everyone(has_seed) if mended else has_seed
        if replays:
            graph.replay()
        else:
            all_reduce(hidden, "all_gather")
        hidden.tolist()

    run_ranks(lambda: rank(True), lambda: rank(False))


@finds("collective", says=("rank 0 never issues",), mend="issue all_reduce[4] on rank 0 too", ranks=2)
def dummy_run_is_left_out(mended: bool) -> None:
    """vllm-ascend #5979: a rank without work should make a dummy run beside the others' step, and doesn't."""

    def step() -> None:
        hidden = torch.ones(4, device="npu")
        all_reduce(hidden)
        hidden.tolist()

    def idle() -> None:
        if mended:
            step()

    run_ranks(idle, step)


@finds("collective", says=("shared_experts[4]", "routed_experts[4]"), mend="one order on every rank", ranks=2)
def side_stream_changes_the_order_of_collectives(mended: bool) -> None:
    """vllm-ascend #8502: shared experts reduce on a side stream, and the rank that is late issues them second."""

    def rank(late: bool) -> None:
        side = torch.npu.Stream()
        main = torch.npu.current_stream()
        shared = torch.ones(4, device="npu")
        routed = torch.ones(4, device="npu")
        side.wait_stream(main)

        def reduce_shared() -> None:
            with torch.npu.stream(side):
                all_reduce(shared, "shared_experts")

        second = False if mended else late
        if not second:
            reduce_shared()
        all_reduce(routed, "routed_experts")
        if second:
            reduce_shared()
        torch.npu.synchronize()

    run_ranks(lambda: rank(False), lambda: rank(True))

"""Plan streams and other streams beside the round: what waits for what."""

from __future__ import annotations

import torch

from tests.device.scenarios.registry import finds


@finds("race", streams=("main", "plan"), buffer="accepted")
def extend_is_planned_before_accept_is_done(mended: bool) -> None:
    """sglang #40025: the extend plan reads accepted lengths that accept hasn't written yet."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    accepted = torch.zeros(4, dtype=torch.int64, device="npu")
    last_row = torch.zeros(4, dtype=torch.int64, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(main):
        accepted.copy_(torch.arange(4, device="npu"))
    if mended:
        plan.wait_stream(main)
    with torch.npu.stream(plan):
        torch.add(torch.arange(0, 16, 4, device="npu"), accepted, out=last_row)
    main.wait_stream(plan)
    with torch.npu.stream(main):
        last_row.sum()


@finds("race", streams=("main", "plan"), buffer="tree")
def verify_is_planned_before_the_draft_is_done(mended: bool) -> None:
    """sglang PR #28034: the verify plan reads the tree while the draft still writes it."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    tree = torch.zeros(2, 4, dtype=torch.int64, device="npu")
    mask = torch.zeros(2, 4, 4, dtype=torch.bool, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(main):
        for step in range(4):
            tree[:, step] = step - 1
    if mended:
        plan.wait_stream(main)
    with torch.npu.stream(plan):
        mask.copy_(tree.unsqueeze(2) == torch.arange(4, device="npu"))
    main.wait_stream(plan)
    with torch.npu.stream(main):
        mask.sum()


@finds("race", streams=("plan", "main"), buffer="metadata")
def verify_runs_before_its_plan(mended: bool) -> None:
    """sglang PR #36507: verify reads the plan's metadata without waiting for the plan stream."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    metadata = torch.zeros(8, dtype=torch.int64, device="npu")
    logits = torch.ones(8, 16, device="npu")
    torch.npu.synchronize()
    plan.wait_stream(main)
    with torch.npu.stream(plan):
        metadata.copy_(torch.arange(8, device="npu"))
    if mended:
        main.wait_stream(plan)
    with torch.npu.stream(main):
        logits.gather(1, metadata.unsqueeze(1))


@finds("race", streams=("main", "plan"), buffer="tokens", mend="plan.wait_stream(main)")
def event_is_recorded_before_the_last_write(mended: bool) -> None:
    """sglang #21942: the preparation of verify waits for an event that stands before the tree's last write."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    drafted = torch.npu.Event()
    parents = torch.zeros(8, dtype=torch.int64, device="npu")
    tokens = torch.zeros(8, dtype=torch.int64, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(main):
        parents.copy_(torch.arange(8, device="npu"))
        drafted.record(main)
        tokens.copy_(torch.arange(8, device="npu"))
        if mended:
            drafted.record(main)
    plan.wait_event(drafted)
    with torch.npu.stream(plan):
        tokens.index_select(0, parents)
    main.wait_stream(plan)


@finds("race", streams=("main", "plan"), buffer="hidden", mend="plan.wait_stream(main)")
def wait_comes_before_the_record(mended: bool) -> None:
    """sglang PR #37980: the hand-off's event is waited for before it is recorded, and such a wait does nothing."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    handed_over = torch.npu.Event()
    hidden = torch.zeros(4, 8, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(main):
        hidden.add_(1)
    if mended:
        handed_over.record(main)
    plan.wait_event(handed_over)
    handed_over.record(main)
    with torch.npu.stream(plan):
        hidden.mean(1)
    main.wait_stream(plan)


@finds("race", streams=("main", "plan"), buffer="hidden", mend="plan.wait_stream(main)")
def wait_only_if_there_is_an_event(mended: bool) -> None:
    """SGLang 0.5.23, multi-layer EAGLE: the plan waits only where there is a boundary event, and an
    idle path has none."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    hidden = torch.zeros(4, 8, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(main):
        hidden.add_(1)
    boundary = main.record_event() if mended else None
    if boundary is not None:
        plan.wait_event(boundary)
    with torch.npu.stream(plan):
        hidden.mean(1)
    main.wait_stream(plan)


@finds("race", streams=("plan", "main"), buffer="seq_lens")
def lengths_are_committed_while_positions_are_planned(mended: bool) -> None:
    """Ascend/sglang PR #203: positions come out wrong, as commit moves the lengths that the plan reads."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    seq_lens = torch.tensor([5, 9], device="npu")
    positions = torch.zeros(2, 4, dtype=torch.int64, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(plan):
        torch.add(seq_lens.unsqueeze(1), torch.arange(4, device="npu"), out=positions)
    if mended:
        main.wait_stream(plan)
    with torch.npu.stream(main):
        seq_lens.add_(2)
    main.wait_stream(plan)
    with torch.npu.stream(main):
        positions.sum()


@finds("race", streams=("forward", "schedule"), buffer="req_to_token", mend="schedule.wait_stream(forward)")
def req_to_token_is_overwritten_while_it_is_read(mended: bool) -> None:
    """sglang #18744: the scheduler hands out slots for the next round while the forward reads the same rows."""
    schedule = torch.npu.Stream()
    forward = torch.npu.Stream()
    req_to_token = torch.zeros(4, 16, dtype=torch.int64, device="npu")
    kv = torch.ones(64, 8, device="npu")
    torch.npu.synchronize()
    for number in range(2):
        with torch.npu.stream(schedule):
            req_to_token[1, 4 : 6 + number] = 40 + number
        forward.wait_stream(schedule)
        with torch.npu.stream(forward):
            kv.index_select(0, req_to_token[1])
            read_done = forward.record_event()
        if mended:
            schedule.wait_event(read_done)


@finds("race", streams=("forward", "schedule"), buffer="page_table", says=("replay 1 of graph",))
def page_table_is_written_while_a_replay_reads_it(mended: bool) -> None:
    """sglang #28843: the next batch's page table is written while the replayed verify graph still reads it."""
    schedule = torch.npu.Stream()
    forward = torch.npu.Stream()
    page_table = torch.zeros(4, 8, dtype=torch.int64, device="npu")
    kv = torch.ones(64, 8, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        kv.index_select(0, page_table.view(-1))
    torch.npu.synchronize()
    for batch in range(2):
        with torch.npu.stream(schedule):
            page_table.fill_(batch)
        forward.wait_stream(schedule)
        with torch.npu.stream(forward):
            graph.replay()
        if mended:
            schedule.wait_stream(forward)


@finds("race", streams=("side",), buffer="lengths", mend=".wait_stream(side)")
def streams_of_a_graph_are_joined_too_late(mended: bool) -> None:
    """sglang #32470: inside the capture, a kernel reads what a plan kernel on a forked stream writes; the join
    comes, but behind the read."""
    side = torch.npu.Stream()
    graph = torch.npu.NPUGraph()
    lengths = torch.zeros(8, dtype=torch.int64, device="npu")
    with torch.npu.graph(graph):
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            lengths.copy_(torch.arange(8, device="npu"))
        if mended:
            main.wait_stream(side)
        lengths.cumsum(0)
        main.wait_stream(side)
    graph.replay()


@finds("race", streams=("main", "plan"), buffer="workspace")
def workspace_is_planned_anew_while_in_use(mended: bool) -> None:
    """flashinfer #3904: the next batch's plan writes the workspace that the running attention reads."""
    main = torch.npu.Stream()
    plan = torch.npu.Stream()
    workspace = torch.zeros(32, dtype=torch.int64, device="npu")
    kv = torch.ones(64, 8, device="npu")
    torch.npu.synchronize()
    for batch in range(2):
        with torch.npu.stream(plan):
            workspace.fill_(batch)
        main.wait_stream(plan)
        with torch.npu.stream(main):
            kv.index_select(0, workspace)
        if mended:
            plan.wait_stream(main)

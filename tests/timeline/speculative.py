"""Speculative rounds on the virtual device, with everything that makes them hard: and the truth about each.

main    [draft graph: 3 forwards]  host builds the tree  [verify graph: attention | index branch, all-reduce]
        [accept] .. [extend graph, or eager on some rank]
plan                                                      [plan A]
plan2                                                                 [plan B]
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from slipstream.timeline.assemble import sort_marks
from slipstream.timeline.table import Graph, Kind, Marks, Source, Timeline
from tests.timeline.virtual import Costs, Node, Rank, Work, World, edges_of

US = 1_000

DRAFT, VERIFY, EXTEND = 0, 1, 2

#: What engines write of a verify: SGLang's requests, with its detailed annotations their rows too; requests in a
#: bucket; ATOM's, with the drafts of a request.
SGLANG = "step[TARGET_VERIFY bs={requests}]"
DETAILED = "step[TARGET_VERIFY bs={requests} g_sq={rows} g_sqsq=1 g_sqsk=2 g_sk=3]"
IN_BUCKET = "step[VERIFY raw_bs={requests} bs={bucket}]"
ATOM = "decode[bs={requests}/{bucket} tok={rows} d={requests} spec={drafts}]"


@dataclass(frozen=True)
class Shape:
    """How the rounds are."""

    rounds: int = 6
    ranks: int = 1
    requests: int = 5
    bucket: int = 8
    width: int = 4
    forwards: int = 3
    tree: int = 80 * US  # the host, between draft and verify
    jitter: int = 0  # it takes up to so much longer, by the round
    eager_extend: tuple[int, ...] = ()  # ranks
    eager_host: int = 40 * US  # the host, before each eager kernel
    slow_rank: int = -1  # its attention takes longer
    plan: int = 30 * US
    plan_b: int = 0  # what the extend plan does once accept is through, on a stream of its own; 0: nothing
    marks: str = "sglang"
    verify_marks: tuple[str, ...] = ("verify", SGLANG)  # one inside the other
    ascend: bool = False
    costs: Costs = field(default_factory=Costs)


def draft_nodes(shape: Shape) -> list[Node]:
    nodes: list[Node] = []
    for _ in range(shape.forwards):
        last = [len(nodes) - 1] if nodes else []
        nodes.append(Node("draft_attention", "main", 20 * US, *last))
        nodes.append(Node("draft_mlp", "main", 15 * US, len(nodes) - 1))
    return nodes


def verify_nodes(shape: Shape, rank: int) -> list[Node]:
    slow = 60 * US if rank == shape.slow_rank else 0
    return [
        Node("norm", "main", 5 * US),
        Node("attention", "main", 70 * US + slow, 0),
        Node("indexer", "branch", 110 * US + slow, 0),
        Node("join_attention", "main", 10 * US, 1, 2),
        Node("mlp", "main", 90 * US, 3),
        Node("lm_head", "main", 25 * US, 4),
    ]


def extend_nodes(shape: Shape) -> list[Node]:
    return [Node("extend_attention", "main", 22 * US), Node("extend_mlp", "main", 18 * US, 0)]


def graphs(shape: Shape) -> list[Graph]:
    made = [draft_nodes(shape), verify_nodes(shape, -1), extend_nodes(shape)]
    return [
        Graph(0, f"graph {number}", Source.GIVEN, len(nodes), edges_of(nodes))
        for number, nodes in enumerate(made)
    ]


def program(shape: Shape):
    def run(rank: Rank) -> Generator[None]:
        for number in range(shape.rounds):
            yield from _round(rank, shape, number)
        yield

    return run


def _round(rank: Rank, shape: Shape, number: int) -> Generator[None]:
    rank.phase = f"{number} draft"
    with_marks = shape.marks == "sglang"
    end = rank.mark("draft") if with_marks else lambda: None
    inner = (
        rank.mark(f"step[DRAFT_LOOP raw_bs={shape.requests} bs={shape.bucket} topk=1]") if with_marks else end
    )
    rank.replay(DRAFT, draft_nodes(shape), "main")
    inner()
    end()
    yield from rank.sync("main")
    rank.host("build_tree", shape.tree + number * 7919 % 13 * shape.jitter // 13)
    rank.phase = f"{number} verify"
    ends = [rank.mark(_written(text, shape)) for text in shape.verify_marks] if with_marks else []
    rank.replay(VERIFY, verify_nodes(shape, rank.rank), "main")
    rank.wait("comm", rank.record("main"))
    rank.collective("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", "comm", 40 * US, number)
    rank.wait("main", rank.record("comm"))
    for end in reversed(ends):
        end()
    end = rank.mark("extend plan A") if with_marks else lambda: None
    rank.phase = f"{number} extend plan A"
    rank.kernel("plan_pages", "plan", shape.plan)
    end()
    rank.phase = f"{number} accept"
    end = rank.mark("accept") if with_marks else lambda: None
    rank.kernel("accept_greedy", "main", 12 * US)
    end()
    if shape.plan_b:
        end = rank.mark("extend plan B") if with_marks else lambda: None
        rank.phase = f"{number} extend plan B"
        rank.wait("plan2", rank.record("main"))
        rank.kernel("plan_lengths", "plan2", shape.plan_b)
        rank.wait("main", rank.record("plan2"))
        end()
    rank.phase = f"{number} extend"
    end = rank.mark("draft_extend") if with_marks else lambda: None
    if rank.rank in shape.eager_extend:
        for node in extend_nodes(shape):
            rank.host("aten::linear", shape.eager_host)
            rank.kernel(node.name, "main", node.cost)
    else:
        rank.replay(EXTEND, extend_nodes(shape), "main")
    end()
    yield from rank.sync("main")
    rank.phase = ""
    rank.host("process_batch_result", 25 * US)


def _written(text: str, shape: Shape) -> str:
    return text.format(
        requests=shape.requests,
        bucket=shape.bucket,
        rows=shape.requests * shape.width,
        drafts=shape.width - 1,
    )


def play(shape: Shape) -> World:
    return World(shape.ranks, ascend=shape.ascend, costs=shape.costs).run(program(shape))


def of_phase(world: World, rank: int, phase: str) -> list[Work]:
    return [w for w in world.works if w.rank == rank and w.phase == phase and w.kind <= Kind.COMM]


def with_device_marks(table: Timeline, world: World, shape: Shape) -> Timeline:
    """The same run as Slipstream itself writes it: a mark for each phase on its stream, with what it knows."""
    names = list(table.names)
    start, end, name, stream, args = [], [], [], [], {}
    place = {(s.rank, s.name): number for number, s in enumerate(table.streams)}
    for rank in range(shape.ranks):
        for phase in sorted({w.phase for w in world.works if w.phase and w.rank == rank}):
            works = of_phase(world, rank, phase)
            text = phase.split(" ", 1)[1]
            home = "plan" if "plan" in text else "main"
            mine = [w for w in works if w.stream == home]
            if text not in names:
                names.append(text)
            if text in ("draft", "verify", "extend"):
                width = {"draft": 1, "verify": shape.width, "extend": shape.width}[text]
                args[len(start)] = {
                    "requests": shape.requests,
                    "bucket": shape.bucket,
                    "width": width,
                    "rows": shape.bucket * width,
                    "padded_rows": (shape.bucket - shape.requests) * width,
                    "route": "eager" if text == "extend" and rank in shape.eager_extend else "replay",
                }
            start.append(min(w.start for w in mine))
            end.append(max(w.end for w in mine))
            name.append(names.index(text))
            stream.append(place[rank, home])
    marks = Marks(np.array(start), np.array(end), np.array(name, np.int32), np.array(stream, np.int32), args)
    return replace(table, names=tuple(names), marks=sort_marks(marks))

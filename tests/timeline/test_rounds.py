from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest

from slipstream.timeline.analysis import analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.markers import read_marker
from slipstream.timeline.padding import with_padding
from slipstream.timeline.rounds import RoundKind, Route
from slipstream.timeline.signatures import anchor, smallest_period
from slipstream.timeline.table import Advanced, Kind, Source
from tests.timeline.speculative import US
from tests.timeline.virtual import Node, Rank, World


@pytest.mark.parametrize(
    ("text", "phase", "facts"),
    [
        ("draft", "draft", {}),
        ("draft_extend", "extend", {}),
        ("step[DRAFT_LOOP raw_bs=5 bs=8 topk=1]", "draft", {"requests": 5, "bucket": 8, "topk": 1}),
        ("step[TARGET_VERIFY bs=8]", "verify", {"requests": 8}),
        ("step[VERIFY bs=8]", "verify", {"requests": 8}),
        ("step[EXTEND bs=2 toks=900]", "prefill", {"requests": 2, "tokens": 900}),
        (
            "step[TARGET_VERIFY bs=8 g_sq=32 g_sqsq=128 g_sqsk=9000 g_sk=2250]",
            "verify",
            {"requests": 8, "width": 4},
        ),
        ("step[TARGET_VERIFY bs=8 g_sq=30 g_sqsq=128 g_sqsk=9000 g_sk=2250]", "verify", {"requests": 8}),
        (
            "step[DRAFT_EXTEND_V2 bs=2 c_sq=10 c_sqsq=50 c_sqsk=900 c_sk=90]",
            "extend",
            {"requests": 2, "width": 5},
        ),
        (
            "step[EXTEND bs=1 toks=9 c_sq=9 c_sqsq=81 c_sqsk=81 c_sk=9]",
            "prefill",
            {"requests": 1, "tokens": 9},
        ),
        ("step[DECODE bs=32]", "decode", {"requests": 32}),
        ("step[DRAFT_EXTEND_V2 bs=4]", "extend", {"requests": 4}),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq128sk32785sqsq32sqsk32785)",
            "",
            {"context": 0, "requests": 32, "rows": 128},
        ),
        ("execute_context_1(888_788544)_generation_0(0)", "", {"context": 1, "requests": 0}),
        # the profiler cut this one off
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37",
            "",
            {"context": 9, "requests": 37, "rows": 37},
        ),
        ("gpu_model_runner: forward", "forward", {}),
        ("gpu_model_runner: draft", "draft", {}),
        ("prepare input", "prepare", {}),
        ("draft_token", "draft", {}),
        (
            "decode[bs=117/128 tok=468 d=117 spec=3]",
            "verify",
            {"requests": 117, "bucket": 128, "width": 4, "tokens": 468},
        ),
        ("decode[bs=8 tok=8 d=8]", "decode", {"requests": 8, "width": 1, "tokens": 8}),
        ("decode[bs=8 tok=10 p=1 d=7]", "decode", {"requests": 8, "tokens": 10}),
        ("eager_decode[bs=2 tok=8 ctx=[40, 50]]", "verify", {"requests": 2, "width": 4, "tokens": 8}),
        ("prefill[bs=2 tok=900 ctx=[400, 500]]", "prefill", {"requests": 2, "tokens": 900}),
        ("extend plan A", "extend plan A", {}),
    ],
)
def test_marks_of_serving_stacks(text: str, phase: str, facts: dict[str, int]) -> None:
    marker = read_marker(text)
    assert marker is not None
    assert marker.phase == phase
    assert dict(marker.facts) == facts


@pytest.mark.parametrize(
    "text", ["aten::mm", "ProfilerStep#3", "step[IDLE]", "step[", "verify all", "schedule", ""]
)
def test_what_is_no_mark(text: str) -> None:
    assert read_marker(text) is None


def test_padding_follows_from_bucket_and_requests() -> None:
    assert with_padding({"requests": 5, "bucket": 8, "width": 4}) == {
        "requests": 5,
        "bucket": 8,
        "width": 4,
        "rows": 32,
        "padded_rows": 12,
    }
    assert with_padding({"requests": 32, "rows": 128})["width"] == 4
    # a bucket that is not marked is not taken for the requests
    assert with_padding({"requests": 5, "width": 4}) == {"requests": 5, "width": 4, "rows": 20}
    assert "width" not in with_padding({"requests": 3, "rows": 10})


def run(program) -> World:
    return World().run(program)


def test_vllm_verifies_then_drafts_and_prefills_are_set_apart() -> None:
    def program(rank: Rank) -> Generator[None]:
        for step in range(5):
            context = 1 if step == 0 else 0
            end = rank.mark(f"execute_context_{context}(sq0sk0)_generation_4(sq16sk900)")
            for name in ("preprocess", "forward", "sample", "draft"):
                if context and name == "draft":
                    continue
                inner = rank.mark(f"gpu_model_runner: {name}")
                rank.kernel(name, "main", 20 * US)
                inner()
            end()
            yield from rank.sync("main")

    analysis = analyse(run(program).timeline())
    rounds = [report.round for report in analysis.reports[0]]
    assert [item.kind for item in rounds] == [RoundKind.PREFILL] + [RoundKind.ROUND] * 4
    assert [phase.name for phase in rounds[1].phases] == ["prepare", "verify", "accept", "draft"]
    assert rounds[1].phase("verify").facts["width"] == 4
    assert analysis.summary[0]["round_ns"].count == 4


def test_vllm_without_drafts_decodes() -> None:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(4):
            end = rank.mark("execute_context_0(sq0sk0)_generation_4(sq4sk900)")
            rank.kernel("forward", "main", 20 * US)
            end()
            yield from rank.sync("main")

    analysis = analyse(run(program).timeline())
    assert [r.round.kind for r in analysis.reports[0]] == [RoundKind.DECODE] * 4
    assert [phase.name for phase in analysis.reports[0][0].round.phases] == ["decode"]
    assert "plain decoding step" in analysis.reports[0][0].answers[0].text


def test_vllm_ascend_and_eager_draft_forwards() -> None:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(4):
            for name in ("prepare input", "forward", "sample_token", "draft_token"):
                end = rank.mark(name)
                for _ in range(3 if name == "draft_token" else 1):
                    rank.kernel(f"{name} attention", "main", 20 * US)
                    rank.kernel(f"{name} mlp", "main", 10 * US)
                end()
            yield from rank.sync("main")

    analysis = analyse(World(ascend=True).run(program).timeline(records=False))
    for report in analysis.reports[0]:
        assert [phase.name for phase in report.round.phases] == ["prepare", "verify", "accept", "draft"]
        assert report.answers[0].values == {"route": "eager", "replays": 0, "forwards": 3}
        assert report.answers[0].source is Source.INFERRED


def test_sglang_target_verify_is_no_prefill_and_nested_decodes_are_forwards() -> None:
    def program(rank: Rank) -> Generator[None]:
        end = rank.mark("step[EXTEND bs=1 toks=100]")
        rank.kernel("prefill", "main", 90 * US)
        end()
        end = rank.mark("draft_extend")
        rank.kernel("extend", "main", 9 * US)
        end()
        for _ in range(4):
            end = rank.mark("draft")
            for _ in range(2):
                inner = rank.mark("step[DECODE bs=8]")
                rank.kernel("draft", "main", 20 * US)
                inner()
            end()
            end = rank.mark("step[TARGET_VERIFY bs=8]")
            rank.kernel("verify", "main", 50 * US)
            end()
            yield from rank.sync("main")

    analysis = analyse(run(program).timeline())
    rounds = [report.round for report in analysis.reports[0]]
    assert [item.kind for item in rounds] == [RoundKind.PREFILL] + [RoundKind.ROUND] * 4
    assert [phase.name for phase in rounds[0].phases] == ["prefill", "extend"]
    assert [phase.name for phase in rounds[1].phases] == ["draft", "verify"]
    assert rounds[1].phase("draft").facts["forwards"] == 2


def test_warm_up_and_clipped_rounds_are_set_apart_with_a_reason() -> None:
    def program(rank: Rank) -> Generator[None]:
        for number in range(8):
            for name in ("draft", "verify", "draft_extend"):
                if number == 7 and name == "draft_extend":
                    continue
                end = rank.mark(name)
                rank.kernel(name, "main", (400 if number == 0 else 20) * US)
                end()
            yield from rank.sync("main")

    analysis = analyse(run(program).timeline())
    rounds = [report.round for report in analysis.reports[0]]
    assert rounds[0].kind is RoundKind.WARM_UP
    assert "times the median" in rounds[0].why
    assert rounds[7].kind is RoundKind.CLIPPED
    assert rounds[7].why == "the trace ends within it: no extend"
    assert analysis.summary[0]["round_ns"].count == 6


def test_plain_replays_of_one_graph_are_decoding_steps() -> None:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(5):
            rank.replay(0, [Node("a", "main", 20 * US), Node("b", "main", 30 * US, 0)], "main")
            yield from rank.sync("main")

    analysis = analyse(run(program).timeline())
    rounds = [report.round for report in analysis.reports[0]]
    assert [item.kind for item in rounds] == [RoundKind.DECODE] * 5
    assert {phase.route for item in rounds for phase in item.phases} == {Route.REPLAY}
    assert analysis.rounds.source is Source.INFERRED
    assert "5 replays" in analysis.rounds.evidence[0]


def test_training_steps_are_stretches_not_rounds() -> None:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(6):
            rank.replay(0, [Node("forward", "main", 20 * US)], "main")
            rank.host("autograd::engine::evaluate_function: AddmmBackward0", 5 * US)
            rank.replay(1, [Node("backward", "main", 60 * US)], "main")
            yield from rank.sync("main")

    analysis = analyse(run(program).timeline())
    assert {report.round.kind for report in analysis.reports[0]} == {RoundKind.STRETCH}


def test_kernels_that_recur_evenly() -> None:
    names = np.array([9, 9, *([0, 1, 2, 1, 2, 3] * 5), 8], np.int32)
    found = anchor(names)
    assert found is not None
    assert found[0] in (0, 3)
    assert found[2] == 6
    assert len(found[1]) == 5
    assert anchor(np.arange(50, dtype=np.int32)) is None
    assert smallest_period(np.array([1, 2, 3] * 4)) == 3
    assert smallest_period(np.array([1, 2, 3, 4, 5, 6])) == 0


def test_advanced_tokens_come_from_a_side_file_by_turn_or_time() -> None:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(4):
            for name in ("draft", "verify"):
                end = rank.mark(name)
                rank.kernel(name, "main", 20 * US)
                end()
            yield from rank.sync("main")

    from dataclasses import replace

    table = run(program).timeline()
    turn = replace(table, advanced=tuple(Advanced(n, (n + 1, 2)) for n in range(4)))
    reports = analyse(turn).reports[0]
    assert [report.advanced for report in reports] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert reports[0].cost_ns == reports[0].path.length_ns / 3
    second = reports[1].round.start_ns
    timed = replace(table, advanced=(Advanced(0, (7,), second + 5),))
    assert [report.advanced for report in analyse(timed).reports[0]] == [None, (7,), None, None]
    assert {report.advanced for report in analyse(table, advanced=2.0).reports[0]} == {(2.0,)}


def test_a_round_before_a_prefill_does_not_hold_the_wait_for_a_request() -> None:
    def program(rank: Rank) -> Generator[None]:
        for _ in range(2):
            end = rank.mark("step[EXTEND bs=1 toks=9]")
            rank.kernel("prefill", "main", 50 * US)
            end()
            yield from rank.sync("main")
            for _ in range(3):
                for name in ("draft", "verify"):
                    end = rank.mark(name)
                    rank.kernel(name, "main", 20 * US)
                    end()
                yield from rank.sync("main")
            rank.host("nobody asks", 90_000 * US)

    reports = analyse(run(program).timeline()).reports[0]
    kinds = [report.round.kind for report in reports]
    assert kinds == ([RoundKind.PREFILL] + [RoundKind.ROUND] * 3) * 2
    for report in reports:
        item = report.round
        assert item.took_ns < 100 * US
        assert report.path.length_ns == item.took_ns == sum(part.took_ns for part in report.parts)
    before = reports[3].round
    assert (before.end_ns, before.following) == (before.phases[-1].end_ns, -1)


def test_a_trace_without_rounds_begins_with_its_first_operation_on_any_stream() -> None:
    ops = [Op("copy", 0, 20, "stream 9", kind=Kind.COPY), Op("a", 50, 90), Op("b", 95, 120)]
    analysis = analyse(timeline_of(ops))
    (report,) = analysis.reports[0]
    assert report.round.kind is RoundKind.WHOLE
    assert (report.round.start_ns, report.round.end_ns) == (0, 120)
    assert report.path.length_ns == 120

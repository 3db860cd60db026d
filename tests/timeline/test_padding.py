"""Question 4 by what is known: by marks, by the user, and by neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.question import Answer
from slipstream.timeline.table import Kind, Source
from tests.timeline.speculative import DETAILED, IN_BUCKET, SGLANG, Shape, graphs, play

SHAPE = Shape(rounds=2, forwards=1)


def of(marks: tuple[str, ...], width: int | None = None) -> Analysis:
    shape = replace(SHAPE, verify_marks=marks)
    return analyse(play(shape).timeline(graphs=graphs(shape)), width=width)


def rows(marks: tuple[str, ...], width: int | None = None) -> Answer:
    return of(marks, width).reports[0][1].answers[3]


def notes(analysis: Analysis) -> list[str]:
    return [note.why for note in analysis.quality.notes if "--width" in note.why]


@pytest.mark.parametrize(
    ("marks", "width", "because"),
    [
        (("verify",), None, "no mark of verify says its rows, bucket or requests"),
        (("verify",), 4, "no mark of verify says its bucket or requests, and --width 4 alone gives no rows"),
        (
            ("verify", SGLANG),
            None,
            "no mark of verify says its width or rows, only its requests, 5: say the width with --width",
        ),
    ],
)
def test_what_cannot_be_said_has_its_reason(marks: tuple[str, ...], width: int | None, because: str) -> None:
    answer = rows(marks, width)
    assert not answer.known
    assert answer.text == f"not in this trace, because {because}"
    assert not answer.values


def test_requests_and_width_give_rows_and_the_bucket_stays_unknown() -> None:
    answer = rows(("verify", SGLANG), 4)
    assert answer.source is Source.USER
    assert {key: answer.values[key] for key in ("requests", "width", "rows")} == {
        "requests": 5,
        "width": 4,
        "rows": 20,
    }
    assert "padded" not in "".join(answer.values)
    assert answer.text.endswith("padding is not in this trace, because its bucket is not marked")


def test_detailed_annotations_say_the_width() -> None:
    answer = rows(("verify", DETAILED))
    assert (answer.values["width"], answer.values["rows"], answer.source) == (4, 20, Source.GIVEN)
    assert answer.text == (
        "requests 5, width 4, rows 20; padding is not in this trace, because its bucket is not marked"
    )


def test_without_a_width_slots_tell_what_padding_costs() -> None:
    answer, with_width = rows(("verify", IN_BUCKET)), rows(("verify", IN_BUCKET), 4)
    busy = answer.values["busy_ns"]
    assert isinstance(busy, int)
    assert answer.known
    assert answer.source is Source.GIVEN
    assert answer.values["padded_slots"] == 3
    assert not {"rows", "width", "padded_rows"} & set(answer.values)  # nothing is assumed
    assert answer.text.endswith("its width is not in this trace, because no mark says it (--width N does)")
    assert with_width.values["padded_rows"] == 12
    assert answer.values["padded_at_most_ns"] == with_width.values["padded_at_most_ns"] == round(busy * 3 / 8)


def test_what_rounds_with_other_rows_show_is_inferred_whoever_said_the_width() -> None:
    """Buckets of 4 and 8: 16 rows more take 12 us more, so the 4 padded ones of either cost 3."""
    ops, marks, now = [], [], 0
    for number in range(8):
        bucket, took = ((4, 20_000), (8, 32_000))[number % 2]
        for phase, length in (("draft", 1_000), ("verify", took)):
            ops.append(Op(phase, now, now + length, graph=0, replay=number))
            text = f"step[VERIFY raw_bs={bucket - 1} bs={bucket}]" if phase == "verify" else phase
            marks.append((text, now, now + length, "stream 0"))
            now += length + 100
    line = timeline_of(ops, marks=marks)
    for width, source in ((4, Source.USER), (None, Source.GIVEN)):
        for report in analyse(line, width=width).reports[0]:
            answer = report.answers[3]
            assert answer.source is source
            if width is None:  # of slots alone nothing is concluded
                assert answer.values["padded_at_most_ns"] == round(
                    report.round.phases[1].busy_ns / answer.values["bucket"]
                )
                continue
            assert answer.values["padded_rows"] == 4
            assert answer.values["padded_ns"] == 3_000  # 12 us for 16 rows
            assert answer.text.endswith("which cost 3.0 us by rounds with other rows (inferred)")


def test_the_marks_know_better_than_the_user_and_it_is_said() -> None:
    marks = ("decode[bs={requests}/{bucket} tok={rows} d={requests} spec={drafts}]",)
    analysis = of(marks, 7)
    answer = analysis.reports[0][1].answers[3]
    assert (answer.values["width"], answer.source) == (4, Source.GIVEN)
    assert notes(analysis) == ["by its marks verify is 4 wide, and not 7 as --width says: the marks count"]
    assert notes(of(marks, 4)) == notes(of(marks)) == []


def test_rows_that_differ_by_request_have_no_width() -> None:
    ops, marks = [], []
    for number in range(3):
        at = number * 1_000
        marks.append(("execute_context_0(sq0sk0)_generation_3(sq10sk90)", at, at + 500, "thread"))
        ops += [
            Op("launch", at, at + 10, "thread", Kind.HOST),
            Op("gemm", at + 20, at + 400, launch=2 * number),
        ]
    line = timeline_of(ops, marks=marks)
    analysis = analyse(line, width=4)
    answer = analysis.reports[0][1].answers[3]
    assert (
        answer.text == "requests 3, rows 10; padding is not in this trace, because its bucket is not marked"
    )
    assert answer.source is Source.GIVEN
    assert notes(analysis) == [
        "--width 4 is not used: by its marks verify has rows that are no multiple of its requests"
    ]


def test_nothing_to_pad_costs_nothing() -> None:
    shape = replace(SHAPE, requests=8, verify_marks=("verify", IN_BUCKET))
    answer = analyse(play(shape).timeline(graphs=graphs(shape)), width=4).reports[0][0].answers[3]
    assert (answer.values["padded_rows"], answer.values["padded_ns"]) == (0, 0)
    assert answer.text == "requests 8, bucket 8, width 4 (by --width), rows 32, padded 0"


def test_a_width_without_a_verify_is_said_to_do_nothing() -> None:
    line = timeline_of([Op("gemm", 100 * n, 100 * n + 50) for n in range(4)])
    assert notes(analyse(line, width=4)) == ["--width 4 says nothing here: no work is known to be a verify"]
    assert notes(analyse(line)) == []

"""The table: rows sorted, references kept."""

from __future__ import annotations

import numpy as np

from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.table import Kind, Role


def test_rows_are_sorted_and_references_follow() -> None:
    line = timeline_of(
        [
            Op("wait", 50, 60, "plan", Kind.WAIT, record=2, waited="main"),
            Op("gemm", 10, 40, "main", launch=3, args={"rows": 4}),
            Op("record", 45, 45, "main", Kind.RECORD),
            Op("cudaLaunchKernel", 0, 5, "python", Kind.HOST),
            Op("part", 10, 20, "main", Kind.SUBTASK, parent=1),
        ],
        marks=[("verify", 30, 60, "python"), ("round", 0, 60, "python"), ("draft", 0, 30, "python")],
    )
    assert [line.name_of(row) for row in range(5)] == ["cudaLaunchKernel", "gemm", "part", "record", "wait"]
    assert line.launch.tolist() == [-1, 0, -1, -1, -1]
    assert line.parent.tolist() == [-1, -1, 1, -1, -1]
    assert line.record.tolist() == [-1, -1, -1, -1, 3]
    assert line.streams[line.waited[4]].name == "main"
    assert line.args(1) == {"rows": 4}
    assert line.args(0) == {}
    assert [line.names[name] for name in line.marks.name] == ["round", "draft", "verify"]
    assert line.is_work.tolist() == [False, True, False, False, False]
    assert line.streams[line.stream[0]].role is Role.HOST
    assert line.dur_ns.tolist() == [5, 30, 10, 0, 10]


def test_an_empty_table_is_a_table() -> None:
    line = timeline_of([])
    assert len(line) == 0
    assert line.ranks == ()
    assert not np.any(line.is_work)

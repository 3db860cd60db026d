"""Threads that take their work from a queue: Python puts, another thread launches, the device works.

python     [put a][ aten::slow 200 us          ][put b]
dispatch    [take a [launch a]]                  [take b [launch b]]
device               [ a ]                            [ b ]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from slipstream.timeline.analysis import analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.changes import parse_scale
from slipstream.timeline.edges import EdgeKind, find_dependencies
from slipstream.timeline.path import Piece
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Kind, Timeline
from slipstream.timeline.whatif import what_if
from tests.timeline.places import real

US = 1_000
ROUNDS = 6
DATABASE = "ascend/910b-alexnet-db"
TEXT = [f"ascend/910b-alexnet-text/{name}" for name in ("level1-rank0", "level1-rank1", "level2-rank0")]


def run(*, busy_ns: int, slow_ns: int, lag_ns: int = 2 * US) -> Timeline:
    """Return rounds of a draft and a verify. Python marks both, and is done with them before they are launched.

    Args:
        busy_ns: how long the dispatcher takes for each launch.
        slow_ns: how long Python is busy between the two.
        lag_ns: from putting to taking at least.
    """
    ops: list[Op] = []
    marks: list[tuple[str, int, int, str]] = []
    python = dispatcher = device = 0
    for _ in range(ROUNDS):
        for phase in ("draft", "verify"):
            begun = python
            put = len(ops)
            ops.append(Op("Enqueue", python, python + US, "python", Kind.HOST))
            python += US
            marks.append((phase, begun, python, "python"))
            take = max(dispatcher, python + lag_ns)
            dispatcher = take + busy_ns
            ops.append(Op(f"Dequeue@{phase}", take, dispatcher, "dispatch", Kind.HOST, launch=put))
            ops.append(Op("Node@launch", take + US, take + 2 * US, "dispatch", Kind.HOST))
            start = max(device, take + 3 * US)
            device = start + 5 * US
            ops.append(Op(phase, start, device, "stream 1", launch=len(ops) - 1))
            ops.append(Op("aten::slow", python, python + slow_ns, "python", Kind.HOST))
            python += slow_ns
    return timeline_of(ops, marks=marks)


@pytest.mark.parametrize(("busy_ns", "slow_ns"), [(10 * US, 200 * US), (200 * US, 10 * US)])
def test_phases_are_those_in_which_python_asked(busy_ns: int, slow_ns: int) -> None:
    """Where the dispatcher lags, Python is rounds ahead when it launches."""
    (reports,) = analyse(run(busy_ns=busy_ns, slow_ns=slow_ns)).reports.values()
    assert len(reports) == ROUNDS
    for report in reports:
        assert [phase.name for phase in report.round.phases] == ["draft", "verify"]
        assert [phase.span_ns for phase in report.round.phases] == [5 * US, 5 * US]


def test_an_idle_dispatcher_leads_the_path_to_what_python_did() -> None:
    (reports,) = analyse(run(busy_ns=10 * US, slow_ns=200 * US)).reports.values()
    for report in reports[1:-1]:
        seam = next(part for part in report.parts if part.label == "draft → verify")
        assert seam.host["aten::slow"] == 195 * US  # the draft begins on the device 5 us into it
        assert report.path.by_piece()[Piece.UNKNOWN] == 0


def test_a_busy_dispatcher_is_the_path_itself() -> None:
    (reports,) = analyse(run(busy_ns=200 * US, slow_ns=10 * US)).reports.values()
    for report in reports[1:-1]:
        host = sum((part.host for part in report.parts), Counter[str]())
        assert host["aten::slow"] == 0
        assert host["Dequeue@verify"] > 150 * US
        assert report.path.by_piece()[Piece.UNKNOWN] == 0


def test_the_seam_between_draft_and_verify_is_told_by_python() -> None:
    (reports,) = analyse(run(busy_ns=10 * US, slow_ns=200 * US)).reports.values()
    for report in reports[1:-1]:
        assert report.answers[2].values["host"] == ["aten::slow: 195.0 us", "Enqueue: 1.0 us"]


def test_edges() -> None:
    line = run(busy_ns=10 * US, slow_ns=200 * US)
    deps = find_dependencies(line)
    taken = line.takings
    assert len(taken) == 2 * ROUNDS
    for row in taken.tolist():
        found = [
            (deps.edges.kind[edge], line.name_of(deps.edges.src[edge]).partition("@")[0])
            for edge in deps.edges_into(row)
        ]
        before = [(EdgeKind.HOST, "Dequeue")] if row != taken[0] else []
        assert sorted(found) == sorted([(EdgeKind.LAUNCH, "Enqueue"), *before])


@pytest.mark.parametrize("name", [DATABASE, *TEXT])
def test_real_queues_are_linked_and_lead_to_python(name: str) -> None:
    line = open_timeline(real(name))
    names = np.array([name.partition("@")[0] for name in line.names])[line.name]
    taken = np.flatnonzero((names == "Dequeue") & ~line.on_device)
    assert len(taken)
    assert (line.launch[taken] >= 0).all()
    assert (names[line.launch[taken]] == "Enqueue").all()
    assert (line.end_ns[line.launch[taken]] <= line.start_ns[taken]).all()
    assert (line.stream[line.launch[taken]] != line.stream[taken]).all()
    found = analyse(line)
    bare = analyse(replace(line, launch=np.where(np.isin(np.arange(len(line)), taken), -1, line.launch)))
    for rank, reports in found.reports.items():
        for report, before in zip(reports, bare.reports[rank], strict=True):
            assert report.path.length_ns == before.path.length_ns == report.round.took_ns


@pytest.mark.parametrize(("busy_ns", "slow_ns"), [(10 * US, 200 * US), (200 * US, 10 * US)])
@pytest.mark.parametrize("times", [0.5, 2.0])
def test_what_if_python_were_faster_equals_a_run_with_such_a_python(
    busy_ns: int, slow_ns: int, times: float
) -> None:
    """Also where that moves the path from Python to the dispatcher, or back."""
    result = what_if(
        analyse(run(busy_ns=busy_ns, slow_ns=slow_ns)), [parse_scale(f"host~aten::slow={times}")]
    )
    truth = analyse(run(busy_ns=busy_ns, slow_ns=int(slow_ns * times)))
    expected = [item.took_ns for item in truth.rounds.counted(0)]
    assert result.hopeful_ns.tolist()[1:-1] == expected[1:-1]


def test_what_if_the_dispatcher_were_faster() -> None:
    """A busy one holds the rounds up by all it does, an idle one by nothing."""
    busy = analyse(run(busy_ns=200 * US, slow_ns=10 * US))
    saved = what_if(busy, [parse_scale("host~Dequeue=0.5")])
    assert (saved.before_ns - saved.hopeful_ns)[1:-1].tolist() == [200 * US] * (ROUNDS - 2)
    idle = analyse(run(busy_ns=10 * US, slow_ns=200 * US))
    assert what_if(idle, [parse_scale("host~Dequeue=0.5")]).text.startswith("no gain")

"""Which waits are joins: those for a branch, not a communication stream's own queue."""

from __future__ import annotations

from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.breakdown import joins
from slipstream.timeline.edges import find_dependencies
from slipstream.timeline.path import critical_path
from slipstream.timeline.table import Kind, Role, Stream

STREAMS = (Stream(0, 0, "main", 1, Role.COMPUTE), Stream(0, 0, "comm", 2, Role.COMM))


def test_communication_behind_communication_waits_for_no_branch() -> None:
    """main   [a][record]  [b]                   [wait]   [c]

    comm   [reduce a ............][wait][reduce b   ][record]
    """
    ops = [
        Op("a", 0, 10, "main"),
        Op("record a", 10, 10, "main", Kind.RECORD),
        Op("reduce 0", 0, 50, "comm", Kind.COMM),
        Op("wait a", 50, 50, "comm", Kind.WAIT, record=1, waited="main"),
        Op("reduce 1", 50, 90, "comm", Kind.COMM),
        Op("record b", 90, 90, "comm", Kind.RECORD),
        Op("b", 12, 30, "main"),
        Op("wait b", 30, 90, "main", Kind.WAIT, record=5, waited="comm"),
        Op("c", 90, 99, "main"),
    ]
    line = timeline_of(ops, streams=STREAMS)
    deps = find_dependencies(line)
    (found,) = joins(deps, critical_path(deps, 0, 99), rank=0)
    assert line.name_of(found.row) == "wait b"
    assert (line.name_of(found.branch), line.name_of(found.other)) == ("reduce 1", "b")
    assert found.waited_ns == 90 - 30


def test_communication_that_waits_for_a_branch_is_a_join() -> None:
    ops = [
        Op("a", 0, 70, "main"),
        Op("record a", 70, 70, "main", Kind.RECORD),
        Op("reduce 0", 0, 50, "comm", Kind.COMM),
        Op("wait a", 50, 70, "comm", Kind.WAIT, record=1, waited="main"),
        Op("reduce 1", 70, 90, "comm", Kind.COMM),
    ]
    line = timeline_of(ops, streams=STREAMS)
    deps = find_dependencies(line)
    (found,) = joins(deps, critical_path(deps, 0, 90), rank=0)
    assert (line.name_of(found.row), line.name_of(found.branch), found.waited_ns) == ("wait a", "a", 20)

"""Damaged files: read as far as they go, with a mark; never a crash, never an event more or changed."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.errors import TraceError
from slipstream.timeline.part import Part
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.readers.ascend import read_step_times
from slipstream.timeline.readers.pieces import _PIECE
from slipstream.timeline.table import Timeline
from slipstream.trace import Flow, Mark, Slice, write_chrome
from tests.timeline.test_formats import timed as timed_events
from tests.timeline.writers import (
    Task,
    ascend_events,
    kineto_events,
    write_ascend,
    write_database,
    write_kineto,
)

pytestmark = pytest.mark.slow


def read(path: Path) -> Timeline | None:
    """Read a file that may be damaged beyond use: then None, and one clear line was said."""
    try:
        line = open_timeline(path)
    except TraceError as error:
        said = str(error)
    else:
        check_sums(line)
        assert (line.end_ns >= line.start_ns).all()
        return line
    assert said
    assert "\n" not in said
    return None


TASKS = [Task(f"kernel_{n}", 100 * n, 100 * n + 70, launch_ns=100 * n - 50, task_id=n) for n in range(1, 8)]


def names(line: Timeline) -> list[str]:
    return [line.name_of(row) for row in range(len(line)) if line.on_device[row]]


def check_sums(line: Timeline) -> None:
    for source in line.sources:
        assert source.read == source.rows + source.marks + sum(source.dropped.values())


def small_files(folder: Path) -> dict[str, bytes]:
    events = [
        Slice("main", "verify", 1_000, 500, {"rows": 4}),
        Slice("plan", "extend plan A", 1_100, 200),
        Slice("host", "publish", 1_600, 100),
        Flow("plan", "plan", 1_300, "main", 1_500),
        Mark("host", "eager", 1_650),
    ]
    ours = write_chrome(folder / "ours.json", events)
    timed = write_chrome(folder / "timed.json", timed_events(), metadata={"rank": 1, "world_size": 2})
    write_kineto(folder / "kineto.json", kineto_events(TASKS), distributedInfo={"rank": 1})
    write_ascend(folder / "ascend", ascend_events(TASKS[:4]))
    return {
        "ours": ours.read_bytes(),
        "timed": timed.read_bytes(),
        "kineto": (folder / "kineto.json").read_bytes(),
        "ascend": (folder / "ascend" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_bytes(),
    }


@pytest.mark.parametrize("kind", ["kineto", "ascend", "ours", "timed"])
def test_cut_at_every_byte(tmp_path: Path, kind: str) -> None:
    data = small_files(tmp_path)[kind]
    whole = tmp_path / ("trace_view.json" if kind == "ascend" else "trace.json")
    whole.write_bytes(data)
    full = names(open_timeline(whole))
    assert full
    lengths = set()
    for end in range(len(data.rstrip())):
        whole.write_bytes(data[:end])
        line = read(whole)
        if line is None:
            continue
        found = names(line)
        # Ascend names its processes first, so what is there is the beginning of the whole.
        if kind in ("kineto", "ascend"):
            assert found == full[: len(found)]
        else:
            # A phase without what it is made of is an operation.
            assert set(found) <= {*full, "verify"}
        assert any(note.what == "truncated" for note in line.notes)
        lengths.add(len(found))
    # An arrow of ours is two rows, a record and a wait: they come together.
    together = {"ours": {3}, "timed": {6}}.get(kind, set())
    assert lengths >= set(range(1, len(full))) - together


def test_gzip_cut_at_every_byte(tmp_path: Path) -> None:
    data = gzip.compress(small_files(tmp_path)["kineto"], mtime=0)
    path = tmp_path / "t.json.gz"
    for end in range(1, len(data) - 8, 3):
        path.write_bytes(data[:end])
        read(path)


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        (b"kernel_3", b"kernel\x01_3", 0),
        (b"kernel_3", b"kernel\n_3", 0),
        (b"kernel_3", b"kernel\xff_3", 0),
        (b"kernel_3", b"kernel\\ud800_3", 0),
        (b'"dur": 0.07', b'"dur": NaN', 7),
        (b'"kernel_3"', b'"ker"nel_3"', 1),
        (b'"kernel_3",', b'"kernel_3"', 1),
    ],
)
def test_what_is_no_json_is_repaired_or_left_out(tmp_path: Path, old: bytes, new: bytes, lost: int) -> None:
    data = small_files(tmp_path)["kineto"]
    assert old in data
    path = tmp_path / "t.json"
    path.write_bytes(data.replace(old, new))
    line = open_timeline(path)
    assert len(names(line)) == 7 - lost
    assert any(note.what in ("repaired", "dropped") for note in line.notes)
    check_sums(line)


def test_damage_in_the_middle_of_a_large_file(tmp_path: Path) -> None:
    tasks = [Task(f"kernel_{n}", 100 * n, 100 * n + 70) for n in range(30_000)]
    data = json.dumps({"schemaVersion": 1, "traceEvents": kineto_events(tasks)}).encode()
    assert len(data) > 2 * _PIECE
    path = tmp_path / "t.json"
    path.write_bytes(
        data.replace(b'"kernel_9000"', b'"ker"nel_9000"').replace(b"kernel_17000", b"kernel\x02_17000")
    )
    line = open_timeline(path)
    assert len(names(line)) == 30_000 - 1
    assert {note.what: note.count for note in line.notes if note.what in ("dropped", "repaired")} == {
        "dropped": 1,
        "repaired": 1,
    }


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_changed(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["kineto", "ascend", "ours", "timed"]))
    folder = tmp_path / kind
    if not folder.exists():
        folder.mkdir()
        (folder / "trace_view.json").write_bytes(small_files(tmp_path / kind)[kind])
        (folder / "original").write_bytes((folder / "trace_view.json").read_bytes())
    text = bytearray((folder / "original").read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(text) - 1))
        change = data.draw(
            st.sampled_from([b"", b"\x00", b'"', b"}", b"]", b",", b"9" * 30, b"-", b"\xff", b"null", b"[{"])
        )
        text[place : place + data.draw(st.integers(0, 4))] = change
        if not text:
            break
    path = folder / "trace_view.json"
    path.write_bytes(bytes(text))
    read(path)


# Databases.


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    database.close()
    with pytest.raises(TraceError, match="no profile"):
        open_timeline(path)


def test_a_locked_database_says_so(tmp_path: Path) -> None:
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db", TASKS)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TraceError, match="locked"):
        open_timeline(path)
    other.execute("ROLLBACK")
    other.close()
    assert len(names(open_timeline(path))) == 7


def test_a_damaged_database_is_refused_or_read(tmp_path: Path) -> None:
    data = write_database(tmp_path / "whole.db", TASKS).read_bytes()
    path = tmp_path / "t.db"
    outcomes = set()
    for end in range(16, len(data), 512):
        path.write_bytes(data[:end])
        outcomes.add(read(path) is None)
    assert True in outcomes


def test_wrong_types_in_a_database(tmp_path: Path) -> None:
    path = write_database(tmp_path / "t.db", TASKS)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE TASK SET startNs = 'noon' WHERE globalTaskId = 2")
        database.execute("UPDATE TASK SET endNs = startNs - 50 WHERE globalTaskId = 3")
        database.execute(
            "UPDATE TASK SET connectionId = NULL, streamId = NULL, taskType = 999 WHERE globalTaskId = 4"
        )
    database.close()
    line = open_timeline(path)
    assert len(names(line)) == 6
    assert sum(source.dropped.get("time", 0) for source in line.sources) == 1
    assert [note.count for note in line.notes if note.what == "negative"] == [1]
    check_sums(line)


@pytest.mark.parametrize("value", ["inf", "1e400", "nan", "text"])
def test_totals_that_are_no_numbers_are_noted(tmp_path: Path, value: str) -> None:
    path = tmp_path / "step_trace_time.csv"
    path.write_text(f"Step,Computing\n1,{value}\n")
    part = Part("p", "ascend text", 0)
    read_step_times(part, path)
    assert part.vendor == []
    assert [note.what for note in part.notes] == ["unreadable"]

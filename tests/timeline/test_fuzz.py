"""Anything in a file: one clear line, or a table that adds up and can be analysed; never a crash."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import TraceError, UsageError
from slipstream.timeline.analysis import analyse
from slipstream.timeline.changes import Host, Scale
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.table import Timeline
from slipstream.timeline.whatif import what_if
from tests.timeline import vendors
from tests.timeline.speculative import Shape, draft_nodes, extend_nodes, play, verify_nodes
from tests.timeline.test_answers import check_invariants
from tests.timeline.test_damage import check_sums

pytestmark = pytest.mark.slow

_HEADER = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)


def _kernel_line(number: int) -> str:
    name, core = f"hcom_allReduce__586_{number}_1", "COMMUNICATION"
    if number % 3:
        name, core = "aclnnMul", "AI_CORE"
    return f"3,0,4294967295,{number},2,{name},T,{core},17642468770735{number:02d}.640\t,8.5,0\n"


TABLES = {
    "kernel_details.csv": "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),"
    "Duration(us),Wait Time(us)\n" + "".join(_kernel_line(n) for n in range(10, 22)),
    "step_trace_time.csv": f"{_HEADER}\n0,3,68.0,34.0,0.0,34.0,1.0,100.0,0,34.0,2.25\n",
    "communication.json": '{"step3": {"collective": {"hcom_allReduce__586_11_1@7": {}}}}',
}


@functools.cache
def files_of(vendor: str) -> dict[str, bytes]:
    """Two speculative rounds as a vendor writes them: path -> bytes; side files stand beside the run's folder."""
    shape = Shape(rounds=2, ascend=vendor in ("text", "db"))
    if vendor == "tables":
        return {
            f"run/x_ascend_pt/ASCEND_PROFILER_OUTPUT/{name}": text.encode() for name, text in TABLES.items()
        }
    nodes = [draft_nodes(shape), verify_nodes(shape, -1), extend_nodes(shape)]
    write = {
        "rocm": vendors.write_rocm,
        "kineto": vendors.write_cuda,
        "text": vendors.write_text,
        "db": vendors.write_db,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        write[vendor](run, play(shape), nodes)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in Path(folder).rglob("*")
            if path.is_file()
        }


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with a few places changed, or cut."""
    text = bytearray(data)
    words = [
        b"",
        b"\x00",
        b'"',
        b"}",
        b"]",
        b",",
        b"9" * 25,
        b"-",
        b"\xff",
        b"null",
        b"[{",
        b"1e999",
        b"\n",
        b"\\u0000",
    ]
    for _ in range(draw(st.integers(1, 5))):
        place = draw(st.integers(0, max(0, len(text) - 1)))
        text[place : place + draw(st.integers(0, 6))] = draw(st.sampled_from(words))
    if draw(st.integers(0, 4)) == 0:
        del text[draw(st.integers(0, len(text))) :]
    return bytes(text)


def look_at(table: Timeline) -> None:
    """Everything that is done with a table."""
    check_sums(table)
    assert (table.end_ns >= table.start_ns).all()
    analysis = analyse(table)
    check_invariants(analysis)
    for change in (Scale("kernel", "", 0.5), Host(0.5)):
        try:
            result = what_if(analysis, [change])
        except UsageError:
            continue  # nothing there to change
        assert np.isfinite(result.mean_gain_ns).all()


def read_and_look(path: Path, sides: tuple[Path, ...] = ()) -> None:
    said = ""
    try:
        look_at(open_timeline(path, sides=sides))
    except TraceError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize("vendor", ["kineto", "rocm", "text", "db", "tables"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_bytes_of_a_run_changed(vendor: str, data: st.DataObject) -> None:
    files = files_of(vendor)
    name = data.draw(st.sampled_from(sorted(files)))
    with tempfile.TemporaryDirectory() as folder:
        for each, content in files.items():
            path = Path(folder) / each
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.draw(changed(content)) if each == name else content)
        sides = tuple(path for path in Path(folder).glob("*.json"))
        read_and_look(Path(folder) / "run", sides)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.integers(-3, 40),
    st.floats(),
    st.sampled_from(["", "7", "stream 7", "1736408883694795.840", "-1", "1e400", "\x00", "\ud800"]),
)
values = st.one_of(
    scalars, st.lists(scalars, max_size=2), st.dictionaries(st.sampled_from("ab"), scalars, max_size=1)
)


@pytest.mark.parametrize("vendor", ["kineto", "text"])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_values_of_events_changed(vendor: str, data: st.DataObject) -> None:
    """Valid JSON, in which any field holds anything."""
    events = _events(vendor)
    for _ in range(data.draw(st.integers(1, 8))):
        event = events[data.draw(st.integers(0, len(events) - 1))]
        args = event.get("args")
        inside = args if isinstance(args, dict) and args and data.draw(st.booleans()) else event
        inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace_view.json" if vendor == "text" else "t.json")
        path.write_text(json.dumps(events if vendor == "text" else {"traceEvents": events}))
        read_and_look(path)


def _events(vendor: str) -> list[dict[str, Any]]:
    from tests.timeline.as_traces import kineto_of

    shape = Shape(rounds=2, ascend=vendor == "text")
    if vendor == "kineto":
        return json.loads(json.dumps(kineto_of(play(shape))))
    files = files_of("text")
    return json.loads(next(content for name, content in files.items() if name.endswith("trace_view.json")))

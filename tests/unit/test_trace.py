"""The event schema: recording, flattening, and Chrome files that are exact to the nanosecond."""

import errno
import gzip
import json
import re
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import trace
from slipstream.errors import SlipstreamError
from slipstream.trace import (
    Flow,
    Mark,
    NullRecorder,
    PartTimes,
    Recorder,
    Slice,
    check_no_overlap,
    encode_chrome,
    flatten,
    names,
    read_chrome,
    write_chrome,
)

# Schema.


def test_exported_names_are_sorted_and_exist():
    assert trace.__all__ == sorted(trace.__all__)
    assert all(hasattr(trace, name) for name in trace.__all__)


def test_names_are_distinct():
    assert names.TRACKS == ("main", "plan", "host")
    assert len(set(names.PHASES)) == len(names.PHASES) == 15


def test_events_are_frozen():
    with pytest.raises(AttributeError):
        Slice("main", "draft", 0, 1).name = "verify"


def test_a_slice_cannot_end_before_it_began():
    with pytest.raises(ValueError, match="dur_ns=-1"):
        Slice("main", "draft", 0, -1)


# Recorder.


def test_records_what_ran_and_when():
    recorder = Recorder()
    with recorder.slice(names.MAIN, names.DRAFT, rows=8, name="args may have any name"):
        pass
    recorder.mark(names.MAIN, "eager", reason="bucket")
    recorder.flow("draft", names.MAIN, 1, names.PLAN, 2)
    recorder.add(Slice(names.HOST, names.SCHEDULE, 5, 6))
    draft, eager, flow, schedule = recorder.events()
    assert (draft.track, draft.name, draft.args) == (
        "main",
        "draft",
        {"rows": 8, "name": "args may have any name"},
    )
    assert draft.dur_ns >= 0
    assert eager == Mark("main", "eager", eager.at_ns, {"reason": "bucket"})
    assert eager.at_ns >= draft.end_ns
    assert flow == Flow("draft", "main", 1, "plan", 2)
    assert schedule == Slice("host", "schedule", 5, 6)


def test_a_slice_inside_another_of_its_track_names_its_parent():
    recorder = Recorder()
    with recorder.slice("main", "round"), recorder.slice("main", "verify"), recorder.slice("plan", "extend"):
        pass
    extend, verify, outer = recorder.events()
    assert verify.args == {"parent": "round"}
    assert extend.args == outer.args == {}
    assert outer.start_ns <= verify.start_ns <= verify.end_ns <= outer.end_ns


def test_a_slice_that_fails_is_recorded_with_the_error_and_closes():
    recorder = Recorder()
    with pytest.raises(KeyError), recorder.slice("main", "draft"):
        raise KeyError
    with recorder.slice("main", "verify"):
        pass
    draft, verify = recorder.events()
    assert draft.args == {"error": "KeyError"}
    assert verify.args == {}


def test_slices_of_one_track_must_nest():
    recorder = Recorder()
    outer, inner = recorder.slice("main", "outer"), recorder.slice("main", "inner")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="'outer' ended while 'inner'"):
        outer.__exit__(None, None, None)


def test_keeps_the_newest_and_counts_the_dropped():
    recorder = Recorder(capacity=3)
    for start_ns in range(10):
        recorder.add(Slice("main", "draft", start_ns, 1))
    assert [event.start_ns for event in recorder.events()] == [7, 8, 9]
    assert (recorder.capacity, recorder.dropped) == (3, 7)
    recorder.clear()
    assert (recorder.events(), recorder.dropped) == ([], 0)


def test_parts_of_the_newest_replays_are_kept_and_are_slices_when_read():
    recorder = Recorder()
    for replay in range(1100):
        began, ended = array("q", [replay, replay + 1]), array("q", [replay + 1, replay + 3])
        times = PartTimes(("layer 0", "LM head"), began.tobytes(), ended.tobytes())
        recorder.parts("main graph", "verify", [times])
    recorder.mark("main", "here")
    events = recorder.events()
    assert len(events) == 1 + 2 * 1024
    assert isinstance(events[0], Mark)
    assert events[-1] == Slice("main graph", "LM head", 1100, 2, {"phase": "verify"})
    assert recorder.dropped == 0
    recorder.clear()
    assert recorder.events() == []


def test_a_recorder_without_room_is_refused():
    with pytest.raises(ValueError, match="capacity=0"):
        Recorder(capacity=0)


def test_null_recorder_keeps_no_parts():
    recorder = NullRecorder()
    recorder.parts("main graph", "verify", [PartTimes(("layer 0",), bytes(8), bytes(8))])
    assert recorder.events() == []


def test_null_recorder_records_nothing():
    recorder = NullRecorder()
    with recorder.slice("main", "draft", rows=1):
        recorder.mark("main", "eager")
    recorder.flow("draft", "main", 0, "plan", 0)
    recorder.add(Slice("main", "draft", 0, 1))
    assert recorder.events() == []
    assert (recorder.enabled, Recorder.enabled) == (False, True)


# Flattening.


def test_a_parent_is_cut_around_its_children():
    parent = Slice("main", "round", 0, 100, {"round": 7})
    flat = flatten([Slice("main", "draft", 10, 20), Slice("main", "verify", 30, 40), parent])
    assert flat == [
        Slice("main", "round", 0, 10, {"round": 7, "part": 1, "parts": 2}),
        Slice("main", "draft", 10, 20),
        Slice("main", "verify", 30, 40),
        Slice("main", "round", 70, 30, {"round": 7, "part": 2, "parts": 2}),
    ]


def test_what_is_flat_stays_as_it_is():
    flat = [Slice("main", "draft", 0, 10), Slice("main", "verify", 10, 5), Slice("plan", "verify plan", 3, 9)]
    assert flatten(flat) == flat


def test_of_equal_slices_the_later_is_the_parent_and_has_no_time_of_its_own():
    assert flatten([Slice("main", "inner", 0, 5), Slice("main", "outer", 0, 5)]) == [
        Slice("main", "inner", 0, 5)
    ]


def test_slices_that_cross_are_refused_with_both_named():
    with pytest.raises(ValueError, match=r"'a' \[0, 10\) ns and 'b' \[5, 15\) ns"):
        flatten([Slice("main", "a", 0, 10), Slice("main", "b", 5, 10)])


def test_check_no_overlap_shows_the_two():
    check_no_overlap([Slice("main", "a", 0, 10), Slice("plan", "b", 5, 10), Slice("main", "c", 10, 0)])
    with pytest.raises(ValueError, match=r"track 'main': 'a' \[0, 10\) ns and 'b' \[9, 9\) ns"):
        check_no_overlap([Slice("main", "b", 9, 0), Slice("main", "a", 0, 10)])


@st.composite
def nested_slices(draw, depth=4):
    """Properly nested slices in the order they would end, named by number, on up to three tracks."""
    slices: list[Slice] = []

    def fill(track, start_ns, end_ns, depth):
        """Fill [start_ns, end_ns) with children; return the time that they leave to the parent."""
        own_ns, at_ns = end_ns - start_ns, start_ns
        for _ in range(draw(st.integers(0, 3)) if depth else 0):
            child_start_ns = draw(st.integers(at_ns, end_ns))
            at_ns = draw(st.integers(child_start_ns, end_ns))
            child_own_ns = fill(track, child_start_ns, at_ns, depth - 1)
            name = str(len(slices))
            slices.append(
                Slice(track, name, child_start_ns, at_ns - child_start_ns, {"own_ns": child_own_ns})
            )
            own_ns -= at_ns - child_start_ns
        return own_ns

    for track in draw(st.sets(st.sampled_from(names.TRACKS), min_size=1)):
        fill(track, 0, draw(st.integers(0, 200)), depth)
    return slices


@given(nested_slices())
def test_flattening_keeps_every_slices_own_time_and_leaves_no_overlap(slices):
    flat = flatten(slices)
    check_no_overlap(flat)
    own_ns = {}
    for piece in flat:
        own_ns[piece.track, piece.name] = own_ns.get((piece.track, piece.name), 0) + piece.dur_ns
    for item in slices:
        assert own_ns.get((item.track, item.name), 0) == item.args["own_ns"]
    assert sum(own_ns.values()) == sum(item.args["own_ns"] for item in slices)


@given(nested_slices())
def test_flattening_twice_changes_nothing(slices):
    flat = flatten(slices)
    assert flatten(flat) == flat


# Chrome files.

EVENTS = [
    Slice("main", "draft", 5_000_000_123, 1_000, {"rows": 8, "route": "replay", "share": 0.5}),
    Slice("plan", "verify plan", 5_000_002_000, 999),
    Slice("other", "copy", 5_000_001_999, 1),
    Flow("draft", "main", 5_000_001_123, "plan", 5_000_001_900),
    Mark("main", "eager", 5_000_004_001, {"reason": "no bucket"}),
]


@pytest.mark.parametrize("name", ["round.json", "round.json.gz"])
def test_a_file_comes_back_to_the_nanosecond(tmp_path, name):
    path = write_chrome(
        tmp_path / name, EVENTS, process_name="run", metadata={"model": "m", "bits": 4, "t": 0.5}
    )
    back = read_chrome(path)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert (back.process_name, back.metadata) == ("run", {"model": "m", "bits": 4, "t": 0.5})
    assert back.origin_ns == 5_000_000_123
    assert back.events == [
        Slice("main", "draft", 0, 1_000, {"rows": 8, "route": "replay", "share": 0.5}),
        Slice("other", "copy", 1_876, 1),
        Slice("plan", "verify plan", 1_877, 999),
        Flow("draft", "main", 1_000, "plan", 1_777),
        Mark("main", "eager", 3_878, {"reason": "no bucket"}),
    ]


def test_the_file_is_what_perfetto_asks_for():
    text = encode_chrome(EVENTS, process_name="run").decode()
    document = json.loads(text)
    lines = document["traceEvents"]
    assert document["displayTimeUnit"] == "ns"
    times = re.findall(r'"(?:ts|dur)":([^,}]*)', text)
    assert len(times) == 9
    assert all(re.fullmatch(r"\d+\.\d{3}", time) for time in times)
    threads = {line["tid"]: line["args"]["name"] for line in lines if line["name"] == "thread_name"}
    assert list(threads.items()) == [(1, "main"), (2, "plan"), (3, "other")]
    order = {line["tid"]: line["args"]["sort_index"] for line in lines if line["name"] == "thread_sort_index"}
    assert order == {1: 1, 2: 2, 3: 3}


def test_flows_are_drawn_from_slice_to_slice():
    lines = json.loads(encode_chrome(EVENTS, process_name="run"))["traceEvents"]
    tail, head = (next(line for line in lines if line["ph"] == ph) for ph in "sf")
    # Done where draft ends, and a viewer's slices exclude their end; waited for before the plan begins.
    assert (tail["tid"], tail["ts"], tail["args"]) == (1, 0.999, {"at_ns": 1_000})
    assert (head["tid"], head["ts"], head["bp"], head["args"]) == (2, 1.877, "e", {"at_ns": 1_777})
    assert (tail["id"], tail["cat"]) == (head["id"], head["cat"]) == (1, "wait")


def test_nested_slices_are_written_flat(tmp_path):
    recorder = Recorder()
    with recorder.slice("main", "round"), recorder.slice("main", "draft"):
        pass
    back = read_chrome(write_chrome(tmp_path / "t.json", recorder.events()))
    check_no_overlap(back.events)
    draft, outer = recorder.events()
    assert sum(event.dur_ns for event in back.events) == outer.dur_ns
    assert outer.start_ns == back.origin_ns
    assert sum(event.dur_ns for event in back.events if event.name == "draft") == draft.dur_ns


def test_numbers_that_json_lacks_are_written_as_text(tmp_path):
    path = write_chrome(tmp_path / "t.json", [Mark("main", "m", 0, {"x": float("nan"), "ok": True})])
    assert read_chrome(path).events == [Mark("main", "m", 0, {"x": "nan", "ok": True})]


def test_a_trace_without_events_can_be_written(tmp_path):
    assert read_chrome(write_chrome(tmp_path / "t.json", [])).events == []


def test_the_same_events_make_the_same_file(tmp_path):
    one, other = (write_chrome(tmp_path / f"{n}.json.gz", EVENTS) for n in "ab")
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch, failure):
    path = write_chrome(tmp_path / "t.json", [])
    old = path.read_bytes()

    def fail(self, target):
        raise failure

    monkeypatch.setattr(Path, "replace", fail)
    expected = SlipstreamError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_chrome(path, EVENTS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json"]
    assert path.read_bytes() == old
    if expected is SlipstreamError:
        assert str(path) in str(caught.value)
        assert "No space left on device" in str(caught.value)


def test_a_folder_that_is_missing_is_one_clear_error(tmp_path):
    with pytest.raises(SlipstreamError, match=r"cannot write the trace .*No such file or directory"):
        write_chrome(tmp_path / "missing" / "t.json", EVENTS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"traceEvents":[]}',
        encode_chrome(EVENTS, process_name="run")[:-30],
        gzip.compress(encode_chrome(EVENTS, process_name="run"))[:-30],
        b"\x1f\x8bnot gzip",
        encode_chrome(EVENTS, process_name="run").replace(b'"schema":1', b'"schema":99'),
        encode_chrome(EVENTS, process_name="run").replace(b'"at_ns"', b'"at"'),
        b'{"slipstream":{"schema":1,"origin_ns":0},"traceEvents":[{"ph":"X","name":"\xff"}],"otherData":{}}',
    ],
)
def test_a_file_that_is_not_ours_or_is_damaged_is_refused(tmp_path, data):
    path = tmp_path / "t.json"
    path.write_bytes(data)
    with pytest.raises(SlipstreamError, match="not a trace that Slipstream wrote"):
        read_chrome(path)


def test_a_file_that_is_missing_is_one_clear_error(tmp_path):
    with pytest.raises(SlipstreamError, match="cannot read the trace"):
        read_chrome(tmp_path / "t.json")

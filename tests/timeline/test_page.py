"""The page of an analysis, without a browser: what it carries, what it leaves out, what names cannot do."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest

from slipstream.errors import SlipstreamError, UsageError
from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.readers import open_timeline
from slipstream.timeline.report.html import page, write_html
from slipstream.timeline.report.pack import pack
from slipstream.timeline.report.scene import MARK
from slipstream.timeline.table import Kind, Timeline
from tests.timeline.places import real
from tests.timeline.speculative import US, Shape, graphs, play

EVIL = [
    "<img src=x onerror=\"document.title='pwned'\">",
    "</script><script>document.title='pwned'</script>",
    "</style><script>document.title='pwned'</script>",
    "--><svg onload=document.title='pwned'>",
    "{{script}} {{data}} {{nothing}}",
    "\u2028\u202e'\"`${document.title='pwned'}",
]


def of(shape: Shape, **options: Any) -> Analysis:
    return analyse(play(shape).timeline(graphs=graphs(shape)), **options)


def unpack(text: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The other half of `pack`, as the page's script does it."""
    data = zlib.decompress(base64.b64decode(text))
    (size,) = struct.unpack_from("<I", data)
    model = msgspec.json.decode(data[4 : 4 + size])
    columns = {}
    for name, column in model["columns"].items():
        kind = {"u8": "u1", "u16": "<u2", "u32": "<u4", "f64": "<f8", "i64": "<i8"}[column["type"]]
        assert (4 + size + column["at"]) % 8 == 0, "a browser reads no array across its alignment"
        values = np.frombuffer(data, kind, column["count"], 4 + size + column["at"]).astype(np.int64)
        values = values + column["least"]
        columns[name] = np.cumsum(values) if column["delta"] else values
    return model, columns


def carried(text: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    found = re.findall(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', text)
    assert len(found) == 1
    return unpack(found[0])


def rows_of(table: Timeline, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return int64, of each operation on the page its row: both are sorted the same way, marks aside."""
    ops = np.flatnonzero(columns["kind"] != MARK)
    assert len(ops) == len(table)
    return ops


@pytest.mark.parametrize(
    "values",
    [
        [],
        [7],
        [-1, -1, -1],
        [0, 255, 256],
        [5, 0, 1 << 16, -3],
        [1 << 40, (1 << 40) + 1, (1 << 40) + 70_000],
        [-(1 << 52), 0, 1 << 53],
        [-(1 << 53) + 1, (1 << 53) - 1, 0],
        [(1 << 53) + 1, (1 << 61) + 7, -1],
        [-(1 << 63), (1 << 63) - 1],
        list(range(0, 86_399_999_999_999, 7_777_777_777_777)),
    ],
)
def test_columns_come_back(values: list[int]) -> None:
    _, columns = unpack(pack({}, {"before": np.arange(3), "values": np.array(values, np.int64)}))
    assert columns["values"].tolist() == values
    assert columns["before"].tolist() == [0, 1, 2]


def test_every_operation_and_every_answer_is_on_the_page() -> None:
    shape = Shape(rounds=4, ranks=2, slow_rank=1)
    analysis = of(shape, advanced=2.5)
    table, deps = analysis.timeline, analysis.deps
    model, columns = carried(page(analysis))
    ops = rows_of(table, columns)
    assert columns["start"][ops].tolist() == table.start_ns.tolist()
    assert columns["dur"][ops].tolist() == table.dur_ns.tolist()
    assert [model["names"][n] for n in columns["name"][ops]] == [table.name_of(r) for r in range(len(table))]
    lanes = [(model["lanes"][n]["rank"], model["lanes"][n]["name"]) for n in columns["lane"][ops]]
    assert lanes == [(s.rank, s.name) for s in (table.streams[n] for n in table.stream)]
    for key in ("kind", "bytes", "correlation", "graph", "replay", "node", "sequence", "group"):
        assert columns[key][ops].tolist() == getattr(table, key).tolist(), key
    place = np.append(ops, -1)  # of each row its place on the page, of no row none
    assert columns["launch"][ops].tolist() == place[table.launch].tolist()
    held = np.where(deps.binding >= 0, deps.edges.src[np.maximum(deps.binding, 0)], -1)
    assert columns["held"][ops].tolist() == place[held].tolist()
    assert (columns["kind"] == MARK).sum() == len(table.marks)
    for rank, reports in analysis.reports.items():
        for report, shown in zip(reports, model["rounds"][str(rank)], strict=True):
            begin, end = shown["path"]
            assert columns["pathStart"][begin:end].tolist() == report.path.starts_ns.tolist()
            assert (
                columns["pathDur"][begin:end].sum() == report.round.took_ns == shown["end"] - shown["start"]
            )
            assert columns["pathRow"][begin:end].tolist() == place[report.path.row].tolist()
            assert [answer["text"] for answer in shown["answers"]] == [a.text for a in report.answers]
            assert [join["row"] for join in shown["joins"]] == [int(place[join.row]) for join in report.joins]
            assert sum(shown["sums"]) == report.path.length_ns
            assert shown["cost"] == report.cost_ns
    assert model["summary"]["0"]["round_ns"][:2] == [4, analysis.summary[0]["round_ns"].median]


def check_strips(model: dict[str, Any], columns: dict[str, np.ndarray]) -> None:
    """Within a strip nothing lies over another, so what is seen is all there is."""
    key = columns["lane"] * 1000 + columns["sub"]
    for number in np.unique(key).tolist():
        mine = np.flatnonzero(key == number)
        what = model["lanes"][number // 1000]["strips"][number % 1000]
        end = columns["start"][mine] + columns["dur"][mine]
        over = int((columns["start"][mine][1:] < np.maximum.accumulate(end)[:-1]).sum())
        assert what == "tick" or not over, (number, what, over)


def test_a_page_of_a_real_trace() -> None:
    analysis = analyse(open_timeline(real("ascend/910b-alexnet-text/level2-rank0")))
    text = page(analysis)
    model, columns = carried(text)
    check_strips(model, columns)
    rows_of(analysis.timeline, columns)
    parts = columns["kind"] == Kind.SUBTASK
    assert (columns["parent"][parts] >= 0).sum() > 100
    assert model["quality"]["vendor"]
    assert "level2-rank0" in text
    # Where the device's waits take time they are operations, what takes none are ticks.
    waits = np.flatnonzero((columns["kind"] == Kind.WAIT) & (columns["dur"] > 10_000))
    strips = [model["lanes"][columns["lane"][at]]["strips"][columns["sub"][at]] for at in waits]
    assert strips
    assert set(strips) == {"op"}


def test_a_page_opens_offline_and_is_as_small_as_promised() -> None:
    analysis = of(Shape(rounds=20))
    text = page(analysis)
    outside = r"https?:|//[a-z]|@import|url\(|\bsrc=|\bfetch\(|XMLHttpRequest"
    assert not re.search(outside, text.split('id="data">')[0])
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|https?:", script[1]
    )
    bare = len(page(of(Shape(rounds=1)))) - 2_000
    assert len(text) - bare < 24 * (len(analysis.timeline) + len(analysis.timeline.marks))


def test_names_are_text_and_nothing_else() -> None:
    ops = [Op(name, 10 * number, 10 * number + 9, stream=name) for number, name in enumerate(EVIL)]
    ops += [Op(EVIL[0], 0, 5, EVIL[1], kind=Kind.HOST, args={EVIL[2]: EVIL[3]})]
    analysis = analyse(timeline_of(ops, marks=[(EVIL[1], 0, 50, EVIL[1])]))
    text = page(analysis)
    model, _ = carried(text)
    assert set(model["names"]) == set(EVIL)
    # Of markup there is what the page's own template has.
    clean = page(analyse(timeline_of([Op("a", 0, 1)])))
    assert len(re.findall(r"<script", text)) == len(re.findall(r"<script", clean)) == 2
    body, clean_body = (each.split("</style>")[1].split("<script")[0] for each in (text, clean))
    assert len(re.findall("<img|<svg|<style|<iframe", body)) == len(
        re.findall("<img|<svg|<style|<iframe", clean_body)
    )
    for name in EVIL[:4]:
        assert name not in text


def test_the_policy_allows_just_this_script() -> None:
    text = page(of(Shape(rounds=1)))
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert script
    assert style
    assert policy
    for kind, part in (("script", script[1]), ("style", style[1])):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none';")


def test_of_a_long_trace_whole_rounds_are_carried() -> None:
    shape = Shape(rounds=12)
    analysis = of(shape)
    model, columns = carried(page(analysis, most_rows=150))
    shown = [item["n"] for item in model["rounds"]["0"] if item["here"]]
    assert 2 <= len(shown) < 12
    assert "This page shows" in model["leftOut"]
    assert f"of {len(shown)} of 12 rounds" in model["leftOut"]
    table = analysis.timeline
    for number in shown:
        item = analysis.reports[0][number].round
        inside = (table.start_ns >= item.start_ns) & (table.start_ns < item.end_ns)
        ops = (
            (columns["start"] >= item.start_ns) & (columns["start"] < item.end_ns) & (columns["kind"] != MARK)
        )
        assert ops.sum() == inside.sum()
        assert (columns["pathRow"][slice(*model["rounds"]["0"][number]["path"])] >= 0).any()
    left = next(item for item in model["rounds"]["0"] if not item["here"])
    assert len(left["answers"]) == 9  # its numbers are there
    assert not left["joins"]
    # where even one round is too much, the device's work and what is on the path stay
    model, columns = carried(page(analysis, round=5, most_rows=30))
    assert "shortest calls" in model["leftOut"]
    item = analysis.reports[0][5].round
    work = table.is_work & (table.start_ns >= item.start_ns) & (table.start_ns < item.end_ns)
    kept = (
        (columns["kind"] <= Kind.COMM)
        & (columns["start"] >= item.start_ns)
        & (columns["start"] < item.end_ns)
    )
    assert kept.sum() == work.sum()


def test_one_round_with_the_calls_that_launched_it() -> None:
    analysis = of(Shape(rounds=12))
    model, columns = carried(page(analysis, round=7))
    assert model["first"] == {"rank": 0, "round": 7}
    assert [item["n"] for item in model["rounds"]["0"] if item["here"]] == [7]
    item = analysis.reports[0][7].round
    work = (
        (columns["kind"] <= Kind.COMM)
        & (columns["start"] >= item.start_ns)
        & (columns["start"] < item.end_ns)
    )
    assert (columns["launch"][work] >= 0).all()
    assert len(columns["start"]) < len(analysis.timeline) / 4
    with pytest.raises(UsageError, match=r"no round 12\. Rounds are numbered from 0 to 11"):
        page(analysis, round=12)


def test_without_a_device_and_without_anything() -> None:
    host = analyse(timeline_of([Op("aten::add", 0, 9, "thread", kind=Kind.HOST)]))
    text = page(host)
    assert "no operation of a device is in it" in text.lower()
    model, columns = carried(text)
    assert len(columns["start"]) == 1
    assert model["rounds"] == {}
    page(analyse(timeline_of([Op("no time", 5, 5, kind=Kind.COMM), Op("at all", 5, 5)])))
    model, columns = carried(page(analyse(timeline_of([]))))
    assert not len(columns["start"])


def test_the_file_is_replaced_as_a_whole_or_not_at_all(tmp_path) -> None:
    analysis = of(Shape(rounds=1))
    target = tmp_path / "page.html"
    target.write_text("old")
    write_html(analysis, target)
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(UsageError):
        write_html(analysis, target, round=3)
    with pytest.raises(SlipstreamError, match="cannot write the page"):
        write_html(analysis, tmp_path / "absent" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_second_of_host_time_and_bytes_of_many_digits() -> None:
    late = 86_399_000_000_000
    ops = [
        Op("a", 0, 5, bytes=(1 << 53) - 1, correlation=-5),
        Op(
            "b", late, late + 7 * US, correlation=(1 << 61) + 1, args={"id": 1 << 64, "small": 3, "yes": True}
        ),
    ]
    analysis = analyse(timeline_of(ops, base_ns=1_694_039_968_956_739_001))
    model, columns = carried(page(analysis))
    assert columns["start"].tolist() == [0, late]
    assert columns["bytes"].tolist() == [(1 << 53) - 1, -1]
    assert columns["correlation"].tolist() == [-5, (1 << 61) + 1]
    # What JavaScript's numbers would round is text.
    assert model["baseNs"] == "1694039968956739001"
    assert model["details"]["1"] == {"id": str(1 << 64), "small": 3, "yes": True}

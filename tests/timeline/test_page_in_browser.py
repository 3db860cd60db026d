"""The page in a real browser: it draws, answers to mouse and keys, and names in a trace stay text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.assemble import Op, timeline_of
from slipstream.timeline.report.html import page, write_html
from slipstream.timeline.table import Group, Kind
from tests.timeline.chromium import Page, running
from tests.timeline.speculative import US, Shape, graphs, play
from tests.timeline.test_page import EVIL

pytestmark = pytest.mark.slow

PIXELS = """
  const pixels = (id) => {
    const canvas = document.getElementById(id);
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3]) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    }
    return seen.size;
  };
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with running(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def shown(tab: Page, analysis: Analysis, folder: Path) -> None:
    write_html(analysis, folder / "page.html")
    tab.faults.clear()
    tab.open(folder / "page.html")
    assert tab.run("return document.getElementById('trouble').textContent") == ""


def words(text: str) -> str:
    return " ".join(text.split())


def text_of(tab: Page, where: str = "body") -> str:
    return words(tab.run(f"return document.querySelector('{where}').innerText"))


def test_rounds_lanes_keys_and_mouse(tab: Page, tmp_path: Path) -> None:
    shape = Shape(rounds=8)
    analysis = analyse(play(shape).timeline(graphs=graphs(shape)), advanced=2.5)
    shown(tab, analysis, tmp_path)
    colours = tab.run(f"{PIXELS} await frame(); return [pixels('lanes'), pixels('axis'), pixels('strip')]")
    assert colours[0] > 20  # something of every kind is drawn
    assert min(colours[1:]) > 2
    first = tab.run("return s.scene.state.round")
    for key in "]][":
        tab.key(key)
    number = tab.run("return s.scene.state.round")
    assert number == first + 1
    item = analysis.reports[0][number].round
    x, y = tab.run(
        """
        await frame();
        const wanted = (e) => s.scene.nameOf(e) === "indexer" && s.scene.col.round[e] === s.scene.state.round;
        const e = s.scene.col.name.findIndex((_, row) => wanted(row));
        const canvas = document.getElementById("lanes").getBoundingClientRect();
        const box = s.scene.box(e);
        return [canvas.left + box.x0 + 5, canvas.top + box.y + 5];
        """
    )
    tab.mouse("mouseMoved", x, y)
    tip = text_of(tab, "#tip")
    tab.click(x, y)
    for text in (tip, text_of(tab, "#inspect")):
        assert "indexer" in text
        assert "110.000 us" in text
        assert f"in round {item.number}" in text
        assert "cudaGraphLaunch on thread" in text
        assert "110.000 us of it" in text  # of the path
    span = "return s.scene.view.t1 - s.scene.view.t0"
    whole = tab.run(span)
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200)
    assert 0.3 < tab.run(span) / whole < 0.9
    begin = tab.run("return s.scene.view.t0")
    tab.click(x, y, to=(x - 100, y))
    assert tab.run("return s.scene.view.t0") > begin
    tab.key("f")
    assert tab.run(span) == pytest.approx(whole)
    tab.click(x, y)
    tab.key("l")
    assert tab.run("return s.scene.nameOf(s.scene.state.selected)") == "cudaGraphLaunch"
    tab.key("Escape")
    assert tab.run("return s.scene.state.selected") == -1
    tab.key("/")
    tab.call("Input.insertText", text="INDEX")
    assert text_of(tab, "#found") == "1 in the round, 110.0 us"
    assert tab.run("return document.querySelectorAll('#joins tbody tr').length") == len(
        analysis.reports[0][number].joins
    )
    for answer in analysis.reports[0][number].answers:
        assert words(answer.text) in text_of(tab)
    # A bar chooses its round.
    left, top = tab.run(
        "const b = document.getElementById('strip').getBoundingClientRect(); return [b.left, b.top]"
    )
    tab.click(left + 72 + 44 * 4 + 10, top + 40)
    assert tab.run("return s.scene.state.round") == 4
    assert tab.faults == []


def test_names_do_nothing(tab: Page, tmp_path: Path) -> None:
    ops = [Op(name, 10 * US * n, 10 * US * n + 9_000, stream=name) for n, name in enumerate(EVIL)]
    ops.append(Op(EVIL[0], 0, 5, EVIL[1], kind=Kind.HOST, args={EVIL[2]: EVIL[3]}))
    analysis = analyse(timeline_of(ops, marks=[(EVIL[1], 0, 50, EVIL[1])]))
    # The names must do no harm by themselves, not only because the policy stops them.
    text = page(analysis).replace('http-equiv="Content-Security-Policy"', 'name="nothing"')
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    tab.open(tmp_path / "page.html")
    scripts, others, heads = tab.run(
        """
        const heads = [];
        for (let e = 0; e < s.scene.col.start.length; e++) {
          s.go(e);
          heads.push(document.querySelector("#inspect h3").textContent);
          const box = s.scene.box(e), canvas = document.getElementById("lanes").getBoundingClientRect();
          s.over(box.x0 + 1, box.y + 1, canvas.left + box.x0 + 1, canvas.top + box.y + 1);
          await frame();
        }
        return [document.querySelectorAll("script").length, document.querySelectorAll("img, svg").length, heads];
        """
    )
    assert (scripts, others) == (1, 0)  # the page's own; its data is taken away once read
    assert set(heads) == set(EVIL)
    assert "pwned" not in tab.run("return document.title")


def test_long_ids_and_the_trace_s_own_clock_are_shown_to_the_last_digit(tab: Page, tmp_path: Path) -> None:
    ids = [(1 << 53) + 1, (1 << 61) + 7, (1 << 63) - 3]
    ops = [
        Op("first", 0, 5, correlation=ids[0], group=0, sequence=ids[1], kind=Kind.COMM),
        Op("second", 7 * US + 1, 9 * US, correlation=ids[1], args={"Comms Id": ids[2]}),
        Op("third", 10 * US, 11 * US, correlation=5, group=0, sequence=2, kind=Kind.COMM),
    ]
    table = timeline_of(ops, base_ns=1_694_039_968_956_739_123, groups=[Group("all")])
    shown(tab, analyse(table), tmp_path)
    told = tab.run(
        """
        const told = [];
        for (let e = 0; e < 3; e++) {
          s.select(e);
          const one = (item) => [item.querySelector("dt").textContent, item.querySelector("dd").textContent];
          told.push(Object.fromEntries([...document.querySelectorAll("#inspect .facts > div")].map(one)));
        }
        return told;
        """
    )
    assert [one["correlation"] for one in told] == [str(ids[0]), str(ids[1]), "5"]
    assert [told[at]["group"] for at in (0, 2)] == [f"all, number {ids[1]}", "all, number 2"]
    assert told[1]["Comms Id"] == str(ids[2])
    clock = [one["start by the trace's clock"] for one in told]
    assert clock == ["1694039968956739.123 us", "1694039968956746.124 us", "1694039968956749.123 us"]
    assert tab.faults == []


def test_the_policy_stops_what_is_not_the_page(tab: Page, tmp_path: Path) -> None:
    text = page(analyse(timeline_of([Op("a", 0, 9)])))
    added = "<script>window.added = 1</script><img src='http://127.0.0.1:9/x' onerror='window.added = 2'>"
    (tmp_path / "page.html").write_text(text.replace("</main>", f"</main>{added}"), encoding="utf-8")
    tab.open(tmp_path / "page.html")
    assert tab.run("await frame(); return [window.added ?? 0, s.scene.col.start.length]") == [0, 1]


@pytest.mark.parametrize("ops", [[], [Op("aten::add", 0, 9, "thread", kind=Kind.HOST)], [Op("k", 0, 0)]])
def test_little_to_show(tab: Page, ops: list[Op], tmp_path: Path) -> None:
    shown(tab, analyse(timeline_of(ops)), tmp_path)
    for key in ("f", "]", "+", "l", "h", "p", "j", "?"):
        tab.key(key)
    assert tab.run("await frame(); return s.painter.took.length") >= 1
    assert tab.faults == []


def test_drawing_100_000_operations(tab: Page, tmp_path: Path) -> None:
    ops: list[Op] = []
    for number in range(50_000):
        at = 3_000 * number
        ops.append(Op("launch", at, at + 1_500, "thread", kind=Kind.HOST))
        stream = f"stream {number % 4}"
        ops.append(Op(f"kernel {number % 7}", at + 2_000, at + 4_500, stream, launch=2 * number))
    shown(tab, analyse(timeline_of(ops)), tmp_path)
    count, whole, part = tab.run(
        """
        const [a, b] = s.scene.model.range;
        const least = (t0, t1) => {
          const all = [];
          for (let i = 0; i < 20; i++) {
            s.scene.show(t0, t1 + i);
            s.painter.draw();
            all.push(s.painter.took[s.painter.took.length - 1]);
          }
          return Math.min(...all);
        };
        return [s.scene.col.start.length, least(a, b), least(a, a + (b - a) / 100)];
        """
    )
    assert count == 100_000
    print(f"drawing 100,000 operations: {whole:.1f} ms, a hundredth of them: {part:.1f} ms")
    # 60 drawings a second; the least of 20, as what else the machine does only adds.
    assert whole < 16
    assert part < 16
    assert (tmp_path / "page.html").stat().st_size < 3_000_000

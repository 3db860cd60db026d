"""`slipstream trace`: what is printed, as data too, and one clear line for what cannot be done."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli import main
from slipstream.timeline.readers import open_timeline
from tests.timeline.generated import sglang
from tests.timeline.places import real
from tests.timeline.speculative import Shape
from tests.timeline.writers import Task, kineto_events, write_ascend, write_kineto

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs of two ranks: in `slow` rank 1 is late and extends eagerly."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "slow": sglang(folder / "slow", Shape(ranks=2, eager_extend=(1,), slow_rank=1, rounds=8)),
        "fast": sglang(folder / "fast", Shape(ranks=2, rounds=8)),
        "short": sglang(folder / "short", Shape(rounds=1)),
    }


def printed(capsys: Capture, *arguments: object) -> str:
    """What a command prints, white space made single."""
    assert main(["trace", *map(str, arguments)]) == 0
    out = capsys.readouterr()
    assert out.err == ""
    return " ".join(out.out.split())


def data(capsys: Capture, *arguments: object) -> dict[str, Any]:
    assert main(["trace", *map(str, arguments), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def refused(capsys: Capture, *arguments: object) -> tuple[int, str]:
    """The exit code and the one line."""
    code = main(["trace", *map(str, arguments)])
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("error: ")
    assert out.err.count("\n") == 1
    assert len(out.err) < 1000
    return code, out.err


class TestAnalyse:
    def test_the_first_screen(self, capsys: Capture, runs: dict[str, Path]) -> None:
        text = printed(capsys, "analyse", runs["slow"], "--advanced", "2.8")
        assert "kineto, 2 ranks, 272 device operations, 8 rounds of rank 1" in text
        assert "A round takes 614.8 us (median of 8 rounds; p90 614.8 us)." in text
        assert "the device waits for the host for 17.3 % of the critical path, most of it build_tree" in text
        assert "draft → verify 13.3 % 81.0 us 81.0 us 8 host 99 % (build_tree), delays 1 %" in text
        assert "verify 56.5 % 345.4 us 345.4 us 8 replay device 98 %" in text
        assert "28.6 % of it inferred by a rule" in text  # the fork inside the graph has no topology
        assert "40.0 us a round: 0.0 us hidden by kernels, 40.0 us exposed" in text
        assert "draft: 37.5 % of its rows are padding, which cost at most 39.4 us a round" in text
        # 2.8 tokens each for 5 requests; the last round ends before the host has published it.
        assert "Cost of a token 43.6 us: 610.9 us of path by 14 tokens a round" in text
        assert "rank 1 (told of here) 8 614.8 us 40.0 us 40.0 us 8 480.0 us 0.0 us" in text
        assert "the launch of 100 % of the device's time is in the trace" in text

    def test_what_is_not_in_the_trace_is_said_with_the_reason(
        self, capsys: Capture, runs: dict[str, Path]
    ) -> None:
        text = printed(capsys, "analyse", runs["fast"] / "rank0.json")
        assert (
            "Cost of a token not in this trace, because nothing says how many tokens a round advanced" in text
        )
        text = printed(capsys, "analyse", runs["fast"] / "rank0.json", "--details")
        assert (
            "not in this trace, because no mark of verify says its width or rows, only its requests, 5"
            in text
        )
        assert "say the width with --width" in text
        assert "not in this trace, because it holds one rank" in text
        assert text.count("eager or replay") == 2

    def test_the_width_of_verify_is_the_users_to_say(self, capsys: Capture, runs: dict[str, Path]) -> None:
        asked = ("analyse", runs["fast"] / "rank0.json", "--width", "4")
        answered = (
            "requests 5, width 4 (by --width), rows 20; padding is not in this trace, because its bucket"
        )
        assert answered in printed(capsys, *asked, "--details")
        assert "is not marked [with your --width]" in printed(capsys, *asked, "--round", 2)
        rounds = data(capsys, *asked)["ranks"][0]["rounds"]
        verify = next(phase for phase in rounds[2]["phases"] if phase["name"] == "verify")
        assert (verify["facts"], verify["told"]) == ({"requests": 5, "width": 4, "rows": 20}, ["width"])
        answer = rounds[2]["answers"][3]
        assert (answer["known"], answer["source"], answer["values"]["rows"]) == (True, "user", 20)

    def test_several_ranks_by_name_are_one_run(self, capsys: Capture, runs: dict[str, Path]) -> None:
        files = [runs["slow"] / f"rank{rank}.json" for rank in (1, 0)]
        one, other = data(capsys, "analyse", runs["slow"]), data(capsys, "analyse", *files)
        del one["sources"], other["sources"]
        assert one == other

    def test_json_has_everything_and_adds_up(self, capsys: Capture, runs: dict[str, Path]) -> None:
        found = data(capsys, "analyse", runs["slow"], "--advanced", "2.8")
        assert found["rank"] == 1
        assert [line["rank"] for line in found["ranks"]] == [0, 1]
        assert found["ranks"][1]["caused_wait_ns"] == found["ranks"][0]["waited_ns"] == 480_000
        for line in found["ranks"]:
            view = line["overview"]
            mean = sum(item["took_ns"] for item in line["rounds"]) / len(line["rounds"])
            assert sum(item["ns_per_round"] for item in view["spent"]) == pytest.approx(mean)
            assert sum(part["share"] for part in view["path"]) == pytest.approx(1)
            assert sum(part["share"] for part in view["rests_on"]) == pytest.approx(1)
            for item in line["rounds"]:
                path = item["path"]
                assert path["ns"] == item["took_ns"] == sum(part["ns"] for part in path["parts"])
                assert path["ns"] == sum(rest["ns"] for rest in path["rests_on"])
                assert path["ns"] == sum(
                    path[f"{piece}_ns"] for piece in ("device", "host", "delay", "unexplained")
                )
                for part in item["communication"]:
                    assert part["covered_ns"] + part["exposed_ns"] == part["total_ns"]
                assert [answer["question"] for answer in item["answers"]] == list(range(1, 10))
        for total in found["quality"]["totals"]:
            assert total["busy_ns"] + total["idle_ns"] == total["span_ns"]

    def test_one_round(self, capsys: Capture, runs: dict[str, Path]) -> None:
        text = printed(capsys, "analyse", runs["slow"], "--round", 3)
        assert "Round 3 of rank 1: 614.8 us" in text
        assert "together 614.8 us" in text
        assert "join_attention on stream 7 waits 40.0 us longer for indexer on stream 8" in text
        found = data(capsys, "analyse", runs["slow"], "--round", 3)
        (item,) = found["ranks"][1]["rounds"]
        assert found["ranks"][0]["rounds"] == []
        pieces = item["path"]["pieces"]
        assert pieces[0]["start_ns"] == item["start_ns"]
        assert all(one["end_ns"] == other["start_ns"] for one, other in pairwise(pieces))

    def test_a_rank_and_a_file_of_tokens(
        self, capsys: Capture, runs: dict[str, Path], tmp_path: Path
    ) -> None:
        tokens = tmp_path / "tokens.jsonl"
        tokens.write_text('{"accepted": [1, 1, 0, 2, 1]}\n' * 8)
        text = printed(capsys, "analyse", runs["slow"], "--rank", 0, "--advanced", tokens)
        assert "by 10 tokens a round" in text
        assert "rank 0 (told of here)" in text

    def test_our_rules_make_communication(
        self, capsys: Capture, runs: dict[str, Path], tmp_path: Path
    ) -> None:
        rules = tmp_path / "rules.toml"
        rules.write_text('[[rule]]\nname = "^mlp$"\nkind = "communication"\n')
        text = printed(capsys, "analyse", runs["fast"], "--rules", rules)
        assert "mlp: 1 operation a round, 90.0 us, exposed 90.0 us" in text


class TestDiff:
    def test_what_the_difference_went_to(self, capsys: Capture, runs: dict[str, Path]) -> None:
        text = printed(capsys, "diff", runs["slow"], runs["fast"])
        assert "A round takes 614.8 us in A and 554.8 us in B (-9.8 %); chance is an unlikely reason" in text
        assert "Route of extend: eager 8 in A, replay 8 in B." in text
        assert "phase verify 340.4 us 280.4 us -17.6 % -60.0 us to -60.0 us 0.002 8" in text
        assert "device work indexer 170.0 us 110.0 us -60.0 us" in text

    def test_the_causes_sum_to_the_difference(self, capsys: Capture, runs: dict[str, Path]) -> None:
        found = data(capsys, "diff", runs["slow"], runs["fast"])
        before, after = found["mean_round_ns"]
        assert sum(cause["change_ns"] for cause in found["causes"]) == pytest.approx(after - before)
        assert found["differences"][0]["what"] == "round"

    def test_a_run_does_not_differ_from_itself(self, capsys: Capture, runs: dict[str, Path]) -> None:
        rank = runs["slow"] / "rank1.json"
        found = data(capsys, "diff", rank, rank)
        assert not any(item["significant"] for item in found["differences"])
        assert {cause["change_ns"] for cause in found["causes"]} == {0.0}
        assert "that may be chance" in printed(capsys, "diff", rank, rank)

    def test_one_round_is_too_few(self, capsys: Capture, runs: dict[str, Path]) -> None:
        text = printed(capsys, "diff", runs["short"], runs["fast"])
        assert "1 and 8 rounds are too few to say whether that is chance" in text


class TestWhatIf:
    def test_a_shorter_branch(self, capsys: Capture, runs: dict[str, Path]) -> None:
        found = data(capsys, "whatif", runs["fast"], "--scale", "kernel~indexer=0.5")
        # The join waits 40 us longer for the indexer's 110 than for attention's 70; less than that is no gain.
        assert found["mean_gain_ns"]["hopeful"] == pytest.approx(40_000)
        assert found["changes"] == ["--scale kernel~indexer=0.5"]

    def test_the_range_is_said(self, capsys: Capture, runs: dict[str, Path]) -> None:
        text = printed(capsys, "whatif", runs["fast"], "--scale", "comm=0.5", "--host", "0")
        assert "if --scale comm=0.5 and --host 0" in text
        assert "as recorded" in text
        assert "take the answer as a direction" in text
        text = printed(capsys, "whatif", runs["fast"], "--remove-wait", "stream 7:stream 9")
        assert "nothing that is read needed the wait" in text

    def test_no_gain_is_an_answer(self, capsys: Capture, runs: dict[str, Path]) -> None:
        assert "No gain" in printed(capsys, "whatif", runs["fast"], "--scale", "kernel~plan_pages=0.1")

    @pytest.mark.parametrize(
        ("asked", "line"),
        [
            (["--scale", "com=0.5"], "Did you mean 'comm'?"),
            (["--scale", "kernel~draft_atention=0.5"], "Did you mean 'draft_attention'?"),
            (["--scale", "comm"], "--scale 'comm' is not possible"),
            (["--scale", "comm=-1"], "'-1' is not a factor"),
            (["--scale", "kernel~(=1"], "is no regular expression"),
            (["--remove-wait", "stream 7:stream 99"], "Did you mean 'stream 7:stream 9'?"),
            (["--remove-wait", "main"], "Say who waits for whom"),
            (["--bucket", "9=6"], "Possible: 8."),
            (["--bucket", "8"], "8=6"),
            (["--extend-graph", "on"], "every extend of this trace is a replay already"),
            (["--host", "-3"], "is not a factor"),
            ([], "say what would change"),
        ],
    )
    def test_what_cannot_be(
        self, capsys: Capture, runs: dict[str, Path], asked: list[str], line: str
    ) -> None:
        code, text = refused(capsys, "whatif", runs["fast"], *asked)
        assert code == 2
        assert line in text

    def test_names_of_thousands_of_kernels_stay_one_line(self, capsys: Capture, tmp_path: Path) -> None:
        tasks = [
            Task(f"kernel_{number}<{'x' * 200}>", 100 * number, 100 * number + 50) for number in range(300)
        ]
        trace = write_kineto(tmp_path / "t.json", kineto_events(tasks))
        _, text = refused(capsys, "whatif", trace, "--scale", "kernel~kernel_1700=0.5")
        assert "kernel_170" in text


class TestBadInput:
    @pytest.mark.parametrize("command", ["analyse", "whatif", "diff"])
    @pytest.mark.parametrize(
        ("content", "line"),
        [
            (b"", ""),
            (b"hello", ""),
            (b"\x00\x01" * 500, ""),
            (b"\x1f\x8b\x08\x00damaged", ""),
            (b'{"traceEvents": []}', "without a single operation"),
            (b'{"other": 1}', ""),
        ],
    )
    def test_no_trace(self, capsys: Capture, tmp_path: Path, command: str, content: bytes, line: str) -> None:
        path = tmp_path / "trace.json"
        path.write_bytes(content)
        more = {"whatif": ["--host", "0"], "diff": [path], "analyse": []}[command]
        code, text = refused(capsys, command, path, *more)
        assert code == 1
        assert str(path) in text
        assert line in text

    def test_a_path_that_is_not_there_and_none_at_all(self, capsys: Capture, tmp_path: Path) -> None:
        assert refused(capsys, "analyse", tmp_path / "none.json")[0] == 1
        assert refused(capsys, "analyse")[0] == 2
        assert refused(capsys, "whatif", "--host", "0")[0] == 2

    def test_a_foreign_and_a_locked_database(self, capsys: Capture, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign.db"
        with sqlite3.connect(foreign) as connection:
            connection.execute("CREATE TABLE people (name TEXT)")
        connection.close()
        code, text = refused(capsys, "analyse", foreign)
        assert (code, "foreign.db" in text) == (1, True)

    def test_no_device(self, capsys: Capture, tmp_path: Path) -> None:
        events = kineto_events([Task("k", 10, 20, launch_ns=1)])
        host = [event for event in events if event.get("cat") != "kernel"]
        code, text = refused(capsys, "analyse", write_kineto(tmp_path / "host.json", host))
        assert code == 1
        assert "no operation of a device is in it" in text

    def test_only_totals(self, capsys: Capture, tmp_path: Path) -> None:
        folder = write_ascend(tmp_path / "x_ascend_pt", []) / "ASCEND_PROFILER_OUTPUT"
        (folder / "trace_view.json").unlink()
        (folder / "step_trace_time.csv").write_text("Step,Computing,Free\n,10.0,2.0\n")
        code, text = refused(capsys, "analyse", tmp_path)
        assert code == 1
        assert "only the vendor's totals (Computing, Free)" in text

    def test_ranks_of_different_runs(self, capsys: Capture, tmp_path: Path, runs: dict[str, Path]) -> None:
        code, text = refused(capsys, "analyse", runs["slow"], runs["fast"])
        assert (code, "rank 0 is there twice" in text) == (1, True)
        mixed = tmp_path / "mixed"
        sglang(mixed, Shape(ranks=2))
        three = sglang(tmp_path / "three", Shape(ranks=3))
        (mixed / "rank1.json").write_text((three / "rank1.json").read_text())
        assert "mixed: ranks say that they are of" in printed(capsys, "analyse", mixed)

    @pytest.mark.parametrize(
        ("options", "code", "line"),
        [
            (["--round", "99"], 2, "rank 0 has 8 rounds, 0 to 7"),
            (["--rank", "5"], 2, "--rank 5"),
            (["--advanced", "many"], 2, "neither a number nor a file"),
            (["--advanced", "0"], 2, "at least one token"),
            (["--width", "0"], 2, "give the rows that a request has in verify, 1 to 1024"),
            (["--width", "-3"], 2, "give the rows that a request has in verify, 1 to 1024"),
            (["--width", "4.5"], 2, "--width 4.5: give the rows"),
            (["--width", "four"], 2, "--width four: give the rows"),
            (["--width", "5000"], 2, "1 to 1024"),
            (["--rules", "none.toml"], 2, "cannot read the rules none.toml"),
            (["--sides", "none.json"], 1, "cannot read none.json"),
        ],
    )
    def test_options(
        self, capsys: Capture, runs: dict[str, Path], options: list[str], code: int, line: str
    ) -> None:
        got, text = refused(capsys, "analyse", runs["fast"] / "rank0.json", *options)
        assert got == code
        assert line in text

    def test_a_truncated_trace_is_told_of_with_a_mark(
        self, capsys: Capture, tmp_path: Path, runs: dict[str, Path]
    ) -> None:
        whole = (runs["fast"] / "rank0.json").read_bytes()
        (tmp_path / "cut.json").write_bytes(whole[: len(whole) // 2])
        assert "truncated: cut.json ends too early" in printed(capsys, "analyse", tmp_path / "cut.json")


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    program = (
        "import sys; from slipstream.cli import main; main(['trace', '--help']);"
        "heavy = {'numpy', 'torch', 'rich.markdown', 'rich.progress', 'sqlite3'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "analyse" in done.stdout


#: "1 joins": one of what is in the plural; "1 us" is none.
MISCOUNTED = re.compile(r"(?<![\d.,:-])\b1 (?!(?:us|ms|ns)\b)[a-z-]+s\b")

#: What is printed of a real trace, among other things.
REAL = {
    "kineto/tracelens/mi300x-vllm-piecewise.json.gz": [
        "The only prefill takes 156.47 ms. The device is busy for 99.8 %",
        "3 the seam between draft and verify not in this trace, because this is a prefill: it has no draft",
    ],
    "kineto/tracelens/mi300x-sglang-decode-graph.json.gz": [
        "Cost of a token 326.6 us: 10.45 ms of path by 32 tokens",
        # Its work outside of the marked phase lies before and behind it, 463 ms apart: their span says nothing.
        "other 1 eager 1 84.6 us decode 1 replay 1 10.37 ms",
    ],
    "kineto/tracelens/h100-qwen-clipped.json.gz": [
        "clipped: device operations whose launch is not in the trace (509)"
    ],
    "kineto/tracelens/b200-vllm-eager.json.gz": [
        "multimem_all_reduce_kernel: 73 operations, 2.12 ms, exposed 2.12 ms",
        "longest on the host: code not in the trace 24.5 %",
    ],
    "kineto/hta/a100-nccl-args.json.gz": ["step over 99.9 % 219.86 ms 222.83 ms 3 eager host (aten::empty)"],
    "ascend/910b-alexnet-text/level1-rank0": ["equal ours to 0.1 us"],
    "ascend/910b-alexnet-db": ["equal ours to 0.1 us", "longest on the host: empty_tensor"],
    "ascend/qwen3-4rank": [
        "nothing in the trace explains the wait (59.6 % on a rank whose kernels are not in"
    ],
    "kineto/dlrm-8rank": [
        "rank 7 (told of here)",
        "8 ranks, 2,244 device operations, not cut into rounds",
        "events were off (352 on ranks 0 to 7)",
    ],
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces(capsys: Capture, name: str) -> None:
    text = printed(capsys, "analyse", real(name), "--details")
    assert [line for line in REAL[name] if line not in text] == []
    assert not MISCOUNTED.findall(text)


def test_runs_of_different_kinds_are_said_to_be(capsys: Capture) -> None:
    names = ("tracelens/h100-qwen-clipped", "tracelens/mi300x-vllm-piecewise", "hta/a100-sampled-rank0")
    stretches, prefill, whole = (real(f"kineto/{name}.json.gz") for name in names)
    text = printed(capsys, "diff", stretches, prefill)
    assert (
        "Not of one kind: A's are stretches, B's prefills. A round takes 1.39 ms in A and 156.47 ms in B (×112)"
        in text
    )
    assert "34 and 1 rounds are too few to say whether that is chance" in text
    assert "; one of each is too few to say whether that is chance" in printed(capsys, "diff", whole, whole)


def test_one_of_a_thing_is_no_plural(capsys: Capture, runs: dict[str, Path]) -> None:
    assert MISCOUNTED.findall("of 1 joins, 21 joins, 1.1 joins, 1 us, in 1 rounds") == ["1 joins", "1 rounds"]
    for command in (
        ("analyse", runs["short"], "--details"),
        ("analyse", runs["slow"], "--details", "--advanced", "1"),
        ("analyse", runs["slow"], "--round", "0", "--advanced", "0.2"),
        ("whatif", runs["short"], "--remove-wait", "stream 7:stream 9"),
        ("whatif", runs["slow"], "--extend-graph", "on"),
        ("diff", runs["short"], runs["fast"]),
    ):
        assert not MISCOUNTED.findall(printed(capsys, *command)), command


def test_a_trace_of_the_host_alone(capsys: Capture) -> None:
    code, text = refused(capsys, "analyse", real("kineto/hta/cpu-only.json.gz"))
    assert (code, "no operation of a device" in text) == (1, True)


class TestFilesThatAreWritten:
    def test_a_page_and_its_report(self, capsys: Capture, runs: dict[str, Path], tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        assert main(["trace", "analyse", str(runs["slow"]), "--html", str(page), "--round", "3"]) == 0
        assert "round 3" in capsys.readouterr().out.lower()
        text = page.read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>")
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text

    @pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
    def test_an_export_is_read_back_as_the_same_operations(
        self, capsys: Capture, runs: dict[str, Path], tmp_path: Path, name: str
    ) -> None:
        target = tmp_path / name
        assert main(["trace", "export", str(runs["fast"]), "--perfetto", str(target)]) == 0
        capsys.readouterr()
        raw = gzip.decompress(target.read_bytes()) if name.endswith(".gz") else target.read_bytes()
        slices = [event for event in json.loads(raw)["traceEvents"] if event["ph"] == "X"]
        written = Counter(event["name"] for event in slices)
        table = open_timeline(runs["fast"])
        assert not Counter(table.names[name] for name in table.name) - written

    def test_a_place_that_cannot_be_written(
        self, capsys: Capture, runs: dict[str, Path], tmp_path: Path
    ) -> None:
        code, line = refused(capsys, "export", runs["fast"], "--perfetto", tmp_path / "no" / "t.json")
        assert code != 0
        assert "no" in line
        assert not list(tmp_path.iterdir())

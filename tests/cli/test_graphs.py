"""`slipstream graphs plan` and `slipstream graphs explain-error`: documents, tables, exit codes and bad input."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli import main
from tests.cli.test_refusals import refused

Capture = pytest.CaptureFixture[str]


def document(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["graphs", "plan", *arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == 1
    data: dict[str, Any] = json.loads(printed.out)
    return data


class TestPlan:
    def test_the_document_has_what_scripts_rest_on(self, capsys: Capture) -> None:
        data = document(capsys, "--max-requests", "25", "--num-draft-tokens", "4")
        assert (data["width"], data["sizes"][-1], data["rows"][-1], data["buckets"][-1]) == (4, 96, 96, 24)
        assert data["uncovered_requests"] == [25]
        assert data["mode"] == {"asked": "full_and_piecewise", "got": "full_and_piecewise"}
        assert data["completed_sizes"] == [*data["sizes"], 100]
        assert data["completed_expected_padded_rows"] >= data["best_expected_padded_rows"] > 0
        assert data["best_sizes"][-1] == 100
        assert data["batches"][4] == {"requests": 5, "rows": 20, "size": 24, "padded_rows": 4}
        assert data["batches"][24]["size"] is None
        assert data["graphs"][0] == {
            "size": 4,
            "bucket": 1,
            "width": 4,
            "rows": 4,
            "decode": "full",
            "mixed": "piecewise",
            "requests": [1, 1],
            "share": 0.04,
            "mean_padded_rows": 0.0,
            "most_padded_rows": 0,
            "streams": None,
            "memory_mib": None,
        }

    @pytest.mark.parametrize(
        ("arguments", "sizes"),
        [
            (["--max-requests", "16", "--num-draft-tokens", "4", "--sizes", "1,2,4,8,16"], [4, 8, 16]),
            (
                [
                    "--max-requests",
                    "8",
                    "--num-draft-tokens",
                    "3",
                    "--sizes",
                    "1,2,4,8,16,24",
                    "--max-size",
                    "24",
                ],
                [3, 6, 9, 18, 24],
            ),
            (["--max-requests", "8", "--num-speculative-tokens", "4", "--sizes", "4,8"], [5]),
            (["--max-requests", "8", "--sizes", "1,2,4,8", "--tp", "8", "--sequence-parallel"], [8]),
            (["--max-requests", "4", "--sizes", "vllm"], [1, 2, 4, 8]),
        ],
    )
    def test_sizes(self, capsys: Capture, arguments: list[str], sizes: list[int]) -> None:
        assert document(capsys, *arguments)["sizes"] == sizes

    @pytest.mark.parametrize(
        ("arguments", "most"),
        [
            (["--layers", "36"], 48),
            (["--layers", "48", "--tp", "4"], 11),
            (["--layers", "48", "--tp", "4", "--hccl", "aiv"], 17),
            (["--layers", "94", "--tp", "8", "--dp", "2", "--moe", "--ep", "--hccl", "aiv"], 3),
            (["--layers", "61", "--tp", "4", "--dp", "4"], 5),
        ],
    )
    def test_streams(self, capsys: Capture, arguments: list[str], most: int) -> None:
        data = document(capsys, "--max-requests", "512", "--mode", "piecewise", *arguments)
        assert data["streams"]["max_sizes"] == most
        assert len(data["streams"]["kept_sizes"]) == most

    def test_five_requests_of_three_rows_in_a_bucket_of_eight(self, capsys: Capture) -> None:
        data = document(capsys, "--max-requests", "8", "--num-draft-tokens", "3", "--sizes", "24")
        assert (data["buckets"], data["rows"]) == ([8], [24])
        assert data["batches"][4] == {"requests": 5, "rows": 15, "size": 24, "padded_rows": 9}

    def test_a_histogram_and_a_budget(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "h").write_text("3 90\n7 10\nrubbish\n")
        data = document(capsys, "--max-requests", "8", "--histogram", str(tmp_path / "h"), "--budget", "2")
        assert data["best_sizes"] == [3, 7]
        assert data["best_covering_sizes"] == [3, 8]
        assert data["histogram"]["skipped_lines"] == 1
        assert data["histogram"]["skipped"][0] == {"line": 3, "text": "rubbish", "why": "is not `size count`"}
        assert data["histogram"]["requests"] == {"3": 90, "7": 10}

    def test_the_rules_of_ascend_are_left_out_beside_vllms_sizes(self, capsys: Capture) -> None:
        assert document(capsys, "--max-requests", "4", "--sizes", "vllm")["changes"] == []
        rules = ("--max-requests", "4", "--sizes", "vllm", "--ascend-rules", "--encoder-decoder")
        changes = document(capsys, *rules)["changes"]
        assert {change["rule"] for change in changes} == {
            "encoder-decoder",
            "splitting-ops",
            "expandable-segments",
        }

    def test_what_nothing_reads_is_said(self, capsys: Capture) -> None:
        notes = document(capsys, "--max-requests", "4", "--tp", "4", "--moe")["notes"]
        assert "without --layers streams are not predicted, and nothing reads --tp, --moe" in notes
        notes = document(capsys, "--max-requests", "4", "--sizes", "vllm", "--a5", "--warmups", "3")["notes"]
        assert "Ascend's rules are off, and nothing reads --warmups, --a5; add --ascend-rules" in notes
        read = document(capsys, "--max-requests", "8", "--tp", "8", "--sequence-parallel")["notes"]
        assert not any("nothing reads" in note for note in read)

    def test_the_platform_as_it_would_run(self, capsys: Capture) -> None:
        platform = document(capsys, "--max-requests", "4", "--num-draft-tokens", "2", "--warmups", "3")[
            "platform"
        ]
        assert (platform["warmups"], platform["speculative"], platform["graph_mode"]) == (
            1,
            True,
            "full_and_piecewise",
        )
        assert document(capsys, "--max-requests", "4", "--sizes", "vllm")["platform"] is None

    def test_the_tables(self, capsys: Capture) -> None:
        arguments = [
            "--max-requests",
            "20",
            "--layers",
            "36",
            "--probe-streams",
            "60",
            "--probe-mib",
            "512,24",
        ]
        assert main(["graphs", "plan", *arguments]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        for words in (
            "5 sizes from Ascend's default, mode full_and_piecewise",
            "16 x 1",
            "17 to 20",
            "best of 6",
            "planned, and 20",
            "formula, HCCL aiv",
            "probe capture",
            "add 20 to the sizes: --sizes 1,2,4,8,16,20",
            "no histogram: every decode batch from 1 to 20 requests counts alike",
        ):
            assert words in printed.out

    def test_it_needs_no_torch(self) -> None:
        code = (
            "import sys; sys.modules['torch'] = None; from slipstream.cli import main; "
            "sys.exit(main(['graphs', 'plan', '--max-requests', '8']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--sizes", "0,1"], "size 0 is not possible"),
            (["--sizes=-4,8"], "size -4 is not possible"),
            (["--sizes", "8,4"], "do not ascend"),
            (["--sizes", "4,4"], "stands twice"),
            (["--sizes", "4,x"], "'4,x' are not numbers"),
            (["--sizes", "1.5"], "are not numbers"),
            (["--sizes", ""], "are not numbers"),
            (["--sizes", "ascnd"], "Did you mean 'ascend'"),
            (["--sizes", "1,2,16", "--max-size", "8"], "over the maximum 8"),
            (["--max-requests", "0"], "max-requests 0 is not possible"),
            (["--num-draft-tokens", "0"], "num-draft-tokens 0 is not possible"),
            (["--num-draft-tokens", "3", "--num-speculative-tokens", "3"], "3 drafts have 4 rows"),
            (["--num-speculative-tokens=-1"], "num-speculative-tokens -1 is not possible"),
            (["--mode", "ful"], "Did you mean 'full'"),
            (["--mode", "full", "--attention", "mla_v1", "--no-fallback"], "mode full is not possible"),
            (["--mode", "full", "--attention", "never"], "can never stand in a whole graph"),
            (["--attention", "mla"], "unknown attention backend or level 'mla'"),
            (["--sizes", "1,2", "--interactive"], "interactive is for --sizes ascend or vllm"),
            (["--budget", "0"], "budget 0 is not possible"),
            (["--histogram", "nowhere.txt"], "cannot read the histogram nowhere.txt"),
            (["--hccl", "ring"], "unknown hccl 'ring'"),
            (["--layers", "0"], "layers 0 is not possible"),
            (["--probe-mib", "much"], "probe-mib 'much' is not possible"),
            (["--probe-streams", "5"], "give --layers"),
            (["--sequence-parallel"], "--tp is 1"),
            (["--launch-blocking"], "unset ASCEND_LAUNCH_BLOCKING"),
            (["--compile-mode", "none"], "pieces are what VLLM_COMPILE"),
        ],
    )
    def test_is_one_line(self, capsys: Capture, arguments: list[str], words: str) -> None:
        default = [] if "--max-requests" in arguments else ["--max-requests", "8"]
        code, line = refused(capsys, "graphs", "plan", *default, *arguments)
        assert code == 2
        assert words in line

    def test_a_histogram_of_rubbish_alone(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "h").write_text("what\nis this\n")
        code, line = refused(
            capsys, "graphs", "plan", "--max-requests", "8", "--histogram", str(tmp_path / "h")
        )
        assert code == 2
        assert "2 lines skipped (first, line 1: 'what'" in line


class TestExplainError:
    LOG = "error code is 207005\nAlloc sq cq fail, stream_id=1984\n"

    def test_a_file(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "log").write_text(self.LOG)
        assert main(["graphs", "explain-error", str(tmp_path / "log")]) == 0
        assert capsys.readouterr().out.startswith("stream resources\n")

    def test_standard_input_as_a_document(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(self.LOG.encode() + b"\xff\x00")))
        assert main(["graphs", "explain-error", "-", "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["kind"], data["codes"][0]["code"], data["known"]) == ("streams", 207005, True)

    def test_what_nobody_knows_is_exit_code_1(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "log").write_text("all is well\n")
        assert main(["graphs", "explain-error", str(tmp_path / "log")]) == 1
        assert capsys.readouterr().out.startswith("unknown\n")

    @pytest.mark.parametrize("content", [None, "", " \n"])
    def test_nothing_to_read(self, capsys: Capture, tmp_path: Path, content: str | None) -> None:
        path = tmp_path / "log"
        if content is not None:
            path.write_text(content)
        code, line = refused(capsys, "graphs", "explain-error", str(path))
        assert code == 2
        assert ("is empty" if content is not None else "cannot read") in line

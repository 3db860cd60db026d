"""peers.py from end to end over workers without engines: figures, table, and every way in which one can fail."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers_kinds
import pytest

import peers

pytestmark = pytest.mark.slow

SCRIPTS = ("slipstream", "llama_cpp", "openvino", "vllm", "transformers")


@dataclass
class Bench:
    """The benchmark with fake workers in a folder."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *more: str, **behaviour: str) -> tuple[int, dict[str, Any], str, str]:
        """Return (exit code, record, the table, stderr)."""
        (self.folder / "behaviour.json").write_text(json.dumps(behaviour))
        # No retries: other processes may well disturb a test, and that is not its subject.
        code = peers.main(
            ["--model", "m.gguf", "--max-tokens", "32", "--retries", "0", *self.pythons(), *more]
        )
        printed = self.capsys.readouterr()
        table, _, line = printed.out.rstrip("\n").rpartition("\n")
        return code, json.loads(line), table, printed.err

    @staticmethod
    def pythons() -> list[str]:
        others = [f"--python={script}={sys.executable}" for script in SCRIPTS[1:]]
        return ["--ours-python", sys.executable, *others]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    for script in SCRIPTS:
        shutil.copy(Path(__file__).with_name("fake_worker.py"), tmp_path / f"worker_{script}.py")
    monkeypatch.setattr(peers_kinds, "WORKERS", tmp_path)
    monkeypatch.setattr(peers, "WORKERS", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(peers.__file__).parent))
    return Bench(tmp_path, capsys)


class TestFigures:
    def test_all_engines(self, bench: Bench) -> None:
        code, record, table, _ = bench.run("--repeats", "2")
        assert code == 0
        assert record["left_out"] == {}
        assert list(record["engines"]) == [name for name, kind in peers.KINDS.items() if kind.default]
        assert record["context"] == 768  # 512 and a token, and room, in steps of 256
        ours, int4 = record["engines"]["slipstream"], record["engines"]["openvino-int4"]
        assert ours["tok_s"] == pytest.approx(31.0)
        assert ours["tok_s_by_repeat"] == pytest.approx([31.0, 31.0])
        assert ours["llama_ratio"] == pytest.approx(2.0)
        assert ours["int4_ratio"] == pytest.approx(0.625)
        assert ours["prefill_tok_s"] == pytest.approx(1024.0)
        assert ours["prefill_llama_ratio"] == pytest.approx(0.5)
        assert ours["batch_tok_s"] == pytest.approx(8 * 31 / 2)
        assert ours["batch_ratio"] == pytest.approx(4.0)
        assert ours["rss_less_torch_mb"] == pytest.approx(ours["rss_mb"] - 1.0)
        assert int4["llama_ratio"] == pytest.approx(3.2)
        assert int4["plain_ratio"] == pytest.approx(0.625)
        assert int4["text_as_ours"] == {"equal": 8, "of": 8, "first_difference": {}}
        head, rows = table.splitlines()[1], table.splitlines()[2:9]
        assert "512 tok/s" in head
        assert "batch 8" in head
        assert [row.split()[0] for row in rows] == list(record["engines"])

    def test_what_reads_the_long_prompt_and_what_batches(self, bench: Bench) -> None:
        _, record, _, _ = bench.run("--repeats", "1")
        engines = record["engines"]
        assert [name for name, row in engines.items() if row["prefill_tok_s"] is None] == [
            "slipstream-spec",
            "llama.cpp-lookup",
        ]
        assert [name for name, row in engines.items() if "batch_tok_s" not in row] == ["llama.cpp-lookup"]

    def test_targets(self, bench: Bench) -> None:
        _, record, table, _ = bench.run("--repeats", "1")
        met = {target["what"]: target["met"] for target in record["targets"]}
        assert met["plain decoding / llama.cpp"] is True
        assert met["plain decoding / OpenVINO int4"] is False
        assert met["prefill of 512 / llama.cpp"] is False
        assert met["batch 8 / batch 1"] is True
        assert met["memory less torch / llama.cpp"] is True  # the same script as the other, and 1 MB less
        assert "0.62   at least 1.40   MISSED" in table
        assert "at most 1.30   met" in table

    def test_targets_are_for_one_size(self, bench: Bench) -> None:
        _, record, table, _ = bench.run("--prefill", "500", "--batch", "2", "--repeats", "1")
        assert record["engines"]["slipstream"]["batch_ratio"] > 0
        assert "batch 8 / batch 1" not in table
        assert "prefill of 512" not in table

    def test_without_the_long_prompt_and_batches(self, bench: Bench) -> None:
        code, record, _, err = bench.run("--prefill", "0", "--batch", "1", "--repeats", "1")
        assert code == 0
        assert record["context"] == 256
        assert record["engines"]["slipstream"]["prefill_tok_s"] is None
        assert "batch_tok_s" not in record["engines"]["slipstream"]
        assert "together" not in err
        assert [t["what"] for t in record["targets"] if t["value"] is None] == [
            "prefill of 512 / llama.cpp",
            "batch 8 / batch 1",
        ]

    def test_json_prints_nothing_else(self, bench: Bench) -> None:
        _, record, table, _ = bench.run("--json", "--only", "slipstream", "--repeats", "1", "--batch", "1")
        assert table == ""
        assert list(record["engines"]) == ["slipstream"]
        assert record["engines"]["slipstream"].get("llama_ratio") is None

    def test_what_a_worker_does_before_it_loads_is_told(self, bench: Bench) -> None:
        err = bench.run("--only", "slipstream,openvino-int4", "--repeats", "1", openvino="prepares")[3]
        assert "openvino-int4: preparing" in err


class TestFailures:
    def test_no_environment(self, bench: Bench, tmp_path: Path) -> None:
        gone = tmp_path / "no" / "python"
        code, record, table, err = bench.run("--repeats", "1", f"--python=openvino={gone}")
        assert code == 0
        assert list(record["left_out"]) == ["openvino-int8", "openvino-int4"]
        assert {"slipstream", "llama.cpp", "transformers"} <= set(record["engines"])
        for text in (table, err):
            (line,) = [line for line in text.splitlines() if line.startswith("openvino-int4: left out")]
            assert str(gone) in line
            assert "bench/requirements-openvino.txt" in line

    def test_a_missing_module(self, bench: Bench) -> None:
        code, record, _, _ = bench.run("--repeats", "1", llama_cpp="missing")
        assert code == 0
        why = record["left_out"]["llama.cpp"]
        assert "engine is not installed" in why
        assert "bench/requirements-llama_cpp.txt" in why
        assert "llama_ratio" not in record["engines"]["slipstream"]
        assert record["engines"]["slipstream"]["int4_ratio"] == pytest.approx(0.625)

    def test_one_that_cannot_load(self, bench: Bench) -> None:
        code, record, _, _ = bench.run("--repeats", "1", transformers="broken")
        assert code == 0
        assert record["left_out"] == {"transformers": "ValueError: cannot read the file"}

    def test_one_that_dies_half_way(self, bench: Bench) -> None:
        code, record, _, err = bench.run("--repeats", "2", "--only", "slipstream,llama.cpp", llama_cpp="dies")
        assert code == 0
        assert record["left_out"] == {
            "llama.cpp": "its process ended with code 3: out of luck",
            "llama.cpp, batch 8": "its process ended with code 3: out of luck",
        }
        assert "llama.cpp: left out from here on" in err
        assert list(record["engines"]) == ["slipstream"]
        assert record["engines"]["slipstream"]["tok_s_by_repeat"] == pytest.approx([31.0, 31.0])

    @pytest.mark.parametrize("behaviour", ["broken", "dies"])
    def test_ours_fails(self, bench: Bench, behaviour: str) -> None:
        code, record, _, _ = bench.run("--repeats", "1", slipstream=behaviour)
        assert code == 1
        assert "slipstream" in record["left_out"]
        assert record["engines"]["openvino-int4"]["llama_ratio"] == pytest.approx(3.2)
        assert "plain_ratio" not in record["engines"]["llama.cpp"]

    @pytest.mark.parametrize(
        ("behaviour", "where"), [("other text", "batch 1"), ("other text together", "batch 8")]
    )
    def test_our_texts_differ(self, bench: Bench, behaviour: str, where: str) -> None:
        code, record, table, _ = bench.run(
            "--repeats", "1", "--only", "slipstream,slipstream-spec", slipstream=behaviour
        )
        assert code == 1
        assert record["texts_differ"] == [f"slipstream-spec, {where}"]
        assert f"OUR TEXT OF slipstream-spec, {where} IS NOT OUR PLAIN TEXT" in table

    def test_slipstream_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match=r"error: the prompts need Slipstream in .*no.*--ours-python"):
            peers.main(["--ours-python", str(tmp_path / "no")])

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["--batch", "9"], "--batch is 1 to 8, not 9"),
            (["--repeats", "0"], "--repeats is at least 1, not 0"),
            (["--prefill", "-1"], "--prefill is at least 0, not -1"),
            (["--only", "slipstream,sglang"], "no engine 'sglang'; there are: slipstream, "),
            (["--python", "sglang=python"], "--python is ENGINE=PATH with one of slipstream, "),
            (["--python", "openvino"], "--python is ENGINE=PATH with one of slipstream, "),
        ],
    )
    def test_bad_arguments(self, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
        with pytest.raises(SystemExit) as ended:
            peers.main(arguments)
        assert ended.value.code == 2
        assert line in capsys.readouterr().err


def test_every_engine_has_its_requirements_and_worker() -> None:
    for script in peers_kinds.SCRIPTS:
        assert (peers_kinds.ROOT / f"bench/worker_{script}.py").is_file()
        if script != peers_kinds.OURS:
            assert (peers_kinds.ROOT / f"bench/requirements-{script}.txt").is_file()

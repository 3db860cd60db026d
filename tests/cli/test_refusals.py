"""Bad input: one clear line on standard error, nothing on standard output, no traceback, the right exit code."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from slipstream import cli
from slipstream.cli import main
from tests.engines import Fleet
from tests.model.tiny import write_tiny_gguf

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *arguments: str) -> tuple[int, str]:
    """Run; return (exit code, the one line), and check that it is one line and no data was printed."""
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert printed.err.endswith("\n")
    assert "Traceback" not in printed.err
    return code, printed.err


class TestModels:
    def run(self, capsys: Capture, model: object) -> tuple[int, str]:
        return refused(capsys, "run", str(model), "--prompt", "hi", "--threads", "1")

    def test_a_missing_file(self, capsys: Capture, tmp_path: Path) -> None:
        code, line = self.run(capsys, tmp_path / "none.gguf")
        assert code == 1
        assert f"no model at {tmp_path / 'none.gguf'}" in line

    @pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
    def test_a_truncated_file(self, capsys: Capture, tiny: Fleet, tmp_path: Path, share: float) -> None:
        path = tmp_path / "cut.gguf"
        whole = tiny.path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        code, line = self.run(capsys, path)
        assert code == 1
        assert str(path) in line

    @pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" * 1000, b"\x00" * 1000])
    def test_a_file_that_is_no_gguf(self, capsys: Capture, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        code, line = self.run(capsys, path)
        assert code == 1
        assert str(path) in line

    def test_an_unsupported_architecture(self, capsys: Capture, tmp_path: Path) -> None:
        path = tmp_path / "mamba.gguf"
        writer = gguf.GGUFWriter(path, "mamba")
        writer.add_name("other")
        writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        code, line = self.run(capsys, path)
        assert code == 1
        assert "mamba" in line
        assert "llama" in line

    def test_an_unsupported_tensor_type(self, capsys: Capture, tmp_path: Path) -> None:
        code, line = self.run(capsys, write_tiny_gguf(tmp_path / "t.gguf", weight_type="Q5_1"))
        assert code == 1
        assert "Q5_1" in line
        assert all(name in line for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"))

    def test_an_empty_folder(self, capsys: Capture, tmp_path: Path) -> None:
        code, line = self.run(capsys, tmp_path)
        assert code == 1
        assert "config.json" in line

    def test_a_name_that_nobody_knows(self, capsys: Capture) -> None:
        code, line = self.run(capsys, "smolm2")
        assert code == 2
        assert "unknown model 'smolm2'. Did you mean 'smollm2'?" in line

    def test_a_name_to_get_that_nobody_knows(self, capsys: Capture) -> None:
        code, line = refused(capsys, "models", "get", "smollm")
        assert code == 2
        assert "Did you mean 'smollm2'?" in line

    def test_a_head_that_is_not_there(self, capsys: Capture, tiny: Fleet, tmp_path: Path) -> None:
        arguments = (
            "run",
            str(tiny.path),
            "--prompt",
            "hi",
            "--draft",
            "nextn",
            "--head",
            str(tmp_path / "h"),
        )
        code, line = refused(capsys, *arguments, "--threads", "1")
        assert code == 1
        assert "there is no head at" in line


class TestRequests:
    def run(self, capsys: Capture, tiny: Fleet, *arguments: str) -> tuple[int, str]:
        trace = str(tiny.path.parent / "never-written.json")
        found = refused(capsys, "run", str(tiny.path), "--threads", "1", "--trace", trace, *arguments)
        assert not Path(trace).exists()
        return found

    def test_a_prompt_longer_than_the_context(self, capsys: Capture, tiny: Fleet) -> None:
        code, line = self.run(capsys, tiny, "--prompt", "word " * 600)
        assert code == 2
        assert "the context holds 512" in line

    @pytest.mark.parametrize("raw", [True, False])
    @pytest.mark.parametrize("json", [True, False])
    def test_an_empty_prompt(self, capsys: Capture, tiny: Fleet, raw: bool, json: bool) -> None:
        flags = ["--raw"] * raw + ["--json"] * json
        code, line = self.run(capsys, tiny, "--prompt", "", *flags)
        assert code == 2
        assert "the prompt is empty" in line

    def test_a_blank_message(self, capsys: Capture, tiny: Fleet) -> None:
        assert self.run(capsys, tiny, "--prompt", " \n\t")[0] == 2

    def test_bytes_that_are_no_text(self, capsys: Capture, tiny: Fleet) -> None:
        """What Python makes of invalid UTF-8 on the command line."""
        code, line = self.run(capsys, tiny, "--prompt", b"a\xff".decode("utf-8", "surrogateescape"))
        assert code == 2
        assert "not valid Unicode" in line

    def test_a_request_that_can_never_fit_in_the_pages(self, capsys: Capture, tiny: Fleet) -> None:
        code, line = self.run(capsys, tiny, "--prompt", "hello", "--num-pages", "3")
        assert code == 2
        assert "there are 3 pages in all" in line

    @pytest.mark.parametrize(
        "flag", ["--max-tokens=0", "--temperature=-1", "--top-p=0", "--top-k=-1", "--stop="]
    )
    def test_sampling_that_is_not_possible(self, capsys: Capture, tiny: Fleet, flag: str) -> None:
        code, line = self.run(capsys, tiny, "--prompt", "hello", flag)
        assert code == 2
        assert flag.split("=")[0].removeprefix("--").split("-")[0] in line


class TestFlags:
    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (
                ["--draft", "ngrm"],
                "unknown drafter 'ngrm'. Did you mean 'ngram'? Possible: auto, nextn, ngram, none.",
            ),
            (["--num-steps", "0"], "num-steps 0 is not possible: a round drafts 1 to 16 tokens"),
            (["--num-steps", "-3"], "num-steps -3"),
            (["--num-steps", "1000000000000000000000000"], "a round drafts 1 to 16 tokens"),
            (["--num-steps", "three"], "--num-steps"),
            (["--dtype", "int4"], "unknown dtype 'int4'"),
            (["--graph", "ful"], "Did you mean 'full'?"),
            (["--device", "gpu"], "unknown device 'gpu'"),
            (["--kernels", "nativ"], "Did you mean 'native'?"),
            (["--buckets", "1,two"], "buckets '1,two' are not numbers"),
            (["--buckets", ""], "buckets '' are not numbers"),
            (["--buckets", "0"], "bucket 0 is not possible"),
            (["--page-size", "3"], "page-size 3 is not possible"),
            (["--max-requests", "1000000000"], "max-requests 1000000000 is not possible; it is 1 to 512"),
            (["--threads", "1000000"], "threads 1000000 is not possible"),
            (["--seed", "99999999999999999999"], "seed 99999999999999999999 is not possible"),
            (["--num-pages", "100000000000000"], "which this machine cannot reserve"),
            (["--max-model-len", "513"], "knows 512 positions"),
            (["--bogus"], "Unknown option: --bogus"),
            (["--num-step", "3"], "--num-steps"),
            (["--draft", "ngram", "--head", "x"], "use --draft nextn"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_a_value_that_is_not_possible(
        self, capsys: Capture, tiny: Fleet, flags: list[str], words: str
    ) -> None:
        one_thread = [] if "--threads" in flags else ["--threads", "1"]
        code, line = refused(capsys, "run", str(tiny.path), "--prompt", "hi", *one_thread, *flags)
        assert code == 2
        assert words in line

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["run"], "--prompt"),
            (["run", "model", "--prompt"], "--prompt"),
            (["runn"], 'Did you mean "run"?'),
            (["bench", "decod"], 'Did you mean "decode"?'),
            (["models", "get"], "name"),
            (["plan", "a", "b"], "b"),
        ],
        ids=str,
    )
    def test_a_command_line_that_is_not_possible(
        self, capsys: Capture, arguments: list[str], words: str
    ) -> None:
        code, line = refused(capsys, *arguments)
        assert code == 2
        assert words.lower() in line.lower()

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--batch", "9"], "batch 9 is not possible; it is 1 to 8"),
            (["--repeats", "0"], "repeats 0"),
            (["--max-tokens", "1"], "max-tokens 1 is not possible; it is at least 2"),
            (["--max-model-len", "40"], "prompt chat1 cannot be measured: the prompt has"),
        ],
        ids=str,
    )
    def test_a_benchmark_that_is_not_possible(
        self, capsys: Capture, tiny: Fleet, flags: list[str], words: str
    ) -> None:
        code, line = refused(capsys, "bench", "decode", str(tiny.path), "--threads", "1", *flags)
        assert code == 2
        assert words in line

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--rows", "0,1"], "rows 0 is not possible; it is 1 to 17"),
            (["--rows", "18"], "rows 18 is not possible; it is 1 to 17"),
            (["--rows", "1,two"], "rows '1,two' are not numbers"),
            (["--rows", ""], "rows '' are not numbers"),
            (["--context", "0"], "context 0 is not possible; it is at least 1"),
            (["--prefill", "-1"], "prefill -1 is not possible; it is at least 0"),
            (["--repeats", "0"], "repeats 0 is not possible; it is at least 1"),
            (["--context", "510", "--rows", "3"], "tiny knows 512 positions, and this takes 513"),
            (["--prefill", "512"], "tiny knows 512 positions, and this takes 513"),
            (["--draft", "ngram"], "--draft"),
        ],
        ids=str,
    )
    def test_forwards_that_are_not_possible(
        self, capsys: Capture, tiny: Fleet, flags: list[str], words: str
    ) -> None:
        code, line = refused(capsys, "bench", "forward", str(tiny.path), "--threads", "1", *flags)
        assert code == 2
        assert words in line


class TestOtherEndings:
    def test_an_interrupt_before_the_first_token_is_130_without_words(
        self, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(cli, "app", interrupted)
        assert main(["run"]) == 130
        assert capsys.readouterr() == ("", "")

    def test_a_reader_that_went_away_is_a_failure_without_words(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def gone(*_: object, **__: object) -> None:
            raise BrokenPipeError

        monkeypatch.setattr(cli, "app", gone)
        assert main(["env"]) == 1
        assert capfd.readouterr().err == ""

"""`slipstream train head` as people call it: quickly, with their own prompts, and with what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.cli import main
from tests.engines import Fleet

Capture = pytest.CaptureFixture[str]


def train(*arguments: object) -> int:
    return main(["train", "head", *map(str, arguments), "--threads", "1"])


@pytest.fixture
def own_prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps(f"say {word} {count}") for word in ("what", "the people") for count in range(30)]
    path.write_text("\n".join([*lines, "{broken", '{"prompt": 5}', lines[0], ""]))
    return path


def test_quick_run_with_own_prompts(tiny: Fleet, tmp_path: Path, own_prompts: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    options = [
        "--out",
        out,
        "--prompts",
        own_prompts,
        "--quick",
        "--tokens",
        "2000",
        "--draft-vocabulary",
        "200",
    ]
    assert train(tiny.path, *options) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record["last_loss"][0] < record["first_loss"][0]
    assert record["trained"]["mean_advanced"] > record["untrained"]["mean_advanced"]
    words = " ".join(printed.err.split())
    assert "line 61 is left out" in words
    assert "line 62 is left out" in words
    assert "60 prompts; 2 bad lines, 1 repeated ones left out" in words
    files = {path.name for path in out.iterdir()}
    assert files == {"data", "head.safetensors", "history.json", "state.pt", "training.svg"}
    # The same command has nothing left to do but to judge the head again; the engine takes the file.
    assert train(tiny.path, *options) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["trained"] == record["trained"]
    head = ["--draft", "nextn", "--head", str(out / "head.safetensors"), "--threads", "1"]
    trace = ["--trace", str(tmp_path / "trace.json"), "--max-tokens", "8", "--json"]
    assert main(["run", str(tiny.path), "--prompt", "say what 3", *head, *trace]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--epochs", "0"], "epochs 0 is not possible"),
        (["--learning-rate", "2"], "learning-rate 2.0 is not possible"),
        (["--prompts", "missing.txt"], "missing.txt cannot be read"),
        (["--init", "missing.safetensors", "--tokens", "10", "--quick"], "there is no head at"),
    ],
)
def test_refusals_are_one_line(
    tiny: Fleet, tmp_path: Path, capsys: Capture, arguments: list[str], says: str
) -> None:
    assert train(tiny.path, "--out", tmp_path / "out", "--json", *arguments) in (1, 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1


def test_one_prompt_is_too_few(tiny: Fleet, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "one.txt"
    path.write_text("hello there\n")
    assert train(tiny.path, "--out", tmp_path / "out", "--prompts", path) == 2
    assert "at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_quick_run_on_the_real_model(smollm2_path: Path, tmp_path: Path, capsys: Capture) -> None:
    assert train(smollm2_path, "--out", tmp_path / "out", "--quick") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["last_loss"][0] < record["first_loss"][0]
    assert record["trained"]["acceptance"][0] > record["untrained"]["acceptance"][0] + 0.05

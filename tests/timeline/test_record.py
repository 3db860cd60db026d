"""Recording: the environment variable, and `slipstream trace record`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipstream.cli import main
from slipstream.timeline.readers import open_timeline
from slipstream.trace import NullRecorder, ambient, ambient_recorder, names, read_chrome
from tests.engines import Fleet, greedy

Capture = pytest.CaptureFixture[str]

#: A program that has engines.
PROGRAM = """
import sys
from slipstream import LLM, EngineConfig, SamplingParams, SpecConfig
for draft in sys.argv[2:]:
    config = EngineConfig(spec=SpecConfig(draft=draft), max_model_len=128, threads=1)
    LLM(sys.argv[1], config).generate(["abc abc abc"], SamplingParams(max_tokens=12, ignore_eos=True), chat=False)
sys.exit(3)
"""


def test_without_the_variable_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ambient.VARIABLE, raising=False)
    assert isinstance(ambient_recorder(), NullRecorder)


def test_every_engine_has_a_file(tiny: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ambient.VARIABLE, str(tmp_path / "t.json.gz"))
    monkeypatch.setattr(ambient, "_kept", [])
    monkeypatch.setattr(ambient.atexit, "register", lambda function: None)
    for draft, tokens in (("none", 6), ("ngram", 0), ("ngram", 9)):
        engine = tiny.engine(draft=draft, buckets=(1,))
        if tokens:
            engine.add(tiny.prompts(["abc abc abc"])[0], greedy(tokens))
            while engine.busy:
                engine.step()
    written = ambient.write_kept()
    assert [path.name for path in written] == ["t.json.gz", "t.2.json.gz"]  # the idle one left none
    assert [read_chrome(path).metadata["draft"] for path in written] == ["none", "ngram"]
    assert ambient.write_kept() == []
    # Behind the first token, which the prefill gave; ngram's last round may advance beyond the limit.
    gave = [sum(sum(each.advanced) for each in open_timeline(path).advanced) for path in written]
    assert gave[0] == 5
    assert gave[1] >= 8


def test_dropped_events_are_said(tmp_path: Path) -> None:
    from slipstream.trace import Recorder, write_chrome

    recorder = Recorder(capacity=2)
    for _ in range(5):
        with recorder.slice(names.MAIN, names.VERIFY):
            pass
    path = write_chrome(tmp_path / "t.json", recorder.events(), metadata={"dropped": recorder.dropped})
    (note,) = [note for note in open_timeline(path).notes if note.what == "dropped"]
    assert note.count == 3


@pytest.mark.slow
def test_a_command_is_recorded_and_analysed(tiny: Fleet, tmp_path: Path, capfd: Capture) -> None:
    program, trace = tmp_path / "program.py", tmp_path / "t.json.gz"
    program.write_text(PROGRAM)
    stale = tmp_path / "t.2.json.gz"
    stale.write_text("of an earlier recording")
    command = [sys.executable, str(program), str(tiny.path), "none", "ngram"]
    assert main(["trace", "record", "--trace", str(trace), "--", *command]) == 3  # the program's own code
    out = capfd.readouterr()
    assert out.out.count("Critical path of a round") + out.out.count("Critical path of a decoding step") == 2
    assert f"trace: {trace}" in out.err
    assert f"slipstream trace diff {trace} {stale}" in out.err


@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        (
            ["--", sys.executable, "-c", "print('hello')"],
            1,
            "recorded nothing: no Slipstream engine of it ran a step",
        ),
        (["--", "no-such-program-here"], 2, "cannot run 'no-such-program-here'"),
        ([], 2, "name the command behind --"),
        (["--trace", "nowhere/t.json", "--", "true"], 2, "does not exist"),
    ],
)
def test_what_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, command: list[str], code: int, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "record", *command]) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert line in err

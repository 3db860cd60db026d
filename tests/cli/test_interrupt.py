"""Ctrl-C while the answer comes: what there is stays, the tables and the trace follow, the exit code is 130."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.trace import read_chrome
from tests.model.tiny import write_tiny_gguf

#: Runs the command line, and makes the file named by its first argument when the first tokens are published.
WATCHED = """
import sys
from pathlib import Path
from slipstream.cli import main
from slipstream.engine.engine import Engine

publish, marker = Engine._publish, Path(sys.argv[1])

def tell(*arguments):
    marker.touch()
    return publish(*arguments)

Engine._publish = tell
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context takes minutes to fill."""
    return write_tiny_gguf(tmp_path_factory.mktemp("endless") / "tiny.gguf", tie=False, context=100_000)


@pytest.mark.parametrize(
    "as_json", [pytest.param(False, id="text"), pytest.param(True, id="json", marks=pytest.mark.slow)]
)
def test_keeps_what_there_is(endless: Path, tmp_path: Path, as_json: bool) -> None:
    marker, trace = tmp_path / "first", tmp_path / "trace.json.gz"
    limits = [
        "--max-tokens=1000000",
        "--max-model-len=100000",
        "--max-requests=1",
        "--page-size=64",
        "--threads=1",
    ]
    arguments = ["run", str(endless), "--prompt", "hello", "--raw", *limits, "--trace", str(trace)]
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(marker), *arguments, *["--json"] * as_json],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A job that a shell started in the background ignores the signal, and so would its child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    with process:
        try:
            while not marker.exists() and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, b"")
    assert any(getattr(event, "name", "") == "verify" for event in read_chrome(trace).events)
    assert {path.name for path in tmp_path.iterdir()} == {"first", "trace.json.gz"}
    if as_json:
        data = json.loads(out)
        assert (data["interrupted"], data["finish_reason"]) == (True, "abort")
        assert data["tokens"] > 0
    else:
        text, _, tables = out.decode().partition("\n\n")
        assert text
        assert "tokens (abort) after a prompt of" in tables
        assert "Where the time of the rounds went" in tables

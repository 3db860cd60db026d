"""The command `slipstream check` from end to end: its process, its output, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.cli import main
from tests.check.test_check import CLEAN, RACE

Capture = pytest.CaptureFixture[str]


def write(folder: Path, source: str, name: str = "program.py") -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return str(path)


def test_the_report_and_what_the_program_prints(capfd: Capture, tmp_path: Path) -> None:
    code = main(["check", write(tmp_path, RACE), "--schedules", "3"])
    out, err = capfd.readouterr()
    assert code == 1
    assert "race: write-write race on" in out
    assert out.endswith("2 findings in 4 schedules of 5 commands\n")
    assert "sum 32.0" not in out
    assert err.count("sum 32.0") == 1


@pytest.mark.slow
def test_json_arguments_and_a_real_torch_npu(
    capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As installed: a package that cannot even be imported here, which torch would load by itself.
    write(tmp_path / "torch_npu", "raise ImportError('libhccl.so is missing')\n", "__init__.py")
    facts = tmp_path / "torch_npu-2.9.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.9.0\n")
    (facts / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    source = CLEAN + "import sys\nprint(sys.argv[1:], torch_npu.__version__)\n"
    code = main(["check", write(tmp_path, source), "--schedules=1", "--json", "--", "--lr", "3"])
    out, err = capfd.readouterr()
    data = json.loads(out)
    assert code == 0
    assert (data["clean"], data["findings"], data["problem"]) == (True, [], None)
    assert data["notes"] == [
        "torch_npu 2.9.0 is installed here; the program got the software NPU in its place."
    ]
    assert "['--lr', '3'] 2.14" in err


@pytest.mark.slow
def test_a_program_that_raises(capfd: Capture, tmp_path: Path) -> None:
    path = write(tmp_path, "import torch\nx = torch.ones(2, device='npu')\nx.view(3)\n")
    assert main(["check", path, "--json"]) == 2
    out, err = capfd.readouterr()
    assert err.startswith(f"error: {path} raised under program order: RuntimeError")
    assert err.endswith("program.py:3 in <module>: x.view(3)\n")
    assert json.loads(out)["problem"]["kind"] == "raised"


@pytest.mark.slow
def test_our_own_round(capfd: Capture) -> None:
    assert main(["check", "--round", "--schedules", "2", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert (data["clean"], data["schedules"]) == (True, 3)
    assert data["commands"] > 500


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the program"),
        (["--round", "file.py"], "one of the two"),
        (["--round", "--schedules", "-1"], "schedules -1 is not possible"),
        (["file.py"], "file.py is not there"),
        (["--round", "--timeout", "0"], "timeout 0 is not possible"),
        (["file.py", "--orders", "3"], "--orders"),
    ],
)
def test_wrong_usage(capsys: Capture, arguments: list[str], said: str) -> None:
    assert main(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_stops_the_program_too(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    source = f"import os, pathlib, time\npathlib.Path({str(marker)!r}).write_text(str(os.getpid()))\n"
    path = write(tmp_path, source + "time.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.cli", "check", path, "--timeout", "600"],
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    with process:
        try:
            while not (marker.exists() and marker.read_text()) and process.poll() is None:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, b"")
    pid = int(marker.read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()

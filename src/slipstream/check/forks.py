"""A function in a process of its own: a copy of this one, made by a fork, and stopped when it takes too long.

Every schedule begins in the same clean state that way: modules, random states, threads, the software NPU itself.
The copy is made before torch has started any thread, so what it starts is its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

#: Seconds for a process that is to be stopped to write down where it stands.
_LAST_WORDS = 2.0


class Stopped(Exception):
    """The function took too long.

    Attributes:
        stack: where its main thread stood, innermost frame first, as (file, line, function).
    """

    def __init__(self, stack: list[tuple[str, int, str]]) -> None:
        super().__init__("stopped")
        self.stack = stack


class Died(Exception):
    """The process ended without a result; the text says how."""


def run(function: Callable[[], Any], timeout: float, output: int) -> Any:
    """Call a function in a fork of this process and return its result, which can be pickled.

    Args:
        function: to call.
        timeout: seconds that it may take.
        output: file descriptor that takes the place of the fork's standard output and error.

    Raises:
        Stopped: it took longer. It is not running any more.
        Died: its process ended without a result.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as words:
        with warnings.catch_warnings():
            # Python says that threads may hold locks; this process has none that matter to the fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(reading)
            _in_fork(function, writing, words.fileno(), output)
        os.close(writing)
        try:
            data = _read(reading, time.monotonic() + timeout)
            if data is None:
                raise Stopped(_where(pid, words))
        finally:
            os.close(reading)
            status = _stop(pid)
    if not data:
        raise Died(_how(status))
    return pickle.loads(data)


def _in_fork(function: Callable[[], Any], writing: int, words: int, output: int) -> None:
    """Run in the fork; never returns."""
    code = 1
    try:
        os.setsid()
        faulthandler.disable()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1, file=words, all_threads=False)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Whatever stood in their place, as a test's capture does, is of the process before.
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, "w" if fd else "r", 1) for fd in range(3))
        data = pickle.dumps(function())
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(writing, "wb") as file:
            file.write(len(data).to_bytes(8, "little") + data)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _read(reading: int, deadline: float) -> bytes | None:
    """Return the result's bytes; none if the process is gone, None if the time is over."""
    data = b""
    while len(data) < 8 or len(data) - 8 < int.from_bytes(data[:8], "little"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return None
        part = os.read(reading, 1 << 20)
        if not part:
            return b""
        data += part
    return data[8:]


def _where(pid: int, words: Any) -> list[tuple[str, int, str]]:
    """Return where the process stands, as faulthandler writes it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + _LAST_WORDS
    text = ""
    while time.monotonic() < deadline:
        words.seek(0)
        found = words.read().decode(errors="replace")
        if found and found == text:
            break
        text = found
        time.sleep(0.02)
    return list(_frames(text))


def _frames(text: str) -> Iterator[tuple[str, int, str]]:
    for line in text.splitlines():
        # File "train.py", line 12 in main
        _, quote, rest = line.partition('File "')
        path, _, rest = rest.partition('", line ')
        number, _, function = rest.partition(" in ")
        if quote and number.isdigit():
            yield path, int(number), function


def _stop(pid: int) -> int:
    """End the process and what it started; return its wait status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"its process was ended by {name}"
    return f"its process ended by itself with exit code {os.waitstatus_to_exitcode(status)}"

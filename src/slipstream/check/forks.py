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
from collections.abc import Callable, Iterator, Sequence
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


class Fork:
    """A call of a function in a copy of this process.

    Args:
        function: to call; its result can be pickled.
        timeout: seconds that it may take.
        output: file descriptor that takes the place of the copy's standard output and error.
    """

    def __init__(self, function: Callable[[], Any], timeout: float, output: int) -> None:
        self._deadline = time.monotonic() + timeout
        self._data = b""
        self._ended = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self._reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Python says that threads may hold locks; this process has none that matter to the fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reading)
            _in_fork(function, writing, self._words.fileno(), output)
        os.close(writing)

    def fileno(self) -> int:
        """Return what to wait for with `select`."""
        return self._reading

    @property
    def seconds_left(self) -> float:
        """Of its time."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether it has ended, or has taken too long."""
        return self._ended or not self.seconds_left

    def read(self) -> None:
        """Take what there is of the result; `select` says that there is something."""
        part = os.read(self._reading, 1 << 20)
        self._data += part
        self._ended = not part or len(self._data) >= 8 + int.from_bytes(self._data[:8], "little")

    def result(self) -> Any:
        """Return the result of a call that is over.

        Raises:
            Stopped: it took longer. It is not running any more.
            Died: its process ended without a result.
        """
        try:
            stack = None if self._ended else _where(self._pid, self._words)
        finally:
            status = self.close()
        if stack is not None:
            raise Stopped(stack)
        if len(self._data) < 8 + int.from_bytes(self._data[:8], "little"):
            raise Died(_how(status))
        return pickle.loads(self._data[8:])

    def close(self) -> int:
        """End the process and what it started; return its wait status."""
        for kill, pid in ((os.killpg, self._pid), (os.kill, self._pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        os.close(self._reading)
        self._words.close()
        return os.waitpid(self._pid, 0)[1]


def wait(running: Sequence[Fork]) -> None:
    """Return when at least one call is over."""
    while not any(fork.over for fork in running):
        left = min(fork.seconds_left for fork in running)
        for fork in select.select(running, [], [], left)[0]:
            fork.read()


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


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"its process was ended by {name}"
    return f"its process ended by itself with exit code {os.waitstatus_to_exitcode(status)}"

"""A headless Chromium driven over its debugging pipe, with nothing installed but the browser itself."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "chrome", "google-chrome", "google-chrome-stable")
_PATIENCE = 120.0  # seconds for any one answer: the machine may be busy


def find() -> str:
    """Return the path of a Chromium; the test is skipped without one."""
    for name in (os.environ.get("SLIPSTREAM_BROWSER", ""), *_NAMES):
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser: $SLIPSTREAM_BROWSER is not set and none of {', '.join(_NAMES)} is on the path")


class Page:
    """One page. Messages are JSON, each ended by a zero byte."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._number, self._rest = read, write, 0, b""
        self.faults: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE
        while True:
            answer = self._next(until)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.faults.append(json.dumps(answer["params"]["exceptionDetails"])[:1000])
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser is gone"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, file: Path) -> None:
        """Open a file and wait until it shows something, be it that it cannot."""
        self.call("Page.navigate", url=file.as_uri())
        trouble = "document.getElementById('trouble')?.hidden === false"
        ready = f"window.slipstream?.painter.took.length > 0 || {trouble}"
        until = time.monotonic() + _PATIENCE
        while not self.run(f"return Boolean({ready})"):
            assert time.monotonic() < until, self.faults
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """Return what a function's body returns; `s` is the page's own object, `frame()` waits for a drawing."""
        frame = "const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));"
        done = self.call(
            "Runtime.evaluate",
            expression=f"(async (s) => {{ {frame} {script} }})(window.slipstream)",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press or release the mouse, or turn its wheel: "mouseMoved", "mousePressed" ..."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float, *, to: tuple[float, float] | None = None) -> None:
        """Press, move if there is a second point, and release."""
        end = to or (x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1, buttons=1)
        if to:
            self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press a key."""
        text = key if len(key) == 1 else None
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)


#: The browser talks by the descriptors 3 and 4; a shell could not take them from any that has two digits.
_START = (
    "import fcntl, os, sys; ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 20) for end in sys.argv[1:3]]; "
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


@contextmanager
def running(folder: Path) -> Iterator[Page]:
    """Start a browser and open an empty page; end it afterwards."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1440,1000",
        f"--user-data-dir={folder / 'profile'}",
    ]
    ends = [str(to_read), str(from_write)]
    browser = subprocess.Popen(
        [sys.executable, "-c", _START, *ends, find(), *options, "--remote-debugging-pipe", "about:blank"],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        browser.terminate()
        browser.wait(timeout=30)
        os.close(to_write)
        os.close(from_read)

"""One engine of peers.py: its process, and what was measured of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

INSTALL = "make bench-peers installs it; by hand: {python} -m pip install -r bench/peers-requirements.txt"

try:
    import psutil
except ImportError:
    raise SystemExit(f"error: psutil is not there; {INSTALL.format(python=sys.executable)}") from None

#: Cores that others may take before a measurement is called noisy.
QUIET = 0.1


class EngineError(Exception):
    """An engine cannot start, or died."""


class Worker:
    """One engine's process."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        # A session of its own: Ctrl-C reaches the parent only, which then ends its workers.
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._watched = psutil.Process(self._process.pid)
        self.about: dict[str, Any] = {}

    def start(self, python: str) -> None:
        """Wait until the engine is loaded.

        Raises:
            EngineError: it cannot be.
        """
        self.about = self._read()
        if self.about.get("missing"):
            install = INSTALL.format(python=python)
            raise EngineError(f"{self.about['missing']} is not installed in {python}; {install}")
        if "error" in self.about:
            raise EngineError(self.about["error"])

    def ask(self, ids: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Let it generate.

        Raises:
            EngineError: it died.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"ids": ids, "max_tokens": max_tokens}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the read below says how it ended
        return self._read()

    @property
    def rss_mb(self) -> float:
        """Memory that it has now."""
        return self._watched.memory_info().rss / 1e6

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used."""
        times = self._watched.cpu_times()
        return times.user + times.system

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(2)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return dict(json.loads(line))
        code = self._process.wait()
        self._log.seek(0)
        tail = " | ".join(self._log.read().strip().splitlines()[-3:])
        raise EngineError(f"its process ended with code {code}: {tail or 'no message'}")


@dataclass(frozen=True, slots=True)
class Try:
    """One measurement, and how many cores other processes and sleeping workers used meanwhile."""

    answer: dict[str, Any]
    others: float
    idle: float


@dataclass(slots=True)
class Series:
    """What one engine did.

    Attributes:
        tok_s: decode speed over all prompts, by repeat.
        by_prompt: the same of each group of prompts.
        prefill_s: time to the first token (of a whole group), all repeats.
        texts: tokens of each prompt in the last repeat.
        steady: whether all repeats gave the same tokens.
        others: cores that other processes used meanwhile.
        idle: cores that the sleeping workers used meanwhile.
    """

    worker: Worker
    tok_s: list[float] = field(default_factory=list)
    by_prompt: dict[str, list[float]] = field(default_factory=dict)
    prefill_s: list[float] = field(default_factory=list)
    texts: dict[str, list[int]] = field(default_factory=dict)
    steady: bool = True
    others: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    rss_mb: float = 0.0
    peak_rss_mb: float = 0.0
    _tokens: int = 0
    _time_s: float = 0.0

    def measure(
        self, group: list[dict[str, Any]], max_tokens: int, sleeping: list[Worker], retries: int
    ) -> None:
        """Let the engine answer one group of prompts; again, a few times at most, while others disturb."""
        tries = []
        while len(tries) <= retries:
            tries.append(self._try(group, max_tokens, sleeping))
            if tries[-1].others <= QUIET:
                break
        best = min(tries, key=lambda one: one.others)
        self.others.append(best.others)
        self.idle.append(best.idle)
        answer = best.answer
        name = "+".join(prompt["name"] for prompt in group)
        self.by_prompt.setdefault(name, []).append(_speed(answer["decode_tokens"], answer["decode_s"]))
        self.prefill_s.append(answer["prefill_s"])
        self._tokens += answer["decode_tokens"]
        self._time_s += answer["decode_s"]
        self.rss_mb = max(self.rss_mb, self.worker.rss_mb)
        self.peak_rss_mb = answer["peak_rss_mb"]
        for prompt, tokens in zip(group, answer["token_ids"], strict=True):
            self.steady &= self.texts.get(prompt["name"], tokens) == tokens
            self.texts[prompt["name"]] = tokens

    def _try(self, group: list[dict[str, Any]], max_tokens: int, sleeping: list[Worker]) -> Try:
        started, busy = time.perf_counter(), _machine_cpu_s()
        own, idle = self.worker.cpu_s, sum(worker.cpu_s for worker in sleeping)
        answer = self.worker.ask([prompt["ids"] for prompt in group], max_tokens)
        idle = sum(worker.cpu_s for worker in sleeping) - idle
        own = self.worker.cpu_s - own
        elapsed = time.perf_counter() - started
        others = _machine_cpu_s() - busy - own - idle
        return Try(answer, max(0.0, others / elapsed), idle / elapsed)

    def end_repeat(self) -> None:
        """Close a repeat over all prompts."""
        self.tok_s.append(_speed(self._tokens, self._time_s))
        self._tokens, self._time_s = 0, 0.0


def _speed(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


def _machine_cpu_s() -> float:
    """Processor time that all processes of this machine have used, or that its host took away."""
    times = psutil.cpu_times()
    return sum(getattr(times, kind, 0.0) for kind in ("user", "system", "nice", "steal"))

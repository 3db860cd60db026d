"""One engine of peers.py: its process, and what was measured of it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Cores that others may take before a measurement is called noisy.
QUIET = 0.1

#: A long prompt may take a tenth of a second, and processor time is counted in hundredths: several make
#: one measurement.
PREFILLS = 3

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class EngineError(Exception):
    """An engine cannot start, or died."""


class MissingError(EngineError):
    """A module that the engine needs is not installed."""


class Worker:
    """One engine's process."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        # A session of its own: Ctrl-C reaches the parent only, which then ends its workers.
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                start_new_session=True,
                env=environment,
            )
        except OSError:
            self._log.close()
            raise
        self._proc = Path(f"/proc/{self._process.pid}")
        self.about: dict[str, Any] = {}

    def start(self, tell: Callable[[str], None]) -> None:
        """Wait until the engine is loaded; `tell` gets what it says meanwhile.

        Raises:
            MissingError: something that it needs is not installed.
            EngineError: it cannot be loaded.
        """
        while "progress" in (about := self._read()):
            tell(about["progress"])
        self.about = about
        if about.get("missing"):
            raise MissingError(f"{about['missing']} is not installed")
        if "error" in about:
            raise EngineError(about["error"])

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
        return int((self._proc / "statm").read_text().split()[1]) * _PAGE / 1e6

    @property
    def cpu_s(self) -> float:
        """Processor time that its threads have used, in user and system mode."""
        # Behind the name, which stands in parentheses and may hold anything, these are fields 12 and 13.
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def close(self) -> None:
        """End it, and what it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(2)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

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

    answers: list[dict[str, Any]]
    others: float
    idle: float


@dataclass(slots=True)
class Series:
    """What one engine did.

    Attributes:
        tok_s: decode speed over all prompts, by repeat.
        by_prompt: the same of each group of prompts.
        first_s: time to the first token (of a whole group), all repeats.
        prefill_s: time to the first token of the long prompt, by turn.
        texts: tokens of each prompt in the last repeat.
        steady: whether all repeats gave the same tokens.
        others: cores that other processes used meanwhile.
        idle: cores that the sleeping workers used meanwhile.
        rss_mb: resident size after a run, the largest; peak_rss_mb: ever.
    """

    worker: Worker
    tok_s: list[float] = field(default_factory=list)
    by_prompt: dict[str, list[float]] = field(default_factory=dict)
    first_s: list[float] = field(default_factory=list)
    prefill_s: list[float] = field(default_factory=list)
    texts: dict[str, list[int]] = field(default_factory=dict)
    steady: bool = True
    others: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    rss_mb: float = 0.0
    peak_rss_mb: float = 0.0
    _tokens: int = 0
    _time_s: float = 0.0

    def decode(
        self, group: list[dict[str, Any]], max_tokens: int, sleeping: list[Worker], retries: int
    ) -> None:
        """Let the engine answer one group of prompts."""
        ids = [prompt["ids"] for prompt in group]
        (answer,) = self._measure([(ids, max_tokens)], sleeping, retries)
        name = "+".join(prompt["name"] for prompt in group)
        self.by_prompt.setdefault(name, []).append(_speed(answer["decode_tokens"], answer["decode_s"]))
        self.first_s.append(answer["prefill_s"])
        self._tokens += answer["decode_tokens"]
        self._time_s += answer["decode_s"]
        for prompt, tokens in zip(group, answer["token_ids"], strict=True):
            self.steady &= self.texts.get(prompt["name"], tokens) == tokens
            self.texts[prompt["name"]] = tokens

    def prefill(self, ids: list[int], sleeping: list[Worker], retries: int) -> None:
        """Let the engine read a long prompt, up to its first token; the median of a few times."""
        answers = self._measure([([ids], 1)] * PREFILLS, sleeping, retries)
        self.prefill_s.append(statistics.median(answer["prefill_s"] for answer in answers))

    def end_repeat(self) -> None:
        """Close a repeat over all prompts."""
        self.tok_s.append(_speed(self._tokens, self._time_s))
        self._tokens, self._time_s = 0, 0.0

    def _measure(
        self, requests: list[tuple[list[list[int]], int]], sleeping: list[Worker], retries: int
    ) -> list[dict[str, Any]]:
        """Ask; again, a few times at most, while other processes disturb. The quietest counts."""
        tries: list[Try] = []
        while len(tries) <= retries and not (tries and tries[-1].others <= QUIET):
            tries.append(self._try(requests, sleeping))
        best = min(tries, key=lambda one: one.others)
        self.others.append(best.others)
        self.idle.append(best.idle)
        self.rss_mb = max(self.rss_mb, self.worker.rss_mb)
        self.peak_rss_mb = best.answers[-1]["peak_rss_mb"]
        return best.answers

    def _try(self, requests: list[tuple[list[list[int]], int]], sleeping: list[Worker]) -> Try:
        started, busy = time.perf_counter(), _machine_cpu_s()
        own, idle = self.worker.cpu_s, sum(worker.cpu_s for worker in sleeping)
        answers = [self.worker.ask(ids, max_tokens) for ids, max_tokens in requests]
        idle = sum(worker.cpu_s for worker in sleeping) - idle
        own = self.worker.cpu_s - own
        elapsed = time.perf_counter() - started
        others = _machine_cpu_s() - busy - own - idle
        return Try(answers, max(0.0, others / elapsed), idle / elapsed)


def _speed(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


def _machine_cpu_s() -> float:
    """Processor time that all processes of this machine have used, or that its host took away."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + steal) / _TICKS

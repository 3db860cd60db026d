"""Slipstream's timeline and the other analysers on the same traces, one after the other on this machine now.

    make bench-trace [ARGS="--only v100,database --repeats 1"]

    v100       load and analysis of a trace of 54 MB (all rounds, paths, overlaps), against HTA's load and the
               critical path of one step; asked: 10 x faster, under a third of the memory
    large      that trace repeated to 1 GB of JSON, load and analysis; asked: 20 s, 4 GB
    database   a database of Ascend's profiler with a million tasks, load; asked: 5 s
    ascend     two ranks of a small run as databases, against two modes of msprof-analyze

Each measurement is a process of its own: wall time from start to end, imports included, processor time, and
its peak of resident memory. A ratio is of medians. What is made for it lies in a temporary folder and is removed.
Last line: one JSON document.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
V100 = "kineto/hta/v100-ddp-54mb.json.gz"
ASCEND = "ascend/910b-alexnet-db"
#: One step of that trace takes 350 ms and the whole 1.75 s; a repetition begins this much later.
_APART_US = 2_000_000
_LARGE_BYTES = 1_000_000_000
_TASKS = 1_000_000


@dataclass
class Measured:
    """Runs of one program on one piece of work."""

    name: str
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """Medians, and what the last run said of itself."""
        return {
            "wall_s": round(statistics.median(self.wall_s), 2),
            "cpu_s": round(statistics.median(self.cpu_s), 2),
            "peak_mb": round(statistics.median(self.peak_mb)),
            **{
                key: round(value, 3) if isinstance(value, float) else value
                for key, value in self.facts.items()
            },
        }


class FailedError(Exception):
    """A program ended with an error; its last words are the message."""


def run(measured: Measured, command: Sequence[str]) -> None:
    """Run a program once and add what it took.

    Raises:
        FailedError: it ended with an error.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0"}
    # pip compiled what the others import; ours must not be compiled at every start either.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        said, wrong = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if process.returncode:
        lines = (wrong or said).strip().splitlines()
        raise FailedError(f"{measured.name}: {lines[-1] if lines else f'exit code {process.returncode}'}")
    measured.wall_s.append(wall)
    measured.cpu_s.append(usage.ru_utime + usage.ru_stime)
    measured.peak_mb.append(usage.ru_maxrss / 1024)
    last = said.strip().splitlines()[-1:] or [""]
    if last[0].startswith("{"):
        measured.facts = json.loads(last[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if nothing could be measured or a goal was missed."""
    args = _arguments(arguments)
    record: dict[str, Any] = {}
    missed: list[str] = []
    for name in args.only:
        try:
            found, short = _WORKS[name](args)
        except FailedError as error:
            print(f"{name:9} failed: {error}")
            missed.append(name)
            continue
        record[name] = found
        missed += [f"{name}: {what}" for what in short]
    for what in missed:
        print(f"missed: {what}")
    print(json.dumps(record))
    return int(bool(missed))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Slipstream's timeline against HTA and msprof-analyze.")
    parser.add_argument(
        "--traces", type=Path, default=ROOT.parent / "shared" / "traces", help="the real traces"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(_WORKS), help=f"some of {', '.join(_WORKS)}")
    parser.add_argument(
        "--python", action="append", default=[], help="TOOL=PATH, another interpreter of hta or msprof"
    )
    args = parser.parse_args(arguments)
    args.only = args.only.split(",")
    if unknown := [name for name in args.only if name not in _WORKS]:
        parser.error(f"--only: {', '.join(unknown)} is not there. Possible: {', '.join(_WORKS)}")
    args.pythons = dict(item.partition("=")[::2] for item in args.python)
    if unknown := [name for name in args.pythons if name not in ("hta", "msprof")]:
        parser.error(f"--python: {', '.join(unknown)} is not there. Possible: hta, msprof")
    return args


def _real(args: argparse.Namespace, name: str) -> Path:
    path: Path = args.traces / name
    if not path.exists():
        raise FailedError(f"{path} is not there; --traces names the folder of real traces")
    return path


def _peer(args: argparse.Namespace, tool: str) -> str | None:
    """Return the interpreter that has a peer, or say how to make it one."""
    python = args.pythons.get(tool, str(ROOT / ".venv-peers" / tool / "bin" / "python"))
    if Path(python).exists():
        return python
    print(
        f"{tool} is not installed: make bench-trace installs it; --python {tool}=PATH names another interpreter"
    )
    return None


def _ours(path: Path, *more: str) -> list[str]:
    return [sys.executable, str(ROOT / "bench" / "worker_trace.py"), str(path), *more]


def _repeat(args: argparse.Namespace, works: Sequence[tuple[Measured, Sequence[str]]]) -> dict[str, Any]:
    """Run programs in turn, so that all meet the same machine; return their records by name."""
    for _ in range(args.repeats):
        for measured, command in works:
            run(measured, command)
    return {measured.name: _told(measured) for measured, _ in works}


def _told(measured: Measured) -> dict[str, Any]:
    record = measured.record
    inside = ", ".join(f"{key} {value}" for key, value in measured.facts.items())
    cpu, peak = record["cpu_s"], record["peak_mb"]
    print(
        f"  {measured.name:20} {record['wall_s']:7.2f} s  {cpu:7.2f} s of processor  {peak:5} MB   {inside}"
    )
    return record


Result = tuple[dict[str, Any], list[str]]


def _v100(args: argparse.Namespace) -> Result:
    path = _real(args, V100)
    print(f"v100: {path.name}, 216,092 events, 5 steps")
    works: list[tuple[Measured, Sequence[str]]] = [(Measured("slipstream"), _ours(path))]
    if python := _peer(args, "hta"):
        works.append((Measured("hta"), [python, str(ROOT / "bench" / "worker_trace_hta.py"), str(path)]))
    record = _repeat(args, works)
    if "hta" not in record:
        return record, []
    ours, theirs = record["slipstream"], record["hta"]
    work = (theirs["load_s"] + theirs["path_s"]) / (ours["load_s"] + ours["analyse_s"])
    record["faster"] = round(theirs["wall_s"] / ours["wall_s"], 1)
    record["faster_without_imports"] = round(work, 1)
    record["memory_share"] = round(ours["peak_mb"] / theirs["peak_mb"], 2)
    print(
        f"  {record['faster']} x faster ({record['faster_without_imports']} x without imports), "
        f"{record['memory_share']} of the memory"
    )
    short = ["not 10 x faster than HTA"] if work < 10 else []
    return record, short + (["a third of HTA's memory or more"] if record["memory_share"] >= 1 / 3 else [])


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own: what is measured after it counts this one's peak as theirs."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


def _large(args: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        times = _apart(write_repeated, _real(args, V100), path, _LARGE_BYTES)
        print(f"large: that trace {times} times, {path.stat().st_size / 1e9:.2f} GB")
        record = _repeat(
            argparse.Namespace(repeats=1),
            [(Measured("load"), _ours(path, "--load-only")), (Measured("load and analysis"), _ours(path))],
        )
    whole = record["load and analysis"]
    short = ["more than 20 s"] if whole["wall_s"] > 20 else []
    return record, short + (["more than 4 GB"] if whole["peak_mb"] > 4096 else [])


def write_repeated(source: Path, target: Path, size: int) -> int:
    """Write a Kineto trace again and again, later each time, until it has a size; return how often.

    Args:
        source: the trace, gzipped.
        target: where to.
        size: in bytes, reached or just exceeded.
    """
    text = gzip.decompress(source.read_bytes())
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    # Between numbers that move: times by the distance, correlations by more than there are.
    pieces = re.split(rb'("(?:ts|correlation)": ?)(\d+)', text[begin:end].strip())
    fixed, keys, numbers = pieces[0::3], pieces[1::3], list(map(int, pieces[2::3]))
    steps = [_APART_US if key.startswith(b'"ts') else 10_000_000 for key in keys]
    times = 0
    with target.open("wb") as file:
        file.write(text[:begin])
        while file.tell() < size:
            file.write(b"," if times else b"")
            moved = [b"%d" % (n + times * step) for n, step in zip(numbers, steps, strict=True)]
            woven = [b""] * (3 * len(keys) + 1)
            woven[0::3], woven[1::3], woven[2::3] = fixed, keys, moved
            file.write(b"".join(woven))
            times += 1
        file.write(text[end:])
    return times


def _database(args: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ascend_pytorch_profiler_0.db"
        _apart(write_tasks, path, _TASKS)
        print(f"database: {_TASKS:,} tasks, {path.stat().st_size / 1e6:.0f} MB")
        record = _repeat(args, [(Measured("load"), _ours(path, "--load-only"))])
    return record, ["more than 5 s"] if record["load"]["wall_s"] > 5 else []


def write_tasks(path: Path, count: int) -> None:
    """Write a database of Ascend's profiler: tasks on four streams, each with the call that launched it."""
    names = [f"aclnnKernel_{number}" for number in range(500)]
    with sqlite3.connect(path) as database:
        database.executescript(
            "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;"
            "CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER,"
            " globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER,"
            " taskId INTEGER, modelId INTEGER);"
            "CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER);"
            "CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,"
            " connectionId INTEGER, name INTEGER);"
            "CREATE TABLE STRING_IDS (id INTEGER, value TEXT);"
        )
        base, none = 1_736_408_883_694_795_000, 4294967295
        database.executemany(
            "INSERT INTO TASK VALUES (?,?,0,?,?,1,500,?,?,?,?)",
            (
                (base + 2_000 * n, base + 2_000 * n + 1_500, n, n, none, n % 4, n % 60_000, none)
                for n in range(count)
            ),
        )
        database.executemany(
            "INSERT INTO COMPUTE_TASK_INFO VALUES (?,?)", ((n % 500, n) for n in range(count))
        )
        database.executemany(
            "INSERT INTO CANN_API VALUES (?,?,10000,38654705669,?,501)",
            ((base + 2_000 * n - 9_000, base + 2_000 * n - 8_000, n) for n in range(count)),
        )
        database.executemany(
            "INSERT INTO STRING_IDS VALUES (?,?)", enumerate([*names, "KERNEL_AIVEC", "Node@launch"])
        )
    database.close()


def _ascend(args: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        # It refuses folders that others may write to, and writes into the folder that it reads.
        copy = Path(folder) / "run"
        shutil.copytree(_real(args, ASCEND), copy)
        for rank, found in enumerate(sorted(copy.iterdir())):
            found.rename(copy / f"host_{rank}_20250109_ascend_pt")
        for each in [copy, *copy.rglob("*")]:
            each.chmod(0o750 if each.is_dir() else 0o640)
        print("ascend: two ranks of a small run")
        works: list[tuple[Measured, Sequence[str]]] = [(Measured("slipstream"), _ours(copy))]
        if python := _peer(args, "msprof"):
            tool = str(Path(python).parent / "msprof-analyze")
            for mode in ("cluster_time_summary", "communication_time"):
                out = Path(folder) / mode
                command = [tool, "cluster", "-m", mode, "-d", str(copy), "-o", str(out), "--force"]
                works.append((Measured(mode), command))
        record = _repeat(args, works)
    for name in list(record)[1:]:
        ratio = record[name]["wall_s"] / record["slipstream"]["wall_s"]
        print(f"  {ratio:.1f} x faster than msprof-analyze's {name}")
    return record, []


_WORKS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "v100": _v100,
    "large": _large,
    "database": _database,
    "ascend": _ascend,
}

if __name__ == "__main__":
    sys.exit(main())

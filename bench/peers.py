"""Slipstream and other engines on the same GGUF file and the same prompt ids, interleaved on this machine now.

    make bench-peers [ARGS="--only slipstream,llama.cpp --repeats 1"]

Each engine is a worker process in an environment of its own that loads once. All workers do the same piece of work
one after another before any does the next, in an order that rotates; idle workers sleep. In every repeat:

    decode   each prompt of `slipstream bench decode` alone; greedy, end-of-text tokens are ignored.
             tok/s = tokens after the first over the time after the first, over all prompts
    prefill  one prompt of 512 tokens, to its first token
    batch    all prompts together, by workers that are loaded for that

A ratio is the median over repeats of the two figures of the same repeat. Memory is the resident size after the
runs, of workers that have the same context. A measurement during which other processes used the machine is
repeated. Last line: one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from peers_engine import EngineError, MissingError, Series, Worker
from peers_kinds import KINDS, OURS, SCRIPTS, WORKERS, Kind, command, default_python, install_hint
from peers_report import make_record, print_table

#: How often each repeat measures the long prompt.
PREFILL_TURNS = 2

#: Engines that run, by name and by how many prompts they can decode together.
Running = dict[tuple[str, int], Series]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; 1 where one of our engines failed, or nothing was measured, or our texts differ."""
    args = _arguments(arguments)
    prompts = _prompts(args)
    args.cache = prompts["cache"]
    args.batch = min(args.batch, len(prompts["prompts"]))
    longest = max(len(prompt["ids"]) for prompt in prompts["prompts"])
    args.context = -(-(max(longest + args.max_tokens, args.prefill + 1) + 32) // 256) * 256
    running: Running = {}
    failed: dict[str, str] = {}
    try:
        _start(args, prompts["path"], running, failed)
        if running:
            _measure(args, prompts, running, failed)
    except KeyboardInterrupt:
        _tell("interrupted")
        return 130
    finally:
        for one in running.values():
            one.worker.close()
    record = make_record(args, prompts, running, failed)
    if not args.json:
        print_table(record)
    print(json.dumps(record))
    ours_missing = any(KINDS[name.partition(",")[0]].ours for name in failed)
    return 1 if not running or ours_missing or record["texts_differ"] else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/peers.py", description="Slipstream and other engines on the same model file and prompts."
    )
    add = parser.add_argument
    add("--model", default="smollm2", help="a GGUF file, or a name of Slipstream's catalog")
    add("--only", help=f"engines, with commas between: {', '.join(KINDS)}")
    add("--repeats", type=int, default=3, help="rounds over all prompts; medians are reported")
    add("--max-tokens", type=int, default=128, help="tokens an answer")
    add("--prompts", type=int, default=8, help="how many of the eight prompts")
    add("--prefill", type=int, default=512, help="tokens of the long prompt; 0 leaves it out")
    add("--batch", type=int, default=8, help="prompts that decode together; 1 leaves that out")
    add("--draft", default="auto", help="our drafter")
    add("--num-steps", type=int, default=3, help="tokens that our drafter proposes a round")
    add("--dtype", default="auto", help="our weights: f32, bf16, q4 or auto")
    add("--lookup", type=int, default=4, help="tokens that the others' prompt lookup proposes")
    add("--retries", type=int, default=2, help="of a measurement that others disturbed")
    add("--threads", type=int, default=_cores(), help="for every engine")
    add("--json", action="store_true", help="print the JSON line only")
    add("--ours-python", default=default_python(OURS), help="interpreter with Slipstream")
    add(
        "--python",
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help=f"interpreter of another engine: {', '.join(name for name in SCRIPTS if name != OURS)}",
    )
    args = parser.parse_args(arguments)
    _check(parser, args)
    return args


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name, least, most in (
        ("repeats", 1, None),
        ("max_tokens", 1, None),
        ("prompts", 1, 8),
        ("prefill", 0, None),
        ("batch", 1, 8),
        ("retries", 0, None),
        ("threads", 1, None),
    ):
        value = getattr(args, name)
        if value < least or (most and value > most):
            limits = f"{least} to {most}" if most else f"at least {least}"
            parser.error(f"--{name.replace('_', '-')} is {limits}, not {value}")
    args.names = [name for name, kind in KINDS.items() if kind.default]
    if args.only:
        args.names = list(dict.fromkeys(args.only.split(",")))
        unknown = [name for name in args.names if name not in KINDS]
        if unknown:
            parser.error(f"no engine {unknown[0]!r}; there are: {', '.join(KINDS)}")
    args.pythons = {script: default_python(script) for script in SCRIPTS} | {OURS: args.ours_python}
    for given in args.python:
        script, _, path = given.partition("=")
        if script not in SCRIPTS or not path:
            parser.error(f"--python is ENGINE=PATH with one of {', '.join(SCRIPTS)}, not {given!r}")
        args.pythons[script] = path


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _prompts(args: argparse.Namespace) -> dict[str, Any]:
    """Ask our interpreter for the model's path and the prompts' ids."""
    python = args.pythons[OURS]
    wanted = [args.model, "--prompts", str(args.prompts), "--prefill", str(args.prefill)]
    worker = [python, str(WORKERS / f"worker_{OURS}.py"), *wanted]
    try:
        found = subprocess.run(worker, stdout=subprocess.PIPE, text=True, check=True, env=_environment())
    except (OSError, subprocess.CalledProcessError) as error:
        hint = install_hint(OURS, python)
        raise SystemExit(f"error: the prompts need Slipstream in {python}: {error}; {hint}") from None
    return dict(json.loads(found.stdout))


def _environment() -> dict[str, str]:
    return os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def _title(key: tuple[str, int]) -> str:
    name, batch = key
    return name if batch == 1 else f"{name}, batch {batch}"


def _start(args: argparse.Namespace, model: str, running: Running, failed: dict[str, str]) -> None:
    keys = [(name, 1) for name in args.names]
    if args.batch > 1:
        keys += [(name, args.batch) for name in args.names if KINDS[name].batches]
    for key in keys:
        if key[0] not in failed:  # an engine that cannot start alone is not tried twice
            _start_one(args, model, key, running, failed)


def _start_one(
    args: argparse.Namespace, model: str, key: tuple[str, int], running: Running, failed: dict[str, str]
) -> None:
    title, (name, batch) = _title(key), key
    script = KINDS[name].script
    python = args.pythons[script]
    _tell(f"{title}: loading")
    worker = None
    try:
        worker = Worker(title, command(KINDS[name], python, model, batch, vars(args)), _environment())
        worker.start(lambda words: _tell(f"{title}: {words}"))
        running[key] = Series(worker)
    except BaseException as error:
        if worker is not None:
            worker.close()
        if isinstance(error, MissingError):
            failed[title] = f"{error} in {python}; {install_hint(script, python)}"
        elif isinstance(error, EngineError):
            failed[title] = str(error)
        elif isinstance(error, OSError):
            hint = install_hint(script, python)
            failed[title] = f"not installed: {python} cannot be run ({error.strerror}); {hint}"
        else:
            raise
        _tell(f"{title}: left out: {failed[title]}")


Work = Callable[[Series, list[Worker]], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """What all engines that take part do before any does the next.

    Attributes:
        words: what it is, for the user.
        takes_part: whether an engine loaded for that many prompts does.
        work: of one engine, while the other workers sleep.
    """

    words: str
    takes_part: Callable[[Kind, int], bool]
    work: Work


def _turns(args: argparse.Namespace, prompts: dict[str, Any]) -> Iterator[Turn]:
    """What one repeat is made of."""

    everyone = prompts["prompts"]

    def decode(group: list[dict[str, Any]]) -> Work:
        return lambda one, sleeping: one.decode(group, args.max_tokens, sleeping, args.retries)

    def prefill(one: Series, sleeping: list[Worker]) -> None:
        one.prefill(prompts["prefill"], sleeping, args.retries)

    for prompt in everyone:
        yield Turn(prompt["name"], lambda _, batch: batch == 1, decode([prompt]))
    for _ in range(PREFILL_TURNS if args.prefill else 0):
        yield Turn(f"{args.prefill} tokens", lambda kind, batch: batch == 1 and kind.prefills, prefill)
    for at in range(0, len(everyone) if args.batch > 1 else 0, args.batch):
        group = everyone[at : at + args.batch]
        yield Turn(f"{len(group)} prompts together", lambda _, batch: batch > 1, decode(group))


def _measure(
    args: argparse.Namespace, prompts: dict[str, Any], running: Running, failed: dict[str, str]
) -> None:
    def attempt(key: tuple[str, int], what: Callable[[Series], object]) -> None:
        try:
            what(running[key])
        except EngineError as error:
            failed[_title(key)] = str(error)
            _tell(f"{_title(key)}: left out from here on: {error}")
            running.pop(key).worker.close()

    for key in list(running):  # the first answer of a process is slower than all others
        attempt(key, lambda one: one.worker.ask([prompts["prompts"][0]["ids"]], 8))
    for repeat in range(args.repeats):
        for number, turn in enumerate(_turns(args, prompts)):
            keys = [(name, batch) for name, batch in running if turn.takes_part(KINDS[name], batch)]
            first = (number + repeat) % len(keys) if keys else 0
            for key in keys[first:] + keys[:first]:
                _tell(f"run {repeat + 1} of {args.repeats}, {turn.words}: {key[0]}")
                sleeping = [one.worker for other, one in running.items() if other != key]
                attempt(key, lambda one, work=turn.work, sleeping=sleeping: work(one, sleeping))
        for one in running.values():
            one.end_repeat()


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Slipstream and other engines on the same GGUF file and the same prompt ids, interleaved on this machine now.

    make bench-peers [ARGS="--only slipstream,llama.cpp --repeats 1"]

Each engine is a worker process that loads once. The prompts of `slipstream bench decode` go to the workers one
after another, all workers on one prompt before the next, in an order that rotates; idle workers sleep. Decoding
is greedy, end-of-text tokens are ignored. Decode tok/s = tokens after the first over the time after the first,
over all prompts; a ratio is the median over repeats of ours over theirs in the same repeat. A measurement during
which other processes used the machine is repeated. Last line: one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers_engine import INSTALL, EngineError, Series, Worker
from peers_report import PLAIN, SPEC, make_record, print_table

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine that can be measured.

    Attributes:
        script: its worker.
        options: of the worker, "{k}" and others filled in from the arguments.
        ours: whether it runs in Slipstream's interpreter.
        speculative: whether it is to be held against our speculative engine as well.
        batches: whether it can decode prompts together.
        default: whether it is measured unless --only names others.
    """

    script: str
    options: tuple[str, ...] = ()
    ours: bool = False
    speculative: bool = False
    batches: bool = False
    default: bool = True


KINDS = {
    PLAIN: Kind("slipstream", ("--draft", "none", "--dtype", "{dtype}"), ours=True, batches=True),
    SPEC: Kind(
        "slipstream",
        ("--draft", "{draft}", "--num-steps", "{num_steps}", "--dtype", "{dtype}"),
        ours=True,
        speculative=True,
        batches=True,
    ),
    "llama.cpp": Kind("llama_cpp"),
    "llama.cpp-lookup": Kind("llama_cpp", ("--lookup", "{lookup}"), speculative=True),
    "transformers": Kind("transformers", batches=True),
    "transformers-bf16": Kind("transformers", ("--dtype", "bfloat16"), batches=True, default=False),
    "transformers-lookup": Kind("transformers", ("--lookup", "{lookup}"), speculative=True, default=False),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; 1 where one of our engines failed, or nothing was measured, or our two texts differ."""
    args = _arguments(arguments)
    prompts = _prompts(args)
    groups = [
        prompts["prompts"][at : at + args.batch] for at in range(0, len(prompts["prompts"]), args.batch)
    ]
    longest = max(len(prompt["ids"]) for prompt in prompts["prompts"])
    context = -(-(longest + args.max_tokens + 32) // 256) * 256
    series: dict[str, Series] = {}
    failed: dict[str, str] = {}
    try:
        _start(args, prompts["path"], context, series, failed)
        if series:
            _measure(args, groups, series, failed)
    except KeyboardInterrupt:
        _tell("interrupted")
        return 130
    finally:
        for one in series.values():
            one.worker.close()
    series = {name: one for name, one in series.items() if one.tok_s}
    record = make_record(args, prompts, context, series, failed)
    print_table(record)
    print(json.dumps(record))
    ours_missing = any(KINDS[name].ours for name in failed)
    return 1 if not series or ours_missing or record["spec_text_equal"] is False else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/peers.py", description="Slipstream and other engines on the same model file and prompts."
    )
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or a name of Slipstream's catalog")
    parser.add_argument("--only", help=f"engines, with commas between: {', '.join(KINDS)}")
    parser.add_argument(
        "--repeats", type=int, default=3, help="rounds over all prompts; medians are reported"
    )
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens an answer")
    parser.add_argument("--prompts", type=int, default=8, help="how many of the eight prompts")
    parser.add_argument("--batch", type=int, default=1, help="prompts that decode together, 1 to 8")
    parser.add_argument("--draft", default="ngram", help="our drafter")
    parser.add_argument("--num-steps", type=int, default=3, help="tokens that our drafter proposes a round")
    parser.add_argument("--dtype", default="auto", help="our weights: f32, bf16, q4 or auto")
    parser.add_argument(
        "--lookup", type=int, default=4, help="tokens that the others' prompt lookup proposes"
    )
    parser.add_argument("--retries", type=int, default=2, help="of a measurement that others disturbed")
    parser.add_argument("--threads", type=int, default=_cores(), help="for every engine")
    parser.add_argument(
        "--ours-python", default=str(ROOT / ".venv/bin/python"), help="interpreter with Slipstream"
    )
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter with the other engines")
    args = parser.parse_args(arguments)
    for name, most in (
        ("repeats", None),
        ("max_tokens", None),
        ("prompts", 8),
        ("batch", 8),
        ("threads", None),
    ):
        if getattr(args, name) < 1 or (most and getattr(args, name) > most):
            parser.error(f"--{name.replace('_', '-')} is {'1 to ' + str(most) if most else 'at least 1'}")
    args.names = [name for name, kind in KINDS.items() if kind.default]
    if args.only:
        args.names = args.only.split(",")
        unknown = [name for name in args.names if name not in KINDS]
        if unknown:
            parser.error(f"no engine {unknown[0]!r}; there are: {', '.join(KINDS)}")
    if args.batch > 1:
        for name in [name for name in args.names if not KINDS[name].batches]:
            _tell(f"{name}: left out, its interface decodes one prompt at a time")
            args.names.remove(name)
    return args


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _prompts(args: argparse.Namespace) -> dict[str, Any]:
    """Ask our interpreter for the model's path and the prompts' ids."""
    command = [args.ours_python, str(HERE / "worker_slipstream.py"), args.model, "--prompts"]
    try:
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=_environment())
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"error: the prompts need Slipstream in {args.ours_python}: {error}\n"
            "Run `make test` once, which sets .venv up, or name another interpreter with --ours-python."
        ) from None
    prompts: dict[str, Any] = json.loads(found.stdout)
    prompts["prompts"] = prompts["prompts"][: args.prompts]
    return prompts


def _environment() -> dict[str, str]:
    return os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def _start(
    args: argparse.Namespace, path: str, context: int, series: dict[str, Series], failed: dict[str, str]
) -> None:
    for name in args.names:
        kind = KINDS[name]
        python = args.ours_python if kind.ours else args.peers_python
        options = [option.format(**vars(args)) for option in kind.options]
        command = [
            python,
            str(HERE / f"worker_{kind.script}.py"),
            path,
            "--threads",
            str(args.threads),
            *options,
        ]
        if kind.script != "transformers":
            command += ["--context", str(context)]
        if kind.script == "slipstream":
            command += ["--batch", str(args.batch)]
        _tell(f"{name}: loading")
        try:
            worker = Worker(name, command)
        except OSError as error:
            failed[name] = f"{python} cannot be run ({error.strerror}); {INSTALL.format(python=python)}"
            _tell(f"{name}: left out: {failed[name]}")
            continue
        try:
            worker.start(python)
            series[name] = Series(worker)
        except BaseException as error:
            worker.close()
            if not isinstance(error, EngineError):
                raise
            failed[name] = str(error)
            _tell(f"{name}: left out: {error}")


def _measure(
    args: argparse.Namespace,
    groups: list[list[dict[str, Any]]],
    series: dict[str, Series],
    failed: dict[str, str],
) -> None:
    def attempt(name: str, what: Callable[[Series], object]) -> None:
        try:
            what(series[name])
        except EngineError as error:
            failed[name] = str(error)
            _tell(f"{name}: left out from here on: {error}")
            series.pop(name).worker.close()

    for name in list(series):  # the first answer of a process is slower than all others
        attempt(name, lambda one: one.worker.ask([groups[0][0]["ids"]], 8))
    for repeat in range(args.repeats):
        for index, group in enumerate(groups):
            turn = repeat * len(groups) + index
            names = list(series)
            for name in [names[(turn + k) % len(names)] for k in range(len(names))]:
                _tell(f"run {repeat + 1} of {args.repeats}, {'+'.join(p['name'] for p in group)}: {name}")
                sleeping = [one.worker for other, one in series.items() if other != name]
                attempt(name, partial(_measure_one, args, group, sleeping))
        for one in series.values():
            one.end_repeat()


def _measure_one(
    args: argparse.Namespace, group: list[dict[str, Any]], sleeping: list[Worker], one: Series
) -> None:
    one.measure(group, args.max_tokens, sleeping, args.retries)


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

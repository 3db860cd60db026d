"""The engines that peers.py can measure, and how their workers are started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Where the workers are.
WORKERS = Path(__file__).parent
#: Where `make bench-peers` makes the environments of the other engines, one each.
ENVIRONMENTS = ROOT / ".venv-peers"

#: Slipstream without and with drafts, which all engines are held against.
PLAIN, SPEC = "slipstream", "slipstream-spec"
#: Engines that Slipstream's targets name.
LLAMA, INT4 = "llama.cpp", "openvino-int4"

OURS = "slipstream"


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine that can be measured.

    Attributes:
        script: its worker; also the name of its environment and of its file of requirements.
        options: of the worker, "{k}" and others filled in from the arguments.
        batches: whether it can decode prompts together.
        prefills: whether the long prompt is worth its time: not where another engine reads it the same way.
        default: whether it is measured unless --only names others.
    """

    script: str
    options: tuple[str, ...] = ()
    batches: bool = True
    prefills: bool = True
    default: bool = True

    @property
    def ours(self) -> bool:
        """Whether it is Slipstream."""
        return self.script == OURS


KINDS = {
    PLAIN: Kind(OURS, ("--draft", "none", "--dtype", "{dtype}")),
    SPEC: Kind(
        OURS, ("--draft", "{draft}", "--num-steps", "{num_steps}", "--dtype", "{dtype}"), prefills=False
    ),
    LLAMA: Kind("llama_cpp"),
    "llama.cpp-lookup": Kind("llama_cpp", ("--lookup", "{lookup}"), batches=False, prefills=False),
    "openvino-int8": Kind("openvino", ("--weights", "int8", "--cache", "{cache}")),
    INT4: Kind("openvino", ("--weights", "int4", "--cache", "{cache}")),
    "openvino-int8-lookup": Kind(
        "openvino",
        ("--weights", "int8", "--cache", "{cache}", "--lookup", "{lookup}"),
        batches=False,
        prefills=False,
        default=False,
    ),
    "openvino-int4-lookup": Kind(
        "openvino",
        ("--weights", "int4", "--cache", "{cache}", "--lookup", "{lookup}"),
        batches=False,
        prefills=False,
        default=False,
    ),
    "vllm": Kind("vllm", ("--cache", "{cache}"), prefills=False, default=False),
    "vllm-f32": Kind("vllm", ("--dtype", "float32", "--cache", "{cache}"), prefills=False, default=False),
    "transformers": Kind("transformers"),
    "transformers-bf16": Kind("transformers", ("--dtype", "bfloat16"), default=False),
    "transformers-lookup": Kind(
        "transformers", ("--lookup", "{lookup}"), batches=False, prefills=False, default=False
    ),
}

#: Names of the environments.
SCRIPTS = tuple(dict.fromkeys(kind.script for kind in KINDS.values()))


def default_python(script: str) -> str:
    """Return the interpreter that `make` gives this engine."""
    environment = ROOT / ".venv" if script == OURS else ENVIRONMENTS / script
    return str(environment / "bin/python")


def install_hint(script: str, python: str) -> str:
    """Say how to install what a worker lacks."""
    if script == OURS:
        return "`make test` once sets .venv up; --ours-python names another interpreter"
    install = f"{python} -m pip install"
    by_hand = f"{install} -r bench/requirements-{script}.txt"
    if (ROOT / f"bench/requirements-{script}-alone.txt").is_file():
        by_hand += f" && {install} --no-deps -r bench/requirements-{script}-alone.txt"
    return f"make bench-peers PEERS={script} installs it; by hand: {by_hand}; --python {script}=PATH names another"


def command(kind: Kind, python: str, model: str, batch: int, values: Mapping[str, Any]) -> Sequence[str]:
    """Return the command line of a worker.

    Args:
        kind: the engine.
        python: its interpreter.
        model: path of the GGUF file.
        batch: prompts that it must be able to decode together.
        values: what its options may name, "threads" and "context" (tokens a prompt and its answer take).
    """
    return [
        python,
        str(WORKERS / f"worker_{kind.script}.py"),
        model,
        *("--threads", str(values["threads"])),
        *("--context", str(values["context"])),
        *("--batch", str(batch)),
        *(option.format(**values) for option in kind.options),
    ]

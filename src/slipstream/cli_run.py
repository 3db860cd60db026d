"""`slipstream run | plan | env | check | models get`."""

from __future__ import annotations

import sys
from pathlib import Path

from cyclopts import App

from slipstream.cli_options import (
    DEFAULT_MODEL,
    CheckOptions,
    EngineOptions,
    SamplingOptions,
    print_json,
)
from slipstream.errors import INTERRUPTED
from slipstream.timeline.command import DEFAULT_TRACE

models_app = App(name="models", help="Models that Slipstream knows where to get.")

_CHECK = CheckOptions()
_ENGINE = EngineOptions()
_SAMPLING = SamplingOptions()


def run(
    model: str = DEFAULT_MODEL,
    *,
    prompt: str,
    system: str | None = None,
    raw: bool = False,
    compare: bool = True,
    trace: Path = DEFAULT_TRACE,
    graph_metrics: str = "none",
    json: bool = False,
    sampling: SamplingOptions = _SAMPLING,
    engine: EngineOptions = _ENGINE,
) -> int:
    """Answer one prompt: the text streams, then a table says what each round did.

    Args:
        model: GGUF file, Hugging Face folder, or a name of the catalog.
        prompt: The message.
        system: A system message before it.
        raw: Continue the prompt as it stands, without the chat template.
        compare: Decode the same prompt plainly afterwards, for the comparison.
        trace: Where the trace goes, Chrome JSON for Perfetto (.gz compresses).
        graph_metrics: What graphs did, at the end: table (vLLM's, of padding), prometheus, or none.
        json: Print one JSON document instead of text and tables.
        sampling: How tokens are chosen.
        engine: How it runs.
    """
    from slipstream.bench.session import RunOrder, check_metrics, run_session

    check_metrics(graph_metrics)
    order = RunOrder(
        model, prompt, system, raw, compare, trace, engine.config(), sampling.params(), quiet=json
    )
    report = run_session(order)
    if json:
        print_json(report.data())
    else:
        report.show(graph_metrics)
    return INTERRUPTED if report.interrupted else 0


def plan(model: str = DEFAULT_MODEL, *, json: bool = False, engine: EngineOptions = _ENGINE) -> int:
    """Show every resolved setting and why, without loading weights.

    Args:
        model: GGUF file, Hugging Face folder, or a name of the catalog.
        json: Print one JSON document.
        engine: How it would run.
    """
    from slipstream.bench.tables import console, decision_table
    from slipstream.llm import plan_for

    resolved, checkpoint, _ = plan_for(model, engine.config())
    if json:
        print_json({"model": checkpoint.config, "plan": resolved, "decisions": resolved.decisions})
        return 0
    out = console()
    config = checkpoint.config
    out.print(
        f"{config.name}: {config.architecture}, {config.num_layers} layers of {config.hidden_size}, "
        f"{config.num_heads} heads on {config.num_kv_heads}, vocabulary {config.vocab_size}; "
        f"matrices: {', '.join(f'{count} {name}' for name, count in checkpoint.quant_types.items())}"
    )
    out.print(decision_table(resolved.decisions))
    return 0


def env(*, json: bool = False) -> int:
    """Show what a bug report needs: versions, processor, cores, memory, cached models.

    Args:
        json: Print one JSON document.
    """
    from slipstream.bench.environment import environment

    facts = environment()
    if json:
        print_json(facts)
    else:
        for name, value in facts.items():
            print(f"{name:<18} {value}")
    return 0


def check(
    file: str | None = None,
    *arguments: str,
    json: bool = False,
    options: CheckOptions = _CHECK,
) -> int:
    """Run a torch_npu program on a model of the NPU, in many legal orders, and name its races and hangs.

    The program needs no change, no NPU and no torch_npu. Exit code 1 says that something was found, 2 that the
    program could not be checked.

    Args:
        file: The program, a Python file.
        arguments: Of the program, after --.
        json: Print one JSON document instead of the report.
        options: How it is checked.
    """
    from slipstream.check.command import refusal, run_check

    report = run_check(options.request(file, arguments))
    error = refusal(report)
    if json:
        print_json(report.data() if error is None else {**report.data(), "error": str(error)})
    elif error is None or report.findings:
        print(report.text())
    if error is not None:
        raise error
    return report.exit_code


@models_app.command
def get(name: str) -> int:
    """Fetch a model of the catalog into the user's cache; nothing happens if it is there.

    Args:
        name: As smollm2.
    """
    from slipstream.model.catalog import CATALOG, get_model

    if name not in CATALOG and Path(name).exists():
        return 0  # a path is there already: `make run MODEL=...` asks for either
    path = get_model(name)
    print(f"{name}: {path}", file=sys.stderr)
    return 0

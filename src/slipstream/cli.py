"""The command line: `slipstream run | check | bench | train | models | plan | env`.

Data goes to standard output, words about it to standard error. Exit codes: 0 done, 1 a failure or findings, 2
wrong usage, 130 interrupted. torch is imported by the commands that need it, so `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from cyclopts import App, CycloptsError

from slipstream import __version__
from slipstream.cli_options import (
    CheckOptions,
    EngineOptions,
    ForwardOptions,
    SamplingOptions,
    TrainOptions,
    numbers,
)
from slipstream.errors import SlipstreamError, UsageError

DEFAULT_MODEL = "smollm2"
DEFAULT_TRACE = Path("slipstream-trace.json.gz")
INTERRUPTED = 130

app = App(
    name="slipstream",
    help="Speculative decoding on static graphs, and where the time of every round goes.",
    version=__version__,
    result_action="return_value",
)
bench_app = App(name="bench", help="Measure a named workload.")
train_app = App(name="train", help="Train a draft head for a model.")
models_app = App(name="models", help="Models that Slipstream knows where to get.")
app.command(bench_app)
app.command(train_app)
app.command(models_app)


_CHECK = CheckOptions()
_ENGINE = EngineOptions()
_FORWARD = ForwardOptions()
_SAMPLING = SamplingOptions()
_TRAIN = TrainOptions()


@app.command
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
        _print_json(report.data())
    else:
        report.show(graph_metrics)
    return INTERRUPTED if report.interrupted else 0


@app.command
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
        _print_json({"model": checkpoint.config, "plan": resolved, "decisions": resolved.decisions})
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


@app.command
def env(*, json: bool = False) -> int:
    """Show what a bug report needs: versions, processor, cores, memory, cached models.

    Args:
        json: Print one JSON document.
    """
    from slipstream.bench.environment import environment

    facts = environment()
    if json:
        _print_json(facts)
    else:
        for name, value in facts.items():
            print(f"{name:<18} {value}")
    return 0


@app.command
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
        _print_json(report.data() if error is None else {**report.data(), "error": str(error)})
    elif error is None or report.findings:
        print(report.text())
    if error is not None:
        raise error
    return report.exit_code


@bench_app.command
def decode(
    model: str = DEFAULT_MODEL,
    *,
    max_tokens: int = 128,
    repeats: int = 3,
    batch: int = 1,
    eager: bool = False,
    json: bool = False,
    engine: EngineOptions = _ENGINE,
) -> int:
    """Plain against speculative decoding on eight prompts, interleaved; the last line is one JSON document.

    Args:
        model: GGUF file, Hugging Face folder, or a name of the catalog.
        max_tokens: Tokens an answer.
        repeats: Runs of each; medians are reported.
        batch: Requests that decode together, 1 to 8.
        eager: Measure plain decoding without graphs as well.
        json: Print the JSON line only.
        engine: How it runs.
    """
    from slipstream.bench.decode import DecodeBench, decode_details, decode_table, run_decode
    from slipstream.bench.tables import console

    # The first token of an answer comes from its prefill, so one token is no decoding.
    for what, value, least, most in (
        ("max-tokens", max_tokens, 2, None),
        ("repeats", repeats, 1, None),
        ("batch", batch, 1, 8),
    ):
        if value < least or (most is not None and value > most):
            limit = f"{least} to {most}" if most else f"at least {least}"
            raise UsageError(f"{what} {value} is not possible; it is {limit}.")
    bench = DecodeBench(model, engine.config(), max_tokens, repeats, batch, eager)
    words = console(error=True)
    with words.status("starting") as status:
        record = run_decode(bench, status.update)
    if not json:
        out = console()
        for part in (decode_table(record), *decode_details(record)):
            out.print(part)
    _print_json(record)
    return 0 if record["greedy_equal"] else 1


@bench_app.command
def forward(
    model: str = DEFAULT_MODEL,
    *,
    rows: str = "1,2,3,4,8",
    context: int = 200,
    prefill: int = 512,
    repeats: int = 100,
    json: bool = False,
    options: ForwardOptions = _FORWARD,
) -> int:
    """One forward of the target alone, by rows, and a prefill; the last line is one JSON document.

    Args:
        model: GGUF file, Hugging Face folder, or a name of the catalog.
        rows: Rows of each forward, as 1,2,3,4,8.
        context: Tokens in the cache before the first row.
        prefill: Tokens of the prefill; 0 leaves it out.
        repeats: Forwards of each number of rows; medians are reported.
        json: Print the JSON line only.
        options: How it runs.
    """
    from slipstream.bench.forward import ForwardBench, forward_details, forward_table, run_forward
    from slipstream.bench.tables import console

    counts = tuple(sorted(set(numbers("rows", rows))))
    bench = ForwardBench(model, options.config(), counts, context, prefill, repeats)
    words = console(error=True)
    with words.status("starting") as status:
        record = run_forward(bench, status.update)
    if not json:
        out = console()
        out.print(forward_table(record))
        for line in forward_details(record):
            out.print(line)
    _print_json(record)
    return 0


@train_app.command
def head(
    model: str = DEFAULT_MODEL,
    *,
    out: Path,
    data: Path | None = None,
    prompts: Path | None = None,
    tokens: int | None = None,
    quick: bool = False,
    json: bool = False,
    options: TrainOptions = _TRAIN,
) -> int:
    """Train a NextN head on the model's own answers; Ctrl-C stops, the same command goes on.

    Args:
        model: GGUF file, Hugging Face folder, or a name of the catalog.
        out: Folder for head.safetensors, the log, a plot, and what is needed to go on.
        data: Folder of the model's answers; they are made there where it has too few. OUT/data by default.
        prompts: Your own prompts, one a line or JSON lines; without it, those that come with Slipstream.
        tokens: Tokens of answers to train on.
        quick: A small head run of minutes, to see that everything works.
        json: Print the JSON line only.
        options: How it is trained.
    """
    from slipstream.train.command import TrainRequest, run_train

    request = TrainRequest(model, out, data, prompts, tokens, quick, **asdict(options))
    report = run_train(request, show=not json)
    _print_json(report.data())
    return INTERRUPTED if report.interrupted else 0


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


def _print_json(data: Any) -> None:
    sys.stdout.write(msgspec.json.encode(data, enc_hook=str).decode() + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        code = app(
            list(sys.argv[1:] if arguments is None else arguments),
            exit_on_error=False,
            print_error=False,
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()), UsageError.exit_code)
    except SlipstreamError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away, as `head` does; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""`slipstream bench decode | forward` and `slipstream train head`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from cyclopts import App

from slipstream.cli_options import (
    DEFAULT_MODEL,
    EngineOptions,
    ForwardOptions,
    TrainOptions,
    numbers,
    print_json,
)
from slipstream.errors import INTERRUPTED, UsageError

bench_app = App(name="bench", help="Measure a named workload.")
train_app = App(name="train", help="Train a draft head for a model.")

_ENGINE = EngineOptions()
_FORWARD = ForwardOptions()
_TRAIN = TrainOptions()


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
    print_json(record)
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
    print_json(record)
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
    print_json(report.data())
    return INTERRUPTED if report.interrupted else 0

"""What `slipstream train head` does: answers, then training, with a bar and a line at each evaluation."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.config import EngineConfig
from slipstream.errors import UsageError
from slipstream.llm import chat_ids, load_model, plan_for
from slipstream.model.nextn_file import read_head
from slipstream.model.target_hash import target_hash
from slipstream.train.generate import SHARD_PROMPTS, generate
from slipstream.train.loop import LoopOptions
from slipstream.train.prompt_file import read_prompts
from slipstream.train.prompts import NUM_HELD_OUT, held_out_prompts, training_prompts
from slipstream.train.session import TrainOrder, TrainReport, TrainSession
from slipstream.train.shards import ShardReader

#: Tokens of an answer in evaluations.
_ANSWER = 128

#: Tokens of all answers to train on, tokens of the longest one, and how many shards a call makes.
_TOKENS, _LONGEST_ANSWER, _SHARDS_A_CALL = 1_500_000, 160, 4

#: The same for a quick run, and its prompts a shard.
_QUICK_TOKENS, _QUICK_ANSWER, _QUICK_SHARD = 12_000, 96, 48

#: Seconds between two lines where there is no terminal for a bar.
_LINE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What the user asked for; None leaves a choice to us.

    Attributes:
        model: GGUF file, Hugging Face folder, or a name of the catalog.
        out: folder of all that training writes.
        data: folder of the answers, or None for OUT/data.
        prompts: the user's own prompts, or None for ours.
        tokens: tokens of answers to train on.
        quick: minutes instead of hours.
    """

    model: str
    out: Path
    data: Path | None
    prompts: Path | None
    tokens: int | None
    quick: bool
    epochs: int | None
    rows: int | None
    num_steps: int
    learning_rate: float | None
    hidden_weight: float | None
    draft_vocabulary: int
    init: Path | None
    evaluate_minutes: float
    seed: int
    threads: int | None

    def loop(self) -> LoopOptions:
        """Return what decides the weights.

        Raises:
            UsageError: a value is not possible.
        """
        for what, value, least in (
            ("epochs", self.epochs, 1),
            ("rows", self.rows, 16),
            ("num-steps", self.num_steps, 1),
            ("tokens", self.tokens, 1),
            ("draft-vocabulary", self.draft_vocabulary, 0),
            ("seed", self.seed, 0),
        ):
            if value is not None and value < least:
                raise UsageError(f"{what} {value} is not possible; it is at least {least}.")
        if self.learning_rate is not None and not 0 < self.learning_rate < 1:
            raise UsageError(f"learning-rate {self.learning_rate} is not possible; it is between 0 and 1.")
        begin = LoopOptions(num_steps=self.num_steps, seed=self.seed)
        if self.quick:
            begin = replace(begin, epochs=2, rows=512, learning_rate=1e-3)
        given: dict[str, Any] = {
            "epochs": self.epochs,
            "rows": self.rows,
            "learning_rate": self.learning_rate,
            "hidden_weight": self.hidden_weight,
        }
        return replace(begin, **{name: value for name, value in given.items() if value is not None})


def run_train(request: TrainRequest, *, show: bool = True) -> TrainReport:
    """Make what data is missing, train, and evaluate.

    Args:
        request: what the user asked for.
        show: whether a bar and lines go to standard error.

    Raises:
        UsageError: a value is not possible, or the folders hold another training's files.
        ModelError: the model or the head to begin with cannot be used.
        TrainingError: a file cannot be written or read.
    """
    loop = request.loop()
    voice = _Voice(show)
    folder = request.data or request.out / "data"
    config = EngineConfig(threads=request.threads)
    plan, checkpoint, device = plan_for(request.model, config)
    if request.init is not None:  # what is wrong with it should not show after hours
        read_head(request.init, checkpoint.config, target_hash(checkpoint))
    prompts, held_out = _prompts(request, voice)
    samples = _samples(request, folder, prompts, voice)
    if checkpoint.config.hidden_size != samples.load(0).hidden_TH.shape[1]:
        raise UsageError(f"the data in {folder} is another model's: its rows are of another width.")
    loaded = load_model(checkpoint, device, plan)
    order = TrainOrder(
        request.out,
        draft_vocabulary=request.draft_vocabulary,
        init=request.init,
        evaluate_seconds=60 * request.evaluate_minutes,
        evaluate_tokens=64 if request.quick else _ANSWER,
        evaluate_prompts=16,
        command=shlex.join(["slipstream", *sys.argv[1:]]),
        loop=loop,
    )
    ids = [chat_ids(loaded.tokenizer, prompt) for prompt in held_out[: 16 if request.quick else None]]
    session = TrainSession(loaded, config, samples, ids, order, voice.line)
    with voice.bar("training") as progress:
        return session.run(progress)


def _prompts(request: TrainRequest, voice: _Voice) -> tuple[list[str], list[str]]:
    """Return prompts to train on, and others to judge by."""
    if request.prompts is None:
        training = [prompt.text for prompt in training_prompts(request.seed)]
        return training, [prompt.text for prompt in held_out_prompts()]
    given = read_prompts(request.prompts)
    for bad in given.bad:
        voice.line(f"{request.prompts}, line {bad.number} is left out: {bad.why}")
    if given.bad or given.repeated:
        voice.line(
            f"{len(given.prompts)} prompts; {len(given.bad)} bad lines, {given.repeated} repeated ones left out"
        )
    if len(given.prompts) < 2:
        raise UsageError(
            f"{request.prompts} has one prompt; it takes at least 2, one to train on and one to judge."
        )
    stride = max(2, len(given.prompts) // NUM_HELD_OUT)
    held_out = given.prompts[::stride][:NUM_HELD_OUT]
    return [prompt for prompt in given.prompts if prompt not in set(held_out)], held_out


def _samples(request: TrainRequest, folder: Path, prompts: list[str], voice: _Voice) -> ShardReader:
    """Return the data in a folder, after making what it lacks."""
    there = any(folder.glob("shard-*.safetensors"))
    if request.data is not None and there and request.tokens is None:
        return ShardReader(folder)
    wanted = request.tokens or (_QUICK_TOKENS if request.quick else _TOKENS)
    shard = _QUICK_SHARD if request.quick else SHARD_PROMPTS
    # Fixed steps: after an interruption the folder ends up with the same prompts.
    step = shard * _SHARDS_A_CALL
    with voice.bar("answers") as progress:
        for count in range(step, len(prompts) + step, step):
            made = generate(
                request.model,
                folder,
                prompts[:count],
                max_tokens=_QUICK_ANSWER if request.quick else _LONGEST_ANSWER,
                seed=request.seed,
                shard_prompts=shard,
                threads=request.threads,
                progress=progress,
            )
            if made.answer_tokens >= wanted:
                break
    left_out = "".join(f", {count} left out: {reason}" for reason, count in made.skipped.items())
    voice.line(f"{made.sequences} answers of {made.answer_tokens:,} tokens in {folder}{left_out}")
    return ShardReader(folder)


class _Voice:
    """Standard error: a bar on a terminal, a line now and then elsewhere, or nothing."""

    def __init__(self, show: bool) -> None:
        self._show = show
        self._console = Console(stderr=True, highlight=False)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        if self._show:
            self._console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, label: str) -> Iterator[Callable[[int, int, str], None]]:
        """Yield what shows (done, total, text)."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        terminal = self._show and self._console.is_terminal
        said = time.monotonic()
        with Progress(
            *columns, TextColumn("{task.fields[text]}"), console=self._console, disable=not terminal
        ) as bar:
            task = bar.add_task(label, total=None, text="")

            def show(done: int, total: int, text: str) -> None:
                nonlocal said
                bar.update(task, completed=done, total=total, text=text)
                if not terminal and time.monotonic() - said >= _LINE_SECONDS:
                    self.line(f"{label} {done}/{total} {text}")
                    said = time.monotonic()

            yield show

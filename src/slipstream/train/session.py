"""`slipstream train head`: data, draft vocabulary, training with evaluations, and a head file at each of them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

from slipstream.config import EngineConfig
from slipstream.llm import LoadedModel
from slipstream.model.nextn_build import HeadWeights
from slipstream.model.nextn_file import read_head
from slipstream.model.target_hash import target_hash
from slipstream.train.batches import Samples
from slipstream.train.checkpoint import load_state, save_state, write_bytes, write_head
from slipstream.train.evaluate import Evaluation, evaluate_head
from slipstream.train.head import TrainableHead, initial_tensors
from slipstream.train.loop import LoopOptions, Trainer
from slipstream.train.plot import training_plot
from slipstream.train.vocabulary import draft_vocabulary, frequent_ids

#: The state is saved at least this often, in seconds.
_SAVE_SECONDS = 60

#: Sequences whose rows tell the typical size of a hidden row.
_RMS_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """What training was asked for.

    Attributes:
        out: folder of state, head, log and plot.
        draft_vocabulary: tokens that the head drafts; 0 for all.
        init: head file to start from, or None for the target's last layer.
        evaluate_seconds: training time between two evaluations.
        evaluate_tokens: tokens an answer in evaluations.
        evaluate_prompts: held-out prompts in evaluations on the way; the last one takes all.
        command: how it was called, for the head's metadata.
        loop: what decides the weights.
    """

    out: Path
    draft_vocabulary: int = 8192
    init: Path | None = None
    evaluate_seconds: float = 900.0
    evaluate_tokens: int = 96
    evaluate_prompts: int = 16
    command: str = ""
    loop: LoopOptions = field(default_factory=LoopOptions)

    @property
    def head_path(self) -> Path:
        """The head of the latest evaluation."""
        return self.out / "head.safetensors"


@dataclass(frozen=True, slots=True)
class TrainReport:
    """What came of it.

    Attributes:
        interrupted: stopped before the end; the same command goes on.
        untrained: what the head that training began with is worth.
        trained: what the head in `head` is worth, or None where it was interrupted before an evaluation.
        history: of losses and evaluations.
        starts_per_second: rows trained a second, data loading included.
    """

    head: Path
    interrupted: bool
    untrained: Evaluation
    trained: Evaluation | None
    history: list[dict[str, Any]]
    starts_per_second: float

    def data(self) -> dict[str, Any]:
        """Return it as one record, for the last line."""
        losses = [record["loss"] for record in self.history if "loss" in record]
        return {
            "head": str(self.head),
            "interrupted": self.interrupted,
            "untrained": self.untrained.data(),
            "trained": self.trained.data() if self.trained else None,
            "first_loss": losses[0] if losses else None,
            "last_loss": losses[-1] if losses else None,
            "rows_per_second": self.starts_per_second,
        }


class TrainSession:
    """One training on one loaded target.

    Args:
        loaded: the target.
        config: how it runs in evaluations.
        samples: training data.
        held_out: prompts for evaluations, as token ids.
        order: what was asked for.
        say: called with a line of text at each evaluation.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        samples: Samples,
        held_out: Sequence[list[int]],
        order: TrainOrder,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._loaded, self._config, self._order, self._say = loaded, config, order, say
        self._held_out = list(held_out)
        self._hash = target_hash(loaded.checkpoint)
        target = loaded.target
        vocab_size = target.config.vocab_size
        tensors, draft_ids = self._beginning(samples)
        if draft_ids is None:
            draft_ids = frequent_ids(samples, vocab_size, order.draft_vocabulary or vocab_size)
        self._draft_ids = draft_ids
        self.trainer = Trainer(
            TrainableHead(target.config, target.rope, tensors),
            draft_vocabulary(target, draft_ids),
            target.token_embd,
            samples,
            order.loop,
        )
        self._state_path = order.out / "state.pt"
        self._untrained: Evaluation | None = None

    def run(self, progress: Callable[[int, int, str], None] = lambda done, total, text: None) -> TrainReport:
        """Train to the end, or to the first Ctrl-C; go on from the state in `out` where there is one.

        Args:
            progress: called after each step with (steps done, steps in all, loss and acceptance).

        Raises:
            UsageError: the state there belongs to other data or options.
            TrainingError: a file cannot be written or read.
        """
        trainer, order = self.trainer, self._order
        if self._state_path.exists():
            state = load_state(self._state_path)
            trainer.restore(state["trainer"])
            self._untrained = Evaluation(**state["untrained"])
            self._say(f"going on behind step {trainer.progress.step} of {trainer.num_steps}")
        if self._untrained is None:
            self._untrained = self._evaluate("before training", order.evaluate_prompts)
        evaluation: Evaluation | None = None
        evaluated, saved = trainer.progress.seconds, time.monotonic()
        with _stop_flag() as stopped:
            for now in trainer.run(stopped):
                progress(now.step, trainer.num_steps, _course(now.history))
                if now.seconds - evaluated >= order.evaluate_seconds and now.step < trainer.num_steps:
                    evaluation = self._evaluate(f"step {now.step}", order.evaluate_prompts)
                    evaluated = now.seconds
                    self._save()
                    saved = time.monotonic()
                elif time.monotonic() - saved >= _SAVE_SECONDS:
                    self._save()
                    saved = time.monotonic()
            self._save()
        interrupted = trainer.progress.step < trainer.num_steps
        if not interrupted:
            evaluation = self._evaluate("at the end", len(self._held_out))
            self._save()
        now = trainer.progress
        speed = now.starts / now.seconds if now.seconds else 0.0
        return TrainReport(order.head_path, interrupted, self._untrained, evaluation, now.history, speed)

    def _beginning(self, samples: Samples) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """Return the weights to begin with, and their draft ids where a file has them."""
        checkpoint = self._loaded.checkpoint
        if self._order.init is not None:
            weights = read_head(self._order.init, checkpoint.config, self._hash)
            all_ids = torch.arange(checkpoint.config.vocab_size)
            return dict(weights.tensors), all_ids if weights.draft_ids is None else weights.draft_ids
        return initial_tensors(checkpoint, typical_rms(samples)), None

    def _evaluate(self, when: str, count: int) -> Evaluation:
        """Write the head as it is now, and answer held-out prompts with it."""
        order, trainer = self._order, self.trainer
        whole = len(self._draft_ids) == self._loaded.target.config.vocab_size
        facts = {
            "target_hash": self._hash,
            "target": self._loaded.target.config.name,
            "command": order.command,
            "tokens": str(sum(rows - prompt for rows, prompt in trainer.samples.sizes)),
            "trained_rows": str(trainer.progress.starts),
        }
        weights = HeadWeights(trainer.head.tensors(), None if whole else self._draft_ids, facts)
        write_head(weights, order.head_path)
        stride = max(1, len(self._held_out) // max(1, count))
        prompts = self._held_out[::stride][:count]
        evaluation = evaluate_head(
            self._loaded, self._config, order.head_path, prompts, order.loop.num_steps, order.evaluate_tokens
        )
        figures = msgspec.json.encode(evaluation.data()).decode()
        write_head(replace(weights, facts=facts | {"figures": figures}), order.head_path)
        trainer.note(evaluation.data())
        shares = " ".join(f"{share:.3f}" for share in evaluation.acceptance)
        course = _course(trainer.progress.history)
        self._say(f"{when}: acceptance {shares}, {evaluation.mean_advanced:.3f} advanced; {course}")
        self._write_log()
        return evaluation

    def _save(self) -> None:
        untrained = self._untrained.data() if self._untrained else None
        save_state({"trainer": self.trainer.state(), "untrained": untrained}, self._state_path)

    def _write_log(self) -> None:
        history, out = self.trainer.progress.history, self._order.out
        write_bytes(msgspec.json.format(msgspec.json.encode(history), indent=1), out / "history.json")
        title = f"NextN head for {self._loaded.target.config.name}"
        write_bytes(training_plot(history, title).encode(), out / "training.svg")


def typical_rms(samples: Samples) -> float:
    """Return the median root mean square of the data's hidden rows, of the first sequences."""
    count = min(_RMS_SAMPLES, len(samples.sizes))
    rows = torch.cat([samples.load(index).hidden_TH for index in range(count)]).float()
    return float(rows.square().mean(-1).sqrt().median())


def _course(history: Sequence[dict[str, Any]]) -> str:
    """Return the latest losses and training acceptance, for people."""
    record = next((record for record in reversed(history) if "loss" in record), None)
    if record is None:
        return ""
    losses = " ".join(f"{loss:.2f}" for loss in record["loss"])
    shares = " ".join(f"{share:.2f}" for share in record["accepted"])
    speed = record["starts"] / record["seconds"] if record["seconds"] else 0.0
    return f"loss {losses}, accepts {shares}, {speed:.0f} rows/s"


@contextmanager
def _stop_flag() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag that is looked at between steps: a half-done step cannot be saved."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals are not a thread's to take
        return
    stopped = False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        print("stopping after this step; once more to stop at once", file=sys.stderr)

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(which, stop) for which in signals]
    try:
        yield lambda: stopped
    finally:
        for which, handler in zip(signals, before, strict=True):
            signal.signal(which, handler)

"""The training loop: AdamW over seeded batches, and a state that it can go on from to the same weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from slipstream import ops
from slipstream.errors import UsageError
from slipstream.train.batches import Batch, Samples, pack, plan_epoch
from slipstream.train.head import TrainableHead
from slipstream.train.loss import StepLosses, Vocabulary, unrolled_loss

#: AdamW's memory: short, as batches are small and the loss falls fast.
_BETAS = (0.9, 0.95)

#: The learning rate ends at this share of its peak.
_FINAL_SHARE = 0.05

#: Losses are averaged over this many steps for the log and the plot.
LOG_STEPS = 20


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How to train. What is here decides the weights, so a state is only continued with the same.

    Attributes:
        epochs: passes over the data.
        rows: starts a batch.
        num_steps: steps unrolled.
        learning_rate: its peak.
        warmup: share of all steps in which it rises.
        weight_decay: of the matrices.
        clip: norm that the gradient is cut to.
        hidden_weight: weight of the hidden rows' distance.
        reached_only: train a step only where decoding reaches it.
        seed: of the order of batches.
    """

    epochs: int = 3
    rows: int = 512
    num_steps: int = 3
    learning_rate: float = 1e-3
    warmup: float = 0.03
    weight_decay: float = 0.01
    clip: float = 0.5
    hidden_weight: float = 0.0
    reached_only: bool = True
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """Where training stands.

    Attributes:
        step: batches done.
        starts: starts trained on, each counted once an epoch.
        seconds: time of the steps, evaluation not counted.
        history: one record a log line: "step", "starts", "seconds", "loss" and "accepted" by step; and those of
            evaluations, as `Trainer.note` was given them.
    """

    step: int = 0
    starts: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """A head, its optimizer and the batches to come.

    Args:
        head: trained in place.
        vocabulary: what it drafts from.
        token_embd: the target's embedding.
        samples: the data.
        options: how to train.

    Raises:
        UsageError: no sequence has a row to train on.
    """

    def __init__(
        self,
        head: TrainableHead,
        vocabulary: Vocabulary,
        token_embd: ops.Matrix,
        samples: Samples,
        options: LoopOptions,
    ) -> None:
        self.head, self.vocabulary, self.samples, self.options = head, vocabulary, samples, options
        self.progress = Progress()
        self._token_embd = token_embd
        epochs = range(options.epochs)
        self._batches = [b for e in epochs for b in plan_epoch(samples.sizes, options.rows, options.seed, e)]
        if not self._batches:
            raise UsageError("there is nothing to train on: no answer in the data has two tokens or more.")
        matrices = [p for p in head.parameters() if p.dim() == 2]
        vectors = [p for p in head.parameters() if p.dim() == 1]
        groups = [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=_BETAS)
        self._recent: list[dict[str, Any]] = []

    @property
    def num_steps(self) -> int:
        """Batches in all."""
        return len(self._batches)

    def run(self, should_stop: Callable[[], bool]) -> Iterator[Progress]:
        """Train, yielding after each step, until the end or until `should_stop` says so between two steps."""
        while self.progress.step < self.num_steps and not should_stop():
            started = time.perf_counter()
            batch = pack([self.samples.load(index) for index in self._batches[self.progress.step]])
            losses = self._step(batch)
            self.progress.step += 1
            self.progress.starts += len(batch.starts_S)
            self.progress.seconds += time.perf_counter() - started
            self._log(losses)
            yield self.progress

    def note(self, record: dict[str, Any]) -> None:
        """Add an evaluation to the history."""
        self.progress.history.append(self._position() | record)

    def state(self) -> dict[str, Any]:
        """Return everything that decides what training does from here on."""
        return {
            "fingerprint": self._fingerprint(),
            "progress": asdict(self.progress),
            "recent": list(self._recent),
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            UsageError: it belongs to other data or options, which would not give the same weights.
        """
        mine, theirs = self._fingerprint(), state["fingerprint"]
        different = [
            f"{name} {theirs.get(name)} then, {value} now"
            for name, value in mine.items()
            if value != theirs.get(name)
        ]
        if different:
            raise UsageError(
                f"the training begun there was another: {'; '.join(different)}. "
                "Ask for the same again, or give another --out (--init goes on from its head)."
            )
        self.progress = Progress(**state["progress"])
        self._recent = list(state["recent"])
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step: a linear rise, then half a cosine."""
        rising = max(1, round(self.options.warmup * self.num_steps))
        if step < rising:
            return self.options.learning_rate * (step + 1) / rising
        done = (step - rising) / max(1, self.num_steps - rising)
        share = _FINAL_SHARE + (1 - _FINAL_SHARE) * (1 + math.cos(math.pi * done)) / 2
        return self.options.learning_rate * share

    def _step(self, batch: Batch) -> StepLosses:
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate(self.progress.step)
        embedded_TH = self._token_embd.rows(batch.next_ids_T)
        options = self.options
        losses = unrolled_loss(
            self.head,
            self.vocabulary,
            batch,
            embedded_TH,
            options.num_steps,
            options.hidden_weight,
            options.reached_only,
        )
        self._optimizer.zero_grad()
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), options.clip)
        self._optimizer.step()
        return losses

    def _log(self, losses: StepLosses) -> None:
        self._recent.append({"loss": losses.by_step, "accepted": losses.accepted, "judged": losses.judged})
        # The first step has a record of its own: what the head was before it learned.
        if self.progress.step % LOG_STEPS and self.progress.step not in (1, self.num_steps):
            return
        count = len(self._recent)
        steps = range(self.options.num_steps)
        starts = sum(each["judged"][0] for each in self._recent)
        record = {
            "loss": [sum(each["loss"][k] for each in self._recent) / count for k in steps],
            "accepted": [sum(each["accepted"][k] for each in self._recent) / starts for k in steps],
        }
        self.progress.history.append(self._position() | record)
        self._recent = []

    def _position(self) -> dict[str, Any]:
        progress = self.progress
        return {"step": progress.step, "starts": progress.starts, "seconds": round(progress.seconds, 1)}

    def _fingerprint(self) -> dict[str, Any]:
        sizes = self.samples.sizes
        return {
            "sequences": len(sizes),
            "rows of data": sum(rows for rows, _ in sizes),
            "draft vocabulary": len(self.vocabulary.ids),
            **asdict(self.options),
        }

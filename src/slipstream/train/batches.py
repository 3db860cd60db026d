"""Training sequences, packed: which sequences make a batch, in what order, and what a step reads of them.

Of a sequence with tokens 0 .. n and hidden rows 0 .. n - 1, whose first `prompt_length` tokens are the prompt:

    starts              rows prompt_length - 1 .. n - 2, as rounds begin behind the prompt
    step k of start t   reads the token at t + k, is judged by the target's row t + k     (k = 1, 2, ..)

so start number i of a sequence is judged, at step k, by what judges start number i + k - 1 at step 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class Sample(Protocol):
    """One training sequence: `shards.TrainingSequence`, or anything like it."""

    @property
    def ids(self) -> torch.Tensor:
        """int [n + 1], prompt and answer."""

    @property
    def hidden_TH(self) -> torch.Tensor:
        """float [n, H], the target's rows before its final norm."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt, at least 1."""


class Samples(Protocol):
    """Training data with random access: `shards.ShardReader`, or anything like it."""

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """(hidden rows, prompt length) of each sequence."""

    def ids(self, index: int) -> torch.Tensor:
        """Return one sequence's tokens, int [n + 1]."""

    def load(self, index: int) -> Sample:
        """Return one sequence."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences side by side: T rows, S starts.

    Attributes:
        next_ids_T: int64, the token behind each row.
        hidden_TH: float32.
        positions_T: int64, each row's position in its sequence.
        starts_S: int64, row of each start.
        last_S: int64, number of the last start of the start's sequence.
        spans: for each sequence its rows and its starts.
    """

    next_ids_T: torch.Tensor
    hidden_TH: torch.Tensor
    positions_T: torch.Tensor
    starts_S: torch.Tensor
    last_S: torch.Tensor
    spans: list[tuple[slice, slice]]

    def judged(self, numbers_S: torch.Tensor, step: int) -> torch.Tensor:
        """Return which of these starts the target judges at `step` (from 0), bool [S].

        The judge of start number i at a step is that of start number i + step at step 0.
        """
        return numbers_S + step <= self.last_S[numbers_S]


def num_starts(num_rows: int, prompt_length: int) -> int:
    """Return how many starts a sequence has."""
    return max(0, num_rows - prompt_length)


def pack(samples: Sequence[Sample]) -> Batch:
    """Put sequences side by side. Each has at least one start."""
    spans: list[tuple[slice, slice]] = []
    starts, last = [], []
    row = start = 0
    for sample in samples:
        length = len(sample.hidden_TH)
        count = num_starts(length, sample.prompt_length)
        spans.append((slice(row, row + length), slice(start, start + count)))
        starts.append(torch.arange(row + sample.prompt_length - 1, row + length - 1))
        last.append(torch.full((count,), start + count - 1))
        row, start = row + length, start + count
    return Batch(
        next_ids_T=torch.cat([sample.ids[1:] for sample in samples]).long(),
        hidden_TH=torch.cat([sample.hidden_TH for sample in samples]).float(),
        positions_T=torch.cat([torch.arange(len(sample.hidden_TH)) for sample in samples]),
        starts_S=torch.cat(starts),
        last_S=torch.cat(last),
        spans=spans,
    )


def plan_epoch(sizes: Sequence[tuple[int, int]], rows: int, seed: int, epoch: int) -> list[list[int]]:
    """Return an epoch's batches as indices of sequences: every one once, in an order that seed and epoch fix.

    Args:
        sizes: (hidden rows, prompt length) of each sequence.
        rows: starts a batch should reach.
        seed, epoch: of the order.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    batches: list[list[int]] = []
    batch: list[int] = []
    filled = 0
    for index in torch.randperm(len(sizes), generator=generator).tolist():
        count = num_starts(*sizes[index])
        if not count:
            continue
        batch.append(index)
        filled += count
        if filled >= rows:
            batches.append(batch)
            batch, filled = [], 0
    if batch:
        batches.append(batch)
    return batches

"""A NextN head that knows the future: it is told each request's tokens and recognises it by its first page.

Only tensor work, so it is captured and replayed as a real head is. Wrong on purpose where it is told to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from slipstream import ops
from slipstream.device.tape import active_tape
from slipstream.engine.engine import Engine

#: Pages and positions that the oracle has room for.
_PAGES, _POSITIONS = 1024, 512


class OracleHead:
    """Stands in for `slipstream.model.nextn.NextnHead`.

    truth: by prompt, prompt and answer. right_at: whether the guess of the token at a position is right.
    """

    def __init__(
        self,
        truth: dict[tuple[int, ...], list[int]],
        vocab_size: int,
        right_at: Callable[[int], bool] = lambda position: True,
    ) -> None:
        self.engine: Engine | None = None
        self.draft_ids: torch.Tensor | None = None
        self.truth = truth
        self._vocab_size = vocab_size
        self._right_at = right_at
        self._tokens_PT = torch.zeros(_PAGES, _POSITIONS, dtype=torch.int64)

    def forward(
        self,
        ids_R: torch.Tensor,
        hidden_RH: torch.Tensor,
        positions_R: torch.Tensor,
        slots_R: torch.Tensor,
        pages_BP: torch.Tensor,
        cache: Any,
        attention: None = None,
    ) -> torch.Tensor:
        if active_tape() is None:  # prefill, or an eager round: requests may be new
            self._recognise()
        width = positions_R.shape[0] // pages_BP.shape[0]
        first_page_R = pages_BP[:, :1].expand(-1, width).reshape(-1)
        # A row at position p is given the token at p + 1 and guesses the one at p + 2.
        guess_R = self._tokens_PT[first_page_R, positions_R + 2]
        return guess_R.unsqueeze(1).expand(-1, hidden_RH.shape[1]).float()

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        return 20 * torch.nn.functional.one_hot(hidden_RH[:, 0].long(), self._vocab_size).float()

    def tokens(self, logits_RN: torch.Tensor) -> torch.Tensor:
        token_R = ops.argmax(logits_RN)
        if self.draft_ids is None:
            return token_R
        nearest_R = torch.searchsorted(self.draft_ids, token_R).clamp_max(len(self.draft_ids) - 1)
        return ops.lookup(self.draft_ids, nearest_R)

    def guess(self, prompt: list[int], position: int) -> int:
        """What it says stands at `position`."""
        token = self.truth[tuple(prompt)][position]
        return token if self._right_at(position) else (token + 1) % self._vocab_size

    def _recognise(self) -> None:
        for request in self.engine.scheduler.running if self.engine else ():
            known = self.truth[tuple(request.prompt_ids)]
            guesses = [self.guess(request.prompt_ids, position) for position in range(len(known))]
            self._tokens_PT[request.pages.pages[0], : len(known)] = torch.tensor(guesses)

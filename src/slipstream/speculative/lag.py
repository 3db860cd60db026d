"""What a NextN head has not seen: rounds that do without it leave the target's hidden rows here.

A round in which the head does not draft skips extend as well, for that costs more than a draft. The rows that it
would have read are kept, a request's up to `LIMIT`, and given to the head in one go before it drafts again. A head
that is not worth that has lost the thread once the room is full: nothing more is kept. H hidden size, M pool rows.
"""

from __future__ import annotations

import torch

#: Positions of a request that are kept.
LIMIT = 128


class HeadLag:
    """The kept rows of all request slots.

    Args:
        num_slots: M.
        hidden_size: H.
        device: where they are kept.
    """

    def __init__(self, num_slots: int, hidden_size: int, device: torch.device) -> None:
        self._flat_RH = torch.zeros(num_slots * LIMIT, hidden_size, device=device)
        self._counts = [0] * num_slots
        self._lost = [False] * num_slots

    def count(self, slot: int) -> int:
        """Return how many positions the head of this request is behind, as far as they are kept."""
        return self._counts[slot]

    def lost(self, slot: int) -> bool:
        """Return whether rows that the head has not seen are gone."""
        return self._lost[slot]

    def clear(self, slot: int) -> None:
        """Note that the head has seen all positions of this request."""
        self._counts[slot] = 0
        self._lost[slot] = False

    def lose(self, slot: int) -> None:
        """Keep nothing more for this request's head."""
        self._counts[slot] = 0
        self._lost[slot] = True

    def keep(self, slot: int, hidden_NH: torch.Tensor) -> None:
        """Keep the hidden rows of the next N positions of a head that is not lost; there has to be room."""
        count, start = hidden_NH.shape[0], self._counts[slot]
        self._counts[slot] = start + count
        self._flat_RH.narrow(0, slot * LIMIT + start, count).copy_(hidden_NH)

    def rows(self, slot: int) -> torch.Tensor:
        """Return the rows that are kept, float32 [N, H], oldest first."""
        return self._flat_RH.narrow(0, slot * LIMIT, self._counts[slot])

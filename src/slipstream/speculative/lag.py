"""What a NextN head has not seen: rounds that do without it leave the target's hidden rows here.

A round in which the head does not draft skips extend as well, for that costs more than a draft. The rows that it
would have read are kept, a request's up to `LIMIT`, and given to the head in one go before it drafts again. A head
that is not worth that has lost the thread once the room is full: nothing more is kept. H hidden size, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: Positions of a request that are kept.
LIMIT = 128


class HeadLag:
    """The kept rows of all request slots.

    Args:
        num_slots: request slots.
    """

    def __init__(self, num_slots: int) -> None:
        # A round's rows are copied once for all its requests: (copy, first row, rows) of each round and slot.
        self._kept: list[list[tuple[torch.Tensor, int, int]]] = [[] for _ in range(num_slots)]
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
        self._forget(slot, lost=False)

    def lose(self, slot: int) -> None:
        """Keep nothing more for this request's head."""
        self._forget(slot, lost=True)

    def keep(self, slots: Sequence[int], counts: Sequence[int], width: int, hidden_RH: torch.Tensor) -> None:
        """Keep a round's hidden rows for the heads that are not lost; there has to be room.

        Args:
            slots: of the requests, in the order of the batch.
            counts: positions that each of them went forward.
            width: rows a request.
            hidden_RH: the target's, float32.
        """
        if all(self._lost[slot] for slot in slots):
            return
        copy_RH = hidden_RH[: len(slots) * width].clone()
        for row, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            if not self._lost[slot]:
                self._kept[slot].append((copy_RH, row * width, count))
                self._counts[slot] += count

    def rows(self, slot: int) -> torch.Tensor:
        """Return the rows that are kept, float32 [N, H], oldest first."""
        return torch.cat([copy_RH[start : start + count] for copy_RH, start, count in self._kept[slot]])

    def _forget(self, slot: int, *, lost: bool) -> None:
        self._kept[slot] = []
        self._counts[slot] = 0
        self._lost[slot] = lost

"""What crosses rounds. Legend of shapes: `slipstream.ops`; M is the pool's rows, one a request slot."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from slipstream import ops


@dataclass(frozen=True, slots=True)
class RoundState:
    """The device's truth about every request slot, returned by prefill and by each round alike.

    The pool's last row belongs to no request: padded rows read it, and nothing ever writes it.

    Attributes:
        lengths_M: int64, tokens whose keys and values are committed.
        bonus_M: int64, the newest token: chosen, not yet in the cache.
        candidate_M: int64, the NextN head's guess of the token after the bonus.
        hidden_MH: float32, the head's hidden row that made this guess.
    """

    lengths_M: torch.Tensor
    bonus_M: torch.Tensor
    candidate_M: torch.Tensor
    hidden_MH: torch.Tensor

    @classmethod
    def empty(cls, max_requests: int, hidden_size: int, device: torch.device) -> RoundState:
        """Return the state of a pool without requests."""

        def zeros() -> torch.Tensor:
            return torch.zeros(max_requests + 1, dtype=torch.int64, device=device)

        hidden = torch.zeros(max_requests + 1, hidden_size, device=device)
        return cls(zeros(), zeros(), zeros(), hidden)

    def put_drafts(
        self, slots_C: torch.Tensor, candidate_C: torch.Tensor, hidden_CH: torch.Tensor
    ) -> RoundState:
        """Return a state with new drafts of the head at `slots_C`; once a round, so one call."""
        candidate_M, hidden_MH = ops.put_drafts.direct(
            self.candidate_M, self.hidden_MH, slots_C, candidate_C, hidden_CH
        )
        return replace(self, candidate_M=candidate_M, hidden_MH=hidden_MH)

    def put(self, slots_B: torch.Tensor, **rows: torch.Tensor) -> RoundState:
        """Return a state with new rows at `slots_B`; keyword names are the attributes'."""
        return replace(
            self, **{name: getattr(self, name).index_copy(0, slots_B, value) for name, value in rows.items()}
        )

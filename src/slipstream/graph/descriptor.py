"""The key of a captured graph. Pure: no torch."""

from __future__ import annotations

from typing import NamedTuple


class BatchDescriptor(NamedTuple):
    """One captured shape of one phase.

    Attributes:
        phase: "draft", "verify" or "extend"; plain decoding is a verify of width 1.
        num_reqs: request slots of the graph, its bucket.
        width: rows a request; of a draft, which forwards one row after the other, drafts a request.
    """

    phase: str
    num_reqs: int
    width: int

    @property
    def rows(self) -> int:
        """Rows of a replay: bucket x width."""
        return self.num_reqs * self.width

    def padded_rows(self, num_requests: int) -> int:
        """Rows of a replay that belong to no request."""
        return (self.num_reqs - num_requests) * self.width

    def __str__(self) -> str:
        return f"{self.phase} {self.num_reqs}x{self.width}"

"""The key of a captured graph. Pure: no torch."""

from __future__ import annotations

from typing import NamedTuple


class BatchDescriptor(NamedTuple):
    """One captured shape of one phase.

    Exact for a graph that holds a whole phase: requests and rows are what they were at capture. Relaxed for one
    whose attention runs between its pieces: the pieces know rows only, whoever's they are. So 8 rows of 2
    requests, 8 rows of 1, and 8 rows of anybody are three keys.

    Attributes:
        phase: "draft", "verify", "extend" or "prefill"; plain decoding is a verify of width 1.
        num_reqs: request slots of the graph, its bucket; None for a relaxed key.
        width: rows a request; of a draft, which forwards one row after the other, drafts a request; of a relaxed
            key, all its rows.
    """

    phase: str
    num_reqs: int | None
    width: int

    @classmethod
    def relaxed(cls, phase: str, rows: int) -> BatchDescriptor:
        """Return the key of `rows` rows, whosever they are."""
        return cls(phase, None, rows)

    @property
    def uniform(self) -> bool:
        """Whether every request has the same rows."""
        return self.num_reqs is not None

    @property
    def slots(self) -> int:
        """Request slots of an exact key.

        Raises:
            ValueError: the key is relaxed.
        """
        if self.num_reqs is None:
            raise ValueError(f"{self} is a relaxed key: its rows may be anybody's")
        return self.num_reqs

    @property
    def rows(self) -> int:
        """Rows of a replay: bucket x width."""
        return self.width if self.num_reqs is None else self.num_reqs * self.width

    def padded_rows(self, num_requests: int) -> int:
        """Rows of a replay of an exact key that belong to no request."""
        return (self.slots - num_requests) * self.width

    def __str__(self) -> str:
        if self.num_reqs is None:
            return f"{self.phase} {self.width} rows"
        return f"{self.phase} {self.num_reqs}x{self.width}"

"""Attention that takes the contexts' lengths from the host: in graphs, tasks; eagerly, numbers.

The host knows every length before a round begins. With `committed` tokens of a request in the cache, its rows
stand at positions committed, committed + 1, ... in every phase, and how long the context is then depends on how
many rows there are, not on how many of them will hold:

    verify, extend   committed + width       so extend's lengths need no accept: its last rows may be of fallen
    draft step i     committed + i + 1       drafts, which nothing reads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream import ops
from slipstream.device.api import Device, HostOp, PagedQuery
from slipstream.graph.host_lists import COMMITTED, Source
from slipstream.graph.tasks import TaskBook


@dataclass(frozen=True, slots=True)
class HostAttention:
    """The attention of an engine whose device takes lengths from the host.

    Attributes:
        device: makes the ops.
        book: makes them tasks of graphs.
        longest: positions of a page table.
    """

    device: Device
    book: TaskBook
    longest: int

    def behind(self, num_requests: int, rows: int, label: str = "") -> ForwardLengths:
        """Return the attention of one forward of a phase.

        Args:
            num_requests: request slots of the shape.
            rows: positions behind the committed tokens that its last row sees, itself included.
            label: of the forward, where a phase has several.
        """
        return ForwardLengths(self, Source(COMMITTED, num_requests, rows, self.longest), label)

    def over(self, length: int) -> ForwardLengths:
        """Return the attention of one eager forward of one request, whose context is then `length` positions."""
        return ForwardLengths(self, [length])


class ForwardLengths:
    """The attention of one forward: its layers have the same lengths."""

    def __init__(self, owner: HostAttention, lengths: Source | Sequence[int], label: str = "") -> None:
        self._owner, self._lengths, self._label = owner, lengths, label
        self._layers = 0
        self._table_BP: torch.Tensor | None = None

    def attend(
        self,
        query_RQD: torch.Tensor,
        keys_SKD: torch.Tensor,
        values_SKD: torch.Tensor,
        pages_BP: torch.Tensor,
        page_size: int,
    ) -> torch.Tensor:
        """Return softmax(q k / sqrt(D)) v of every row over positions up to its own, float32 [R, Q D].

        Args:
            query_RQD: float32 [R, Q, D]; rounded to the cache's dtype, as the result is.
            keys_SKD, values_SKD: float16 or float32 [S, K, D].
            pages_BP: int64 pages of each request.
            page_size: slots a page.
        """
        rows, num_heads, head_dim = query_RQD.shape
        if self._table_BP is None:
            self._table_BP = pages_BP.to(torch.int32)
        num_kv_heads = keys_SKD.shape[1]
        pages = (-1, page_size, num_kv_heads * head_dim)
        query = PagedQuery(
            query_RQD.to(keys_SKD.dtype).view(pages_BP.shape[0], -1, num_heads, head_dim),
            keys_SKD.view(pages),
            values_SKD.view(pages),
            self._table_BP,
            num_heads,
            num_kv_heads,
            self._owner.longest,
        )
        attended = self._run(self._owner.device.paged_attention(query))
        return ops.to_float(attended.view(rows, num_heads * head_dim))

    def _run(self, op: HostOp) -> torch.Tensor:
        name = f"{self._label} layer {self._layers}".strip()
        self._layers += 1
        if isinstance(self._lengths, Source):
            return self._owner.book.call(name, self._lengths, op)
        return op.run(self._lengths)

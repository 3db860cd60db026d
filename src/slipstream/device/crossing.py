"""Memory for what crosses the pieces of a graph on the cpu device: shared, planned by first and last use.

A model of 30 layers in pieces has some 90 tensors that one piece makes and another reads, of which four are alive
at a time. Captured, each has its own memory; here they move to one place, and everything that knows their
addresses, native nodes and tensors, is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from slipstream.device.api import Span
from slipstream.device.arena import ALIGNMENT, ArenaPool, Buffer, assign_offsets, redirect
from slipstream.native.node import Node


class Relocation:
    """Where the spans of one graph in pieces move to.

    Args:
        spans: one storage each.
        pool: where their memory comes from.
    """

    def __init__(self, spans: Sequence[Span], pool: ArenaPool) -> None:
        self._buffers = []
        for span in spans:
            storage = span.tensor.untyped_storage()
            buffer = Buffer(storage.data_ptr(), storage.nbytes(), span.first, span.last)
            self._buffers.append(buffer)
        assign_offsets(self._buffers)
        arena = pool.take(max((b.offset + b.nbytes for b in self._buffers), default=0))
        self.storage = arena.untyped_storage()
        self._base = -(-arena.data_ptr() // ALIGNMENT) * ALIGNMENT
        self._by_address = {buffer.address: buffer for buffer in self._buffers}
        # Redirecting looks an address up by the buffer that it lies in.
        self._buffers.sort(key=lambda buffer: buffer.address)

    def move(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let tensors that lie in one of the spans lie where it moved to."""
        for tensor in tensors:
            buffer = self._by_address.get(tensor.untyped_storage().data_ptr())
            if buffer is not None:
                size, stride = tensor.size(), tensor.stride()
                start = self._base - self.storage.data_ptr() + buffer.offset
                offset = start // tensor.element_size() + tensor.storage_offset()
                tensor.set_(self.storage, offset, size, stride)

    def redirect(self, nodes: Sequence[Node]) -> None:
        """Let native nodes read and write there."""
        redirect(nodes, self._buffers, self._base)

"""Places of what crosses pieces: apart where both are alive, and no more memory than the widest moment needs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.device.api import Span
from slipstream.device.arena import ArenaPool, Buffer, assign_offsets
from slipstream.device.crossing import Relocation

SPANS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 12), st.integers(1, 6)).map(
        lambda drawn: (drawn[0], drawn[1], drawn[1] + drawn[2])
    ),
    min_size=1,
    max_size=20,
)


@given(SPANS)
def test_two_that_are_alive_together_lie_apart(spans: list[tuple[int, int, int]]) -> None:
    buffers = [Buffer(0, nbytes, first, last) for nbytes, first, last in spans]
    assign_offsets(buffers)
    for index, one in enumerate(buffers):
        for other in buffers[:index]:
            together = one.first <= other.last and other.first <= one.last
            apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
            assert apart or not together


def test_a_chain_of_pieces_needs_two_places_however_long_it_is() -> None:
    buffers = [Buffer(0, 64, index, index + 1) for index in range(30)]
    assign_offsets(buffers)
    assert {buffer.offset for buffer in buffers} == {0, 64}


def test_tensors_and_their_views_move_together() -> None:
    with torch.inference_mode():
        first, second, other = torch.ones(4, 4), torch.ones(8), torch.full((2,), 7.0)
        row, pool = first[2], ArenaPool()
        relocation = Relocation([Span(first, 0, 2), Span(second, 1, 3)], pool)
        relocation.move([first, second, row, other])
        first.copy_(torch.arange(16.0).view(4, 4))
        second.fill_(-1)
        assert row.tolist() == [8, 9, 10, 11]
        assert other.tolist() == [7, 7]
        place = relocation.storage.data_ptr()
        assert {t.untyped_storage().data_ptr() for t in (first, second, row)} == {place}
        assert pool.nbytes == 64 + 32 + 64  # and room to align them

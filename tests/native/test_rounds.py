"""The small integer kernels between a round's graphs, against their torch definitions."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream import ops
from slipstream.errors import DeviceError

several = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def pool(seed: int, requests: int, real: int, steps: int):
    """A pool of 6 rows, the last of them nobody's, and a batch of `requests`, the first `real` of them real."""
    generator = torch.Generator().manual_seed(seed)
    lengths, bonus = (torch.randint(0, 40, (6,), generator=generator) for _ in range(2))
    slots = torch.full((requests,), 5)
    slots[:real] = torch.randperm(5, generator=generator)[:real]
    pages = torch.randint(0, 50, (requests, 20), generator=generator)
    drafts = torch.randint(-1, 3, (requests, steps), generator=generator)
    target = torch.randint(0, 3, (requests, steps + 1), generator=generator)
    return lengths, bonus, slots, pages, drafts, target


batches = given(
    seed=st.integers(0, 2**31), requests=st.integers(1, 5), steps=st.integers(0, 6), data=st.data()
)


@several
@batches
def test_accept_and_commit(isa, seed, requests, steps, data):
    real = data.draw(st.integers(1, requests))
    lengths, bonus, slots, _, drafts, target = pool(seed, requests, real, steps)
    args = (drafts, target, lengths, bonus, slots[:real].clone())
    before = lengths.clone(), bonus.clone()
    for got, want in zip(ops.accept_and_commit(*args), ops.accept_and_commit.definition(*args), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(lengths, before[0])
    assert torch.equal(bonus, before[1])


@several
@batches
def test_verify_rows(isa, seed, requests, steps, data):
    page_size = data.draw(st.sampled_from([4, 16, 64]))
    lengths, bonus, slots, pages, drafts, _ = pool(seed, requests, requests, steps)
    rows = requests * (steps + 1)
    got, want = ([torch.full((rows,), -9) for _ in range(3)] for _ in range(2))
    ops.verify_rows(lengths, bonus, slots, pages, page_size, drafts, *got)
    ops.verify_rows.definition(lengths, bonus, slots, pages, page_size, drafts, *want)
    assert [part.tolist() for part in got] == [part.tolist() for part in want]


@several
@given(seed=st.integers(0, 2**31), width=st.integers(1, 5), offset=st.integers(0, 5))
def test_plan_rows(isa, seed, width, offset):
    lengths, _, slots, pages, _, _ = pool(seed, 3, 3, 0)
    got, want = ([torch.full((3 * width,), -9) for _ in range(2)] for _ in range(2))
    ops.plan_rows(lengths, slots, pages, 16, offset, *got)
    ops.plan_rows.definition(lengths, slots, pages, 16, offset, *want)
    assert [part.tolist() for part in got] == [part.tolist() for part in want]


@several
@given(seed=st.integers(0, 2**31), count=st.integers(1, 4), width=st.integers(1, 5), hidden=st.integers(1, 9))
def test_what_goes_into_the_head_and_comes_out(isa, seed, count, width, hidden):
    _, candidate, slots, _, _, _ = pool(seed, count, count, 0)
    generator = torch.Generator().manual_seed(seed)
    pool_MH, rows_RH = (torch.randn(size, hidden, generator=generator) for size in (6, count * width))
    tokens = torch.randint(0, 9, (count, width), generator=generator)
    advanced = torch.randint(1, width + 1, (count,), generator=generator)

    def written(op, *args, rows):
        out = [torch.full((rows,), -9), torch.zeros(rows, hidden)]
        op(*args, *out)
        return out

    for got, want in zip(
        *(written(op, candidate, pool_MH, slots, rows=count) for op in both(ops.draft_inputs)), strict=True
    ):
        assert torch.equal(got, want)
    for op in both(ops.extend_inputs):
        last = torch.full((count,), -9)
        ids = torch.full((count * width,), -9)
        hidden_out = torch.zeros(count * width, hidden)
        op(tokens, advanced, rows_RH, ids, hidden_out, last)
        assert torch.equal(ids, tokens.flatten())
        assert torch.equal(hidden_out, rows_RH)
        assert last.tolist() == [row * width + n - 1 for row, n in enumerate(advanced.tolist())]
    new = torch.arange(count) + 100, rows_RH[:count].clone()
    before = candidate.clone(), pool_MH.clone()
    for got, want in zip(*(op(candidate, pool_MH, slots, *new) for op in both(ops.put_drafts)), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(candidate, before[0])
    assert torch.equal(pool_MH, before[1])


def both(op):
    """The op as it runs, and its definition."""
    return op, op.definition


def test_a_position_behind_the_pages_is_an_error(isa):
    positions, kv_slots = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    pages = torch.ones(1, 2, dtype=torch.int64)
    with pytest.raises(DeviceError, match="out of range"):
        ops.plan_rows(torch.tensor([30]), torch.tensor([0]), pages, 16, 0, positions, kv_slots)


@pytest.mark.parametrize("bad", [-1, 6])
def test_a_pool_row_that_is_not_there_is_an_error(isa, bad):
    lengths, bonus, _, pages, drafts, target = pool(0, 1, 1, 2)
    slots = torch.tensor([bad])
    out = [torch.zeros(3, dtype=torch.int64) for _ in range(3)]
    with pytest.raises(DeviceError, match="out of range"):
        ops.verify_rows(lengths, bonus, slots, pages, 16, drafts, *out)
    with pytest.raises(DeviceError, match="out of range"):
        ops.accept_and_commit(drafts, target, lengths, bonus, slots)
    with pytest.raises(DeviceError, match="out of range"):
        ops.put_drafts(bonus, torch.zeros(6, 4), slots, torch.tensor([1]), torch.zeros(1, 4))

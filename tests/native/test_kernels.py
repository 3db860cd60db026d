"""Each native kernel against its torch definition, and each row against itself in other company."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream import ops
from slipstream.errors import DeviceError
from slipstream.native import library

WIDTHS = st.sampled_from([32, 64, 96, 576])
HEIGHTS = st.sampled_from([1, 15, 16, 17, 48, 100])
ROWS = st.integers(1, 9)
SEEDS = st.integers(0, 2**31)

several = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def random_q4(rng, outputs, inputs):
    codes = rng.integers(0, 16, (outputs, inputs), dtype=np.uint8)
    scale = rng.uniform(-0.1, 0.1, (outputs, inputs // 32)).astype(np.float16).astype(np.float32)
    minimum = rng.uniform(-1, 1, (outputs, inputs // 32)).astype(np.float16).astype(np.float32)
    weight = (codes.reshape(outputs, -1, 32) * scale[..., None] + minimum[..., None]).reshape(codes.shape)
    return ops.PackedQ4Matrix.pack(codes, scale, minimum), torch.from_numpy(weight)


def random_q8(rng, outputs, inputs):
    codes = rng.integers(-127, 128, (outputs, inputs), dtype=np.int8)
    scale = rng.uniform(0, 0.01, (outputs, inputs // 32)).astype(np.float16).astype(np.float32)
    weight = (codes.reshape(outputs, -1, 32) * scale[..., None]).reshape(codes.shape).astype(np.float32)
    return ops.PackedQ8Matrix.pack(codes, scale), torch.from_numpy(weight)


def random_dense(rng, outputs, inputs, dtype=torch.float32):
    weight = torch.from_numpy(rng.standard_normal((outputs, inputs), dtype=np.float32)).to(dtype)
    return ops.DenseMatrix(weight), weight.float()


def random_bf16(rng, outputs, inputs):
    return random_dense(rng, outputs, inputs, torch.bfloat16)


KINDS = {"q4": random_q4, "q8": random_q8, "f32": random_dense, "bf16": random_bf16}


def rounded(x_RI):
    """What the quantised kernels take for x: 8-bit codes by blocks of 32, halves away from even as they fall."""
    blocks = x_RI.unflatten(-1, (-1, 32))
    top = blocks.abs().amax(-1, keepdim=True)
    codes = torch.where(top > 0, blocks * (127 / top), torch.zeros_like(blocks)).round()
    return (codes * top / 127).flatten(-2)


def away_from_halves(x_RI):
    """x without the values that round to either code, as a fused multiply-add or a separate one has it."""
    blocks = x_RI.unflatten(-1, (-1, 32))
    code = blocks * (127 / blocks.abs().amax(-1, keepdim=True))
    near = ((code - code.floor()) - 0.5).abs() < 1e-3
    return blocks.masked_fill(near, 0).flatten(-2)


@pytest.mark.parametrize("kind", KINDS)
@several
@given(inputs=WIDTHS, outputs=HEIGHTS, rows=ROWS, seed=SEEDS)
def test_a_product_is_the_float_product_of_what_the_kernel_takes(isa, kind, inputs, outputs, rows, seed):
    rng = np.random.default_rng(seed)
    matrix, weight = KINDS[kind](rng, outputs, inputs)
    x = away_from_halves(torch.from_numpy(rng.standard_normal((rows, inputs), dtype=np.float32)))
    taken = rounded(x) if kind in ("q4", "q8") else x
    want = taken.double() @ weight.double().T
    got = ops.linear(x, matrix)
    scale = float((taken.abs().double() @ weight.abs().double().T).max())
    assert float((got - want).abs().max()) <= 2e-6 * scale


@pytest.mark.parametrize("kind", KINDS)
def test_bias_and_residual_are_added(isa, kind):
    rng = np.random.default_rng(1)
    matrix, _ = KINDS[kind](rng, 48, 64)
    x, bias, residual = torch.randn(3, 64), torch.randn(48), torch.randn(3, 48)
    plain = ops.linear(x, matrix)
    torch.testing.assert_close(ops.linear(x, matrix, bias, residual), plain + bias + residual)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_depends_on_itself_alone(isa, kind, threads):
    rng = np.random.default_rng(2)
    matrix, _ = KINDS[kind](rng, 100, 96)
    x = torch.randn(33, 96)
    library.use(True, 2)
    together = ops.linear(x, matrix)
    library.use(True, threads)
    for count in (1, 2, 3, 4, 5, 8):
        for start in (0, 7, 25):
            part = ops.linear(x[start : start + count].clone(), matrix)
            assert torch.equal(part, together[start : start + count]), (count, start)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_reaches_the_rows_that_hold_it_and_no_other(isa, kind):
    rng = np.random.default_rng(3)
    matrix, _ = KINDS[kind](rng, 32, 64)
    x = torch.randn(4, 64)
    x[2, 40] = float("nan")
    out = ops.linear(x, matrix)
    assert out[2].isnan().all()
    assert not out[[0, 1, 3]].isnan().any()


@pytest.mark.parametrize("kind", ["q4", "q8"])
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30, -1e30])
def test_extreme_rows_are_right(isa, kind, value):
    rng = np.random.default_rng(4)
    matrix, weight = KINDS[kind](rng, 32, 64)
    got = ops.linear(torch.full((1, 64), value), matrix)
    want = weight.double().sum(1) * value
    scale = float(weight.abs().double().sum(1).max() * abs(value))
    assert float((got[0].double() - want).abs().max()) <= 1e-5 * scale


def test_embedding_rows_are_the_blocks_exactly(isa):
    rng = np.random.default_rng(5)
    ids = torch.tensor([0, 99, 16, 16, 15])
    for kind in ("q8", "f32", "bf16"):
        table, weight = KINDS[kind](rng, 100, 64)
        assert torch.equal(ops.embedding(table, ids), weight[ids]), kind


@pytest.mark.parametrize("bad", [-1, 100])
def test_a_token_out_of_range_is_an_error_not_a_wrong_read(isa, bad):
    for kind in ("q8", "f32", "bf16"):
        table, _ = KINDS[kind](np.random.default_rng(6), 100, 64)
        with pytest.raises(DeviceError, match="out of range"):
            ops.embedding(table, torch.tensor([bad]))


@several
@given(rows=ROWS, width=st.sampled_from([1, 7, 8, 64, 577]), seed=SEEDS)
def test_rms_norm(isa, rows, width, seed):
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, width, generator=generator), torch.randn(width, generator=generator)
    got = ops.rms_norm(x, weight, 1e-5, torch.float32)
    torch.testing.assert_close(got, ops.rms_norm.definition(x, weight, 1e-5, torch.float32))


@several
@given(rows=ROWS, width=st.sampled_from([1, 7, 64, 65, 1536]), seed=SEEDS)
def test_gated_silu(isa, rows, width, seed):
    x = torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(seed)) * 8
    torch.testing.assert_close(ops.gated_silu(x), ops.gated_silu.definition(x), rtol=2e-5, atol=1e-6)


def test_gated_silu_of_large_values_does_not_overflow(isa):
    x = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4, 3.0, 2.0, 1.0] + [1.0] * 8])
    torch.testing.assert_close(ops.gated_silu(x), ops.gated_silu.definition(x), rtol=1e-5, atol=1e-30)


@several
@given(rows=ROWS, width=st.sampled_from([1, 63, 64, 65, 200]), seed=SEEDS)
def test_argmax_takes_the_lowest_of_equals(isa, rows, width, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 3, (rows, width), generator=generator).float()
    assert torch.equal(ops.argmax(x), x.argmax(-1))


def test_argmax_of_nan_is_where_the_nan_is(isa):
    x = torch.randn(2, 200)
    x[1, 130] = float("nan")
    assert ops.argmax(x).tolist() == [int(x[0].argmax()), 130]


@several
@given(rows=ROWS, width=st.sampled_from([1, 7, 8, 9, 64, 200, 8192]), size=st.floats(0, 100), seed=SEEDS)
def test_top_share_is_that_of_the_softmax(isa, rows, width, size, seed):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size
    torch.testing.assert_close(ops.top_share(x), ops.top_share.definition(x), rtol=2e-5, atol=0)


def paged(num_requests, heads, kv_heads, head_dim, page_size, lengths, seed):
    """A random cache, pages that are neither in order nor adjacent, and each request's next positions."""
    generator = torch.Generator().manual_seed(seed)
    pages_per_request = max(lengths) // page_size + 2
    total = num_requests * pages_per_request
    pages = (torch.randperm(total, generator=generator) + 1).view(num_requests, pages_per_request)
    cache = torch.randn((total + 1) * page_size, 2 * kv_heads, head_dim, generator=generator)
    return cache, pages


@several
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (9, 3), (8, 1)]),
    head_dim=st.sampled_from([8, 16, 24, 64, 128]),
    half=st.booleans(),
    page_size=st.sampled_from([1, 4, 16, 64]),
    width=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    seed=SEEDS,
)
def test_attention_over_pages(isa, heads, head_dim, page_size, width, lengths, half, seed):
    num_heads, kv_heads = heads
    needed = [length + width for length in lengths]
    cache, pages = paged(len(lengths), num_heads, kv_heads, head_dim, page_size, [max(needed) + 128], seed)
    cache = cache.half() if half else cache
    positions = torch.tensor([length + step for length in lengths for step in range(width)])
    query = torch.randn(len(positions), num_heads, head_dim, generator=torch.Generator().manual_seed(seed))
    args = (query, cache, pages, positions, page_size, None)
    got = ops.paged_attention(*args)
    torch.testing.assert_close(got, ops.paged_attention.definition(*args), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_attention_row_depends_on_its_own_context_alone(isa, dtype):
    cache, pages = paged(2, 9, 3, 64, 16, [256], 7)
    cache = cache.to(dtype)
    query = torch.randn(8, 9, 64)
    positions = torch.tensor([100, 101, 102, 103, 7, 8, 9, 10])
    together = ops.paged_attention(query, cache, pages, positions, 16, None)
    for row in range(8):
        alone = ops.paged_attention(
            query[row : row + 1].clone(),
            cache,
            pages[row // 4 :][:1].clone(),
            positions[row : row + 1].clone(),
            16,
            None,
        )
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rope_and_store_writes_the_slots_and_nothing_else(isa, dtype):
    qkv, factors = torch.randn(3, 8 * 16), torch.randn(3, 1, 32)
    slots = torch.tensor([5, 0, 11])
    native, defined = torch.zeros(12, 4, 16, dtype=dtype), torch.zeros(12, 4, 16, dtype=dtype)
    got = ops.rope_and_store(qkv, factors, slots, native, 4, 2)
    want = ops.rope_and_store.definition(qkv, factors, slots, defined, 4, 2)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(native, defined)
    untouched = [slot for slot in range(12) if slot not in slots.tolist()]
    assert not native[untouched].any()


def test_half_precision_is_rounded_as_torch_does(isa):
    """Values through the cache: subnormals, ties, the largest, beyond it, infinities, NaN."""
    edges = [
        0.0,
        -0.0,
        1e-8,
        2**-25,
        3 * 2**-25,
        5e-8,
        6.1e-5,
        1 + 2**-11,
        1 + 3 * 2**-11,
        65504.0,
        65519.0,
        65520.0,
    ]
    values = torch.cat((torch.tensor(edges), torch.randn(4000) * torch.logspace(-9, 5, 4000)))
    values = torch.cat((values, -values, torch.tensor([float("inf"), float("-inf"), float("nan")])))
    values = torch.nn.functional.pad(values, (0, -len(values) % 16)).view(-1, 16)
    rows = len(values)
    qkv = torch.cat((torch.zeros(rows, 32), values), dim=1)  # one query and one key head, then the values
    cache = torch.zeros(rows, 2, 16, dtype=torch.float16)
    ops.rope_and_store(qkv, torch.zeros(rows, 1, 32), torch.arange(rows), cache, 1, 1)
    torch.testing.assert_close(cache[:, 1], values.half(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [-1, 12])
def test_a_slot_out_of_range_is_an_error(isa, bad):
    cache = torch.zeros(12, 4, 16)
    with pytest.raises(DeviceError, match="out of range"):
        ops.rope_and_store(torch.randn(1, 128), torch.randn(1, 1, 32), torch.tensor([bad]), cache, 4, 2)


def test_moving_rows(isa):
    left, right = torch.randn(5, 7), torch.randn(5, 3)
    assert torch.equal(ops.concat_rows(left, right), torch.cat((left, right), 1))
    rows = torch.tensor([4, 0, 4])
    assert torch.equal(ops.select_rows(left, rows), left[rows])
    columns = [torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([5, 6])]
    assert torch.equal(ops.stack_columns(columns), torch.stack(columns, 1))
    assert ops.to_float(left) is left

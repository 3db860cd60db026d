"""Attention over paged KV: rotary embedding, store, gather, attend. Legend of shapes: `slipstream.ops`.

A layer's cache is [S, 2 K, D], float32 or float16: for each slot the keys of all heads, then the values. Attention
that takes lengths from the host reads keys and values apart, [2, S, K, D].

PyTorch's kernel wants the context gathered and a mask; the native one walks the pages itself.

A row's result must not depend on its neighbours, or speculative text would differ from plain text. PyTorch's
attention kernel keeps to that when it is given at least two query rows and a context length that is a multiple
of 64 (measured bit for bit, docs/log.md): hence `_MIN_WIDTH` and `_CONTEXT_STEP`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from slipstream.native import library
from slipstream.native.node import Kernel
from slipstream.ops.registry import Native, Split, Written, native_op, node, op

#: Heads that the native attention kernel reads are whole vectors.
_VECTOR = 8

_MIN_WIDTH = 2
_CONTEXT_STEP = 64


class Context(NamedTuple):
    """What `paged_attention` reads once for all layers, of `kv_index`: nothing where the native kernel runs.

    Attributes:
        slots: which slots a forward gathers.
        mask: which of them a row may see.
    """

    slots: torch.Tensor | None = None
    mask: torch.Tensor | None = None


@native_op
def rope_rows(native: Native, table_TD: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
    """Return the rotary factors of `positions_R` (int64), [R, 1, 2 D].

    Args:
        table_TD: float32 [positions, 2 D]: cosines, then sines with the sign of the rotated half.
        positions_R: positions below the table's length.
    """
    if native.reads(torch.float32, table_TD) and native.reads(torch.int64, positions_R):
        count, (positions, width) = positions_R.shape[0], table_TD.shape
        out = torch.empty(count, 1, width)
        return native.fill(
            out, node(Kernel.GATHER, (table_TD, positions_R, out), (count, width * 4, positions))
        )
    return table_TD.index_select(0, positions_R).unsqueeze(1)


@native_op
def rope_and_store(
    native: Native,
    qkv_RO: torch.Tensor,
    factors_RD: torch.Tensor,
    slots_R: torch.Tensor,
    cache_SKD: Written,
    num_heads: int,
    num_kv_heads: int,
) -> torch.Tensor:
    """Rotate queries and keys, write keys and values to the cache, return the queries as float32 [R, Q, D].

    Args:
        qkv_RO: [R, (Q + 2 K) D], any floating dtype.
        factors_RD: of `rope_rows`.
        slots_R: int64, where each row's key and value go; rows of padding share the scratch page.
        cache_SKD: float32 or float16 [S, 2 K, D], written in place.

    Su et al., "RoFormer", 2021, in the half-split order of Hugging Face's Llama.
    """
    rows, (slots, _, head_dim) = slots_R.shape[0], cache_SKD.shape
    fits = qkv_RO.shape == (rows, (num_heads + 2 * num_kv_heads) * head_dim)
    fits = fits and factors_RD.numel() == rows * 2 * head_dim and cache_SKD.shape[1] == 2 * num_kv_heads
    floats = native.reads(torch.float32, qkv_RO, factors_RD) and _native_cache(native, cache_SKD)
    if fits and floats and native.reads(torch.int64, slots_R):
        out_RQD = torch.empty(rows, num_heads, head_dim)
        tensors = (qkv_RO, factors_RD, slots_R, cache_SKD, out_RQD)
        sizes = (rows, num_heads, num_kv_heads, head_dim, slots, cache_SKD.dtype == torch.float16)
        return native.fill(out_RQD, node(Kernel.ROPE_STORE, tensors, sizes))
    query, keys, values = _rotated(qkv_RO, factors_RD, num_heads, num_kv_heads, head_dim)
    cache_SKD.index_copy_(0, slots_R, torch.cat((keys, values), dim=1).to(cache_SKD.dtype))
    return query.contiguous()


@op
def rope_and_store_apart(
    qkv_RO: torch.Tensor,
    factors_RD: torch.Tensor,
    slots_R: torch.Tensor,
    keys_SKD: Written,
    values_SKD: Written,
    num_heads: int,
    num_kv_heads: int,
) -> torch.Tensor:
    """`rope_and_store` into keys and values that lie apart, float16 or float32 [S, K, D] each."""
    query, keys, values = _rotated(qkv_RO, factors_RD, num_heads, num_kv_heads, keys_SKD.shape[2])
    keys_SKD.index_copy_(0, slots_R, keys.to(keys_SKD.dtype))
    values_SKD.index_copy_(0, slots_R, values.to(values_SKD.dtype))
    return query.contiguous()


def _rotated(
    qkv_RO: torch.Tensor, factors_RD: torch.Tensor, num_heads: int, num_kv_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries and keys, rotated, and values, float32."""
    heads = qkv_RO.float().unflatten(-1, (-1, head_dim))
    turned = heads.narrow(1, 0, num_heads + num_kv_heads)
    swapped = torch.roll(turned, head_dim // 2, -1)
    cosines, sines = factors_RD.narrow(-1, 0, head_dim), factors_RD.narrow(-1, head_dim, head_dim)
    rotated = torch.addcmul(turned * cosines, swapped, sines)
    values = heads.narrow(1, num_heads + num_kv_heads, num_kv_heads)
    return rotated.narrow(1, 0, num_heads), rotated.narrow(1, num_heads, num_kv_heads), values


def _native_cache(native: Native, cache_SKD: torch.Tensor) -> bool:
    return native.reads(torch.float32, cache_SKD) or native.reads(torch.float16, cache_SKD)


def attention_context(
    pages_BP: torch.Tensor, positions_R: torch.Tensor, page_size: int, group: int, head_dim: int
) -> Context:
    """Return what `paged_attention` reads once for all layers."""
    if library.active() and head_dim % _VECTOR == 0:
        return Context()
    if pages_BP.device.type == "cpu":
        return Context(*kv_index(pages_BP, positions_R, page_size, group))
    # No host read, and a shape that is known at once: all positions of the page tables.
    length = pages_BP.shape[1] * page_size
    return Context(*whole_kv_index(pages_BP, positions_R, page_size, group, length))


@op
def kv_index(
    pages_BP: torch.Tensor, positions_R: torch.Tensor, page_size: int, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which slots each request's rows read, and which of them each row may see; on a CPU.

    Args:
        pages_BP: int64 page numbers of each request, scratch page 0 behind the last.
        positions_R: int64 position of each row, R = B x width; a row sees positions up to its own.
        page_size: slots a page; divides 64.
        group: query heads a key-value head.

    Returns:
        slots [B x L] int64 and mask [B, 1, max(width, 2) x group, L] float32 of 0 and -inf. L covers the
        longest context, rounded up to a multiple of 64.
    """
    # On a CPU the host may look: the op hides it from a capture, and a short context costs little.
    length = (int(positions_R.max()) // _CONTEXT_STEP + 1) * _CONTEXT_STEP
    return whole_kv_index.definition(pages_BP, positions_R, page_size, group, length)


def _fake_kv_index(
    pages_BP: torch.Tensor, positions_R: torch.Tensor, page_size: int, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    num_requests = pages_BP.shape[0]
    width = max(positions_R.shape[0] // num_requests, _MIN_WIDTH)
    length = torch.library.get_ctx().new_dynamic_size() * _CONTEXT_STEP
    slots = pages_BP.new_empty(num_requests * length)
    return slots, pages_BP.new_empty(num_requests, 1, width * group, length, dtype=torch.float32)


kv_index.fake = _fake_kv_index


@op
def whole_kv_index(
    pages_BP: torch.Tensor, positions_R: torch.Tensor, page_size: int, group: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`kv_index` over the first `length` positions."""
    num_requests = pages_BP.shape[0]
    positions_BW = positions_R.view(num_requests, -1)
    pages_BN = pages_BP.narrow(1, 0, length // page_size)
    offsets = torch.arange(page_size, device=pages_BP.device)
    slots = (pages_BN.unsqueeze(-1) * page_size + offsets).view(-1)
    if positions_BW.shape[1] < _MIN_WIDTH:
        positions_BW = positions_BW.expand(-1, _MIN_WIDTH)
    context = torch.arange(length, device=pages_BP.device)
    hidden = context > positions_BW.unsqueeze(-1)
    mask = torch.zeros(hidden.shape, device=pages_BP.device).masked_fill_(hidden, float("-inf"))
    mask = mask.unsqueeze(2).expand(-1, -1, group, -1).reshape(num_requests, 1, -1, length)
    return slots, mask


@native_op
def paged_attention(
    native: Native,
    query_RQD: torch.Tensor,
    cache_SKD: torch.Tensor,
    pages_BP: torch.Tensor,
    positions_R: torch.Tensor,
    page_size: int,
    context_slots: torch.Tensor | None = None,
    context_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return softmax(q k / sqrt(D)) v of every row over positions up to its own, float32 [R, Q D].

    Query heads are grouped over key-value heads (Ainslie et al., "GQA", 2023): head h reads h // group.

    Args:
        query_RQD: float32 [R, Q, D].
        cache_SKD: float32 or float16 [S, 2 K, D].
        pages_BP, positions_R: as for `kv_index`.
        page_size: slots a page.
        context_slots, context_mask: of `attention_context`; where not given, all pages are read.
    """
    num_rows, num_heads, head_dim = query_RQD.shape
    num_kv_heads = cache_SKD.shape[1] // 2
    group = num_heads // num_kv_heads
    fits = head_dim == cache_SKD.shape[2] and head_dim % _VECTOR == 0 and num_heads % num_kv_heads == 0
    fits = fits and len(positions_R) == num_rows and num_rows % len(pages_BP) == 0
    floats = native.reads(torch.float32, query_RQD) and _native_cache(native, cache_SKD)
    if fits and floats and native.reads(torch.int64, pages_BP, positions_R):
        out = torch.empty(num_rows, num_heads * head_dim)
        tensors = (query_RQD, cache_SKD, pages_BP, positions_R, out)
        half = cache_SKD.dtype == torch.float16
        sizes = (num_rows, *pages_BP.shape, page_size, num_heads, num_kv_heads, head_dim, half)
        return native.fill(out, node(Kernel.ATTENTION, tensors, sizes))
    if context_slots is None or context_mask is None:
        length = pages_BP.shape[1] * page_size
        context_slots, context_mask = whole_kv_index.definition(
            pages_BP, positions_R, page_size, group, length
        )
    num_requests, _, mask_rows, length = context_mask.shape
    width = num_rows // num_requests
    query = query_RQD.view(num_requests, width, num_kv_heads, group, head_dim)
    if width < _MIN_WIDTH:
        query = query.expand(-1, _MIN_WIDTH, -1, -1, -1)
    query = query.permute(0, 2, 1, 3, 4).reshape(num_requests, num_kv_heads, mask_rows, head_dim)
    gathered = cache_SKD.index_select(0, context_slots).view(num_requests, length, 2 * num_kv_heads, head_dim)
    gathered = gathered.transpose(1, 2).float()
    keys, values = gathered.narrow(1, 0, num_kv_heads), gathered.narrow(1, num_kv_heads, num_kv_heads)
    out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=context_mask)
    out = out.view(num_requests, num_kv_heads, -1, group, head_dim).permute(0, 2, 1, 3, 4)
    return out.narrow(1, 0, width).reshape(num_rows, num_heads * head_dim)


# Attention and what it alone reads run between the pieces of a graph, over the rows that a batch really has.
paged_attention.split = Split(rows=("query_RQD", "positions_R"), requests=("pages_BP",))
kv_index.split = Split(rows=("positions_R",), requests=("pages_BP",), fixed=False)
whole_kv_index.split = Split(rows=("positions_R",), requests=("pages_BP",), fixed=False)

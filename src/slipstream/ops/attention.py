"""Attention over paged KV: rotary embedding, store, gather, attend. Legend of shapes: `slipstream.ops`.

A layer's cache is [S, 2 K, D], float32 or float16: for each slot the keys of all heads, then the values.

PyTorch's kernel wants the context gathered and a mask; the native one walks the pages itself.

A row's result must not depend on its neighbours, or speculative text would differ from plain text. PyTorch's
attention kernel keeps to that when it is given at least two query rows and a context length that is a multiple
of 64 (measured bit for bit, docs/log.md): hence `_MIN_WIDTH` and `_CONTEXT_STEP`.
"""

from __future__ import annotations

import torch

from slipstream.device.tape import Lowered
from slipstream.native import library
from slipstream.native.node import Kernel, make_node
from slipstream.ops.registry import float_row_major, op

#: Heads that the native attention kernel reads are whole vectors.
_VECTOR = 8

#: Slots that a forward gathers, and which of them a row may see (`kv_index`).
Context = tuple[torch.Tensor, torch.Tensor]

_MIN_WIDTH = 2
_CONTEXT_STEP = 64


@op
def rope_rows(table_TD: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
    """Return the rotary factors of `positions_R` (int64), [R, 1, 2 D].

    Args:
        table_TD: float32 [positions, 2 D]: cosines, then sines with the sign of the rotated half.
        positions_R: positions below the table's length.
    """
    return table_TD.index_select(0, positions_R).unsqueeze(1)


@rope_rows.native
def _rope_rows(table_TD: torch.Tensor, positions_R: torch.Tensor) -> Lowered | None:
    if not float_row_major(table_TD) or not positions_R.is_contiguous():
        return None
    out = torch.empty(positions_R.shape[0], 1, table_TD.shape[1])
    pointers = (table_TD.data_ptr(), positions_R.data_ptr(), out.data_ptr())
    sizes = (positions_R.shape[0], table_TD.shape[1] * 4, table_TD.shape[0])
    return Lowered(out, [make_node(Kernel.GATHER, pointers, sizes)])


@op
def rope_and_store(
    qkv_RO: torch.Tensor,
    factors_RD: torch.Tensor,
    slots_R: torch.Tensor,
    cache_SKD: torch.Tensor,
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
    heads = qkv_RO.float().unflatten(-1, (num_heads + 2 * num_kv_heads, -1))
    head_dim = heads.shape[-1]
    turned = heads.narrow(1, 0, num_heads + num_kv_heads)
    swapped = torch.roll(turned, head_dim // 2, -1)
    cosines, sines = factors_RD.narrow(-1, 0, head_dim), factors_RD.narrow(-1, head_dim, head_dim)
    rotated = torch.addcmul(turned * cosines, swapped, sines)
    keys = rotated.narrow(1, num_heads, num_kv_heads)
    values = heads.narrow(1, num_heads + num_kv_heads, num_kv_heads)
    cache_SKD.index_copy_(0, slots_R, torch.cat((keys, values), dim=1).to(cache_SKD.dtype))
    return rotated.narrow(1, 0, num_heads)


@rope_and_store.native
def _rope_and_store(
    qkv_RO: torch.Tensor,
    factors_RD: torch.Tensor,
    slots_R: torch.Tensor,
    cache_SKD: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
) -> Lowered | None:
    if not float_row_major(qkv_RO, factors_RD) or not _native_cache(cache_SKD) or not slots_R.is_contiguous():
        return None
    rows, head_dim = qkv_RO.shape[0], cache_SKD.shape[2]
    out = torch.empty(rows, num_heads, head_dim)
    tensors = (qkv_RO, factors_RD, slots_R, cache_SKD, out)
    half = cache_SKD.dtype == torch.float16
    sizes = (rows, num_heads, num_kv_heads, head_dim, cache_SKD.shape[0], half)
    return Lowered(out, [make_node(Kernel.ROPE_STORE, [t.data_ptr() for t in tensors], sizes)])


def _native_cache(cache_SKD: torch.Tensor) -> bool:
    dtype_ok = cache_SKD.dtype in (torch.float32, torch.float16)
    return dtype_ok and cache_SKD.is_contiguous() and cache_SKD.device.type == "cpu"


def attention_context(
    pages_BP: torch.Tensor, positions_R: torch.Tensor, page_size: int, group: int, head_dim: int
) -> Context | None:
    """Return what `paged_attention` reads once for all layers: None where the native kernel needs nothing."""
    if library.active() and head_dim % _VECTOR == 0:
        return None
    return kv_index(pages_BP, positions_R, page_size, group)


@op
def kv_index(pages_BP: torch.Tensor, positions_R: torch.Tensor, page_size: int, group: int) -> Context:
    """Return which slots each request's rows read, and which of them each row may see.

    Args:
        pages_BP: int64 page numbers of each request, scratch page 0 behind the last.
        positions_R: int64 position of each row, R = B x width; a row sees positions up to its own.
        page_size: slots a page; divides 64.
        group: query heads a key-value head.

    Returns:
        slots [B x L] int64 and mask [B, 1, max(width, 2) x group, L] float32 of 0 and -inf. L covers the
        longest context, rounded up to a multiple of 64.
    """
    num_requests = pages_BP.shape[0]
    positions_BW = positions_R.view(num_requests, -1)
    if pages_BP.device.type == "cpu":
        # The host may look: the op hides it, and a short context costs little.
        needed = (int(positions_R.max()) // _CONTEXT_STEP + 1) * _CONTEXT_STEP
    else:
        needed = pages_BP.shape[1] * page_size
    pages_BN = pages_BP.narrow(1, 0, needed // page_size)
    offsets = torch.arange(page_size, device=pages_BP.device)
    slots = (pages_BN.unsqueeze(-1) * page_size + offsets).view(-1)
    if positions_BW.shape[1] < _MIN_WIDTH:
        positions_BW = positions_BW.expand(-1, _MIN_WIDTH)
    context = torch.arange(needed, device=pages_BP.device)
    hidden = context > positions_BW.unsqueeze(-1)
    mask = torch.zeros(hidden.shape, device=pages_BP.device).masked_fill_(hidden, float("-inf"))
    mask = mask.unsqueeze(2).expand(-1, -1, group, -1).reshape(num_requests, 1, -1, needed)
    return slots, mask


@op
def paged_attention(
    query_RQD: torch.Tensor,
    cache_SKD: torch.Tensor,
    pages_BP: torch.Tensor,
    positions_R: torch.Tensor,
    page_size: int,
    context: Context | None,
) -> torch.Tensor:
    """Return softmax(q k / sqrt(D)) v of every row over positions up to its own, float32 [R, Q D].

    Query heads are grouped over key-value heads (Ainslie et al., "GQA", 2023): head h reads h // group.

    Args:
        query_RQD: float32 [R, Q, D].
        cache_SKD: float32 or float16 [S, 2 K, D].
        pages_BP, positions_R: as for `kv_index`.
        page_size: slots a page.
        context: of `attention_context`.
    """
    num_rows, num_heads, head_dim = query_RQD.shape
    num_kv_heads = cache_SKD.shape[1] // 2
    group = num_heads // num_kv_heads
    slots, mask = context or kv_index.definition(pages_BP, positions_R, page_size, group)
    num_requests, _, mask_rows, length = mask.shape
    width = num_rows // num_requests
    query = query_RQD.view(num_requests, width, num_kv_heads, group, head_dim)
    if width < _MIN_WIDTH:
        query = query.expand(-1, _MIN_WIDTH, -1, -1, -1)
    query = query.permute(0, 2, 1, 3, 4).reshape(num_requests, num_kv_heads, mask_rows, head_dim)
    gathered = cache_SKD.index_select(0, slots).view(num_requests, length, 2 * num_kv_heads, head_dim)
    gathered = gathered.transpose(1, 2).float()
    keys, values = gathered.narrow(1, 0, num_kv_heads), gathered.narrow(1, num_kv_heads, num_kv_heads)
    out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    out = out.view(num_requests, num_kv_heads, -1, group, head_dim).permute(0, 2, 1, 3, 4)
    return out.narrow(1, 0, width).reshape(num_rows, num_heads * head_dim)


@paged_attention.native
def _paged_attention(
    query_RQD: torch.Tensor,
    cache_SKD: torch.Tensor,
    pages_BP: torch.Tensor,
    positions_R: torch.Tensor,
    page_size: int,
    context: Context | None,
) -> Lowered | None:
    rows, num_heads, head_dim = query_RQD.shape
    indices_ok = pages_BP.is_contiguous() and positions_R.is_contiguous()
    if head_dim % _VECTOR or not indices_ok or not float_row_major(query_RQD) or not _native_cache(cache_SKD):
        return None
    out = torch.empty(rows, num_heads * head_dim)
    tensors = (query_RQD, cache_SKD, pages_BP, positions_R, out)
    half = cache_SKD.dtype == torch.float16
    sizes = (rows, *pages_BP.shape, page_size, num_heads, cache_SKD.shape[1] // 2, head_dim, half)
    return Lowered(out, [make_node(Kernel.ATTENTION, [t.data_ptr() for t in tensors], sizes)])

"""The attention ops with host lists, as plain torch: lengths are part of the command, so a graph keeps its own.

Axis letters: B requests, S positions, N query heads, K key-value heads, D head size, T tokens of all requests,
P pages, L positions of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slipstream.device.soft.face.registry import register_op
from slipstream.errors import UsageError

_ALWAYS = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None, "
    "SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
    "Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
    "Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, "
    "Tensor? value_antiquant_offset=None, Tensor? block_table=None, Tensor? query_padding_size=None, "
    "Tensor? kv_padding_size=None, Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
    "SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1.0, int pre_tokens=2147483647, "
    'int next_tokens=2147483647, str input_layout="BSH", int num_key_value_heads=0, int sparse_mode=0, '
    "int inner_precise=0, int block_size=0, int antiquant_mode=0, int key_antiquant_mode=0, "
    "int value_antiquant_mode=0, bool softmax_lse_flag=False"
)

#: Options of the fused op that the reference form computes; another one that is set is refused.
_KNOWN = frozenset(
    (
        "atten_mask",
        "actual_seq_lengths",
        "actual_seq_lengths_kv",
        "block_table",
        "num_heads",
        "scale",
        "pre_tokens",
        "next_tokens",
        "input_layout",
        "num_key_value_heads",
        "sparse_mode",
        "inner_precise",
        "block_size",
        "softmax_lse_flag",
    )
)

_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", "TND")

#: Bytes of every workspace; the device needs some, the reference form none.
WORKSPACE_BYTES = 1024


def fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with lengths from the host: npu_fused_infer_attention_score.

    Args:
        query: in `input_layout`: [B, S, N*D], [B, S, N, D], [B, N, S, D] or [T, N, D].
        key, value: alike, or with a block table pages [P, L, K*D] or [P, K, L, D].
        options: actual_seq_lengths (for TND counted up), actual_seq_lengths_kv (for TND without pages counted up),
            block_table [B, pages] int32, num_heads, num_key_value_heads, scale, sparse_mode 0 to 3,
            atten_mask (true is masked), softmax_lse_flag.

    Returns:
        The attention in the query's layout, and the log-sum-exp [B, N, S, 1] or [T, N, 1] float32 (or [0]).

    Raises:
        UsageError: an option that the reference form does not know.
    """
    _refuse_unknown(options)
    layout, num_heads = options.get("input_layout", "BSH"), options.get("num_heads", 1)
    num_kv_heads = options.get("num_key_value_heads", 0) or num_heads
    rows = _rows(query, layout, num_heads)
    q_lengths = _lengths(options.get("actual_seq_lengths"), layout, rows)
    kv_lengths = options.get("actual_seq_lengths_kv")
    out = torch.zeros_like(query)
    lse = torch.full(
        (*_lse_size(query, layout, num_heads), 1), float("inf"), dtype=torch.float32, device="cpu"
    )
    keys, values = _keys(key, value, layout, num_kv_heads, kv_lengths, options, len(rows))
    outs, lses = _rows(out, layout, num_heads), _lse_rows(lse, layout, rows)
    _lengths(options.get("actual_seq_lengths"), layout, outs)
    mask = options.get("atten_mask")
    for n, (row, length) in enumerate(zip(rows, q_lengths, strict=True)):
        if not length or not keys[n].shape[0]:
            continue
        hidden = _mask(
            length, keys[n].shape[0], options, None if mask is None else mask[n] if mask.dim() > 2 else mask
        )
        result, total = _attend(row[:length], keys[n], values[n], options.get("scale", 1.0), hidden)
        outs[n][:length] = result
        lses[n][:length] = total
    if layout == "BNSD_BSND":
        out = out.transpose(1, 2).contiguous()
    return out, lse if options.get("softmax_lse_flag") else lse.new_empty(0)


def _fused_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
    out: Sequence[torch.Tensor],
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    result, lse = fused(query, key, value, **options)
    out[0].copy_(result.view_as(out[0]))
    if options.get("softmax_lse_flag") and len(out) > 1:
        out[1].copy_(lse.view_as(out[1]))
    if workspace is not None:
        workspace.zero_()
    return out[0], out[-1]


def _workspace(query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cpu")


def _infer_output(
    query: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    layout, num_heads = options.get("input_layout", "BSH"), options.get("num_heads", 1)
    size = _lse_size(query, layout, num_heads)
    out = query.transpose(1, 2).contiguous() if layout == "BNSD_BSND" else query
    lse = torch.zeros(
        (*size, 1) if options.get("softmax_lse_flag") else (0,), dtype=torch.float32, device="cpu"
    )
    return torch.zeros_like(out), lse


def paged(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor | None = None,
) -> None:
    """Attend one token a request over its pages: _npu_paged_attention.

    Args:
        query, out: [B, N, D].
        key_cache, value_cache: [P, L, K, D].
        num_kv_heads, num_heads: K and N.
        scale_value: of the scores.
        block_table: [B, pages] int32.
        context_lens: [B] int32 on the host; its values are part of the command.
        workspace: scratch memory.
    """
    tokens = query.reshape(
        -1, num_heads, query.shape[-1] if query.dim() == 3 else query.shape[-1] // num_heads
    )
    results = out.view(tokens.shape)
    for n, length in enumerate(context_lens.tolist()[: tokens.shape[0]]):
        if length <= 0:
            results[n] = 0
            continue
        keys, values = (
            _from_pages(cache.flatten(2), block_table[n], length, num_kv_heads)
            for cache in (key_cache, value_cache)
        )
        results[n] = _attend(tokens[n : n + 1], keys, values, scale_value, None)[0][0]
    if workspace is not None:
        workspace.zero_()


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write keys and values [T, K, D] into their slots of pages [P, L, K, D]: _npu_reshape_and_cache."""
    kept = slot_indices >= 0
    slots = slot_indices[kept].long()
    key_cache.view(-1, *key.shape[1:])[slots] = key[kept]
    value_cache.view(-1, *value.shape[1:])[slots] = value[kept]


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention [S, N, D] and the log-sum-exp [S, N, 1] of one request, computed in float32."""
    repeat = query.shape[1] // key.shape[1]
    keys, values = key.float().repeat_interleave(repeat, 1), value.float().repeat_interleave(repeat, 1)
    scores = torch.einsum("snd,tnd->nst", query.float(), keys) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).nan_to_num(0.0)
    result = torch.einsum("nst,tnd->snd", weights, values)
    return result.to(query.dtype), lse.transpose(0, 1).unsqueeze(-1)


def _mask(
    rows: int, context: int, options: dict[str, Any], given: torch.Tensor | None
) -> torch.Tensor | None:
    """Return what is hidden, [rows, context]: by the mask (modes 0 and 1), or below a diagonal (2 and 3)."""
    mode = options.get("sparse_mode", 0)
    if mode in (2, 3):
        shift = context - rows if mode == 3 else 0
        return torch.ones(rows, context, dtype=torch.bool, device="cpu").triu(shift + 1)
    if mode not in (0, 1):
        raise UsageError(f"sparse_mode {mode} is not in the software NPU's attention; it knows 0, 1, 2 and 3")
    if given is None:
        return None
    return given.reshape(-1, given.shape[-1])[:rows, :context].bool()


def _rows(tensor: torch.Tensor, layout: str, num_heads: int) -> list[torch.Tensor]:
    """Return each request's rows, [S, N, D], as views; for TND one of all tokens."""
    if layout not in _LAYOUTS:
        raise UsageError(
            f"input_layout {layout!r} is not in the software NPU's attention; it knows {_LAYOUTS}"
        )
    if layout == "TND":
        return [tensor]
    if layout == "BSH":
        return list(tensor.view(*tensor.shape[:2], num_heads, -1))
    return [one.transpose(0, 1) for one in tensor] if layout.startswith("BNSD") else list(tensor)


def _lengths(given: Sequence[int] | None, layout: str, rows: list[torch.Tensor]) -> list[int]:
    if layout == "TND":
        assert given is not None
        ends = [0, *given]
        starts = ends[:-1]
        whole = rows[0]
        rows[:] = [whole[start:end] for start, end in zip(starts, ends[1:], strict=True)]
        return [end - start for start, end in zip(starts, ends[1:], strict=True)]
    if given is None:
        return [row.shape[0] for row in rows]
    return list(given) if len(given) == len(rows) else [given[0]] * len(rows)


def _lse_size(query: torch.Tensor, layout: str, num_heads: int) -> tuple[int, ...]:
    if layout == "TND":
        return (query.shape[0], num_heads)
    length = query.shape[2] if layout.startswith("BNSD") else query.shape[1]
    return (query.shape[0], num_heads, length)


def _lse_rows(lse: torch.Tensor, layout: str, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    if layout != "TND":
        return [one.transpose(0, 1) for one in lse]
    return list(
        lse.split([row.shape[0] for row in rows] + [lse.shape[0] - sum(row.shape[0] for row in rows)])
    )


def _keys(
    key: torch.Tensor,
    value: torch.Tensor,
    layout: str,
    num_kv_heads: int,
    lengths: Sequence[int] | None,
    options: dict[str, Any],
    count: int,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return each request's keys and values, [context, K, D]."""
    table = options.get("block_table")
    if table is not None:
        if lengths is None:
            raise UsageError(
                "actual_seq_lengths_kv is missing: with a block table nothing else says how long each is"
            )
        pages = [t.transpose(1, 2).flatten(2) if t.dim() == 4 else t for t in (key, value)]
        found = [[_from_pages(p, table[n], lengths[n], num_kv_heads) for n in range(count)] for p in pages]
        return found[0], found[1]
    both = []
    for tensor in (key, value):
        rows = _rows(tensor, layout, num_kv_heads)
        known = _lengths(lengths, layout, rows)
        both.append([row[:length] for row, length in zip(rows, known, strict=True)])
    return both[0], both[1]


def _from_pages(pages: torch.Tensor, table: torch.Tensor, length: int, num_kv_heads: int) -> torch.Tensor:
    """Return [length, K, D] of pages [P, L, K*D]."""
    size = pages.shape[1]
    rows = pages[table[: -(-length // size)].long()].flatten(0, 1)[:length]
    return rows.view(length, num_kv_heads, -1)


def _refuse_unknown(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name not in _KNOWN and value is not None and value != 0:
            raise UsageError(
                f"npu_fused_infer_attention_score({name}=...) is not in the software NPU's form, which knows "
                f"{', '.join(sorted(_KNOWN))}"
            )


_PAGED = (
    "(Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, int num_heads, float scale_value, "
    "Tensor block_table, Tensor context_lens, Tensor(a!) out"
)


def register() -> None:
    """Register the ops."""
    name = "npu_fused_infer_attention_score"
    register_op(f"{name}({_ALWAYS}) -> (Tensor, Tensor)", fused)
    out = f"{name}.out({_ALWAYS}, Tensor? workspace=None, Tensor[] out) -> (Tensor, Tensor)"
    register_op(out, _fused_out, writes=("out", "workspace"))
    register_op(f"_{name}_get_max_workspace({_ALWAYS}) -> Tensor", _workspace)
    register_op(
        f'_{name}_infer_output(Tensor query, Tensor value, *, str input_layout="BSH", Tensor? quant_scale2=None, '
        "Tensor? block_table=None, int num_heads=1, int num_key_value_heads=0, bool softmax_lse_flag=False, "
        "Tensor? query_rope=None) -> (Tensor, Tensor)",
        _infer_output,
    )
    register_op(
        f"_npu_paged_attention{_PAGED}, Tensor? workspace=None) -> ()",
        paged,
        writes=("workspace",),
        namespace="atb",
    )
    register_op(f"_npu_paged_attention_get_workspace{_PAGED}) -> Tensor", _workspace, namespace="atb")
    register_op(
        "_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
        "Tensor slot_indices) -> ()",
        reshape_and_cache,
        namespace="atb",
    )

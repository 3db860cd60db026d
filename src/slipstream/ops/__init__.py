"""The few operations that models call. One place, named, nothing device-specific above it.

Shapes, here and wherever tensors flow:

    R  rows of a forward (requests x width)      H  hidden size          Q  query heads
    B  requests                                  V  vocabulary           K  key-value heads
    W  width: rows a request                     F  feed-forward size    D  head dimension
    L  context positions gathered                P  pages a request      S  KV slots

Inside a capture each call becomes one node of the graph (`ops.registry`).
"""

from slipstream.ops.attention import (
    Context,
    attention_context,
    kv_index,
    paged_attention,
    rope_and_store,
    rope_and_store_apart,
    rope_rows,
)
from slipstream.ops.matrix import BLOCK, DenseMatrix, Matrix
from slipstream.ops.packed import PackedQ4Matrix, PackedQ8Matrix
from slipstream.ops.printing import print_tensor
from slipstream.ops.registry import Split, node_group, splitting
from slipstream.ops.rounds import (
    accept_and_commit,
    draft_inputs,
    extend_inputs,
    plan_rows,
    put_drafts,
    slots_of,
    verify_rows,
)
from slipstream.ops.rows import (
    concat_rows,
    embedding,
    gated_silu,
    linear,
    rms_norm,
    select_rows,
    stack_columns,
    to_float,
)
from slipstream.ops.torch_packed import Q4Matrix, Q8Matrix
from slipstream.ops.vocabulary import argmax, logits, lookup, top_share

__all__ = [
    "BLOCK",
    "Context",
    "DenseMatrix",
    "Matrix",
    "PackedQ4Matrix",
    "PackedQ8Matrix",
    "Q4Matrix",
    "Q8Matrix",
    "Split",
    "accept_and_commit",
    "argmax",
    "attention_context",
    "concat_rows",
    "draft_inputs",
    "embedding",
    "extend_inputs",
    "gated_silu",
    "kv_index",
    "linear",
    "logits",
    "lookup",
    "node_group",
    "paged_attention",
    "plan_rows",
    "print_tensor",
    "put_drafts",
    "rms_norm",
    "rope_and_store",
    "rope_and_store_apart",
    "rope_rows",
    "select_rows",
    "slots_of",
    "splitting",
    "stack_columns",
    "to_float",
    "top_share",
    "verify_rows",
]

"""Arguments for every op: what each native form covers, and what only torch definitions take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from slipstream import ops
from slipstream.ops import registry

#: Slipstream's own ops; tests of other things register more.
OPS = {name: op for name, op in registry.OPS.items() if op.__module__.startswith("slipstream.")}

#: Ops without a native form.
TORCH_ONLY = {
    "best_ids",
    "embed_blocks",
    "kv_index",
    "linear_int4pack",
    "linear_int8pack",
    "rope_and_store_apart",
    "score_exactly",
    "whole_kv_index",
    "widen",
}

F32, BF16 = torch.float32, torch.bfloat16
#: The last tile of 16 outputs is not full; PyTorch's int4 kernel has no such tiles.
ROWS, INPUTS, OUTPUTS, WHOLE_TILES = 3, 64, 40, 48
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 4, 2, 8, 16


def weight() -> torch.Tensor:
    return torch.randn(OUTPUTS, INPUTS)


def whole_codes() -> torch.Tensor:
    """Rows that 8 bits hold exactly, so that no kernel may round a code differently."""
    x = torch.randint(-127, 128, (ROWS, INPUTS)).float()
    x[:, ::32] = 127
    return x


def scales(outputs: int) -> np.ndarray:
    return (torch.rand(outputs, INPUTS // 32) / 1000).numpy()


def q4_codes(outputs: int = OUTPUTS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes = torch.randint(0, 16, (outputs, INPUTS), dtype=torch.uint8)
    return codes.numpy(), scales(outputs), scales(outputs)


def q8_codes() -> tuple[np.ndarray, np.ndarray]:
    return torch.randint(-127, 128, (OUTPUTS, INPUTS), dtype=torch.int8).numpy(), scales(OUTPUTS)


def sums(outputs: int = OUTPUTS) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(outputs), torch.randn(ROWS, outputs)


def product(x: torch.Tensor, *weights: Any, outputs: int = OUTPUTS) -> list[tuple[Any, ...]]:
    """A product alone, with bias and residual, and of one row."""
    return [(x, *weights), (x, *weights, *sums(outputs)), (x[:1].clone(), *weights)]


def attention(width: int = 2) -> tuple[torch.Tensor, ...]:
    """Queries, cache, pages and positions of two requests, whose pages are neither in order nor adjacent."""
    pages = (torch.randperm(8) + 1).view(2, 4)
    positions = torch.tensor([20, 47])[:, None] + torch.arange(width)
    cache = torch.randn(9 * PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
    return torch.randn(2 * width, HEADS, HEAD_DIM), cache, pages, positions.view(-1)


def with_context() -> tuple[Any, ...]:
    query, cache, pages, positions = attention()
    context = ops.kv_index(pages, positions, PAGE_SIZE, HEADS // KV_HEADS)
    return query, cache, pages, positions, PAGE_SIZE, *context


def rope(dtype: torch.dtype = F32) -> tuple[Any, ...]:
    qkv = torch.randn(ROWS, (HEADS + 2 * KV_HEADS) * HEAD_DIM).to(dtype)
    cache = torch.zeros(12, 2 * KV_HEADS, HEAD_DIM)
    return qkv, torch.randn(ROWS, 1, 2 * HEAD_DIM), torch.tensor([5, 0, 11]), cache, HEADS, KV_HEADS


def rope_apart(dtype: torch.dtype = F32) -> tuple[Any, ...]:
    qkv, factors, slots, cache, *heads = rope()
    keys, values = (part.clone().to(dtype) for part in cache.split(KV_HEADS, 1))
    return qkv, factors, slots, keys, values, *heads


def in_half(args: tuple[Any, ...], cache: int) -> tuple[Any, ...]:
    """Return the arguments with a cache in half precision."""
    return (*args[:cache], args[cache].half(), *args[cache + 1 :])


def ints(*shape: int) -> torch.Tensor:
    return torch.randint(0, 6, shape)


def rounds_batch() -> tuple[torch.Tensor, ...]:
    """Lengths and bonus tokens of a pool of six, the batch's two rows of it, and their pages."""
    return torch.randint(0, 30, (6,)), ints(6), torch.tensor([4, 1]), ints(2, 5)


def plan_rows() -> tuple[Any, ...]:
    lengths, _, slots, pages = rounds_batch()
    return lengths, slots, pages, PAGE_SIZE, 1, torch.zeros(6).long(), torch.zeros(6).long()


def verify_rows() -> tuple[Any, ...]:
    drafts = torch.tensor([[3, 1], [2, -1]])
    return *rounds_batch(), PAGE_SIZE, drafts, *(torch.zeros(6).long() for _ in range(3))


def accept() -> tuple[Any, ...]:
    lengths, bonus, slots, _ = rounds_batch()
    return torch.tensor([[3, 1], [2, -1]]), torch.tensor([[3, 4, 5], [0, 1, 2]]), lengths, bonus, slots


def drafts_of_a_pool() -> tuple[torch.Tensor, ...]:
    """Candidates and hidden rows of a pool of six, and the batch's two rows of it."""
    return ints(6), torch.randn(6, 8), torch.tensor([4, 1])


def extend_inputs() -> tuple[torch.Tensor, ...]:
    written = torch.zeros(6).long(), torch.zeros(6, 8), torch.zeros(2).long()
    return ints(2, 3), torch.tensor([3, 1]), torch.randn(6, 8), *written


#: For each op, a function that makes argument lists; where there is a native form, it covers them.
SAMPLES: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
    "accept_and_commit": lambda: [accept()],
    "argmax": lambda: [(torch.randn(ROWS, 50),)],
    "best_ids": lambda: [(torch.randn(ROWS, 50), 4)],
    "concat_rows": lambda: [(torch.randn(ROWS, 5), torch.randn(ROWS, 9))],
    "draft_inputs": lambda: [(*drafts_of_a_pool(), torch.zeros(2).long(), torch.zeros(2, 8))],
    "embed_blocks": lambda: [(*map(torch.from_numpy, q8_codes()), torch.tensor([0, 39, 16]))],
    "embed_dense": lambda: [(weight(), ints(4)), (weight().bfloat16(), ints(2, 3))],
    "embed_q8": lambda: [(ops.PackedQ8Matrix.pack(*q8_codes()).tiles, OUTPUTS, torch.tensor([0, 39, 16]))],
    "extend_inputs": lambda: [extend_inputs()],
    "gated_silu": lambda: [(torch.randn(ROWS, 24),)],
    "kv_index": lambda: [(*attention(width)[2:], PAGE_SIZE, 2) for width in (1, 3)],
    "linear_dense": lambda: [
        *product(torch.randn(ROWS, INPUTS), weight(), F32),
        *product(torch.randn(ROWS, INPUTS), weight().bfloat16(), F32),
    ],
    "linear_int4pack": lambda: product(
        torch.randn(ROWS, INPUTS), *ops.Q4Matrix(*q4_codes(WHOLE_TILES)).weights, outputs=WHOLE_TILES
    ),
    "linear_int8pack": lambda: product(torch.randn(ROWS, INPUTS), *ops.Q8Matrix(*q8_codes()).weights),
    "linear_q4": lambda: product(whole_codes(), *ops.PackedQ4Matrix.pack(*q4_codes()).weights),
    "linear_q8": lambda: product(whole_codes(), *ops.PackedQ8Matrix.pack(*q8_codes()).weights),
    "lookup": lambda: [(torch.tensor([5, 9, 40]), torch.tensor([2, 0, 2]))],
    "paged_attention": lambda: [
        (*attention(1), PAGE_SIZE),
        (*attention(), PAGE_SIZE),
        (*in_half(attention(), 1), PAGE_SIZE),
        with_context(),
    ],
    "plan_rows": lambda: [plan_rows()],
    "put_drafts": lambda: [(*drafts_of_a_pool(), ints(2), torch.randn(2, 8))],
    "rms_norm": lambda: [(torch.randn(ROWS, INPUTS), torch.randn(INPUTS), 1e-5, F32)],
    "rope_and_store": lambda: [rope(), in_half(rope(), 3)],
    "rope_and_store_apart": lambda: [rope_apart(), rope_apart(torch.float16)],
    "rope_rows": lambda: [(torch.randn(20, 16), torch.tensor([3, 0, 19]))],
    "score_exactly": lambda: [
        (torch.randn(ROWS, 50), torch.tensor([[1, 4]] * ROWS), torch.randn(ROWS, 2, 8), torch.randn(ROWS, 8))
    ],
    "select_rows": lambda: [(torch.randn(5, 7), torch.tensor([4, 0, 4]))],
    "stack_columns": lambda: [([ints(ROWS), ints(ROWS)],)],
    "top_share": lambda: [(torch.randn(ROWS, 50),)],
    "verify_rows": lambda: [verify_rows()],
    "whole_kv_index": lambda: [(*attention(width)[2:], PAGE_SIZE, 2, 64) for width in (1, 3)],
    "widen": lambda: [(torch.randn(ROWS, 5).bfloat16(),), (torch.randn(ROWS, 5),)],
}

#: Arguments that a native form leaves to the definition: other dtypes, and memory that is not in rows.
UNCOVERED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "argmax": lambda: (torch.randn(50, ROWS).T,),
    "top_share": lambda: (torch.randn(50, ROWS).T,),
    "concat_rows": lambda: (torch.randn(ROWS, 5).bfloat16(), torch.randn(ROWS, 9).bfloat16()),
    "embed_dense": lambda: (weight(), ints(3, 4).T),
    "gated_silu": lambda: (torch.randn(ROWS, 24).bfloat16(),),
    "linear_dense": lambda: (torch.randn(ROWS, INPUTS), weight().bfloat16(), BF16, *sums()),
    "linear_q4": lambda: (whole_codes().T.contiguous().T, *SAMPLES["linear_q4"]()[0][1:]),
    "rms_norm": lambda: (torch.randn(ROWS, INPUTS), torch.randn(INPUTS), 1e-5, BF16),
    "rope_and_store": lambda: rope(BF16),
    "lookup": lambda: (torch.arange(12)[::3], torch.tensor([2, 0])),
    "select_rows": lambda: (torch.randn(7, 5).T, torch.tensor([4, 0])),
}

#: Shapes that disagree, by op: which argument, and what it is instead. Reading on would leave the memory given.
DISAGREEING: list[tuple[str, int, Callable[[Any], Any]]] = [
    ("accept_and_commit", 3, lambda bonus_M: bonus_M[:1].clone()),
    ("accept_and_commit", 4, lambda slots_C: torch.tensor([0, 1, 2])),
    ("draft_inputs", 4, lambda hidden_BH: hidden_BH[:, :4].clone()),
    ("embed_q8", 1, lambda num_out: num_out + 16),
    ("extend_inputs", 2, lambda hidden_RH: hidden_RH[:5].clone()),
    ("extend_inputs", 5, lambda last_B: last_B[:1].clone()),
    ("linear_dense", 0, lambda x: x[:, 1:].contiguous()),
    ("linear_q4", 0, lambda x: x[:, :32].contiguous()),
    ("linear_q4", 2, lambda num_out: num_out + 16),
    ("linear_q8", 2, lambda num_out: num_out + 16),
    ("paged_attention", 3, lambda positions_R: positions_R[:1].clone()),
    ("plan_rows", 1, lambda slots_B: torch.tensor([0, 1, 2])),
    ("plan_rows", 6, lambda kv_slots_R: kv_slots_R[:2].clone()),
    ("put_drafts", 3, lambda candidate_C: candidate_C[:1].clone()),
    ("rope_and_store", 1, lambda factors: factors[:2].clone()),
    ("verify_rows", 6, lambda ids_R: ids_R[:2].clone()),
    ("verify_rows", 7, lambda positions_R: positions_R[:3].clone()),
]


def disagreeing(name: str, index: int, change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return a sample with one argument changed."""
    args = list(SAMPLES[name]()[0])
    args[index] = change(args[index])
    return tuple(args)

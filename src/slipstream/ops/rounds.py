"""The small integer work between a round's graphs. One definition in plain tensor code, for every device.

M  rows of the round state's pool    S  drafts a round    otherwise as in `slipstream.ops`
"""

from __future__ import annotations

import torch

from slipstream.native.node import Kernel, Node
from slipstream.ops.registry import Native, Written, native_op, node

#: None of this is worth waking other threads for.
_THREADS = 1


def slots_of(pages_BP: torch.Tensor, positions_BW: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return the KV slots of positions, int64 [B, W].

    Args:
        pages_BP: int64 page numbers of each request.
        positions_BW: int64 positions.
        page_size: slots a page.
    """
    pages = pages_BP.gather(1, positions_BW // page_size)
    return pages * page_size + positions_BW % page_size


@native_op
def plan_rows(
    native: Native,
    lengths_M: torch.Tensor,
    slots_B: torch.Tensor,
    pages_BP: torch.Tensor,
    page_size: int,
    offset: int,
    positions_R: Written,
    kv_slots_R: Written,
) -> None:
    """Write the positions of each request's rows, and the KV slots behind them.

    Args:
        lengths_M: int64, committed tokens of each pool row.
        slots_B: int64, the batch's pool rows.
        pages_BP: int64, the requests' pages.
        page_size: slots a page.
        offset: first position behind the committed tokens.
        positions_R, kv_slots_R: int64 [B x width], written.
    """
    tensors = (lengths_M, slots_B, pages_BP, positions_R, kv_slots_R)
    if _plan_fits(*tensors) and native.reads(torch.int64, *tensors):
        return native.fill(None, _plan_node(tensors, page_size, offset), threads=_THREADS)
    num_requests = slots_B.shape[0]
    width = positions_R.shape[0] // num_requests
    first_B1 = lengths_M.index_select(0, slots_B).unsqueeze(1) + offset
    positions_BW = first_B1 + torch.arange(width, device=lengths_M.device)
    positions_R.copy_(positions_BW.view(-1))
    kv_slots_R.copy_(slots_of(pages_BP, positions_BW, page_size).view(-1))
    return None


def _plan_fits(
    lengths_M: torch.Tensor,
    slots_B: torch.Tensor,
    pages_BP: torch.Tensor,
    positions_R: torch.Tensor,
    kv_slots_R: torch.Tensor,
) -> bool:
    """Return whether the shapes agree; where they do not, the definition says what is wrong."""
    requests, rows = len(slots_B), len(positions_R)
    return len(pages_BP) == requests and len(kv_slots_R) == rows and requests > 0 and rows % requests == 0


def _plan_node(tensors: tuple[torch.Tensor, ...], page_size: int, offset: int) -> Node:
    """Return the node of `plan_rows`: lengths, slots and pages, read, then positions and KV slots, written."""
    lengths_M, _, pages_BP, positions_R, _ = tensors
    num_requests, num_pages = pages_BP.shape
    width = positions_R.shape[0] // num_requests
    sizes = (num_requests, width, num_pages, page_size, offset, lengths_M.shape[0])
    return node(Kernel.PLAN_ROWS, tensors, sizes)


@native_op
def verify_rows(
    native: Native,
    lengths_M: torch.Tensor,
    bonus_M: torch.Tensor,
    slots_B: torch.Tensor,
    pages_BP: torch.Tensor,
    page_size: int,
    drafts_BS: torch.Tensor,
    ids_R: Written,
    positions_R: Written,
    kv_slots_R: Written,
) -> None:
    """Write what verify reads: `plan_rows`, and the tokens: each request's bonus token and its drafts.

    Args:
        lengths_M, slots_B, pages_BP, page_size, positions_R, kv_slots_R: as for `plan_rows`.
        bonus_M: int64, the newest token of each pool row.
        drafts_BS: int64 drafts, -1 for none; S may be 0.
        ids_R: int64 [B x (S + 1)], written. A missing draft still has a row, which holds token 0.
    """
    tensors = (lengths_M, slots_B, pages_BP, positions_R, kv_slots_R)
    requests, num_steps = drafts_BS.shape
    rows = requests * (num_steps + 1)
    fits = _plan_fits(*tensors) and len(slots_B) == requests and len(ids_R) == len(positions_R) == rows
    if fits and native.reads(torch.int64, *tensors, bonus_M, drafts_BS, ids_R):
        planned = _plan_node(tensors, page_size, 0)
        sizes = (*drafts_BS.shape, bonus_M.shape[0])
        ids = node(Kernel.VERIFY_IDS, (bonus_M, slots_B, drafts_BS, ids_R), sizes)
        return native.fill(None, planned, ids, threads=_THREADS)
    plan_rows.definition(lengths_M, slots_B, pages_BP, page_size, 0, positions_R, kv_slots_R)
    bonus_B1 = bonus_M.index_select(0, slots_B).unsqueeze(1)
    ids_R.copy_(torch.cat((bonus_B1, drafts_BS.clamp_min(0)), dim=1).view(-1))
    return None


@native_op
def accept_and_commit(
    native: Native,
    candidates_BS: torch.Tensor,
    target_BW: torch.Tensor,
    lengths_M: torch.Tensor,
    bonus_M: torch.Tensor,
    slots_C: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return how far each request goes, its new bonus token, and the pool's new lengths and bonus tokens.

    The longest run of candidates that equal the target's own choices holds; the target's next choice is the bonus.
    Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, at temperature 0.

    Args:
        candidates_BS: int64, -1 for no draft; S may be 0.
        target_BW: int64, the target's choices behind the bonus token and each draft; W = S + 1.
        lengths_M, bonus_M: int64, the pool's; not overwritten.
        slots_C: int64, pool rows of the first C requests, the real ones; C is at most B.

    Returns:
        int64 advanced [B], bonus [B], lengths [M], bonus tokens [M].
    """
    num_requests, num_steps = candidates_BS.shape
    fits = target_BW.shape == (num_requests, num_steps + 1) and len(slots_C) <= num_requests
    fits = fits and lengths_M.shape == bonus_M.shape
    if fits and native.reads(torch.int64, candidates_BS, target_BW, lengths_M, bonus_M, slots_C):
        advanced_B, bonus_B = slots_C.new_empty(num_requests), slots_C.new_empty(num_requests)
        lengths, bonus = torch.empty_like(lengths_M), torch.empty_like(bonus_M)
        accepting = (candidates_BS, target_BW, advanced_B, bonus_B)
        committing = (lengths_M, bonus_M, slots_C, advanced_B, bonus_B, lengths, bonus)
        return native.fill(
            (advanced_B, bonus_B, lengths, bonus),
            node(Kernel.ACCEPT_COUNTS, accepting, (num_requests, num_steps)),
            node(Kernel.COMMIT, committing, (lengths_M.shape[0], slots_C.shape[0])),
            threads=_THREADS,
        )
    held_BS = (candidates_BS == target_BW[:, :-1]).long().cumprod(1)
    accepted_B = held_BS.sum(1)
    advanced_B, bonus_B = accepted_B + 1, target_BW.gather(1, accepted_B.unsqueeze(1)).squeeze(1)
    count = slots_C.shape[0]
    lengths = lengths_M.index_add(0, slots_C, advanced_B[:count])
    return advanced_B, bonus_B, lengths, bonus_M.index_copy(0, slots_C, bonus_B[:count])

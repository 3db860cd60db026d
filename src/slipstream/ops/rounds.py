"""The small integer work between a round's graphs. One definition in plain tensor code, for every device.

M  rows of the round state's pool    S  drafts a round    otherwise as in `slipstream.ops`
"""

from __future__ import annotations

import torch

from slipstream.device.tape import Lowered
from slipstream.native.node import Kernel, make_node
from slipstream.ops.registry import small_op


@small_op
def plan_rows(
    lengths_M: torch.Tensor,
    slots_B: torch.Tensor,
    pages_BP: torch.Tensor,
    page_size: int,
    offset: int,
    positions_R: torch.Tensor,
    kv_slots_R: torch.Tensor,
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
    num_requests = slots_B.shape[0]
    width = positions_R.shape[0] // num_requests
    first_B1 = lengths_M.index_select(0, slots_B).unsqueeze(1) + offset
    positions_BW = first_B1 + torch.arange(width, device=lengths_M.device)
    pages_BW = pages_BP.gather(1, positions_BW // page_size)
    positions_R.copy_(positions_BW.view(-1))
    kv_slots_R.copy_((pages_BW * page_size + positions_BW % page_size).view(-1))


@plan_rows.native
def _plan_rows(
    lengths_M: torch.Tensor,
    slots_B: torch.Tensor,
    pages_BP: torch.Tensor,
    page_size: int,
    offset: int,
    positions_R: torch.Tensor,
    kv_slots_R: torch.Tensor,
) -> Lowered | None:
    num_requests, num_pages = pages_BP.shape
    width = positions_R.shape[0] // num_requests
    tensors = (lengths_M, slots_B, pages_BP, positions_R, kv_slots_R)
    sizes = (num_requests, width, num_pages, page_size, offset, lengths_M.shape[0])
    return Lowered(None, [make_node(Kernel.PLAN_ROWS, [t.data_ptr() for t in tensors], sizes)])


@small_op
def verify_ids(
    bonus_M: torch.Tensor, slots_B: torch.Tensor, drafts_BS: torch.Tensor, ids_R: torch.Tensor
) -> None:
    """Write the tokens that verify reads: each request's bonus token and its drafts.

    Args:
        bonus_M: int64, the newest token of each pool row.
        slots_B: int64, the batch's pool rows.
        drafts_BS: int64 drafts, -1 for none; S may be 0.
        ids_R: int64 [B x (S + 1)], written. A missing draft still has a row, which holds token 0.
    """
    bonus_B1 = bonus_M.index_select(0, slots_B).unsqueeze(1)
    ids_R.copy_(torch.cat((bonus_B1, drafts_BS.clamp_min(0)), dim=1).view(-1))


@verify_ids.native
def _verify_ids(
    bonus_M: torch.Tensor, slots_B: torch.Tensor, drafts_BS: torch.Tensor, ids_R: torch.Tensor
) -> Lowered | None:
    if not drafts_BS.is_contiguous():
        return None
    tensors = (bonus_M, slots_B, drafts_BS, ids_R)
    sizes = (*drafts_BS.shape, bonus_M.shape[0])
    return Lowered(None, [make_node(Kernel.VERIFY_IDS, [t.data_ptr() for t in tensors], sizes)])


@small_op
def accept_counts(candidates_BS: torch.Tensor, target_BW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far each request goes, int64 [B], and its new bonus token, int64 [B].

    The longest run of candidates that equal the target's own choices holds; the target's next choice is the bonus.
    Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, at temperature 0.

    Args:
        candidates_BS: int64, -1 for no draft; S may be 0.
        target_BW: int64, the target's choices behind the bonus token and each draft; W = S + 1.
    """
    held_BS = (candidates_BS == target_BW[:, :-1]).long().cumprod(1)
    accepted_B = held_BS.sum(1)
    return accepted_B + 1, target_BW.gather(1, accepted_B.unsqueeze(1)).squeeze(1)


@accept_counts.native
def _accept_counts(candidates_BS: torch.Tensor, target_BW: torch.Tensor) -> Lowered | None:
    if not candidates_BS.is_contiguous() or not target_BW.is_contiguous():
        return None
    num_requests = target_BW.shape[0]
    advanced_B = torch.empty(num_requests, dtype=torch.int64)
    bonus_B = torch.empty(num_requests, dtype=torch.int64)
    tensors = (candidates_BS, target_BW, advanced_B, bonus_B)
    node = make_node(Kernel.ACCEPT_COUNTS, [t.data_ptr() for t in tensors], tuple(candidates_BS.shape))
    return Lowered((advanced_B, bonus_B), [node])


@small_op
def commit(
    lengths_M: torch.Tensor,
    bonus_M: torch.Tensor,
    slots_B: torch.Tensor,
    advanced_B: torch.Tensor,
    chosen_B: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return new lengths and bonus tokens of the pool, int64 [M] each.

    Args:
        lengths_M, bonus_M: int64, the pool's; not overwritten.
        slots_B: int64, pool rows of the real requests.
        advanced_B, chosen_B: int64, at least B: tokens advanced, and the new bonus token.
    """
    count = slots_B.shape[0]
    lengths = lengths_M.index_add(0, slots_B, advanced_B[:count])
    return lengths, bonus_M.index_copy(0, slots_B, chosen_B[:count])


@commit.native
def _commit(
    lengths_M: torch.Tensor,
    bonus_M: torch.Tensor,
    slots_B: torch.Tensor,
    advanced_B: torch.Tensor,
    chosen_B: torch.Tensor,
) -> Lowered | None:
    lengths, bonus = torch.empty_like(lengths_M), torch.empty_like(bonus_M)
    tensors = (lengths_M, bonus_M, slots_B, advanced_B, chosen_B, lengths, bonus)
    sizes = (lengths_M.shape[0], slots_B.shape[0])
    return Lowered((lengths, bonus), [make_node(Kernel.COMMIT, [t.data_ptr() for t in tensors], sizes)])

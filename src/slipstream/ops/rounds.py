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


@native_op
def draft_inputs(
    native: Native,
    candidate_M: torch.Tensor,
    hidden_MH: torch.Tensor,
    slots_B: torch.Tensor,
    ids_B: Written,
    hidden_BH: Written,
) -> None:
    """Write what the head's first forward reads: each request's candidate, and the hidden row that made it.

    Args:
        candidate_M, hidden_MH: int64 and float32, the pool's.
        slots_B: int64, the batch's pool rows.
        ids_B, hidden_BH: int64 and float32, written.
    """
    fits = len(slots_B) == len(ids_B) == len(hidden_BH) and hidden_MH.shape[1:] == hidden_BH.shape[1:]
    fits = fits and len(candidate_M) == len(hidden_MH)
    if (
        fits
        and native.reads(torch.int64, candidate_M, slots_B, ids_B)
        and _floats(native, hidden_MH, hidden_BH)
    ):
        ids = node(Kernel.GATHER, (candidate_M, slots_B, ids_B), (len(slots_B), 8, len(candidate_M)))
        hidden = node(
            Kernel.GATHER,
            (hidden_MH, slots_B, hidden_BH),
            (len(slots_B), _row_bytes(hidden_MH), len(hidden_MH)),
        )
        return native.fill(None, ids, hidden, threads=_THREADS)
    ids_B.copy_(candidate_M.index_select(0, slots_B))
    hidden_BH.copy_(hidden_MH.index_select(0, slots_B))
    return None


@native_op
def extend_inputs(
    native: Native,
    tokens_BW: torch.Tensor,
    advanced_B: torch.Tensor,
    hidden_RH: torch.Tensor,
    ids_R: Written,
    rows_RH: Written,
    last_B: Written,
) -> None:
    """Write what extend reads: the target's tokens and hidden rows, and each request's last row advanced to.

    Args:
        tokens_BW: int64, the target's choices.
        advanced_B: int64, 1 to W.
        hidden_RH: float32 [B x W, H], the target's.
        ids_R, rows_RH: int64 [B x W] and float32 [B x W, H], written.
        last_B: int64 row numbers, written.
    """
    requests, width = tokens_BW.shape
    rows = requests * width
    fits = len(hidden_RH) == len(ids_R) == len(rows_RH) == rows and len(advanced_B) == len(last_B) == requests
    fits = fits and hidden_RH.shape[1:] == rows_RH.shape[1:]
    ints = (tokens_BW, advanced_B, ids_R, last_B)
    if fits and native.reads(torch.int64, *ints) and _floats(native, hidden_RH, rows_RH):
        return native.fill(
            None,
            node(Kernel.COPY, (tokens_BW, ids_R), (1, rows * 8, 0, 0)),
            node(Kernel.COPY, (hidden_RH, rows_RH), (1, rows * _row_bytes(hidden_RH), 0, 0)),
            node(Kernel.LAST_ROWS, (advanced_B, last_B), (requests, width)),
            threads=_THREADS,
        )
    ids_R.copy_(tokens_BW.reshape(-1))
    rows_RH.copy_(hidden_RH)
    last_B.copy_(torch.arange(requests, device=advanced_B.device) * width + advanced_B - 1)
    return None


@native_op
def put_drafts(
    native: Native,
    candidate_M: torch.Tensor,
    hidden_MH: torch.Tensor,
    slots_C: torch.Tensor,
    candidate_C: torch.Tensor,
    hidden_CH: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pool's candidates and hidden rows with those of some requests put in.

    Args:
        candidate_M, hidden_MH: int64 and float32, the pool's; not overwritten.
        slots_C: int64, pool rows.
        candidate_C, hidden_CH: int64 and float32, what they become.
    """
    fits = len(slots_C) == len(candidate_C) == len(hidden_CH) and hidden_MH.shape[1:] == hidden_CH.shape[1:]
    ints = (candidate_M, slots_C, candidate_C)
    if fits and native.reads(torch.int64, *ints) and _floats(native, hidden_MH, hidden_CH):
        candidates, hidden = torch.empty_like(candidate_M), torch.empty_like(hidden_MH)
        count = len(slots_C)
        return native.fill(
            (candidates, hidden),
            node(
                Kernel.PUT_ROWS, (candidate_M, slots_C, candidate_C, candidates), (len(candidate_M), 8, count)
            ),
            node(
                Kernel.PUT_ROWS,
                (hidden_MH, slots_C, hidden_CH, hidden),
                (len(hidden_MH), _row_bytes(hidden_MH), count),
            ),
            threads=_THREADS,
        )
    return candidate_M.index_copy(0, slots_C, candidate_C), hidden_MH.index_copy(0, slots_C, hidden_CH)


def _floats(native: Native, *matrices: torch.Tensor) -> bool:
    """Return whether native kernels can read these float32 matrices."""
    return all(matrix.dim() == 2 for matrix in matrices) and native.reads(torch.float32, *matrices)


def _row_bytes(matrix: torch.Tensor) -> int:
    return matrix.shape[1] * matrix.element_size()

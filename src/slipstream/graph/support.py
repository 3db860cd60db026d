"""Which mode an attention backend can give: vLLM's rules, every step down with its reason. Pure: no torch."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.errors import UnknownNameError, UsageError
from slipstream.graph.change import Change
from slipstream.graph.modes import AttentionSupport, GraphMode

#: What Ascend's attention backends can have in a captured graph.
ASCEND_SUPPORT = {
    "attention_v1": AttentionSupport.ALWAYS,
    "attention_cp": AttentionSupport.ALWAYS,
    "mla_v1": AttentionSupport.UNIFORM_BATCH,
    "mla_cp": AttentionSupport.UNIFORM_BATCH,
    "sfa": AttentionSupport.UNIFORM_BATCH,
    "dsa": AttentionSupport.UNIFORM_BATCH,
    "dsa_cp": AttentionSupport.UNIFORM_BATCH,
    "indexer": AttentionSupport.UNIFORM_BATCH,
    "gdn": AttentionSupport.UNIFORM_BATCH,
    "msa_m3": AttentionSupport.UNIFORM_BATCH,
}


def attention_support(names: Iterable[str]) -> AttentionSupport:
    """Return what a model can have: the least of its backends.

    Args:
        names: levels, as "uniform_batch", or Ascend's backends, as "mla_v1".

    Raises:
        UnknownNameError: neither.
    """
    levels = {level.name.lower(): level for level in AttentionSupport}
    known = {**levels, **ASCEND_SUPPORT}
    found = []
    for name in names:
        if name.lower() not in known:
            raise UnknownNameError("attention backend or level", name, known)
        found.append(known[name.lower()])
    return min(found, key=lambda level: level.value, default=AttentionSupport.ALWAYS)


def resolve_mode(
    mode: GraphMode,
    support: AttentionSupport,
    splitting_possible: bool,
    width: int,
    *,
    fallback: bool = True,
) -> tuple[GraphMode, tuple[Change, ...]]:
    """Return the mode that can be given, and why it is not the one that was asked for.

    Args:
        mode: what was asked.
        support: the least that the model's attention backends can do.
        splitting_possible: whether the model can be split at attention, which pieces need.
        width: rows a request of a uniform decode batch.
        fallback: whether a lesser mode will do.

    Raises:
        UsageError: no mode with whole mixed batches can be had at all, or another one than asked is forbidden.
    """
    changes: list[Change] = []
    got = mode

    def step(to: GraphMode, rule: str, why: str) -> None:
        nonlocal got
        if not fallback:
            raise UsageError(
                f"mode {mode.value} is not possible: {why}. Take {to.value}, or allow falling back."
            )
        changes.append(Change("mode", got.value, to.value, why, rule))
        got = to

    level = support.name
    if got.mixed is GraphMode.FULL and support is not AttentionSupport.ALWAYS:
        if support is AttentionSupport.NEVER:
            raise UsageError(
                f"mode {mode.value} is not possible: the attention backend can never stand in a whole graph "
                f"({level}). Take piecewise or none."
            )
        why = f"attention is {level}, so mixed batches cannot be captured whole"
        lesser = GraphMode.FULL_AND_PIECEWISE if splitting_possible else GraphMode.FULL_DECODE_ONLY
        step(lesser, "mixed-support", why)
    if got.has_piecewise and not splitting_possible:
        why = "the model cannot be split at attention, which pieces need"
        step(GraphMode.FULL_DECODE_ONLY if got.has_full else GraphMode.NONE, "no-splitting", why)
    if got.decode is GraphMode.FULL:
        pieces = GraphMode.PIECEWISE if splitting_possible else GraphMode.NONE
        if support is AttentionSupport.NEVER:
            step(pieces, "decode-support", f"attention is {level}, so decode cannot be captured whole")
        elif width > 1 and support.value < AttentionSupport.UNIFORM_BATCH.value:
            why = f"attention is {level}, so decode with {width} rows a request cannot be captured whole"
            step(pieces, "decode-width", why)
    return got, tuple(changes)


def check_state_blocks(mode: GraphMode, max_requests: int, blocks: int | None) -> None:
    """Hold whole graphs of a model with a recurrent state against its cache: every request needs a block.

    Args:
        mode: what is captured.
        max_requests: requests that decode together.
        blocks: of the state cache; None for a model without one.

    Raises:
        UsageError: there are too few.
    """
    if blocks is not None and mode.has_full and max_requests > blocks:
        raise UsageError(
            f"whole graphs of {max_requests} requests need as many state blocks, and the cache has {blocks}; set "
            f"max-requests to {blocks} or give the cache more memory."
        )

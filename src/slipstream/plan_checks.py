"""What is possible anywhere, whatever the model and the device. Pure: no torch."""

from __future__ import annotations

import math

from slipstream.config import (
    ATTENTIONS,
    DEVICES,
    DRAFTERS,
    DTYPES,
    GRAPH_MODES,
    KERNELS,
    KV_DTYPES,
    MAX_NUM_STEPS,
    SWITCHES,
    TASK_ORDERS,
    EngineConfig,
    SamplingParams,
)
from slipstream.errors import UnknownNameError, UsageError
from slipstream.graph.buckets import MAX_BUCKET, check_buckets

#: `ops.kv_index` gathers contexts in steps of 64 slots, so a page has to divide 64.
_PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64)

#: What npu_fused_infer_attention_score reads for more than one row a request, as a prefill has.
_FIA_PAGE_SIZES = (128, 256, 384, 512)

#: PyTorch does not refuse more threads than it can start: it crashes.
_MAX_THREADS = 512

#: Together with a request's number, a seed has to stay within 64 bits (`engine.sampling`).
_MAX_SEED = 2**32 - 1


def check_config(config: EngineConfig) -> None:
    """Check names and numbers against what is possible anywhere.

    Raises:
        UsageError: one of them is not.
    """
    for kind, name, known in (
        ("drafter", config.spec.draft, DRAFTERS),
        ("dtype", config.dtype, DTYPES),
        ("kv-dtype", config.kv_dtype, KV_DTYPES),
        ("device", config.device, DEVICES),
        ("attention", config.attention, ATTENTIONS),
        ("graph mode", config.graph.mode, GRAPH_MODES),
        ("task order", config.graph.task_order, TASK_ORDERS),
        ("extend-graph setting", config.graph.extend, SWITCHES),
        ("kernels", config.kernels, KERNELS),
    ):
        if name not in known:
            raise UnknownNameError(kind, name, known)
    if not 1 <= config.spec.num_steps <= MAX_NUM_STEPS:
        raise UsageError(
            f"num-steps {config.spec.num_steps} is not possible: a round drafts 1 to {MAX_NUM_STEPS} tokens. "
            "For plain decoding use --draft none."
        )
    page_sizes = _FIA_PAGE_SIZES if config.attention == "fia" else _PAGE_SIZES
    if config.page_size not in page_sizes:
        why = " with attention fia" if config.attention == "fia" else ""
        raise UsageError(
            f"page-size {config.page_size} is not possible{why}; use one of {','.join(map(str, page_sizes))}."
        )
    for what, value, least, most in (
        ("max-requests", config.max_requests, 1, MAX_BUCKET),
        ("max-model-len", config.max_model_len, 1, None),
        ("num-pages", config.num_pages, 1, None),
        ("memory-mb", config.memory_mb, 1, None),
        ("prefill-chunk", config.prefill_chunk, 1, None),
        ("threads", config.threads, 1, _MAX_THREADS),
        ("seed", config.seed, 0, _MAX_SEED),
    ):
        if value is not None and (value < least or (most is not None and value > most)):
            limit = f"at least {least}" if most is None else f"{least} to {most}"
            raise UsageError(f"{what} {value} is not possible; it is {limit}.")
    if config.num_pages is not None and config.memory_mb is not None:
        raise UsageError(
            f"num-pages {config.num_pages} and memory-mb {config.memory_mb} both say how many KV pages there are; "
            "give one of them."
        )
    if config.spec.head is not None and config.spec.draft not in ("nextn", "auto"):
        raise UsageError(
            f"a head is given, but the drafter is {config.spec.draft!r}; use --draft nextn or --draft auto."
        )
    check_buckets(config.graph.buckets)
    sizes = config.graph.mixed_sizes
    if sizes is not None and (not sizes or min(sizes) < 1 or max(sizes) > config.prefill_chunk):
        raise UsageError(
            f"mixed-sizes {','.join(map(str, sizes)) or 'none'} are not possible: a chunk of a prompt has 1 to "
            f"{config.prefill_chunk} rows (--prefill-chunk). Leave them out for eighths of that."
        )


def check_sampling(sampling: SamplingParams) -> None:
    """Check one request's parameters.

    Raises:
        UsageError: a value is not possible.
    """
    if sampling.max_tokens < 1:
        raise UsageError(f"max-tokens {sampling.max_tokens} is not possible; it is at least 1.")
    if not 0 <= sampling.temperature < math.inf:
        raise UsageError(f"temperature {sampling.temperature} is not possible; 0 is greedy, above 0 samples.")
    if not 0 < sampling.top_p <= 1:
        raise UsageError(f"top-p {sampling.top_p} is not possible; it is above 0 and at most 1.")
    if sampling.top_k < 0:
        raise UsageError(f"top-k {sampling.top_k} is not possible; 0 keeps all tokens.")
    if "" in sampling.stop:
        raise UsageError("an empty stop string would end every answer at once; leave it out.")

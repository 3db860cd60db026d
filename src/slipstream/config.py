"""What the user asked for. No torch, no checks against a model or device: `plan.resolve` does those.

    config = EngineConfig(spec=SpecConfig(draft="ngram", num_steps=3))

A field left at None means "decide for me"; what was decided, and why, is a `Decision` of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DRAFTERS = ("none", "ngram", "nextn", "auto")
DTYPES = ("auto", "f32", "bf16", "q4")
DEVICES = ("cpu", "cuda", "npu")
ATTENTIONS = ("auto", "paged", "fia")
TASK_ORDERS = ("replay_first", "update_first")
GRAPH_MODES = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")
SWITCHES = ("auto", "on", "off")
KERNELS = ("auto", "native", "torch")
KV_DTYPES = ("auto", "f32", "f16")

#: Captured request slots by default; the widths come from the phases.
DEFAULT_BUCKETS = (1, 2, 4, 8)

#: Draft tokens beyond this are absurd: the chance that all of them hold is nil, the rows are not.
MAX_NUM_STEPS = 16


@dataclass(frozen=True, slots=True)
class SpecConfig:
    """Speculation.

    Attributes:
        draft: who proposes: "none" (plain decoding), "ngram" (prompt lookup), "nextn" (EAGLE/NextN head), or
            "auto": round by round the head, ngram or nobody, and how many tokens, as pays.
        num_steps: candidate tokens a round, 1 to 16; with "auto" at most so many. A round verifies num_steps + 1
            rows a request.
        head: safetensors file with the NextN head's weights; None takes the one that ships for the model. Where
            none does, "nextn" makes a random one from `seed`, and "auto" does without.
    """

    draft: str = "auto"
    num_steps: int = 3
    head: str | None = None


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """Static graphs.

    Attributes:
        mode: what is captured: "full" draft, verify and extend, each as a whole; "piecewise" the pieces between
            their attention, and those of prompts' chunks; "full_and_piecewise" rounds whole and chunks in pieces;
            "full_decode_only" rounds only; "none" runs everything eagerly.
        buckets: captured request slots, ascending.
        mixed_sizes: captured rows of prompts' chunks, ascending; None takes eighths of `prefill_chunk`.
        extend: whether the extend phase has graphs: "on", "off", or "auto" where they save time.
        check: poison stale and padded rows, and compare static addresses at every replay.
        task_order: what is issued first at a replay of a graph with tasks: "replay_first", or "update_first" (for
            Ascend's ENPU).
        fallback: whether a lesser mode will do where attention cannot give this one.
    """

    mode: str = "full"
    buckets: tuple[int, ...] = DEFAULT_BUCKETS
    check: bool = False
    mixed_sizes: tuple[int, ...] | None = None
    extend: str = "auto"
    task_order: str = "replay_first"
    fallback: bool = True


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that an engine can be asked for.

    Attributes:
        dtype: weights and their products: "f32", "bf16", "q4" (4-bit blocks), or "auto" by the file.
        device: the backend's name.
        attention: "paged" (reads lengths on the device), "fia" (npu only: npu_fused_infer_attention_score, which
            takes them from the host; its graphs have tasks), or "auto".
        kv_dtype: keys and values: "f32", "f16" (half the memory; keys and values are rounded to 11 bits), or
            "auto".
        kernels: "native" (this package's C kernels, cpu only), "torch", or "auto".
        max_requests: requests that decode together.
        max_model_len: tokens of prompt and answer together, a request; None takes the model's context, at
            most 4096.
        page_size: tokens a KV page.
        num_pages: KV pages; None makes room for max_requests requests of max_model_len tokens.
        memory_mb: what keys, values and graphs may take together, in 10^6 bytes; the pages are what the graphs,
            measured, leave. None bounds nothing.
        prefill_chunk: prompt tokens a prefill step computes.
        threads: CPU threads; None takes the cores this process may use.
        seed: seeds sampling and random weights.
    """

    spec: SpecConfig = field(default_factory=SpecConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    dtype: str = "auto"
    device: str = "cpu"
    attention: str = "auto"
    kv_dtype: str = "auto"
    kernels: str = "auto"
    max_requests: int = 8
    max_model_len: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    memory_mb: int | None = None
    prefill_chunk: int = 256
    threads: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends.

    Attributes:
        max_tokens: tokens to generate at most.
        temperature: 0 is greedy; above 0 samples, with plain decoding.
        top_k: keep the k likeliest tokens, 0 keeps all.
        top_p: keep the likeliest tokens that together reach this probability.
        stop: the answer ends before the first of these strings.
        stop_token_ids: the answer ends at these tokens too; they give no text.
        ignore_eos: go on after an end-of-text token (for benchmarks).
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

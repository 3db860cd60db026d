"""From what was asked to what is done: `resolve(config, caps, shape) -> EnginePlan`. Pure: no torch.

Whatever differs from what the user asked, or was left to us, is a `Decision` with its reason. `slipstream plan`
prints them; nothing is changed later without one.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.config import EngineConfig, SamplingParams
from slipstream.device.caps import Caps
from slipstream.errors import UsageError
from slipstream.graph.buckets import check_buckets
from slipstream.graph.modes import AttentionSupport, GraphMode
from slipstream.graph.support import resolve_mode
from slipstream.kv.pages import pages_for
from slipstream.plan_checks import check_config

#: The default context is bounded, because pages are reserved for every request that may run.
_DEFAULT_MODEL_LEN = 4096

#: What each attention can have in a captured graph, and whether pieces can be cut at it.
_GRAPH_SUPPORT = {"paged": (AttentionSupport.ALWAYS, True), "fia": (AttentionSupport.UNIFORM_BATCH, False)}

_KV_BYTES = {"f32": 4, "f16": 2}


@dataclass(frozen=True, slots=True)
class Decision:
    """One setting: what was asked, what is done, and why.

    Attributes:
        what: the setting's name.
        asked: as the user wrote it, or "default".
        got: what is done.
        why: the reason, one sentence.
    """

    what: str
    asked: str
    got: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a plan needs to know of a model.

    Attributes:
        name: for messages.
        context_length: positions that the model knows.
        four_bit: whether its matrices are stored in 4-bit blocks.
        slot_values: keys and values a token, in numbers.
        head: file of the NextN head that ships for it, or None.
    """

    name: str
    context_length: int
    four_bit: bool
    slot_values: int
    head: str | None = None


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What an engine does. Same names as `EngineConfig`, all settled.

    Attributes:
        width: rows a request in verify and extend: num_steps + 1, or 1 for plain decoding.
        mixed_sizes: captured rows of prompts' chunks; none where these run eagerly.
        extend_graph: whether the extend phase has graphs: "on", "off", or "auto" where they save time.
        pages_per_request: pages of a page table's row.
        decisions: how each setting came about.
    """

    device: str
    dtype: str
    attention: str
    kv_dtype: str
    kernels: str
    threads: int
    draft: str
    head: str | None
    num_steps: int
    width: int
    graph_mode: GraphMode
    buckets: tuple[int, ...]
    mixed_sizes: tuple[int, ...]
    extend_graph: str
    check: bool
    task_order: str
    max_requests: int
    max_model_len: int
    page_size: int
    pages_per_request: int
    num_pages: int
    kv_bytes: int
    prefill_chunk: int
    seed: int
    decisions: tuple[Decision, ...]
    memory_mb: int | None = None

    @property
    def slot_bytes(self) -> int:
        """Bytes of keys and values a token."""
        return self.kv_bytes // ((self.num_pages + 1) * self.page_size)


class _Ledger:
    """Collects decisions."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    def settle(self, what: str, asked: object, got: object, why: str) -> None:
        text = "default" if asked is None else str(asked)
        self.decisions.append(Decision(what, text, str(got), why))


def resolve(
    config: EngineConfig, caps: Caps, shape: ModelShape, sampling: SamplingParams | None = None
) -> EnginePlan:
    """Settle every setting.

    Args:
        config: what was asked.
        caps: what the device can do.
        shape: the model.
        sampling: how tokens will be chosen, where that is known for all requests.

    Raises:
        UsageError: a value is not possible; says which are.
    """
    check_config(config)
    ledger = _Ledger()
    ledger.settle("device", config.device, caps.device, "as asked")
    dtype = _dtype(config, caps, shape, ledger)
    kernels = _kernels(config, caps, ledger)
    attention = _attention(config, caps, ledger)
    kv_dtype = _kv_dtype(config, dtype, kernels, attention, ledger)
    threads = config.threads or caps.default_threads
    ledger.settle(
        "threads", config.threads, threads, "as asked" if config.threads else "cores of this process"
    )
    draft, head = _draft(config, shape, sampling, ledger)
    width = 1 if draft == "none" else config.spec.num_steps + 1
    ledger.settle("num_steps", config.spec.num_steps, width - 1, f"a round verifies {width} rows a request")
    graph_mode = _graph_mode(config, attention, width, ledger)
    buckets = _buckets(config, graph_mode, ledger)
    mixed_sizes = _mixed_sizes(config, graph_mode, ledger)
    extend_graph = _extend_graph(config, graph_mode, draft, head, ledger)
    length = _model_len(config, shape, ledger)
    pages_per_request = pages_for(_round_up(length + width, 64), config.page_size)
    num_pages = config.num_pages or config.max_requests * pages_per_request
    kv_bytes = (num_pages + 1) * config.page_size * shape.slot_values * _KV_BYTES[kv_dtype]
    why = "as asked" if config.num_pages else f"{config.max_requests} requests of {length} tokens at once"
    if config.memory_mb:
        why = f"at most, where the graphs leave as much of {config.memory_mb} MB; {why}"
    ledger.settle(
        "num_pages", config.num_pages, num_pages, f"{why}; {kv_bytes / 1e6:.0f} MB when all are used"
    )
    return EnginePlan(
        device=caps.device,
        dtype=dtype,
        attention=attention,
        kv_dtype=kv_dtype,
        kernels=kernels,
        threads=threads,
        draft=draft,
        head=head,
        num_steps=width - 1,
        width=width,
        graph_mode=graph_mode,
        buckets=buckets,
        mixed_sizes=mixed_sizes,
        extend_graph=extend_graph,
        check=config.graph.check,
        task_order=config.graph.task_order,
        max_requests=config.max_requests,
        max_model_len=length,
        page_size=config.page_size,
        pages_per_request=pages_per_request,
        num_pages=num_pages,
        kv_bytes=kv_bytes,
        prefill_chunk=config.prefill_chunk,
        seed=config.seed,
        decisions=tuple(ledger.decisions),
        memory_mb=config.memory_mb,
    )


def _dtype(config: EngineConfig, caps: Caps, shape: ModelShape, ledger: _Ledger) -> str:
    if config.dtype == "auto":
        dtype = "q4" if shape.four_bit and "q4" in caps.dtypes else "f32"
        why = "the file holds 4-bit blocks" if dtype == "q4" else "the file holds no 4-bit blocks"
    else:
        dtype, why = config.dtype, "as asked"
    if dtype not in caps.dtypes:
        raise UsageError(f"device {caps.device!r} cannot compute in {dtype}; possible: {_list(caps.dtypes)}.")
    ledger.settle("dtype", config.dtype, dtype, why)
    return dtype


def _kernels(config: EngineConfig, caps: Caps, ledger: _Ledger) -> str:
    there = caps.native_isa is not None
    if config.kernels == "native" and not there:
        raise UsageError(
            "native kernels are not possible: the library was not built, or is for another machine. Install a C "
            "compiler and run `python -m slipstream.native.build`, or use --kernels torch."
        )
    if config.kernels == "auto":
        kernels = "native" if there else "torch"
        why = (
            f"built here, {caps.native_isa}" if there else "the native library was not built (no C compiler?)"
        )
    else:
        kernels, why = (
            config.kernels,
            f"as asked{f', {caps.native_isa}' if config.kernels == 'native' else ''}",
        )
    ledger.settle("kernels", config.kernels, kernels, why)
    return kernels


def _attention(config: EngineConfig, caps: Caps, ledger: _Ledger) -> str:
    attention = "paged" if config.attention == "auto" else config.attention
    if attention not in caps.attentions:
        raise UsageError(
            f"attention {attention!r} is not possible: device {caps.device!r} has {_list(caps.attentions)}. "
            "Use one of these, or --device npu."
        )
    why = (
        "as asked" if config.attention != "auto" else "lengths stay on the device, so replays need no updates"
    )
    ledger.settle("attention", config.attention, attention, why)
    return attention


def _kv_dtype(config: EngineConfig, dtype: str, kernels: str, attention: str, ledger: _Ledger) -> str:
    if attention == "fia":
        if config.kv_dtype == "f32":
            raise UsageError("kv-dtype f32 is not possible with attention fia, which reads f16.")
        kv_dtype, why = "f16", "npu_fused_infer_attention_score reads no float32"
    elif config.kv_dtype != "auto":
        kv_dtype, why = config.kv_dtype, "as asked"
    elif dtype == "q4" and kernels == "native":
        kv_dtype, why = (
            "f16",
            "beside 4-bit weights its rounding is small, and it halves what is read",
        )
    else:
        kv_dtype, why = "f32", "exact" if dtype != "q4" else "PyTorch's attention computes in float32 here"
    ledger.settle("kv_dtype", config.kv_dtype, kv_dtype, why)
    return kv_dtype


def _draft(
    config: EngineConfig, shape: ModelShape, sampling: SamplingParams | None, ledger: _Ledger
) -> tuple[str, str | None]:
    """Return the drafter and its head's file."""
    asked = config.spec.draft
    if asked != "none" and sampling is not None and sampling.temperature > 0:
        why = "temperature is above 0, and drafts are verified for greedy decoding only so far"
        ledger.settle("draft", asked, "none", why)
        return "none", None
    head = (config.spec.head or shape.head) if asked in ("nextn", "auto") else None
    why = "as asked"
    if asked == "nextn" and head is None:
        why = "no head was given, so it is random: right text, hardly any accepted draft"
    if asked == "auto":
        who = "ngram, the head or nobody drafts" if head else "ngram or nobody drafts"
        why = f"{who}, round by round, as measured times and accepted drafts say"
    ledger.settle("draft", asked, asked, why)
    if asked in ("nextn", "auto"):
        why = (
            "as asked"
            if config.spec.head
            else "ships for this model"
            if head
            else "none ships for this model"
        )
        got = head or ("random" if asked == "nextn" else "none")
        ledger.settle("head", config.spec.head, got, why)
    return asked, head


def _graph_mode(config: EngineConfig, attention: str, width: int, ledger: _Ledger) -> GraphMode:
    """Hold the mode against what attention can give: fia's lengths are tasks, so pieces cannot be cut at it."""
    asked = GraphMode(config.graph.mode)
    support, splitting = _GRAPH_SUPPORT[attention]
    # Our FULL leaves chunks of prompts eager, so no mixed batch is captured whole in it either.
    wanted = GraphMode.FULL_DECODE_ONLY if asked is GraphMode.FULL else asked
    mode, changes = resolve_mode(wanted, support, splitting, width, fallback=config.graph.fallback)
    mode = asked if mode is wanted else mode
    why = "; ".join(change.why for change in changes) or "as asked"
    if changes:
        why = f"with attention {attention}: {why}"
    ledger.settle("graph", config.graph.mode, mode.value, why)
    return mode


def _buckets(config: EngineConfig, mode: GraphMode, ledger: _Ledger) -> tuple[int, ...]:
    asked = check_buckets(config.graph.buckets)
    if mode is GraphMode.NONE:
        ledger.settle("buckets", _list(asked), "none", "graphs are off")
        return ()
    # A bucket beyond the first that holds max_requests could never be chosen.
    enough = [bucket for bucket in asked if bucket >= config.max_requests][:1]
    buckets = tuple(bucket for bucket in asked if bucket < config.max_requests) + tuple(enough)
    if buckets == asked:
        why = "as asked"
    else:
        why = f"at most {config.max_requests} requests run, so larger buckets are never used"
    if not enough:
        why += f"; {buckets[-1] + 1} to {config.max_requests} requests run eagerly"
    ledger.settle("buckets", _list(asked), _list(buckets), why)
    return buckets


def _mixed_sizes(config: EngineConfig, mode: GraphMode, ledger: _Ledger) -> tuple[int, ...]:
    """Settle which chunks of prompts are captured."""
    asked, chunk = config.graph.mixed_sizes, config.prefill_chunk
    if mode.mixed is GraphMode.PIECEWISE:
        if asked is not None:
            sizes, why = tuple(sorted(set(asked))), "as asked"
        else:
            sizes = tuple(sorted({-(-chunk * part // 8) for part in range(1, 9)}))
            why = f"eighths of the largest chunk, {chunk} rows: the padding of a chunk is below an eighth of that"
        if sizes[-1] < chunk:
            why += f"; chunks of more than {sizes[-1]} rows run eagerly"
        ledger.settle("mixed_sizes", _list(asked) if asked else None, _list(sizes), why)
        return sizes
    if asked is not None:
        why = f"{mode.value} captures no chunks of prompts; piecewise and full_and_piecewise do"
        ledger.settle("mixed_sizes", _list(asked), "none", why)
    return ()


def _extend_graph(
    config: EngineConfig, mode: GraphMode, draft: str, head: str | None, ledger: _Ledger
) -> str:
    """Settle whether the extend phase is captured; what "auto" comes to, captures measure."""
    asked = config.graph.extend
    if mode is GraphMode.NONE:
        return "off"
    if draft != "nextn" and head is None:
        return asked  # nobody extends, so there is nothing to say
    why = "as asked"
    if asked == "auto":
        why = "captured, and kept where a replay is measured to be faster than the eager phase"
    ledger.settle("extend_graph", asked, asked, why)
    return asked


def _model_len(config: EngineConfig, shape: ModelShape, ledger: _Ledger) -> int:
    asked = config.max_model_len
    if asked is None:
        length = min(shape.context_length, _DEFAULT_MODEL_LEN)
        why = f"the model knows {shape.context_length} positions; more than {_DEFAULT_MODEL_LEN} only on request"
    elif asked > shape.context_length:
        raise UsageError(
            f"max-model-len {asked} is not possible: {shape.name} knows {shape.context_length} positions."
        )
    else:
        length, why = asked, "as asked"
    ledger.settle("max_model_len", asked, length, why)
    return length


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _list(values: tuple[object, ...]) -> str:
    return ",".join(str(value) for value in values)

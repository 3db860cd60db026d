"""Ascend's check of the configuration, as data: what changes what, in its order, and why. Pure: no torch.

These are the rules of vllm-ascend's `NPUPlatform.check_and_update_config` (August 2026) that touch graphs.
`normalise` gives the settings that would really run and every rule that fired; a rule that refuses raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from slipstream.errors import UsageError
from slipstream.graph.change import Change
from slipstream.graph.modes import GraphMode
from slipstream.graph.sizes import A5_SIZES

#: Where vLLM splits a graph; the last two Ascend adds, and a missing one freezes lengths into a piece.
ATTENTION_OPS = ("vllm::unified_attention", "vllm::unified_attention_with_output")
ASCEND_SPLITTING_OPS = ("vllm::mla_forward", "vllm::dsa_forward")

_EXPANDABLE = "expandable_segments:True"

#: Seconds that Ascend thinks a step may take at least, and what it sets below that.
_LEAST_TIMEOUT, _TIMEOUT = 1836, 3000


class CompileMode(Enum):
    """vLLM's compilation modes."""

    NONE = "none"
    STOCK_TORCH_COMPILE = "stock_torch_compile"
    DYNAMO_TRACE_ONCE = "dynamo_trace_once"
    VLLM_COMPILE = "vllm_compile"


class Xlite(Enum):
    """Graphs of the xlite runtime."""

    OFF = "off"
    DECODE = "decode"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """What the check reads and changes.

    Attributes:
        device: "npu", or another, which the check leaves alone.
        graph_mode: what is captured.
        compile_mode: how the model is compiled.
        enforce_eager: nothing is captured.
        encoder_decoder: the model is one.
        speculative: tokens are drafted.
        xlite: graphs of another runtime.
        launch_blocking: ASCEND_LAUNCH_BLOCKING=1.
        sleep_mode: memory is handed back while asleep.
        alloc_conf: PYTORCH_NPU_ALLOC_CONF as the user set it, or "".
        splitting_ops: where a graph is split; None for the default.
        warmups: eager runs before a capture.
        use_inductor: compile through Inductor.
        inductor_partition: let Inductor split the graph.
        breakable_graphs: split while capturing, without compilation.
        microbatches: run two half batches beside each other (DBO).
        attention_backend: named by the user, or None.
        flash_splits: of FlashAttention in graphs.
        step_timeout: seconds a step may take.
        npugraph_ex: Ascend's own graph compiler.
        static_kernel: its kernels for fixed shapes.
        a5: the hardware is A5 (950).
        disable_padded_drafts: drafts are not padded to the batch.
        task_queue: TASK_QUEUE_ENABLE.
        prefill_context: ranks that share a prompt (PCP).
        second_runner: vLLM's Model Runner V2.
        max_sizes: sizes that may be captured; None for any number. Only rules set it.
    """

    device: str = "npu"
    graph_mode: GraphMode = GraphMode.FULL_AND_PIECEWISE
    compile_mode: CompileMode = CompileMode.VLLM_COMPILE
    enforce_eager: bool = False
    encoder_decoder: bool = False
    speculative: bool = False
    xlite: Xlite = Xlite.OFF
    launch_blocking: bool = False
    sleep_mode: bool = False
    alloc_conf: str = ""
    splitting_ops: tuple[str, ...] | None = None
    warmups: int = 1
    use_inductor: bool = False
    inductor_partition: bool = False
    breakable_graphs: bool = False
    microbatches: bool = False
    attention_backend: str | None = None
    flash_splits: int = 32
    step_timeout: int = 3000
    npugraph_ex: bool = False
    static_kernel: bool = False
    a5: bool = False
    disable_padded_drafts: bool = False
    task_queue: int = 1
    prefill_context: int = 1
    second_runner: bool = False
    max_sizes: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: short, for people and JSON.
        why: the reason, one sentence without its full stop.
        fires: whether it applies.
        then: the settings that change, by name; None for a rule that refuses.
        fix: what to do instead, of a rule that refuses.
    """

    name: str
    why: str
    fires: Callable[[PlatformSettings], bool]
    then: Callable[[PlatformSettings], dict[str, Any]] | None
    fix: str = ""


def _set(**values: Any) -> Callable[[PlatformSettings], dict[str, Any]]:
    return lambda settings: values


def _compiled(settings: PlatformSettings) -> bool:
    return settings.compile_mode is CompileMode.VLLM_COMPILE


def _captures(settings: PlatformSettings) -> bool:
    return settings.graph_mode is not GraphMode.NONE


def _whole_only(settings: PlatformSettings) -> bool:
    return settings.graph_mode in (GraphMode.FULL, GraphMode.FULL_DECODE_ONLY)


def _split(settings: PlatformSettings) -> dict[str, Any]:
    ops = settings.splitting_ops or ATTENTION_OPS
    return {"splitting_ops": (*ops, *(op for op in ASCEND_SPLITTING_OPS if op not in ops))}


def _expand(settings: PlatformSettings) -> dict[str, Any]:
    return {"alloc_conf": ",".join(part for part in (settings.alloc_conf, _EXPANDABLE) if part)}


#: In the order of the check: a later rule sees what an earlier one set.
RULES: tuple[Rule, ...] = (
    Rule(
        "draft-context",
        "prompts that several ranks share (PCP) have drafts only in Model Runner V2",
        lambda s: s.speculative and s.prefill_context > 1 and not s.second_runner,
        None,
        "turn Model Runner V2 on, or set the ranks of prefill context parallelism to 1",
    ),
    # Options of GPUs.
    Rule(
        "inductor-partition",
        "Ascend does not compile through Inductor, so Inductor cannot split the graph",
        lambda s: s.inductor_partition,
        _set(inductor_partition=False),
    ),
    Rule(
        "flash-splits",
        "the number of FlashAttention splits is a GPU's option",
        lambda s: s.flash_splits != 32,
        _set(flash_splits=32),
    ),
    Rule(
        "attention-backend",
        "Ascend chooses its own attention backend",
        lambda s: s.attention_backend is not None,
        _set(attention_backend=None),
    ),
    Rule(
        "microbatches",
        "two half batches beside each other (DBO) are not implemented",
        lambda s: s.microbatches,
        _set(microbatches=False),
    ),
    Rule(
        "breakable-graphs",
        "a graph that is broken while it is captured is not implemented",
        lambda s: s.breakable_graphs,
        _set(breakable_graphs=False),
    ),
    Rule(
        "step-timeout",
        f"communication may wait longer than a step timeout below {_LEAST_TIMEOUT} s, and would be cut off",
        lambda s: s.step_timeout < _LEAST_TIMEOUT,
        _set(step_timeout=_TIMEOUT),
    ),
    # Modes.
    Rule(
        "eager",
        "eager execution was enforced",
        lambda s: s.enforce_eager and (_captures(s) or s.compile_mode is not CompileMode.NONE),
        lambda s: {
            "compile_mode": CompileMode.NONE,
            "graph_mode": GraphMode.NONE,
            "splitting_ops": () if s.splitting_ops is None else s.splitting_ops,
        },
    ),
    Rule(
        "compile-mode",
        "Ascend compiles by VLLM_COMPILE or not at all",
        lambda s: s.compile_mode in (CompileMode.STOCK_TORCH_COMPILE, CompileMode.DYNAMO_TRACE_ONCE),
        _set(compile_mode=CompileMode.NONE),
    ),
    Rule(
        "xlite-full",
        "xlite runs every batch in graphs of its own, so ACL graphs are off",
        lambda s: s.xlite is Xlite.FULL and not s.speculative and (_captures(s) or not s.enforce_eager),
        _set(enforce_eager=True, graph_mode=GraphMode.NONE, compile_mode=CompileMode.NONE),
    ),
    Rule(
        "xlite-decode",
        "beside xlite only decode batches are captured",
        lambda s: (
            (s.xlite is Xlite.DECODE or (s.xlite is Xlite.FULL and s.speculative))
            and not s.enforce_eager
            and s.graph_mode is not GraphMode.FULL_DECODE_ONLY
        ),
        _set(graph_mode=GraphMode.FULL_DECODE_ONLY),
    ),
    Rule(
        "encoder-decoder",
        "steps that carry an encoder's output cannot be whole graphs, so an encoder-decoder model gets pieces",
        lambda s: (
            s.encoder_decoder and _compiled(s) and s.graph_mode not in (GraphMode.NONE, GraphMode.PIECEWISE)
        ),
        _set(graph_mode=GraphMode.PIECEWISE),
    ),
    Rule(
        "encoder-decoder-uncompiled",
        "an encoder-decoder model gets pieces at most, and pieces need VLLM_COMPILE",
        lambda s: (
            s.encoder_decoder
            and not _compiled(s)
            and s.graph_mode not in (GraphMode.NONE, GraphMode.PIECEWISE)
        ),
        _set(graph_mode=GraphMode.NONE),
    ),
    # The compiler.
    Rule(
        "warmups",
        "one eager run before a capture is enough, and each costs start-up time",
        lambda s: s.warmups != 1,
        _set(warmups=1),
    ),
    Rule("inductor", "Ascend has a compiler of its own", lambda s: s.use_inductor, _set(use_inductor=False)),
    Rule(
        "no-graphs",
        "without graphs nothing needs compilation",
        lambda s: (
            not _captures(s) and (s.compile_mode is not CompileMode.NONE or s.npugraph_ex or s.static_kernel)
        ),
        _set(compile_mode=CompileMode.NONE, npugraph_ex=False, static_kernel=False),
    ),
    Rule(
        "pieces-need-compilation",
        "pieces are what VLLM_COMPILE splits the model into",
        lambda s: s.graph_mode.has_piecewise and not _compiled(s),
        None,
        "set the compilation mode to vllm_compile, or take --mode none",
    ),
    Rule(
        "splitting-ops",
        "MLA and DSA attention read lengths on the host; inside a piece these would stay as captured",
        lambda s: s.graph_mode.has_piecewise and _split(s)["splitting_ops"] != s.splitting_ops,
        _split,
    ),
    Rule(
        "a5-sizes",
        f"A5 (950) captures pieces at {A5_SIZES} sizes until its driver takes more",
        lambda s: s.a5 and s.graph_mode.has_piecewise,
        _set(max_sizes=A5_SIZES),
    ),
    Rule(
        "pieces-compiler",
        "npugraph_ex makes whole graphs only",
        lambda s: s.graph_mode.has_piecewise and (s.npugraph_ex or s.static_kernel),
        _set(npugraph_ex=False, static_kernel=False),
    ),
    Rule(
        "whole-graphs",
        "a whole graph is not split",
        lambda s: _whole_only(s) and s.splitting_ops not in (None, ()),
        _set(splitting_ops=()),
    ),
    Rule(
        "not-compiled",
        "ACL graphs are captured around a model that VLLM_COMPILE compiled; without it every step is eager",
        lambda s: _whole_only(s) and not _compiled(s),
        _set(graph_mode=GraphMode.NONE),
    ),
    Rule(
        "launch-blocking",
        "ASCEND_LAUNCH_BLOCKING=1 waits for every launch, which a capture forbids",
        lambda s: s.launch_blocking and _captures(s),
        None,
        "unset ASCEND_LAUNCH_BLOCKING, or take --mode none while you look for the failing op",
    ),
    Rule(
        "task-queue",
        "TASK_QUEUE_ENABLE=2 prepares launches on another thread, where a capture does not see them",
        lambda s: s.task_queue == 2 and _captures(s),
        None,
        "set TASK_QUEUE_ENABLE=1",
    ),
    Rule(
        "pinned-segments",
        "pinned memory in expandable segments cannot grow while a graph is captured",
        lambda s: "pin_memory_expandable_segments:true" in s.alloc_conf.lower() and _captures(s),
        None,
        "take pin_memory_expandable_segments out of PYTORCH_NPU_ALLOC_CONF",
    ),
    Rule(
        "unpadded-drafts",
        "whole graphs hold a fixed number of draft rows, so drafts have to be padded to the batch",
        lambda s: s.disable_padded_drafts and s.speculative and s.graph_mode.has_full,
        None,
        "leave drafts padded, or take --mode piecewise",
    ),
    # Memory.
    Rule(
        "expandable-segments",
        "segments that grow leave fewer holes in the memory that graphs and caches share",
        lambda s: not s.sleep_mode and "expandable_segments" not in s.alloc_conf,
        _expand,
    ),
)


def normalise(settings: PlatformSettings) -> tuple[PlatformSettings, tuple[Change, ...]]:
    """Return the settings that would really run, and what each rule changed.

    Raises:
        UsageError: a rule refuses the combination.
    """
    if settings.device != "npu":
        return settings, ()
    changes: list[Change] = []
    for rule in RULES:
        if not rule.fires(settings):
            continue
        if rule.then is None:
            raise UsageError(f"Ascend refuses this ({rule.name}): {rule.why}; {rule.fix}.")
        values = rule.then(settings)
        for what, value in values.items():
            before = getattr(settings, what)
            if before != value:
                changes.append(Change(what, _words(before), _words(value), rule.why, rule.name))
        settings = replace(settings, **values)
    return settings, tuple(changes)


def _words(value: Any) -> str:
    match value:
        case None:
            return "default"
        case Enum():
            return str(value.value)
        case bool():
            return "on" if value else "off"
        case tuple():
            return ",".join(value) or "none"
        case _:
            return str(value) or "unset"

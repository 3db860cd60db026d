"""`slipstream graphs plan | explain-error`. The texts are those of `--help`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import App, Parameter

from slipstream.cli_options import numbers, print_json
from slipstream.errors import UnknownNameError, UsageError
from slipstream.graph.histogram import read_histogram
from slipstream.graph.modes import GraphMode
from slipstream.graph.plan_types import PlanRequest
from slipstream.graph.platform_rules import CompileMode, PlatformSettings, Xlite
from slipstream.graph.sizes import SizeSource
from slipstream.graph.streams import Hccl, MemoryProbe, StreamFacts
from slipstream.graph.support import attention_support

_Choice = TypeVar("_Choice", bound=Enum)

graphs_app = App(name="graphs", help="Plan graphs before a launch, and explain why they failed.")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GraphSizeOptions:
    """Sizes.

    Attributes:
        num_draft_tokens: Rows a request that are verified together, its last token's own row among them: the
            decode width, counted as SGLang's --speculative-num-draft-tokens. 1, the default, is plain decoding.
        num_speculative_tokens: The same as vLLM counts, without the last token's row: the width is one more.
        sizes: Captured rows (tokens): Ascend's default list, vLLM's, or a list as 1,2,4,8.
        max_size: The largest captured size; by default that of the list.
        max_batched_tokens: Rows that a step computes at most.
        interactive: The default list with every size up to 32.
        mode: none, piecewise, full, full_decode_only or full_and_piecewise.
        attention: What the attention backends can do: always, uniform_batch, uniform_single_token_decode or never,
            or Ascend's backends, as mla_v1; of several, separated by commas, the least counts.
        splitting: Whether the model can be split at attention, which pieces need.
        fallback: Take a lesser mode where the backend cannot give the one that is asked for.
        state_blocks: Blocks of the state cache, of a model with a recurrent state.
        sequence_parallel: Split the rows of a sequence over the ranks of --tp.
        histogram: How often each decode batch is seen: `size count` lines, vLLM's metrics table, a server's log,
            JSON or a trace of ours. Without it, every batch from 1 to max-requests counts alike.
        budget: Graphs that the best list may have; by default as many as are planned, and one more where these
            leave batches out.
    """

    num_draft_tokens: int | None = None
    num_speculative_tokens: int | None = None
    sizes: str = "ascend"
    max_size: int | None = None
    max_batched_tokens: int | None = None
    interactive: Annotated[bool, Parameter(negative=())] = False
    mode: str = "full_and_piecewise"
    attention: str = "always"
    splitting: bool = True
    fallback: bool = True
    state_blocks: int | None = None
    sequence_parallel: Annotated[bool, Parameter(negative=())] = False
    histogram: Path | None = None
    budget: int | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GraphStreamOptions:
    """Streams and memory.

    Attributes:
        layers: Of the model; with it streams are predicted.
        draft_layers: Of the draft model.
        tp: Ranks of tensor parallelism, also for --sequence-parallel.
        dp: Ranks of data parallelism.
        pcp: Ranks of prefill context parallelism.
        dcp: Ranks of decode context parallelism.
        moe: The model has experts.
        expert_parallel: They are spread over the ranks.
        shared_expert_overlap: The shared expert has a stream of its own.
        hccl: How communication is expanded: aiv or ffts.
        probe_streams: Streams that capturing one size really took.
        probe_mib: MiB that the largest capture and the next one really took, as 512,24.
    """

    layers: int | None = None
    draft_layers: int | None = None
    tp: int = 1
    dp: int = 1
    pcp: int = 1
    dcp: int = 1
    moe: Annotated[bool, Parameter(negative=())] = False
    expert_parallel: Annotated[bool, Parameter(name=["--expert-parallel", "--ep"], negative=())] = False
    shared_expert_overlap: Annotated[bool, Parameter(negative=())] = False
    hccl: str = "ffts"
    probe_streams: int | None = None
    probe_mib: str | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GraphPlatformOptions:
    """Ascend's rules.

    Attributes:
        ascend_rules: Apply Ascend's check of the configuration; off with vLLM's sizes unless asked for.
        enforce_eager: Nothing is captured.
        compile_mode: vllm_compile, none, stock_torch_compile or dynamo_trace_once.
        encoder_decoder: The model is one.
        xlite: Graphs of the xlite runtime: off, decode or full.
        launch_blocking: ASCEND_LAUNCH_BLOCKING is 1.
        sleep_mode: Memory is handed back while asleep.
        alloc_conf: PYTORCH_NPU_ALLOC_CONF.
        warmups: Eager runs before each capture.
        inductor: Compile through Inductor.
        a5: The hardware is A5 (950).
    """

    ascend_rules: bool | None = None
    enforce_eager: Annotated[bool, Parameter(negative=())] = False
    compile_mode: str = "vllm_compile"
    encoder_decoder: Annotated[bool, Parameter(negative=())] = False
    xlite: str = "off"
    launch_blocking: Annotated[bool, Parameter(negative=())] = False
    sleep_mode: Annotated[bool, Parameter(negative=())] = False
    alloc_conf: str = ""
    warmups: int = 1
    inductor: Annotated[bool, Parameter(negative=())] = False
    a5: Annotated[bool, Parameter(negative=())] = False


_GRAPH_PLATFORM = GraphPlatformOptions()
_GRAPH_SIZES = GraphSizeOptions()
_GRAPH_STREAMS = GraphStreamOptions()


@graphs_app.command(name="plan")
def graphs_plan(
    *,
    max_requests: int,
    json: bool = False,
    sizes: GraphSizeOptions = _GRAPH_SIZES,
    streams: GraphStreamOptions = _GRAPH_STREAMS,
    platform: GraphPlatformOptions = _GRAPH_PLATFORM,
) -> int:
    """Show what a server would capture: sizes, decode batches without a graph, padding, the best list, streams.

    Nothing is launched, and no model, device or torch is needed.

    Args:
        max_requests: Requests that decode together (max_num_seqs).
        json: Print one JSON document instead of tables.
        sizes: What is captured.
        streams: What graphs take.
        platform: What Ascend changes.
    """
    from slipstream.graph.plan_report import plan_data, plan_lines, plan_tables
    from slipstream.graph.planner import plan_graphs

    plan = plan_graphs(plan_request(max_requests, sizes, streams, platform))
    if json:
        print_json(plan_data(plan))
        return 0
    from slipstream.bench.tables import console

    console().print(plan_tables(plan))
    for line in plan_lines(plan):
        print(line)
    return 0


@graphs_app.command
def explain_error(file: Annotated[str, Parameter(allow_leading_hyphen=True)], *, json: bool = False) -> int:
    """Say what a failed capture or replay means and what to change, from a log or a traceback.

    Exit code 1 says that the text holds no known failure of graphs.

    Args:
        file: The log, or - for standard input.
        json: Print one JSON document.
    """
    from slipstream.graph.explain import read_failure

    diagnosis = read_failure(file)
    if json:
        print_json(diagnosis.data())
    else:
        print(diagnosis.text())
    return 0 if diagnosis.known else 1


def plan_request(
    max_requests: int,
    sizes: GraphSizeOptions,
    streams: GraphStreamOptions,
    platform: GraphPlatformOptions,
) -> PlanRequest:
    """Return what was asked.

    Raises:
        UsageError: a value is not possible, or the histogram cannot be read.
    """
    if sizes.sequence_parallel and streams.tp == 1:
        raise UsageError(
            "sequence parallelism splits rows over tensor ranks, and --tp is 1; give --tp as well."
        )
    return PlanRequest(
        max_requests=max_requests,
        width=_width(sizes),
        sizes=_sizes(sizes.sizes),
        max_size=sizes.max_size,
        max_batched_tokens=sizes.max_batched_tokens,
        interactive=sizes.interactive,
        mode=_choose("mode", GraphMode, sizes.mode),
        support=attention_support(name.strip() for name in sizes.attention.split(",")),
        splitting_possible=sizes.splitting,
        fallback=sizes.fallback,
        state_blocks=sizes.state_blocks,
        sequence_ranks=streams.tp if sizes.sequence_parallel else 1,
        platform=_platform(sizes, platform),
        histogram=None if sizes.histogram is None else read_histogram(sizes.histogram),
        budget=sizes.budget,
        streams=_streams(streams),
        hccl=_choose("hccl", Hccl, streams.hccl),
        probe_streams=streams.probe_streams,
        probe_memory=None if streams.probe_mib is None else _memory(streams.probe_mib),
        unread=_unread(sizes, streams, platform),
    )


def _width(options: GraphSizeOptions) -> int:
    """Return rows a request; both ways of counting may be given if they agree."""
    sglang, vllm = options.num_draft_tokens, options.num_speculative_tokens
    if vllm is not None and vllm < 0:
        raise UsageError(f"num-speculative-tokens {vllm} is not possible; it is 0 or more.")
    if sglang is not None and vllm is not None and sglang != vllm + 1:
        raise UsageError(
            f"num-draft-tokens {sglang} counts the last token's row, num-speculative-tokens {vllm} does not, and "
            f"they disagree: {vllm} drafts have {vllm + 1} rows; give one of the two."
        )
    if sglang is not None:
        return sglang
    return 1 if vllm is None else vllm + 1


def _sizes(text: str) -> SizeSource | tuple[int, ...]:
    known = {source.value: source for source in SizeSource}
    if text.strip().lower() in known:
        return known[text.strip().lower()]
    if text.replace(",", "").strip().isalpha():
        raise UnknownNameError("list of sizes", text, known)
    return numbers("sizes", text)


def _choose(what: str, choices: type[_Choice], text: str) -> _Choice:
    known = {choice.value: choice for choice in choices}
    found = known.get(text.strip().lower())
    if found is None:
        raise UnknownNameError(what, text, known)
    return found


def _streams(options: GraphStreamOptions) -> StreamFacts | None:
    if options.layers is None:
        return None
    return StreamFacts(
        layers=options.layers,
        draft_layers=options.draft_layers,
        tp=options.tp,
        dp=options.dp,
        pcp=options.pcp,
        dcp=options.dcp,
        moe=options.moe,
        expert_parallel=options.expert_parallel,
        shared_expert_overlap=options.shared_expert_overlap,
    )


def _memory(text: str) -> MemoryProbe:
    try:
        first, following = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"probe-mib {text!r} is not possible; write what the largest capture and the next one took, as 512,24."
        ) from None
    return MemoryProbe(first, following)


def _unread(
    sizes: GraphSizeOptions, streams: GraphStreamOptions, platform: GraphPlatformOptions
) -> tuple[str, ...]:
    """Return what was asked and nothing reads, in words."""
    notes = []
    if streams.layers is None:
        read = ["layers", "probe_streams", "probe_mib", *(["tp"] if sizes.sequence_parallel else [])]
        given = _given(streams, GraphStreamOptions(), read)
        if given:
            notes.append(f"without --layers streams are not predicted, and nothing reads {given}")
    if not _wants_rules(sizes, platform):
        given = _given(platform, GraphPlatformOptions(), ["ascend_rules"])
        if given:
            notes.append(f"Ascend's rules are off, and nothing reads {given}; add --ascend-rules")
    return tuple(notes)


def _given(options: Any, default: Any, left_out: list[str]) -> str:
    """Return the options that differ from their default, as they are written."""
    names = [field.name for field in fields(options) if field.name not in left_out]
    given = [name for name in names if getattr(options, name) != getattr(default, name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def _wants_rules(sizes: GraphSizeOptions, platform: GraphPlatformOptions) -> bool:
    if platform.ascend_rules is None:
        return sizes.sizes.strip().lower() != SizeSource.VLLM.value
    return platform.ascend_rules


def _platform(sizes: GraphSizeOptions, options: GraphPlatformOptions) -> PlatformSettings | None:
    if not _wants_rules(sizes, options):
        return None
    return PlatformSettings(
        compile_mode=_choose("compile mode", CompileMode, options.compile_mode),
        enforce_eager=options.enforce_eager,
        encoder_decoder=options.encoder_decoder,
        xlite=_choose("xlite graphs", Xlite, options.xlite),
        launch_blocking=options.launch_blocking,
        sleep_mode=options.sleep_mode,
        alloc_conf=options.alloc_conf,
        warmups=options.warmups,
        use_inductor=options.inductor,
        a5=options.a5,
    )

"""Builds what an engine runs: cache, buffers, phases, graphs. Shared by prefill and rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from slipstream.device.api import Device, Stream
from slipstream.engine.drafting import verify_widths
from slipstream.graph.buffers import StepBuffers
from slipstream.graph.dispatch import Dispatch, Dispatcher
from slipstream.graph.host_lists import COMMITTED, HostLists, TaskOrder
from slipstream.graph.modes import Route
from slipstream.graph.runner import GraphRunner, PhaseFunction
from slipstream.graph.switch import GraphSaving
from slipstream.graph.tasks import TaskBook
from slipstream.kv.cache import DTYPES, KvCache
from slipstream.model.host_attention import HostAttention
from slipstream.model.layers import ForwardAttention
from slipstream.model.llama import Llama
from slipstream.model.nextn import NextnHead
from slipstream.native import library
from slipstream.plan import EnginePlan
from slipstream.speculative.phases import draft_phase, extend_phase, prefill_phase, verify_phase
from slipstream.speculative.plans import buffer_specs, draft_plan_for
from slipstream.speculative.prices import PhaseCosts
from slipstream.speculative.round import RoundParts
from slipstream.trace import Recorder, ambient_recorder

#: Positions [R], KV slots [R] and pages [1, P] of a chunk of one request, int64.
ChunkRows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class EngineCore:
    """The device's side of an engine.

    Attributes:
        head: the NextN head, or None.
        cache, draft_cache: keys and values of target and head; they share slots and page tables.
        round_parts: what rounds need.
        costs: measured time of each captured shape.
        attention: takes the contexts' lengths from the host; None where attention reads them on the device.
        extend_saving: what the extend graphs cost and save; None where there is no extend, or no graph at all.
    """

    plan: EnginePlan
    device: Device
    target: Llama
    head: NextnHead | None
    cache: KvCache
    draft_cache: KvCache | None
    main: Stream
    buffers: StepBuffers
    runner: GraphRunner
    round_parts: RoundParts
    costs: PhaseCosts
    recorder: Recorder
    attention: HostAttention | None = None
    extend_saving: GraphSaving | None = None


def use_kernels(plan: EnginePlan) -> None:
    """Make a plan's kernels and threads the process's: another engine may have set its own."""
    library.use(plan.kernels == "native", plan.threads)


def recorder_for(plan: EnginePlan) -> Recorder:
    """Return the recorder of an engine that was given none; its file says how the engine was planned."""
    return ambient_recorder({"draft": plan.draft, "graph": plan.graph_mode.value, "device": plan.device})


def build_core(
    plan: EnginePlan, device: Device, target: Llama, head: NextnHead | None, recorder: Recorder | None = None
) -> EngineCore:
    """Allocate caches and static buffers, and capture the graphs.

    All of it on the main stream, which first waits for the current one: there the weights were loaded.
    """
    main = device.stream("main")
    main.wait_stream(device.current_stream())
    with main:
        if recorder is None:
            recorder = recorder_for(plan)
        core = _build_core(plan, device, target, head, recorder, main)
    # From here on the host writes the mirrors that the first upload reads.
    device.synchronize()
    return core


def _build_core(
    plan: EnginePlan, device: Device, target: Llama, head: NextnHead | None, recorder: Recorder, main: Stream
) -> EngineCore:
    config = target.config
    place = device.torch_device
    shape = (
        plan.num_pages,
        plan.page_size,
        config.num_kv_heads,
        config.head_dim,
        place,
        DTYPES[plan.kv_dtype],
    )
    apart = plan.attention == "fia"
    cache = KvCache.make(config.num_layers, *shape, apart=apart)
    draft_cache = KvCache.make(1, *shape, apart=apart) if head is not None else None
    max_rows = max((plan.max_requests, *plan.buckets))
    attention = _host_attention(plan, device, max_rows) if apart else None
    chunk = max(plan.mixed_sizes, default=0)
    specs = buffer_specs(max_rows, plan.num_steps, plan.pages_per_request, config.hidden_size, chunk)
    buffers = StepBuffers(specs, place, check=plan.check)
    _make_safe(buffers, plan)
    phases: dict[str, PhaseFunction] = {
        "verify": verify_phase(target, cache, buffers, attention),
        "prefill": prefill_phase(target, cache, buffers),
    }
    if head is not None and draft_cache is not None:
        phases["extend"] = extend_phase(head, draft_cache, buffers, attention)
        phases["draft"] = draft_phase(head, draft_cache, buffers, attention)
    widths = _widths(plan, head is not None)
    costs = PhaseCosts()
    dispatcher = Dispatcher(plan.graph_mode, plan.buckets, widths, plan.mixed_sizes)
    runner = GraphRunner(
        device,
        dispatcher,
        phases,
        check=plan.check,
        recorder=recorder,
        observe=costs.observe,
        tasks=None if attention is None else attention.book,
    )
    plan_stream = device.stream("plan")
    extend_saving = _capture(runner, plan, widths, main)
    parts = RoundParts(
        main=main,
        plan=plan_stream,
        runner=runner,
        buffers=buffers,
        recorder=recorder,
        draft_plans={steps: draft_plan_for(steps) for steps in widths.get("draft", ())},
        page_size=plan.page_size,
    )
    return EngineCore(
        plan=plan,
        device=device,
        target=target,
        head=head,
        cache=cache,
        draft_cache=draft_cache,
        main=main,
        buffers=buffers,
        runner=runner,
        round_parts=parts,
        costs=costs,
        recorder=recorder,
        attention=attention,
        extend_saving=extend_saving,
    )


def _widths(plan: EnginePlan, has_head: bool) -> dict[str, tuple[int, ...]]:
    """Return the widths that each phase is captured with."""
    verify = verify_widths(plan)
    if not has_head:
        return {"verify": verify}
    return {"verify": verify, "extend": verify, "draft": tuple(width - 1 for width in verify if width > 1)}


def _host_attention(plan: EnginePlan, device: Device, max_rows: int) -> HostAttention:
    """Return attention with lengths of the host. Until the first batch, all rows are padding."""
    book = TaskBook(device, HostLists({COMMITTED: max_rows}), TaskOrder(plan.task_order))
    return HostAttention(device, book, plan.pages_per_request * plan.page_size)


def _capture(
    runner: GraphRunner, plan: EnginePlan, widths: dict[str, tuple[int, ...]], main: Stream
) -> GraphSaving | None:
    """Capture the phases; return what the extend graphs cost and save, None where there is no extend."""
    captured = dict(widths)
    has_extend = captured.pop("extend", None) is not None
    if not has_extend or not runner.dispatcher.decode_modes():
        runner.capture(captured, main, mixed=("prefill",))
        return None
    if plan.extend_graph == "off":
        saving = GraphSaving("extend", "off")
        runner.dispatcher.disable("extend", saving.why)
        runner.capture(captured, main, mixed=("prefill",))
        return saving
    runner.capture(widths, main, mixed=("prefill",))
    saving = runner.saving("extend", plan.extend_graph, measure=plan.extend_graph == "auto")
    if saving.shapes and not saving.kept:
        runner.drop("extend", saving.why)
    return saving


def _make_safe(buffers: StepBuffers, plan: EnginePlan) -> None:
    """Let all rows be padding, as captures need it: they run the phases, which write keys and values.

    What the upload poisons in checking mode is zero again: token 0 at position 0 of the scratch page.
    """
    for name, mirror in buffers.host.items():
        mirror.fill_(plan.max_requests if name == "slots" else 0)
    buffers.upload()
    for name in buffers.names():
        if name not in buffers.host:
            buffers.view(name, buffers.rows(name)).zero_()


def sleep(core: EngineCore) -> None:
    """Drop the graphs and the memory that they compute in; requests go on, eagerly. Keys and values stay."""
    core.runner.sleep()


def wake(core: EngineCore) -> None:
    """Capture again what `sleep` dropped; between two steps."""
    _capture_again(core, core.runner.wake)


def retry_captures(core: EngineCore) -> None:
    """Try again what could not be captured, as after other programs gave memory back; between two steps."""
    _capture_again(core, core.runner.retry)


def _capture_again(core: EngineCore, capture: Callable[[], None]) -> None:
    use_kernels(core.plan)
    core.device.synchronize()  # the last upload reads the mirrors
    with core.main, torch.inference_mode():
        _make_safe(core.buffers, core.plan)
        capture()
    core.device.synchronize()


@torch.inference_mode()
def prefill_chunk(core: EngineCore, ids: list[int], start: int, pages: list[int]) -> torch.Tensor:
    """Compute prompt positions start .. start + len(ids) - 1 of one request; return the last hidden rows.

    Returns:
        float32 [len(ids), H], before the final norm.
    """
    return prefill_rows(core, ids, start, chunk_rows(core, len(ids), start, pages))


def prefill_dispatch(core: EngineCore, count: int) -> Dispatch:
    """Return the route of a chunk of `count` rows."""
    return core.runner.dispatcher.dispatch_mixed("prefill", count)


@torch.inference_mode()
def prefill_rows(core: EngineCore, ids: list[int], start: int, rows: ChunkRows) -> torch.Tensor:
    """Compute prompt tokens in the rows that `chunk_rows` gave; return the last hidden rows as `prefill_chunk`.

    Rows of a replay are valid until the next replay of a chunk.
    """
    ids_R = torch.tensor(ids, device=core.device.torch_device)
    dispatch = prefill_dispatch(core, len(ids))
    if dispatch.route is Route.EAGER:
        started = time.perf_counter_ns()
        lengths = chunk_attention(core, start + len(ids))
        eager_RH = core.target.forward(ids_R, *rows, core.cache, lengths)
        core.runner.stats.count(dispatch, time.perf_counter_ns() - started)
        return eager_RH
    positions_R, slots_R, pages_BP = rows
    for name, value_R in (("ids", ids_R), ("positions", positions_R), ("slots", slots_R)):
        static_R = core.buffers.view(f"prefill.{name}", dispatch.shape.rows)
        # Padding is token 0 at position 0 of the scratch page.
        static_R.narrow(0, len(ids), dispatch.padded_rows).zero_()
        static_R.narrow(0, 0, len(ids)).copy_(value_R)
    core.buffers.view("prefill.pages", 1).copy_(pages_BP)
    hidden_RH: torch.Tensor = core.runner.run(dispatch, 1, core.main)
    return hidden_RH.narrow(0, 0, len(ids))


def chunk_attention(core: EngineCore, length: int) -> ForwardAttention | None:
    """Return the attention of an eager forward whose last row is at position `length` - 1."""
    return None if core.attention is None else core.attention.over(length)


def chunk_rows(core: EngineCore, count: int, start: int, pages: list[int]) -> ChunkRows:
    """Return positions [R], KV slots [R] and pages [1, P] of a chunk of one request."""
    place, size = core.device.torch_device, core.plan.page_size
    padded = pages + [0] * (core.plan.pages_per_request - len(pages))
    positions = range(start, start + count)
    slots = [padded[position // size] * size + position % size for position in positions]
    # The host knows all of it: two copies, where arithmetic on the device would be six kernels.
    positions_R, slots_R = torch.tensor([[*positions], slots], device=place).unbind()
    return positions_R, slots_R, torch.tensor([padded], device=place)

"""Every torch op that sees a tensor of the software NPU comes by here, and becomes a command, a view or a host wait.

    view             nothing runs; the result lies over the same bytes
    kernel           shapes at once, values when the machine runs the command
    data-dependent   the host waits for the stream, as a device makes it wait, to know a value or a shape
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from slipstream.device.soft.binding import tensor as tensor_module
from slipstream.device.soft.binding.pinned import PinnedTensor
from slipstream.device.soft.binding.random import Draw
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.binding.schema import Kind, OpFacts, facts, waits_for_values
from slipstream.device.soft.binding.shapes import Shape, flat_results, result_shapes
from slipstream.device.soft.binding.tensor import SoftTensor, make
from slipstream.device.soft.machine import Region

_CPU = torch.device("cpu")

#: Ops that may stand in a task group begin so; the device updates attention with host lists, nothing else.
UPDATABLE = ("npu::", "atb::")

#: Ops that are no plain kernel: copies, host reads, factories. Filled by `copies` and `factories`.
SPECIAL: dict[OpOverload, Callable[..., Any]] = {}


def special(*ops: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function what becomes of `ops`; it is called with the op's own arguments."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            SPECIAL[op] = function
        return function

    return keep


def dispatch(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Do what becomes of a call, and return its result."""
    if torch.is_inference_mode_enabled():
        # Bytes made inside inference mode could not be written outside it.
        with torch.inference_mode(False), torch.no_grad():
            return dispatch(op, args, kwargs)
    handler = SPECIAL.get(op)
    if handler is not None:
        return handler(*args, **kwargs)
    known = facts(op)
    if known.kind is Kind.COMPOSITE:
        return op.decompose(*args, **kwargs)
    index = _device_of(args, kwargs)
    if known.kind is Kind.VIEW:
        return _view(op, args, kwargs)
    if known.kind is Kind.IN_PLACE_VIEW:
        return _view_in_place(op, args, kwargs)
    if waits_for_values(known, tuple(args), kwargs):
        return _data_dependent(op, known, args, kwargs, index)
    return _kernel(op, known, args, kwargs, index)


tensor_module._dispatch = dispatch


def launch(
    name: str, reads: Sequence[Region], writes: Sequence[Region], run: Callable[[], Any], index: int
) -> None:
    """Give a command to the current stream of device `index`."""
    runtime = active()
    runtime.memories[index].collect()
    stream = runtime.current_stream(index)
    runtime.machine.kernel(stream, name, tuple(reads), tuple(writes), run, name.startswith(UPDATABLE))


def host_value(tensor: SoftTensor, what: str) -> torch.Tensor:
    """Return a tensor's values in host memory, after the current stream has come so far.

    Raises:
        SoftError: a capture forbids it (107030).
    """
    box: list[torch.Tensor] = []
    raw = tensor.raw
    wait_for_host(what, tensor.index)
    launch(what, regions_of(tensor), (), lambda: box.append(raw.clone()), tensor.index)
    synchronize(tensor.index)
    return box[0]


def wait_for_host(what: str, index: int) -> None:
    """Check that the host may wait for the device now."""
    runtime = active()
    runtime.machine.sync_copy(runtime.current_stream(index), what)


def synchronize(index: int) -> None:
    """Let the host wait for the current stream."""
    runtime = active()
    runtime.machine.synchronize(runtime.current_stream(index))


def regions_of(tensor: torch.Tensor) -> list[Region]:
    """Return the bytes that a tensor covers, in device memory or in pinned host memory."""
    if isinstance(tensor, SoftTensor):
        return tensor.allocation.regions(tensor.raw)
    if isinstance(tensor, PinnedTensor):
        return tensor.regions()
    return []


def raw_of(value: Any) -> Any:
    """Return what a command computes with: plain CPU tensors for device tensors, the CPU for the device."""
    if isinstance(value, SoftTensor):
        return value.raw
    if isinstance(value, (list, tuple)):
        return [raw_of(one) for one in value]
    return _CPU if isinstance(value, torch.device) else value


def _device_of(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    for tensor in _tensors(args, kwargs):
        if isinstance(tensor, SoftTensor):
            return tensor.index
    device = kwargs.get("device")
    if device is not None and device.index is not None:
        return int(device.index)
    return active().device


def _tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(one for one in value if isinstance(one, torch.Tensor))
    return found


def _view(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    base = next(t for t in _tensors(args, kwargs) if isinstance(t, SoftTensor))
    if op is torch.ops.aten.as_strided.default:
        args = _from_segment_start(base, args)
    result = op(*[raw_of(a) for a in args], **{name: raw_of(v) for name, v in kwargs.items()})
    if isinstance(result, torch.Tensor):
        return SoftTensor(result, base.allocation, base.index)
    return [SoftTensor(one, base.allocation, base.index) for one in result]


def _from_segment_start(base: SoftTensor, args: Sequence[Any]) -> list[Any]:
    """Return as_strided's arguments with its offset counted from the segment's first byte."""
    before = base.allocation.block.offset // base.raw.itemsize
    offset = args[3] if len(args) > 3 and args[3] is not None else base.storage_offset()
    return [args[0], args[1], args[2], offset + before]


def _view_in_place(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    if op is torch.ops.aten.resize_.default:
        return resize(target, args[1])
    if op is torch.ops.aten.set_.source_Tensor:
        target.raw, target.allocation = args[1].raw, args[1].allocation
        return reshape_wrapper(target)
    moved = _from_segment_start(target, args) if op is torch.ops.aten.as_strided_.default else args
    op(*[raw_of(a) for a in moved], **kwargs)
    return reshape_wrapper(target)


def reshape_wrapper(target: SoftTensor) -> SoftTensor:
    """Let a tensor show the shape that its bytes have got."""
    offset = target.raw.storage_offset() - target.allocation.block.offset // target.raw.itemsize
    with no_dispatch():
        torch.ops.aten.as_strided_.default(target, target.raw.shape, target.raw.stride(), offset)
    return target


def resize(target: SoftTensor, size: Sequence[int]) -> SoftTensor:
    """Give a tensor another size, and other memory where it does not fit into its own."""
    wanted = torch.empty(tuple(size), dtype=target.dtype, device="meta")
    if wanted.numel() * target.raw.itemsize <= target.allocation.num_bytes:
        target.raw = target.raw.as_strided(wanted.shape, wanted.stride())
        return reshape_wrapper(target)
    stride = wanted.stride()
    made = make(wanted.shape, stride, target.dtype, wanted.numel() * target.raw.itemsize, target.index, "resized")
    old, new, count = target.raw.reshape(-1), made.raw.reshape(-1), target.raw.numel()
    if count:
        launch("resize", regions_of(target), regions_of(made), lambda: new[:count].copy_(old), target.index)
    target.raw, target.allocation = made.raw, made.allocation
    return reshape_wrapper(target)


def _data_dependent(
    op: OpOverload, known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any], index: int
) -> Any:
    """Run an op whose result's shape, or whose result, the host has to know."""
    raw_args, raw_kwargs, reads, writes = _bind(known, args, kwargs)
    wait_for_host(known.name, index)
    box: list[Any] = []
    launch(known.name, reads, writes, lambda: box.append(op(*raw_args, **raw_kwargs)), index)
    synchronize(index)
    if known.written:
        return next(t for t in _tensors(args, kwargs) if isinstance(t, SoftTensor))
    made = []
    for result in box[0] if isinstance(box[0], (list, tuple)) else [box[0]]:
        if not isinstance(result, torch.Tensor):
            return result
        new = make(result.shape, result.stride(), result.dtype, result.nbytes, index, _label(result, known))
        target, value = new.raw, result
        launch(known.name, (), regions_of(new), lambda t=target, v=value: t.copy_(v), index)  # type: ignore[misc]
        made.append(new)
    return tuple(made) if isinstance(box[0], (list, tuple)) else made[0]


def _kernel(
    op: OpOverload, known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any], index: int
) -> Any:
    raw_args, raw_kwargs, reads, writes = _bind(known, args, kwargs)
    shapes = result_shapes(op, tuple(raw_args), raw_kwargs)
    if any(name is not None for name in known.returned):
        _fit_outputs(known, args, kwargs, shapes)
        raw_args, raw_kwargs, reads, writes = _bind(known, args, kwargs)
    new: list[SoftTensor | None] = []
    if not any(known.returned):
        for shape in shapes:
            made = None if shape is None else _make(shape, index, known)
            new.append(made)
            if made is not None:
                writes += regions_of(made)
    targets = [None if one is None else one.raw for one in new]
    run = _runner(op, raw_args, raw_kwargs, targets, index)
    launch(known.name, reads, writes, run, index)
    return _results(op, known, args, kwargs, new)


def _bind(
    known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], list[Region], list[Region]]:
    """Return the arguments as a command takes them, and what it reads and writes."""
    reads: list[Region] = []
    writes: list[Region] = []

    def bind(value: Any, written: bool) -> Any:
        if isinstance(value, SoftTensor):
            (writes if written else reads).extend(regions_of(value))
            return value.raw
        if isinstance(value, torch.Tensor):
            return _host_argument(value, known)
        if isinstance(value, (list, tuple)):
            return [bind(one, written) for one in value]
        return _CPU if isinstance(value, torch.device) else value

    raw_args = [bind(value, name in known.written) for name, value in zip(known.names, args, strict=False)]
    raw_kwargs = {name: bind(value, name in known.written) for name, value in kwargs.items()}
    return raw_args, raw_kwargs, reads, writes


def _host_argument(value: torch.Tensor, known: OpFacts) -> torch.Tensor:
    """Return a host tensor's values as they are now: they become part of the command.

    Raises:
        RuntimeError: it is more than a number, and the op takes device tensors only.
    """
    if value.dim() and not known.takes_host_tensors:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"npu:{active().device} and cpu! (when checking arguments of {known.name})"
        )
    host = value.read(known.name) if isinstance(value, PinnedTensor) else value
    return host.detach().clone()


def _fit_outputs(
    known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[Shape | None]
) -> None:
    """Resize `out=` tensors that have another shape than the result, as PyTorch does."""
    given = dict(zip(known.names, args, strict=False)) | kwargs
    for name, shape in zip(known.returned, shapes, strict=False):
        out = given.get(name) if name else None
        if isinstance(out, SoftTensor) and shape is not None and tuple(out.shape) != shape.size:
            resize(out, shape.size)


def _runner(
    op: OpOverload, args: list[Any], kwargs: dict[str, Any], targets: list[torch.Tensor | None], index: int
) -> Callable[[], None]:
    """Return what computes the op into `targets` when the machine runs the command."""
    call: Callable[[], Any]
    if torch.Tag.nondeterministic_seeded in op.tags:
        runtime = active()
        draw = Draw(op, args, kwargs, runtime.random[index].generator)
        capture = runtime.capture_on(runtime.current_stream(index))
        if capture is None:
            draw.take()
        else:
            capture.draws.append(draw)
        call = draw.run
    else:

        def call() -> Any:
            return op(*args, **kwargs)

    def run() -> None:
        with torch.no_grad():
            results = flat_results(call())
            for target, result in zip(targets, results, strict=False):
                if target is not None:
                    target.copy_(result)

    return run


def _results(
    op: OpOverload, known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any], new: list[SoftTensor | None]
) -> Any:
    if any(known.returned):
        given = dict(zip(known.names, args, strict=False)) | kwargs
        kept = [given[name] for name in known.returned if name is not None]
        if isinstance(kept[0], (list, tuple)):
            return tuple(kept[0])
        return kept[0] if len(kept) == 1 else tuple(kept)
    returns = op._schema.returns
    if len(returns) == 1:
        return list(new) if str(returns[0].type) == "List[Tensor]" else new[0]
    if not returns:
        return None
    return tuple(new)


def _make(shape: Shape, index: int, known: OpFacts) -> SoftTensor:
    return make(shape.size, shape.stride, shape.dtype, shape.num_bytes, index, _label(shape, known))


def _label(shape: Any, known: OpFacts) -> str:
    size = list(shape.size if isinstance(shape, Shape) else shape.shape)
    return f"{str(shape.dtype).removeprefix('torch.')}{size} of {known.name}"

"""Every torch op that sees a tensor of the software NPU comes by here, and becomes a command, a view or a wait.

view             nothing runs; the result lies over the same bytes
kernel           shapes at once, values when the machine runs the command
data-dependent   the host waits for the stream, as a device makes it wait, to know a value or a shape
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

from slipstream.device.soft.binding import tensor as tensor_module
from slipstream.device.soft.binding.calls import Call, launch, raw_of, synchronize, tensors_in, wait_for_host
from slipstream.device.soft.binding.random import Draw
from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.binding.schema import Kind, OpFacts, facts, waits_for_values
from slipstream.device.soft.binding.shapes import (
    Shape,
    ShapeNeedsValues,
    flat_results,
    result_shapes,
    shape_of,
)
from slipstream.device.soft.binding.tensor import SoftTensor, make
from slipstream.device.soft.binding.views import resize, view, view_in_place
from slipstream.device.soft.machine.places import NOWHERE, here

Handler = TypeVar("Handler", bound=Callable[..., Any])

#: Ops that are no plain kernel: copies, host reads, factories. Filled by `copies` and `factories`.
SPECIAL: dict[OpOverload, Callable[..., Any]] = {}


def special(*ops: OpOverload) -> Callable[[Handler], Handler]:
    """Make a function what becomes of `ops`; it is called with the op's own arguments."""

    def keep(function: Handler) -> Handler:
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
    if known.kind is Kind.KERNEL:
        return kernel(op, known, args, kwargs)
    if known.kind is Kind.VIEW:
        return view(op, args, kwargs)
    if known.kind is Kind.COMPOSITE:
        return op.decompose(*args, **kwargs)
    if known.kind is Kind.IN_PLACE_VIEW:
        return view_in_place(op, args, kwargs)
    if waits_for_values(known, tuple(args), kwargs):
        return _data_dependent(op, known, args, kwargs)
    return kernel(op, known, args, kwargs)


tensor_module.on_op = dispatch


def kernel(op: OpOverload, known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Make a call a command on the current stream, and return its results, without values yet."""
    if kwargs and known.makes_like:
        device = kwargs.get("device")
        if device is not None and device.type == "cpu":  # as in ones_like(x, device="cpu"): no value is read
            return op(*[raw_of(a) for a in args], **kwargs)
    call = Call(known, args, kwargs)
    try:
        shapes = result_shapes(op, tuple(call.args), call.kwargs)
    except ShapeNeedsValues:
        return _data_dependent(op, known, args, kwargs)
    if known.gives_arguments:
        if _fit_outputs(known, args, kwargs, shapes):
            call = Call(known, args, kwargs)
        launch(known.name, call.reads, call.writes, _runner(op, call, ()), call.index)
        return _given(known, args, kwargs)
    new = [None if shape is None else _make(shape, call.index, known) for shape in shapes]
    for one in new:
        if one is not None:
            call.writes.extend(one.regions())
    targets = [None if one is None else one.raw for one in new]
    launch(known.name, call.reads, call.writes, _runner(op, call, targets), call.index)
    if known.single:
        return new[0]
    return list(new) if known.gives_list else tuple(new) if new else None


def _data_dependent(op: OpOverload, known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an op whose result's shape, or whose result, the host has to know."""
    call = Call(known, args, kwargs)
    wait_for_host(known.name, call.index)
    box: list[Any] = []
    launch(known.name, call.reads, call.writes, lambda: box.append(op(*call.args, **call.kwargs)), call.index)
    synchronize(call.index)
    if known.written:
        return next(t for t in tensors_in(args, kwargs) if isinstance(t, SoftTensor))
    several = isinstance(box[0], (list, tuple))
    made: list[Any] = []
    for result in box[0] if several else [box[0]]:
        if not isinstance(result, torch.Tensor):
            return result
        new = _make(shape_of(result), call.index, known)
        run = _copier(new.raw, result)
        launch(known.name, (), new.regions(), run, call.index)
        made.append(new)
    return tuple(made) if several else made[0]


def _copier(target: torch.Tensor, value: torch.Tensor) -> Callable[[], Any]:
    return lambda: target.copy_(value)


def _fit_outputs(
    known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[Shape | None]
) -> bool:
    """Resize `out=` tensors that have another shape than the result, as PyTorch does; return whether any had."""
    given = dict(zip(known.names, args, strict=False)) | kwargs
    resized = False
    for name, shape in zip(known.returned, shapes, strict=False):
        out = given.get(name) if name else None
        if isinstance(out, SoftTensor) and shape is not None and tuple(out.shape) != shape.size:
            resize(out, shape.size)
            resized = True
    return resized


def _runner(op: OpOverload, call: Call, targets: Sequence[torch.Tensor | None]) -> Callable[[], None]:
    """Return what computes the op into `targets` when the machine runs the command."""
    args, kwargs = call.args, call.kwargs
    draw = _draw(op, call) if call.known.random else None
    place = here() if active().machine.stacks else NOWHERE

    def run() -> None:
        try:
            results = op(*args, **kwargs) if draw is None else draw.run()
        except Exception as error:
            error.add_note(f"raised when the software NPU ran {call.known.name}, issued at {place.where}")
            raise
        if targets:
            for target, result in zip(targets, flat_results(results), strict=False):
                if target is not None:
                    target.copy_(result)

    return run


def _draw(op: OpOverload, call: Call) -> Draw:
    runtime = active()
    draw = Draw(op, call.args, call.kwargs, runtime.random[call.index].generator)
    capture = runtime.capture_on(runtime.current_stream(call.index))
    if capture is None:
        draw.take()
    else:
        capture.draws.append(draw)
    return draw


def _given(known: OpFacts, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return those of the arguments that the op returns."""
    given = dict(zip(known.names, args, strict=False)) | kwargs
    kept = [given[name] for name in known.returned if name is not None]
    if kept and isinstance(kept[0], (list, tuple)):
        return tuple(kept[0])
    return tuple(kept) if len(kept) > 1 else kept[0] if kept else None


def _make(shape: Shape, index: int, known: OpFacts) -> SoftTensor:
    return make(shape.size, shape.stride, shape.dtype, shape.num_bytes, index, known.name)

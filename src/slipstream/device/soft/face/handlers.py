"""How a capture with auto_dispatch_capture=True makes tasks of host-list ops, and `NPUGraph.update` reaches them.

Each op that has a handler is captured as: wait for an external event, then the op in a task group. An update
issues the op again with new lists, on one stream that all graphs share, and records the event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slipstream.device.soft.binding.runtime import active
from slipstream.device.soft.binding.tensor import SoftTensor, weak_reference
from slipstream.device.soft.face import streams, tasks

#: Handlers by the name of the op, as in `npu_fused_infer_attention_score.out`.
HANDLERS: dict[str, type[NpuGraphOpHandler]] = {}


class NpuGraphOpHandler:
    """What is special about an op in a capture and an update. A subclass says what differs; none is ever made."""

    #: By op name: (where, which, key): an "arg" by its position or a "kwarg" by its name takes the update's `key`.
    UPDATE_SPECS: ClassVar[dict[str, list[tuple[str, int | str, str]]]] = {}

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
        """Return (op, args, kwargs) to capture in the op's place."""
        return func, args, kwargs

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
        """Return what the caller gets."""
        return result

    @classmethod
    def get_update_specs(cls, op_name: str) -> list[tuple[str, int | str, str]]:
        """Return what an update may change of an op."""
        return cls.UPDATE_SPECS.get(op_name, [])

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: Any) -> None:
        """Put an update's values into the op's recorded arguments."""
        for where, which, key in cls.get_update_specs(dispatch_record.op_cache_entry.__name__):
            if key in update_input:
                if where == "kwarg":
                    dispatch_record.kwargs[which] = update_input[key]
                elif len(dispatch_record.args) > which:  # type: ignore[operator]
                    dispatch_record.args[which] = update_input[key]

    @classmethod
    def record_wrap_kwarg(cls, key: str, value: Any, tensor_param_names: Any) -> Any:
        """Return a keyword argument as it is kept: tensors of the device without holding their memory."""
        return _kept(value)


@dataclass
class DispatchRecord:
    """One captured op: its event, its task, and its arguments as they will be issued again."""

    event: Any
    handle: Any
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    op_cache_entry: Any = None


class GraphDispatchMode(TorchDispatchMode):
    """Sees every op of a capture, and makes tasks of those that have a handler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph_dispatch_records: list[DispatchRecord] = []
        self.update_stream = active().once_a_rank("update stream", streams.Stream)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True: to PyTorch this is machinery, not the user's mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = HANDLERS.get(func.__name__)
        if handler is None:
            return func(*args, **kwargs)
        stream = streams.current_stream()
        event = streams.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        op, args, kwargs = handler.prepare_capture(func, args, kwargs)
        tasks.graph_task_group_begin(stream)
        result = op(*args, **kwargs)
        handle = tasks.graph_task_group_end(stream)
        tensors = [argument.name for argument in op._schema.arguments if "Tensor" in str(argument.type)]
        kept = {name: handler.record_wrap_kwarg(name, value, tensors) for name, value in kwargs.items()}
        self.graph_dispatch_records.append(DispatchRecord(event, handle, [_kept(a) for a in args], kept, op))
        return handler.postprocess_result(result, kwargs)

    def update_capture_record(self, cpu_update_input: Sequence[dict[str, Any]]) -> None:
        """Issue every recorded op again with new values, each with its event recorded behind it."""
        records = self.graph_dispatch_records
        if len(cpu_update_input) == 1:
            cpu_update_input = [dict(cpu_update_input[0]) for _ in records]
        if len(cpu_update_input) != len(records):
            raise RuntimeError(
                f"Currently, there are {len(records)} operators that need to be updated by capture, and there are "
                f"only {len(cpu_update_input)} elements in the incoming cpu_update_input list"
            )
        with streams.stream(self.update_stream):
            for record, values in zip(records, cpu_update_input, strict=True):
                tasks.graph_task_update_begin(self.update_stream, record.handle)
                for key, value in values.items():
                    if key in record.kwargs:
                        record.kwargs[key] = value
                HANDLERS[record.op_cache_entry.__name__].update_args(record, values)
                record.op_cache_entry(*record.args, **record.kwargs)
                tasks.graph_task_update_end(self.update_stream)
                record.event.record(self.update_stream)


def register_npu_graph_handler(
    op_names: str | Sequence[str],
) -> Callable[[type[NpuGraphOpHandler]], type[NpuGraphOpHandler]]:
    """Make a class the handler of ops."""

    def keep(cls: type[NpuGraphOpHandler]) -> type[NpuGraphOpHandler]:
        for name in [op_names] if isinstance(op_names, str) else op_names:
            HANDLERS[name] = cls
        return cls

    return keep


def _kept(value: Any) -> Any:
    if isinstance(value, SoftTensor):
        return weak_reference(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_kept(one) for one in value)
    return value if isinstance(value, torch.Tensor) and value.device.type == "npu" else deepcopy(value)

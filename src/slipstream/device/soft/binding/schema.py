"""What an op's schema says: which arguments it reads and writes, what it returns, whether the host must wait."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

#: Arguments that are written although the schema of the real op does not say so. A workspace is scratch memory.
UNSAID_WRITES: dict[str, tuple[str, ...]] = {}

#: Ops that give a view although their schema does not say so.
UNSAID_VIEWS = frozenset({"aten::_unsafe_view"})

#: Ops that take host tensors beside device tensors; the values go into the command when it is made.
HOST_ARGUMENTS = frozenset({"aten::index.Tensor", "aten::index_put_", "aten::index_put"})


class Kind(enum.Enum):
    """What becomes of a call."""

    KERNEL = "kernel"  # a command on the current stream
    VIEW = "view"  # nothing runs: other shape, same memory
    IN_PLACE_VIEW = "in-place view"  # nothing runs: the tensor's own shape changes
    COMPOSITE = "composite"  # a few other ops
    DATA_DEPENDENT = "data-dependent"  # the host waits for a value, or for a shape


@dataclass(frozen=True)
class OpFacts:
    """What is known of an op before it is called.

    Attributes:
        name: as in `aten::add.Tensor`.
        kind: what becomes of a call.
        names: parameters in the schema's order.
        written: parameters whose tensors the op writes.
        returned: for each result, the parameter that it is (in-place, `out=`), or None for a new tensor.
        gives_arguments: whether it makes no new tensor.
        gives_list, single: whether its result is a list, or one tensor.
        makes_like: whether it makes a tensor that looks like another, with values that don't depend on that one's.
        random: whether it draws random numbers.
        takes_host_tensors: whether it takes host tensors beside device tensors.
    """

    name: str
    kind: Kind
    names: tuple[str, ...]
    written: frozenset[str]
    returned: tuple[str | None, ...]
    gives_arguments: bool
    gives_list: bool
    single: bool
    makes_like: bool
    random: bool
    takes_host_tensors: bool


@cache
def facts(op: OpOverload) -> OpFacts:
    """Return what is known of `op`."""
    schema = op._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    written, owner = set(UNSAID_WRITES.get(name, ())), {}
    for argument in schema.arguments:
        alias = argument.alias_info
        if alias is not None and alias.is_write:
            written.add(argument.name)
            for mark in alias.before_set:
                owner[mark] = argument.name
    returned: list[str | None] = []
    shares_memory = False
    for result in schema.returns:
        alias = result.alias_info
        if alias is None:
            # An op that writes an `out` list returns it, said or not.
            returned.append("out" if "out" in written else None)
        else:
            marks = [owner[mark] for mark in alias.before_set if mark in owner]
            returned.append(marks[0] if marks else None)
            shares_memory |= not marks
    return OpFacts(
        name=name,
        kind=_kind(op, name, shares_memory),
        names=tuple(argument.name for argument in schema.arguments),
        written=frozenset(written),
        returned=tuple(returned),
        gives_arguments=any(returned) or not schema.returns,
        gives_list=len(schema.returns) == 1 and str(schema.returns[0].type) == "List[Tensor]",
        single=len(schema.returns) == 1 and str(schema.returns[0].type) != "List[Tensor]",
        makes_like=schema.name.endswith("_like") or schema.name.startswith("aten::new_"),
        random=torch.Tag.nondeterministic_seeded in op.tags,
        takes_host_tensors=name in HOST_ARGUMENTS or schema.name.startswith(("npu::", "atb::")),
    )


def _kind(op: OpOverload, name: str, shares_memory: bool) -> Kind:
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return Kind.COMPOSITE
    if torch.Tag.inplace_view in op.tags:
        return Kind.IN_PLACE_VIEW
    if shares_memory or name in UNSAID_VIEWS:
        return Kind.VIEW
    if torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
        return Kind.DATA_DEPENDENT
    return Kind.KERNEL


def waits_for_values(known: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether this call makes the host wait for a value or a shape.

    Indexing does by a mask only, and not where one value is written under it: that is a masked fill.
    """
    if known.name.startswith("aten::index_put"):
        values = args[2] if len(args) > 2 else kwargs["values"]
        return _has_mask(args[1]) and values.numel() != 1
    if known.name == "aten::index.Tensor":
        return _has_mask(args[1])
    if known.name == "aten::repeat_interleave.Tensor":
        return kwargs.get("output_size") is None
    return known.kind is Kind.DATA_DEPENDENT


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)

"""Ops of torch_npu that the model has: registered with `torch.library`, so that they run as every other op does.

An op is a schema and a function in plain torch. The function gets plain CPU tensors when the command runs; shapes
of results come from running it once on zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from slipstream.device.soft.binding.schema import UNSAID_WRITES, facts
from slipstream.errors import UsageError

#: What torch_npu offers by name, beside torch.npu.
OFFERED: dict[str, Any] = {}

_libraries: dict[str, torch.library.Library] = {}
_defined: dict[str, Callable[..., Any]] = {}


def register_op(
    schema: str, function: Callable[..., Any], writes: Sequence[str] = (), namespace: str = "npu"
) -> Any:
    """Give the software NPU an op of torch_npu, as `torch_npu.NAME` and `torch.ops.npu.NAME`.

    Args:
        schema: as torch_npu has it: "npu_swiglu(Tensor self, int dim=-1) -> Tensor".
        function: what it computes, in plain torch. Written arguments are written in place.
        writes: arguments that it writes although the schema doesn't say so (a workspace, an `out` list).
        namespace: "npu", or "atb".

    Returns:
        The op, to call.

    Raises:
        UsageError: the op exists with another function, or the schema cannot be read.
    """
    full = schema.split("(", 1)[0].strip()
    name = full.split(".", 1)[0]
    key = f"{namespace}::{full}"
    if key not in _defined:
        library = _libraries.get(namespace)
        if library is None:
            library = _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
        try:
            library.define(schema)
        except RuntimeError as error:
            raise UsageError(f"the schema {schema!r} cannot be registered: {error}") from error
        library.impl(full, function, "CPU")
        _defined[key] = function
    elif _defined[key] is not function:
        raise UsageError(f"{key} is registered with another function; a process can have one")
    UNSAID_WRITES[key] = tuple(writes)
    facts.cache_clear()
    OFFERED[name] = getattr(getattr(torch.ops, namespace), name)
    return OFFERED[name]

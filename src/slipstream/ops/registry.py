"""Makes a function an op: inside a capture, a call to it is one node of the graph.

An op is defined by plain torch code, which runs on any device. It may have a native form for the CPU beside it: a
function that allocates the results and returns the nodes that fill them.

    @op
    def argmax(logits_RV):
        return logits_RV.argmax(-1)

    @argmax.native
    def _argmax(logits_RV):
        out = torch.empty(logits_RV.shape[0], dtype=torch.int64)
        return Lowered(out, [make_node(Kernel.ARGMAX, ...)])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from slipstream.device.tape import Lowered, active_tape
from slipstream.native import library
from slipstream.native.program import run_nodes

Params = ParamSpec("Params")
Result = TypeVar("Result")


class Op(Generic[Params, Result]):
    """A function with a torch definition and, perhaps, a native form."""

    def __init__(self, definition: Callable[Params, Result], *, small: bool = False) -> None:
        self.definition = definition
        self.name = definition.__name__
        self.__doc__ = definition.__doc__
        self._small = small
        self._lower: Callable[..., Lowered | None] | None = None

    def native(self, lower: Callable[..., Lowered | None]) -> Callable[..., Lowered | None]:
        """Give the op a native form; it may return None for arguments that it does not cover."""
        self._lower = lower
        return lower

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        tape = active_tape()
        if tape is not None:
            result: Result = tape.record_op(self.name, self.run, self.definition, args, kwargs)
            return result
        return self.run(*args, **kwargs)

    def run(self, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        """Compute the result now, natively where that is set and possible."""
        lower = self._lower
        lowered = lower(*args, **kwargs) if lower is not None and library.setting.native else None
        if lowered is None:
            return self.definition(*args, **kwargs)
        if lowered.nodes:
            run_nodes(lowered.nodes, 1 if self._small else library.setting.threads)
        tape = active_tape()
        if tape is not None:
            tape.note_lowered(lowered)
        result: Result = lowered.result
        return result

    def lower(self, *args: Any, **kwargs: Any) -> Lowered | None:
        """Return freshly allocated results and the nodes that fill them, or None."""
        if self._lower is None or not library.active():
            return None
        return self._lower(*args, **kwargs)


def op(function: Callable[Params, Result]) -> Op[Params, Result]:
    """Make `function` an op. It must not read a device value on the host unless its result hides it."""
    return Op(function)


def small_op(function: Callable[Params, Result]) -> Op[Params, Result]:
    """Make `function` an op whose native form is not worth waking other threads for."""
    return Op(function, small=True)


def float_row_major(*tensors: torch.Tensor) -> bool:
    """Return whether native kernels can read these: float32, contiguous, in the CPU's memory."""
    for t in tensors:  # noqa: SIM110 -- a generator costs more than what it walks over, at every eager op
        if t.dtype != torch.float32 or not t.is_contiguous() or t.device.type != "cpu":
            return False
    return True

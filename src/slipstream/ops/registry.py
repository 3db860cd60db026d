"""Makes a function an op: registered with `torch.library`, and inside a capture one node of the graph.

The function is all that an op is. Its signature is the schema. Its body is the plain torch definition, which runs
on any device, is the oracle of the native kernels and, given fake tensors, says shapes and dtypes. An op that also
has a native form for the CPU is handed a `Native` before its arguments, and asks it first:

    @native_op
    def argmax(native: Native, logits_RV: torch.Tensor) -> torch.Tensor:
        if native.reads(torch.float32, logits_RV):
            out_R = torch.empty(logits_RV.shape[0], dtype=torch.int64)
            return native.fill(out_R, node(Kernel.ARGMAX, (logits_RV, out_R), logits_RV.shape))
        return logits_RV.argmax(-1)

    argmax(x)                   by PyTorch's dispatcher, as torch.ops.slipstream.argmax(x)
    argmax.definition(x)        plain torch, whatever is set

As `torch.library` wants it, a result never shares memory with an argument, and what an op writes is said: by the
annotation `Written`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar

import torch

from slipstream.device.tape import Lowered, active_tape, own_ops
from slipstream.device.tape import node_group as node_group
from slipstream.native import library
from slipstream.native.node import Kernel, Node, make_node
from slipstream.native.program import run_nodes

Params = ParamSpec("Params")
Result = TypeVar("Result")

#: Annotates an argument that the op writes.
Written = Annotated[torch.Tensor, "written"]

#: Every op by its name.
OPS: dict[str, Op[Any, Any]] = {}

_LIBRARY = torch.library.Library("slipstream", "FRAGMENT")


@dataclass(frozen=True, slots=True)
class Split:
    """What the pieces of a graph leave out between them, and where the batch stands in its arguments.

    Attributes:
        rows: names of the arguments whose first dimension counts rows.
        requests: names of those whose first dimension counts requests.
        fixed: whether its result has the shape of its rows, so that pieces can read it in one place; else only
            what stands between pieces may.
    """

    rows: tuple[str, ...]
    requests: tuple[str, ...]
    fixed: bool = True


#: Takes the calls of ops that split graphs: (op, its arguments by name) -> result.
Splitter = Callable[["Op[Any, Any]", dict[str, Any]], Any]

_splitters: list[Splitter] = []


@contextmanager
def splitting(splitter: Splitter) -> Iterator[None]:
    """Hand the ops that split graphs to `splitter` inside the block."""
    _splitters.append(splitter)
    try:
        yield
    finally:
        _splitters.pop()


class Native:
    """Whether and how a call runs natively. This one never does, so what runs is the torch definition."""

    def reads(self, dtype: torch.dtype, *tensors: torch.Tensor | None) -> bool:
        """Return whether native kernels are used and can read `tensors`: of `dtype`, contiguous, in CPU memory.

        None stands for an argument left out, and is no obstacle.
        """
        return False

    def fill(self, result: Result, *nodes: Node, threads: int | None = None) -> Result:
        """Run the nodes, which fill `result`, and return it.

        Args:
            result: a tensor, or a structure of tensors.
            nodes: what fills it, in order.
            threads: how many run it; as set for the process unless the work is not worth waking others for.
        """
        raise NotImplementedError("only what native kernels can read has nodes to run")


class _Eager(Native):
    """Native kernels where they are set and can read the arguments."""

    def reads(self, dtype: torch.dtype, *tensors: torch.Tensor | None) -> bool:
        if not library.setting.native:
            return False
        for t in tensors:  # a generator costs more than what it walks over, at every eager op
            if t is not None and (t.dtype != dtype or not t.is_contiguous() or not t.is_cpu):
                return False
        return True

    def fill(self, result: Result, *nodes: Node, threads: int | None = None) -> Result:
        run_nodes(nodes, threads or library.setting.threads)
        return result


class _Recording(_Eager):
    """Also keeps the native form, for a captured graph."""

    lowered: Lowered | None = None

    def fill(self, result: Result, *nodes: Node, threads: int | None = None) -> Result:
        super().fill(result, *nodes, threads=threads)
        self.lowered = Lowered(result, list(nodes))
        return result


class Op(Generic[Params, Result]):
    """A registered op.

    Attributes:
        name: its name in `torch.ops.slipstream`.
        definition: the op in plain torch.
        run: the op without the dispatcher: native where that is set and possible.
        fake: says the shapes and dtypes of results; the definition, unless that looks at values.
        split: set where graphs captured in pieces are split at it.
    """

    def __init__(
        self, function: Callable[..., Result], bind: Callable[[Native], Callable[Params, Result]]
    ) -> None:
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.definition = bind(Native())
        self.run = bind(_Eager())
        self.fake = self.definition
        self.split: Split | None = None
        self._signature = inspect.signature(self.definition)
        self._bind = bind
        _LIBRARY.define(self.name + _schema(self.definition))
        _LIBRARY.impl(self.name, self.definition, "CompositeExplicitAutograd")
        _LIBRARY.impl(self.name, self.run, "CPU")
        torch.library.register_fake(
            f"slipstream::{self.name}", lambda *args, **kwargs: self.fake(*args, **kwargs), lib=_LIBRARY
        )
        self.overload: Callable[Params, Result] = getattr(torch.ops.slipstream, self.name).default
        own_ops[self.overload] = OPS[self.name] = self

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        if self.split is not None and _splitters:
            bound = self._signature.bind(*args, **kwargs)
            result: Result = _splitters[-1](self, bound.arguments)
            return result
        return self.overload(*args, **kwargs)

    def direct(self, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        """Run without PyTorch's dispatcher, unless a capture has to see the call or there is no native kernel.

        For the few calls between two replays: 84 MB of weights later the dispatcher's code is in no cache.
        """
        if library.setting.native and active_tape() is None:
            return self.run(*args, **kwargs)
        return self.overload(*args, **kwargs)

    def record(self, *args: Params.args, **kwargs: Params.kwargs) -> tuple[Result, Lowered | None]:
        """Run as `run` does; return the result and its native form, None where the definition ran."""
        recording = _Recording()
        return self._bind(recording)(*args, **kwargs), recording.lowered


def native_op(function: Callable[Concatenate[Native, Params], Result]) -> Op[Params, Result]:
    """Make a function with a native form an op; its first parameter is not part of the op's signature."""
    return Op(function, lambda native: partial(function, native))


def op(function: Callable[Params, Result]) -> Op[Params, Result]:
    """Make a function without a native form an op."""
    return Op(function, lambda native: function)


def _schema(function: Callable[..., Any]) -> str:
    """Return the schema of a function, as in `(Tensor x, float eps) -> Tensor`."""
    signature = inspect.signature(function, eval_str=True)
    written = [name for name, p in signature.parameters.items() if p.annotation is Written]
    plain = [
        p.replace(annotation=torch.Tensor) if name in written else p
        for name, p in signature.parameters.items()
    ]

    def prototype() -> None: ...

    prototype.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    return torch.library.infer_schema(prototype, mutates_args=written)


def node(
    kernel: Kernel, tensors: Sequence[torch.Tensor | None], sizes: Sequence[int], f: float = 0.0
) -> Node:
    """Return a native node over the memory of `tensors`, None for one that the kernel does without."""
    return make_node(kernel, [0 if t is None else t.data_ptr() for t in tensors], sizes, f)

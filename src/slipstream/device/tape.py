"""A recorded tape of operations: the `cpu` device's captured graph.

While a tape records, it sees every op that PyTorch dispatches. Slipstream's own (`slipstream.ops`) become nodes
under their own names. Any other becomes a call-back node, so a capture is complete whatever the model's code
does; they are counted by name, and our own models leave none. A replay walks the nodes over registers: the ops'
functions are called directly, without modules, attribute look-ups or dispatch in between.

A node's arguments are constants (static buffers, weights, numbers) or registers (results of earlier nodes). A
register is dropped after its last use, so that the allocator hands the same warm memory to the next node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from slipstream.device.branches import Wait
from slipstream.errors import CaptureError
from slipstream.native.node import Node as NativeNode

#: Ops that hand a device value to the host: on an accelerator they would stop the capture.
_HOST_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}


@dataclass(frozen=True, slots=True)
class Register:
    """The result of an earlier node, by number."""

    index: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """An operation in native form.

    Attributes:
        result: its results, allocated: a tensor, or a structure of tensors.
        nodes: what fills them; none where the results are views of the arguments.
    """

    result: Any
    nodes: list[NativeNode]


class OwnOp(Protocol):
    """What a tape knows of an op of Slipstream's own.

    Attributes:
        name: its name in the graph.
        definition: the op in plain torch.
        run: the op, native where that is set and possible.
    """

    name: str

    @property
    def definition(self) -> Callable[..., Any]: ...

    @property
    def run(self) -> Callable[..., Any]: ...

    def record(self, *args: Any, **kwargs: Any) -> tuple[Any, Lowered | None]:
        """Run it; return its result and, where it has one for these arguments, its native form."""


#: Slipstream's own ops, by what PyTorch's dispatcher calls (`OpOverload`).
own_ops: dict[Any, OwnOp] = {}


@dataclass(slots=True)
class Node:
    """One recorded operation.

    Attributes:
        name: the op's name; `aten::...` and the like for a call-back into PyTorch.
        stream: the stream that was current when it was recorded.
        function: what a replay calls.
        args: its arguments; `Register` stands for an earlier result.
        kwargs: its keyword arguments, likewise.
        outputs: registers that its results go to, in order.
        frees: registers that nothing reads after this node.
        reads: registers that it reads.
        lowered: its native form, or None.
        view: it only makes views, so a replay over fixed addresses has nothing to do.
        group: whose time it counts to: as `node_group` named it, else the op.
        own: whether it is one of Slipstream's ops.
    """

    name: str
    stream: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int, ...]
    frees: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    lowered: Lowered | None = None
    view: bool = False
    group: str = ""
    own: bool = False

    @property
    def callback(self) -> bool:
        """Whether a replay hands it to PyTorch: it is foreign, and not only a view."""
        return not self.own and not self.view


@dataclass(slots=True)
class Tape:
    """Nodes in program order, and the values that come out at the end.

    Attributes:
        name: of the graph, for messages.
        origin: the capturing stream's name.
        stream: names the stream that is current.
        nodes: what was recorded.
        result: what a replay returns, with `Register` for tensors that the tape makes.
        waits: of streams for each other, in program order.
        tensors: the registers' values at capture, until `release`.
    """

    name: str
    origin: str
    stream: Callable[[], str]
    nodes: list[Node] = field(default_factory=list)
    result: Any = None
    waits: list[Wait] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)

    def record(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op that PyTorch dispatches now, keep it as a node, and return its result.

        Raises:
            CaptureError: it hands a device value to the host.
        """
        own = own_ops.get(overload)
        name = overload.name().split(".")[0] if own is None else own.name
        if name in _HOST_READS:
            raise CaptureError(
                f"graph {self.name!r} reads a device value on the host inside its capture ({name}). "
                "Keep the value on the device, or move the read out of the captured function."
            )
        if own is None:
            result, lowered, function = overload(*args, **kwargs), None, overload
        else:
            result, lowered = own.record(*args, **kwargs)
            # Where it took no native form, a replay does not look for one again.
            function = own.definition if lowered is None else own.run
        reads: list[int] = []
        node_args, node_kwargs = self._encode(args, reads), self._encode(kwargs, reads)
        outputs = tuple(self._register(tensor) for tensor in tensors_in(result))
        node = Node(name, self.stream(), function, node_args, node_kwargs, outputs)
        node.reads = tuple(sorted(set(reads)))
        node.lowered, node.own = lowered, own is not None
        node.view = own is None and overload.is_view and _shares_memory(result, (args, kwargs))
        node.group = " ".join(_groups) or name
        self.nodes.append(node)
        return result

    def _register(self, tensor: torch.Tensor) -> int:
        # An in-place op returns its own argument: same object, same register.
        known = self._known.get(id(tensor))
        if known is None:
            known = self._known[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)  # keeps the id from being given to another tensor
        return known

    def _encode(self, value: Any, reads: list[int]) -> Any:
        def leaf(item: Any) -> Any:
            if isinstance(item, torch.Tensor) and id(item) in self._known:
                reads.append(self._known[id(item)])
                return Register(self._known[id(item)])
            return item

        return tree_map(leaf, value)

    def finish(self, result: Any) -> None:
        """Close the tape: `result` is what a replay returns."""
        kept: list[int] = []
        self.result = self._encode(result, kept)
        last_use: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for register in (*node.reads, *node.outputs):
                last_use[register] = index
        for register, index in last_use.items():
            if register not in kept:
                self.nodes[index].frees += (register,)
        self._known.clear()

    def made(self, wanted: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `wanted` that the tape makes, each once; before `finish`."""
        return list({id(t): t for t in wanted if id(t) in self._known}.values())

    def kept(self, results: Any, native: bool) -> Iterator[torch.Tensor]:
        """Yield what the tape made and a replay keeps: in a native one what lies in no arena; before `release`."""
        given = {t.untyped_storage().data_ptr() for _, t in self.static_inputs()}
        outside = {t.untyped_storage().data_ptr() for t in tensors_in(results)} - given
        for node in self.nodes:
            for register in node.outputs:
                address = self.tensors[register].untyped_storage().data_ptr()
                if address in outside or (node.callback and native and address not in given):
                    yield self.tensors[register]

    def release(self) -> None:
        """Let go of the tensors of the capture: what replays the tape has what it needs."""
        self.tensors = []
        for node in self.nodes:
            node.lowered = None

    def note_wait(self, stream: str, other: str, point: int | None = None) -> None:
        """Take in that `stream` waits for what `other` was given before node `point`, or until now."""
        now = len(self.nodes)
        self.waits.append(Wait(now, stream, other, now if point is None else point))

    def static_inputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (where it is read, tensor) for every tensor that the tape reads and does not make."""
        for index, node in enumerate(self.nodes):
            for position, leaf in enumerate(tree_leaves((node.args, node.kwargs))):
                if isinstance(leaf, torch.Tensor):  # counted with what is no tensor
                    yield f"node {index} {node.name}, argument {position}", leaf

    def compile(self) -> Callable[[], Any]:
        """Return the function that replays the tape."""
        steps = [_step(node) for node in self.nodes]
        result, num_registers = self.result, len(self.tensors)

        def replay() -> Any:
            registers: list[Any] = [None] * num_registers
            for step in steps:
                step(registers)
            return decode(result, registers)

        return replay


def _shares_memory(result: Any, arguments: Any) -> bool:
    """Return whether all results lie in the arguments' memory: what may give a view, as reshape, may copy."""

    def storages(value: Any) -> set[int]:
        return {tensor.untyped_storage().data_ptr() for tensor in tensors_in(value)}

    return storages(result) <= storages(arguments)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a structure of values, in order."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def decode(value: Any, registers: list[Any]) -> Any:
    """Return a structure with what the registers hold in the place of each `Register`."""
    return tree_map(
        lambda item: registers[item.index] if isinstance(item, Register) else item,
        value,
        is_leaf=lambda item: isinstance(item, Register),
    )


def _resolver(value: Any) -> Callable[[list[Any]], Any] | None:
    """Return what reads an argument from the registers, or None where it holds no register.

    Settled once a node: pytree's general walk would cost a replay more than the op that it serves.
    """
    if isinstance(value, Register):
        return operator.itemgetter(value.index)
    if isinstance(value, dict):
        values = _resolver(list(value.values()))
        keys = list(value)
        return None if values is None else lambda registers: dict(zip(keys, values(registers), strict=True))
    if type(value) not in (list, tuple):
        return None
    parts = [(position, _resolver(part)) for position, part in enumerate(value)]
    moving = [(position, resolve) for position, resolve in parts if resolve is not None]
    if not moving:
        return None
    template, kind = list(value), type(value)

    def resolve_all(registers: list[Any]) -> Any:
        filled = template.copy()
        for position, resolve in moving:
            filled[position] = resolve(registers)
        return filled if kind is list else tuple(filled)

    return resolve_all


def _step(node: Node) -> Callable[[list[Any]], None]:
    """Return a closure that runs one node: the shape of its arguments is settled here, once."""
    function, outputs, frees = node.function, node.outputs, node.frees
    args, kwargs = node.args, node.kwargs
    read_args, read_kwargs = _resolver(args), _resolver(kwargs)
    single = outputs[0] if len(outputs) == 1 else None

    def step(registers: list[Any]) -> None:
        result = function(
            *(args if read_args is None else read_args(registers)),
            **(kwargs if read_kwargs is None else read_kwargs(registers)),
        )
        if single is not None and isinstance(result, torch.Tensor):
            registers[single] = result
        else:
            for index, tensor in zip(outputs, tensors_in(result), strict=True):
                registers[index] = tensor
        for index in frees:
            registers[index] = None

    return step


class _Recorder(TorchDispatchMode):
    """Shows a tape every op that PyTorch dispatches; not those that run inside of one."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch asks this of every mode; to answer yes it imports its compiler first, which takes seconds.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._tape.record(func, args, kwargs or {})


_active: list[Tape] = []
_groups: list[str] = []


@contextmanager
def node_group(name: str) -> Iterator[None]:
    """Name what a capture records inside the block: a graph's time is told by group. Nested names are joined."""
    _groups.append(name)
    try:
        yield
    finally:
        _groups.pop()


def active_tape() -> Tape | None:
    """Return the tape that records now, if any."""
    return _active[-1] if _active else None


@contextmanager
def recording(tape: Tape) -> Iterator[None]:
    """Record what runs inside the block on `tape`.

    Raises:
        CaptureError: a capture is already under way.
    """
    if _active:
        raise CaptureError(f"graph {tape.name!r} cannot be captured while {_active[-1].name!r} is.")
    _active.append(tape)
    try:
        with _Recorder(tape):
            yield
    finally:
        _active.pop()

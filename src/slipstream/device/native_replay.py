"""A captured graph as native programs: fixed addresses, one call a replay.

The capture ran every op once and allocated its results; these addresses are in the nodes. Here the intermediate
results move into one arena (`device.arena`), neighbouring nodes become one program, and independent branches are
marked where it pays to run them side by side (`device.branches`). What the graph returns stays where it is.

A foreign op is a call-back between two programs: PyTorch computes it, and its results are copied to where the
capture had them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from slipstream.device.arena import ArenaPool, move_to_arena
from slipstream.device.branches import find_sections, pays
from slipstream.device.tape import Node, Tape, decode, tensors_in
from slipstream.errors import ReplayError
from slipstream.native import library
from slipstream.native.node import Node as NativeNode
from slipstream.native.program import Program
from slipstream.trace import PartTimes


@dataclass(slots=True)
class Callback:
    """An op that PyTorch computes, over fixed tensors.

    Attributes:
        graph, name: of the graph and the op, for messages.
        results: the tensors of the capture, which a replay fills.
    """

    graph: str
    name: str
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: list[torch.Tensor]
    spent: int = 0
    began: int = 0
    ended: int = 0

    def run(self) -> None:
        """Compute and store.

        Raises:
            ReplayError: a result has another shape than at capture.
        """
        self.began = time.perf_counter_ns()
        with torch.inference_mode():
            fresh = tensors_in(self.function(*self.args, **self.kwargs))
            for kept, new in zip(self.results, fresh, strict=True):
                if kept.shape != new.shape:
                    raise ReplayError(
                        f"graph {self.graph!r}: {self.name} gave {list(new.shape)}, and {list(kept.shape)} at "
                        "capture. A static graph keeps its shapes: leave what depends on values out of it."
                    )
                if new.data_ptr() != kept.data_ptr():  # an op in place has its result there already
                    kept.copy_(new)
        self.ended = time.perf_counter_ns()
        self.spent += self.ended - self.began

    def spent_ns(self) -> dict[str, int]:
        """Return the time of all runs so far, in nanoseconds."""
        return {self.name: self.spent}

    def group_times(self) -> PartTimes:
        """Return when the last run began and ended."""
        began, ended = (moment.to_bytes(8, sys.byteorder) for moment in (self.began, self.ended))
        return PartTimes((self.name,), began, ended)


@dataclass(frozen=True, slots=True)
class NativeReplay:
    """Runs a graph's programs and gives out its results.

    Attributes:
        steps: programs, and the call-backs between them.
        result: what the captured function returned.
        num_sections: runs of nodes that run as branches side by side.
        keeps: owners of the memory that the nodes point to.
    """

    steps: tuple[Program | Callback, ...]
    result: Any
    num_sections: int
    keeps: Any = field(repr=False)

    def __call__(self) -> Any:
        for step in self.steps:
            step.run()
        return self.result

    def spent_ns(self) -> dict[str, int]:
        """Return the time of all replays so far by kernel and call-back, in nanoseconds."""
        total: dict[str, int] = {}
        for step in self.steps:
            for name, spent in step.spent_ns().items():
                total[name] = total.get(name, 0) + spent
        return total

    def group_times(self) -> list[PartTimes]:
        """Return when the groups of the last replay began and ended, in order, on the monotonic clock."""
        return [step.group_times() for step in self.steps]


def native_replay(tape: Tape, result: Any, pool: ArenaPool, branches: str) -> NativeReplay | None:
    """Return what replays the tape natively, or None where there is no own op or one took no native form.

    The torch definition of such an op may size its results by values (`ops.kv_index`), and fixed addresses cannot
    hold that.

    Args:
        tape: a finished capture.
        result: what the captured function returned: these tensors are given out at every replay.
        pool: where intermediate results go.
        branches: whether independent branches run side by side: "auto" where it pays, "on", "off".
    """
    own = [node for node in tape.nodes if node.own]
    if not own or any(node.lowered is None for node in own):
        return None
    num_sections = _mark_sections(tape, branches)
    nodes = _natives(tape, range(len(tape.nodes)))
    arena = move_to_arena(nodes, _made_by_kernels(tape), _fixed(tape, result), pool)
    steps = _steps(tape)
    # What the addresses point to has to live as long as the programs.
    return NativeReplay(steps, result, num_sections, (arena, list(tape.static_inputs())))


def _mark_sections(tape: Tape, branches: str) -> int:
    """Mark the nodes that run side by side, and return how many sections they make."""
    if branches == "off":
        return 0
    marked = 0
    for section in find_sections([node.stream for node in tape.nodes], tape.waits, tape.origin):
        if any(tape.nodes[index].callback for index in section.nodes):
            continue  # Python is one thread
        natives = [_natives(tape, positions) for positions in section.branches]
        if len(natives) > library.MAX_BRANCHES:
            continue
        if branches == "auto" and not pays(natives, library.setting.threads):
            continue
        marked += 1
        for branch, nodes in enumerate(natives):
            for native in nodes:
                native.section, native.branch, native.branches = marked, branch, len(natives)
    return marked


def _natives(tape: Tape, positions: Iterable[int]) -> list[NativeNode]:
    lowered = (tape.nodes[index].lowered for index in positions)
    return [native for form in lowered if form is not None for native in form.nodes]


def _made_by_kernels(tape: Tape) -> list[torch.Tensor]:
    """Return the results that native nodes allocated."""
    return list(tensors_in([node.lowered.result for node in tape.nodes if node.lowered is not None]))


def _fixed(tape: Tape, result: Any) -> list[torch.Tensor]:
    """Return what must stay where it is: results of the graph, its inputs, and all that call-backs touch."""
    fixed = [tensor for _, tensor in tape.static_inputs()]
    fixed += tensors_in(result)
    for node in tape.nodes:
        if node.callback:
            fixed += [tape.tensors[register] for register in (*node.reads, *node.outputs)]
    return fixed


def _steps(tape: Tape) -> tuple[Program | Callback, ...]:
    steps: list[Program | Callback] = []
    nodes: list[NativeNode] = []
    groups: list[str] = []

    def flush() -> None:
        if nodes:
            steps.append(Program(nodes, groups))
        nodes.clear()
        groups.clear()

    last: dict[str, int] = {}
    for node in tape.nodes:
        if node.lowered is not None:
            if not groups or groups[last.get(node.stream, -1)] != node.group or node.stream not in last:
                last[node.stream] = len(groups)
                groups.append(node.group)
            for native in node.lowered.nodes:
                native.group = last[node.stream]
                nodes.append(native)
        elif node.callback:
            flush()
            last.clear()
            steps.append(_callback(tape, node))
    flush()
    return tuple(steps)


def _callback(tape: Tape, node: Node) -> Callback:
    args, kwargs = decode(node.args, tape.tensors), decode(node.kwargs, tape.tensors)
    results = [tape.tensors[register] for register in node.outputs]
    return Callback(tape.name, node.name, node.function, args, kwargs, results)

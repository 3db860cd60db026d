"""A second, slow machine: enumerates all orders of a small program and judges by definition.

It shares nothing with the one under test. Two conflicting accesses race if some order reaches a point at which
both are next; a program hangs if some order gets stuck; an opening is lost if some order opens an open gate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

STREAMS, EVENTS, GATES, BUFFERS = 3, 2, 2, 2


@dataclass(frozen=True)
class Op:
    """One host call. `reads` and `writes` are buffer numbers."""

    kind: str  # kernel, record, wait, open, take, sync, access
    stream: int = 0
    what: int = 0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass
class Verdict:
    race: bool = False
    hang: bool = False
    lost: bool = False
    memories: set[tuple[int, ...]] = field(default_factory=set)
    states: int = 0


class TooMany(Exception):
    pass


def judge(program: list[Op], values: bool = False, most: int = 20_000) -> Verdict:
    verdict = Verdict()
    targets = _records(program)
    # A state: how far the host is, how far each stream is in its own list, the gates, the memory.
    lists = [
        [(n, op) for n, op in enumerate(program) if op.kind not in ("sync", "access") and op.stream == s]
        for s in range(STREAMS)
    ]
    start = (0, (0,) * STREAMS, (False,) * GATES, tuple(range(BUFFERS)))
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        verdict.states += 1
        if verdict.states > most:
            raise TooMany
        host, done, gates, memory = state
        after = []
        nexts = []
        if host < len(program):
            op = program[host]
            if op.kind == "access":
                nexts.append(op)
                after.append((host + 1, done, gates, _touch(memory, op, host) if values else memory))
            elif op.kind != "sync" or all(n >= host for n, _ in lists[op.stream][done[op.stream] :]):
                after.append((host + 1, done, gates, memory))
        for stream in range(STREAMS):
            if done[stream] == len(lists[stream]):
                continue
            number, op = lists[stream][done[stream]]
            if number >= host:
                continue
            target = targets.get(number)
            if op.kind == "wait" and target is not None and not _ran(lists, done, target):
                continue
            if op.kind == "take" and not gates[op.what]:
                continue
            new_gates, new_memory = gates, memory
            if op.kind == "open":
                verdict.lost |= gates[op.what]
            if op.kind in ("open", "take"):
                new_gates = tuple(op.kind == "open" if g == op.what else bit for g, bit in enumerate(gates))
            if op.kind == "kernel":
                nexts.append(op)
                if values:
                    new_memory = _touch(memory, op, number)
            after.append((host, _step(done, stream), new_gates, new_memory))
        verdict.race |= any(_conflict(a, b) for i, a in enumerate(nexts) for b in nexts[i + 1 :])
        if not after:
            if host < len(program) or any(done[s] < len(lists[s]) for s in range(STREAMS)):
                verdict.hang = True
            else:
                verdict.memories.add(memory)
        for one in after:
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return verdict


def compute(inputs: list[int], number: int, place: int) -> int:
    """What kernel `number` writes: something that shows in which order it ran."""
    total = number * 31 + place
    for one in inputs:
        total = (total * 1_000_003 + one) % 2_147_483_647
    return total


def _touch(memory: tuple[int, ...], op: Op, number: int) -> tuple[int, ...]:
    new = list(memory)
    inputs = [memory[b] for b in op.reads]
    for place, b in enumerate(op.writes):
        new[b] = compute(inputs, number, place)
    return tuple(new)


def _records(program: list[Op]) -> dict[int, int]:
    last: dict[int, int] = {}
    targets = {}
    for number, op in enumerate(program):
        if op.kind == "record":
            last[op.what] = number
        elif op.kind == "wait" and op.what in last:
            targets[number] = last[op.what]
    return targets


def _ran(lists: list[list[tuple[int, Op]]], done: tuple[int, ...], target: int) -> bool:
    return any(n == target for s in range(STREAMS) for n, _ in lists[s][: done[s]])


def _step(done: tuple[int, ...], stream: int) -> tuple[int, ...]:
    return tuple(n + (s == stream) for s, n in enumerate(done))


def _conflict(a: Op, b: Op) -> bool:
    return bool(set(a.writes) & {*b.reads, *b.writes} or set(b.writes) & {*a.reads, *a.writes})

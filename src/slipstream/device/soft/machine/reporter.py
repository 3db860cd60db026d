"""Turns what the engine sees into findings that a person can act on, each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from slipstream.device.soft.machine.commands import COLLECTIVE, HOST, OPEN, TAKE, UPDATE, Actor, Command, Gate
from slipstream.device.soft.machine.findings import Finding
from slipstream.device.soft.machine.history import COMMAND, REGION, Access, Hit
from slipstream.device.soft.machine.places import Place, called
from slipstream.device.soft.machine.regions import Region, name_of

if TYPE_CHECKING:
    from slipstream.device.soft.machine.graphs import Graph, Replay, Task
    from slipstream.device.soft.machine.ranks import Meeting

DOES = {True: "writes", False: "reads"}


class Reporter:
    """Collects findings. The same two places of the program give one finding, however often they meet."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._seen: set[object] = set()
        self._pairs: set[object] = set()
        self._hung: set[Command] = set()

    def add(self, finding: Finding) -> None:
        """Keep a finding unless it is known."""
        if finding.key not in self._seen:
            self._seen.add(finding.key)
            self.findings.append(finding)

    # --- two accesses -----------------------------------------------------------------------------------

    def hits(self, hits: Iterable[Hit]) -> None:
        """Report accesses without an order, and reads of bytes that were another's in between."""
        for hit in hits:
            pair = (hit.earlier[COMMAND].place, hit.later[COMMAND].place, hit.later_writes, hit.clobbered)
            names = (hit.earlier[COMMAND].op, hit.later[COMMAND].op, hit.earlier_writes)
            if (pair, names) in self._pairs:
                continue
            self._pairs.add((pair, names))
            self.add(_clobbered(hit) if hit.clobbered else _race(hit))

    # --- gates ------------------------------------------------------------------------------------------

    def lost_opening(self, gate: Gate, command: Command) -> None:
        """Report an opening that finds the gate open, or could in another order."""
        former = gate.opened_by
        assert former is not None
        taken = gate.taken_by
        stands = "is open still" if gate.is_open else "may be open still"
        title = f"{gate.name} is opened twice for one wait: at the second opening it {stands}"
        order = [f"{_who(former)} opens {gate.name} ({_at(former)})"]
        order.append(f"{_who(command)} opens {gate.name} ({_at(command)}): it is open, so this one is lost")
        order.append(f"one wait for {gate.name} takes both; the next one has nothing left")
        if gate.is_open or taken is None:
            before = f"a wait for {gate.name} between the two"
        else:
            before = f"the wait at {_at(taken)} on {_who(taken)}"
        missing = (
            f"let the second opening come after {before}: record an event behind that wait and "
            f"`event.wait({called(command.actor.name)})`, or synchronise the waiting stream on the host, before "
            f"{_at(command)}"
        )
        self.add(_finding("lost-opening", title, [former, command], gate.name, missing, order))

    def hang(self, blocked: Sequence[Command], queues: Sequence[Actor], host: Command | None) -> None:
        """Report what stands still for ever. `host` is the host's own wait, if it stands too."""
        roots = [command for command in blocked if command.kind in (TAKE, COLLECTIVE)]
        for root in roots:
            if root in self._hung:
                continue
            self._hung.add(root)
            if root.kind == COLLECTIVE and root.meeting is not None and root.meeting.missing():
                self._lonely_collective(root)
            else:
                self.add(_hang(root, queues, host))

    # --- collectives ------------------------------------------------------------------------------------

    def collective_order(
        self, meeting: Meeting, rank: int, other: Command, mine: int, command: Command
    ) -> None:
        """Report two ranks whose n-th collectives differ."""
        title = (
            f"collective {meeting.number} of ranks {list(meeting.group)} is {other.op} on rank {rank} and "
            f"{command.op} on rank {mine}"
        )
        missing = "issue the collectives of a group in one order on every rank"
        order = [
            f"rank {rank} issues {other.op} ({_at(other)})",
            f"rank {mine} issues {command.op} ({_at(command)})",
        ]
        self.add(_finding("collective", title, [other, command], None, missing, order))

    def _lonely_collective(self, root: Command) -> None:
        meeting = root.meeting
        assert meeting is not None
        there = [meeting.commands[rank] for rank in meeting.group if rank in meeting.commands]
        missing = ", ".join(map(str, meeting.missing()))
        title = (
            f"{root.op} waits for ever: it is collective {meeting.number} of ranks {list(meeting.group)}, and "
            f"rank {missing} never issues that many"
        )
        mend = f"issue {root.op} on rank {missing} too (an idle rank must take part), or on none"
        order = [f"{_who(command)} gets to {command.op} ({_at(command)})" for command in there]
        self.add(_finding("collective", title, there, None, mend, order))

    # --- graphs -----------------------------------------------------------------------------------------

    def task_count(self, replay: Replay) -> None:
        """Report a replay in which some tasks were updated and some were not."""
        graph = replay.graph
        title = (
            f"replay {replay.number} of {graph.name} ran {replay.captured} captured tasks, of them "
            f"{replay.updated} updated since the last replay; {replay.opened} of its {replay.waits} waits for "
            "gates were opened"
        )
        stale = [task for task in graph.tasks if task.updated_by is None] or graph.tasks[replay.updated :]
        what = f"update all {replay.captured} tasks for every replay"
        if stale:
            what += (
                f"; left out: {', '.join(f'task {task.number} ({task.place.where})' for task in stale[:4])}"
            )
        ops = (f"replay of {graph.name}", *(f"task {task.number}" for task in stale[:2]))
        places = (replay.place, *(task.place for task in stale[:2]))
        order = (
            f"{replay.actor.name} replays {graph.name} with {replay.captured - replay.updated} old tasks",
        )
        self.add(Finding("task-count", title, (replay.actor.name,), ops, None, places, what, order))

    def update_mixed(self, replay: Replay, other: Graph, update: Command) -> None:
        """Report updates that went to one graph while another was replayed."""
        graph = replay.graph
        title = (
            f"{graph.name} was replayed ({replay.captured} tasks, {replay.updated} updated) while the updates "
            f"went to {other.name} ({len(other.tasks)} tasks), which was not replayed after them"
        )
        missing = (
            f"keep the handles by graph, not by the number of tokens: update {graph.name}'s own tasks at "
            f"{update.place.where}"
        )
        order = (
            f"{replay.actor.name} replays {graph.name} ({replay.place.where})",
            f"{update.actor.name} updates a task of {other.name} ({update.place.where})",
        )
        ops = (f"replay of {graph.name}", update.op)
        streams = (replay.actor.name, update.actor.name)
        places = (replay.place, update.place)
        self.add(Finding("update-mixed", title, streams, ops, None, places, missing, order))

    def tasks_mixed(self, task: Task, other: Task, update: Command, strange: Region) -> None:
        """Report an update of one task with the tensors of another."""
        title = (
            f"task {task.number} of {task.graph.name} ({task.place.where}) is updated with {name_of(strange)}, "
            f"which task {other.number} ({other.place.where}) was captured with, and not with its own"
        )
        missing = (
            f"update task {task.number} with its own layer's arguments at {update.place.where}: keep tasks by "
            "name, not by their place in a list"
        )
        order = (f"{update.actor.name} updates task {task.number} ({update.place.where})",)
        ops = (f"update of {update.op}", f"task {task.number}", f"task {other.number}")
        places = update.place, task.place, other.place
        name = name_of(strange)
        self.add(Finding("update-mixed", title, (update.actor.name,), ops, name, places, missing, order))

    def stale_address(self, graph: Graph, name: str, old: Region, new: Region, place: Place) -> None:
        """Report an input that lies elsewhere than when the graph was captured."""
        title = (
            f"{graph.name} was captured with its input `{name}` at {_address(old)}, and is replayed with it at "
            f"{_address(new)}: the replay still reads the old place"
        )
        missing = f"copy the new value into the captured tensor before the replay: `static.copy_({name})`"
        places = (graph.input_place or place, place)
        ops = (f"capture of {graph.name}", f"replay of {graph.name}")
        order = (f"capture with `{name}` at {_address(old)}", f"replay with `{name}` at {_address(new)}")
        self.add(Finding("stale-address", title, (), ops, name_of(new), places, missing, order))

    def reset_running(self, graph: Graph, replay: Replay, place: Place) -> None:
        """Report a reset that doesn't come after the last replay."""
        title = f"{graph.name} is reset while its replay may be running"
        missing = f"`{called(replay.actor.name)}.synchronize()` before the reset at {place.where}"
        order = (
            f"{replay.actor.name} replays {graph.name} ({replay.place.where})",
            f"the host resets it ({place.where})",
        )
        ops = (f"replay of {graph.name}", f"reset of {graph.name}")
        streams = (replay.actor.name,)
        places = (replay.place, place)
        self.add(Finding("reset-running", title, streams, ops, None, places, missing, order, 107037))


def _finding(
    kind: str, title: str, commands: Sequence[Command], buffer: str | None, missing: str, order: Sequence[str]
) -> Finding:
    streams = tuple(dict.fromkeys(command.actor.name for command in commands))
    places, ops = [], []
    for command in commands:
        ops.append(command.op + f" on {_who(command)}")
        places.append(command.place)
    for replay in dict.fromkeys(command.replay for command in commands):
        if replay is not None:
            ops.append(f"replay {replay.number} of {replay.graph.name} on {replay.actor.name}")
            places.append(replay.place)
    return Finding(kind, title, streams, tuple(ops), buffer, tuple(places), missing, tuple(order))


def _who(command: Command) -> str:
    name = command.actor.name
    if command.replay is not None:
        return f"{name} (replay {command.replay.number} of {command.replay.graph.name})"
    return name


def _at(command: Command) -> str:
    """Where a mend has to go: of a replayed command, the replay."""
    return command.replay.place.where if command.replay is not None else command.place.where


def _address(region: Region) -> str:
    return f"{region.buffer.name}+{region.start}"


def _race(hit: Hit) -> Finding:
    first, first_writes, second, second_writes = hit.earlier, hit.earlier_writes, hit.later, hit.later_writes
    if second[COMMAND].index < first[COMMAND].index:
        first, first_writes, second, second_writes = second, second_writes, first, first_writes
    one, two = first[COMMAND], second[COMMAND]
    region = second[REGION]
    kind, title, missing, code = _kind_of(first, first_writes, second, second_writes)
    order = [f"the host issues {one.op} on {_who(one)} ({_at(one)})"]
    last = two.actor.last_wait
    if last is not None and last is not two and 0 < last.tick < two.tick and last.index > one.index:
        order.append(f"{two.actor.name} waits at {_at(last)}, which doesn't come after {one.op}")
    if two.kind == HOST:
        order.append(f"the host goes on and {DOES[second_writes]} {name_of(region)} ({_at(two)})")
    else:
        order.append(f"the host issues {two.op} on {_who(two)} ({_at(two)})")
        order.append(f"{two.actor.name} runs {two.op}, which {DOES[second_writes]} {name_of(region)}")
    order.append(
        f"{one.actor.name} runs {one.op}, which {DOES[first_writes]} {name_of(first[REGION])}, too late"
    )
    found = _finding(kind, title, [one, two], name_of(region), missing, order)
    return Finding(
        found.kind,
        found.title,
        found.streams,
        found.ops,
        found.buffer,
        found.places,
        missing,
        found.order,
        code,
    )


def _kind_of(
    first: Access, first_writes: bool, second: Access, second_writes: bool
) -> tuple[str, str, str, int | None]:
    one, two = first[COMMAND], second[COMMAND]
    what = name_of(second[REGION])
    deeds = (
        f"{one.op} on {_who(one)} {DOES[first_writes]} it and {two.op} on {_who(two)} {DOES[second_writes]} it, "
        "with no order between them"
    )
    missing = _missing_wait(one, two)
    if second[REGION].buffer.task:
        if one.kind == UPDATE and two.kind == UPDATE:
            title = f"two updates of a task without an order: {what}"
        else:
            title = f"update of a task that may be running: {what}; {deeds}"
            if two.kind == UPDATE:
                missing += (
                    "; or, if the update is meant for this replay, a wait for a gate captured before the op, "
                    "opened after the update"
                )
        return "race", title, missing, 107037
    if first[REGION].owner and second[REGION].owner and first[REGION].owner != second[REGION].owner:
        old, new = name_of(first[REGION]), name_of(second[REGION])
        title = f"memory of {old} was given to {new} while it may be in use: {deeds}"
        mend = f"`tensor.record_stream({called(one.actor.name)})` before {old} is freed, or {missing}"
        return "lifetime", title, mend, None
    if (
        HOST in (one.kind, two.kind)
        and second[REGION].buffer.where == "host"
        and second_writes
        and two.kind == HOST
    ):
        deed = "write" if first_writes else "read"
        title = f"host buffer {what} is rewritten while {one.op} on {_who(one)} may still {deed} it"
        return "host-buffer", title, missing, None
    return (
        "race",
        f"{DOES[first_writes][:-1]}-{DOES[second_writes][:-1]} race on {what}: {deeds}",
        missing,
        None,
    )


def _missing_wait(one: Command, two: Command) -> str:
    if two.kind == HOST:
        return (
            f"`{called(one.actor.name)}.synchronize()`, or the `synchronize()` of an event recorded on it after "
            f"{one.op} ({_at(one)}), before the host's {two.op} ({_at(two)})"
        )
    if one.replay is not None and one.replay is two.replay:
        where = (
            f"inside the capture, after {one.op} ({one.place.where}) and before {two.op} ({two.place.where})"
        )
        return f"`{called(_captured_as(two))}.wait_stream({called(_captured_as(one))})` {where}"
    before = f"the replay of {two.replay.graph.name}" if two.replay is not None else two.op
    where = f"after {one.op} ({_at(one)}) and before {before} ({_at(two)})"
    return f"`{called(_stream(two))}.wait_stream({called(_stream(one))})` {where}"


def _captured_as(command: Command) -> str:
    """The stream that a replayed command was captured on."""
    if command.replay is not None and command.node is not None and command.node.chain == 0:
        return command.replay.graph.origin
    return command.actor.captured_as


def _stream(command: Command) -> str:
    """The stream that can be waited for: of a replayed command, the one that the replay was launched on."""
    return command.replay.actor.name if command.replay is not None else command.actor.name


def _clobbered(hit: Hit) -> Finding:
    write, read = hit.earlier, hit.later
    old, new = name_of(read[REGION]), name_of(write[REGION])
    one, two = write[COMMAND], read[COMMAND]
    title = (
        f"{two.op} on {_who(two)} reads {old}, whose memory has meanwhile been given to {new} and written by "
        f"{one.op} on {_who(one)}"
    )
    missing = (
        f"keep {old} alive (a strong reference, or a copy of it) until {two.op} ({_at(two)}) has read it"
    )
    order = [
        f"{old} is written, and its memory given away",
        f"{one.actor.name} runs {one.op}, which writes {new} over it ({_at(one)})",
        f"{two.actor.name} runs {two.op}, which reads {old} ({_at(two)})",
    ]
    return _finding("lifetime", title, [one, two], old, missing, order)


def _opener(root: Command) -> Command | None:
    """Who opened this gate before, or else another gate of the same graph: it could open this one."""
    assert root.gate is not None
    if root.gate.opened_by is not None:
        return root.gate.opened_by
    nodes = root.replay.graph.nodes if root.replay is not None else ()
    return next((node.gate.opened_by for node in nodes if node.gate and node.gate.opened_by), None)


def _hang(root: Command, actors: Sequence[Actor], host: Command | None) -> Finding:
    commands = [root]
    if root.kind == COLLECTIVE:
        assert root.meeting is not None
        title = f"{root.op} on {_who(root)} waits for ever: the other ranks stand before another collective"
        order = [f"{_who(command)} stands before {command.op}" for command in root.meeting.in_order()]
        return _finding(
            "hang", title, commands, None, "issue the collectives in one order on every rank", order
        )
    gate = root.gate
    assert gate is not None
    pending = [one for actor in actors for one in actor.queue if one.kind == OPEN and one.gate is gate]
    order = [*list(gate.past)[-6:], f"{_who(root)} waits for {gate.name} ({_at(root)})"]
    if pending:
        behind = pending[0].actor.queue[0]
        commands.append(pending[0])
        stream = pending[0].actor.name
        why = f"its opening ({_at(pending[0])}) stands on {stream} behind {behind.op}, which waits too"
        missing = f"let the opening on {pending[0].actor.name} come before what it waits for ({_at(behind)})"
    elif any(step.endswith("lost)") for step in gate.past):
        why = "one of its openings was lost: it came while the gate was open"
        missing = f"open {gate.name} again only after the wait before this one has taken its opening"
    else:
        why = "nobody has opened it for this wait, and nobody will"
        missing = (
            f"`{called(gate.name)}.record(stream)` once for each wait; this one is issued at {_at(root)}"
        )
        opener = _opener(root)
        if opener is not None and opener.gate is not None:
            missing += (
                f"; {opener.actor.name} opened {opener.gate.name} ({_at(opener)}), and could open this one"
            )
    title = f"{_who(root)} waits for {gate.name} for ever: {why}"
    replay = root.replay
    if replay is not None:
        title += f"; {replay.opened} of the replay's {replay.waits} waits for gates were opened"
        if replay.captured:
            title += f", {replay.updated} of its {replay.captured} tasks ran with an update"
    if host is not None:
        commands.append(host)
        order.append(f"the host waits: {host.op} ({host.place.where})")
    return _finding("hang", title, commands, gate.name, missing, order)

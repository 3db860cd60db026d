"""Updates of tasks in graphs: which orders hold, which hang, which give wrong lengths, and which wait is enough.

What docs/check.md says of synchronisation before a replay is what these tests show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from slipstream.device import soft
from slipstream.device.soft.machine import Finding, Machine, ProgramOrder, Seeded, explore
from slipstream.device.soft.machine.errors import StreamSyncTimeout
from tests.check.decoder import Decoder, Static, attend, mean, steps

SEEDS = 20
Step = Callable[[Decoder, Any, Any, int], None]


@dataclass
class Shown:
    """What all schedules of a program showed: findings by kind, whether some hung, every result."""

    findings: dict[str, Finding]
    hung: int
    results: list[list[float]]


def schedules(program: Callable[[Machine], list[float]], seeds: int = SEEDS) -> Shown:
    """Run a program in program order and under seeds."""
    shown = Shown({}, 0, [])
    for seed in (None, *range(seeds)):
        with soft.installed(ProgramOrder() if seed is None else Seeded(seed)) as machine:
            try:
                shown.results.append(program(machine))
            except StreamSyncTimeout:
                shown.hung += 1
            for finding in machine.finish().findings:
                shown.findings.setdefault(finding.kind, finding)
    return shown


def decode(step: Step, count: int = 3, layers: int = 2) -> Shown:
    """Decode with a FULL graph, one task a layer."""
    return schedules(lambda machine: steps(Decoder(layers), count, step))


def right(count: int = 3, layers: int = 2) -> list[float]:
    """Return the results of the last step with the lengths that it was given."""
    return [pytest.approx(mean(2 + count), abs=1e-5)] * layers


def assert_clean(shown: Shown, results: list[float]) -> None:
    assert not shown.findings, "\n".join(map(str, shown.findings.values()))
    assert shown.hung == 0
    assert all(result == results for result in shown.results)


# --- steps of a FULL graph ---------------------------------------------------------------------------------


def replay_then_update(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    main.synchronize()
    decoder.graph.replay()
    decoder.update(update, length)


def update_then_replay(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    main.synchronize()
    decoder.update(update, length)
    decoder.graph.replay()


def update_waits_before_the_replay(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    update.wait_stream(main)
    decoder.graph.replay()
    decoder.update(update, length)


def update_waits_then_update_then_replay(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    update.wait_stream(main)
    decoder.update(update, length)
    decoder.graph.replay()


def no_wait(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    decoder.graph.replay()
    decoder.update(update, length)


def no_wait_update_first(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    decoder.update(update, length)
    decoder.graph.replay()


def wait_between_update_and_replay(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    decoder.update(update, length)
    main.synchronize()
    decoder.graph.replay()


def update_waits_after_the_replay(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    decoder.graph.replay()
    update.wait_stream(main)
    decoder.update(update, length)


def main_waits_for_the_former_update(decoder: Decoder, main: Any, update: Any, length: int) -> None:
    main.wait_stream(update)
    decoder.graph.replay()
    decoder.update(update, length)


ENOUGH = [
    replay_then_update,
    update_then_replay,
    update_waits_before_the_replay,
    update_waits_then_update_then_replay,
]


@pytest.mark.parametrize("step", ENOUGH)
def test_an_order_that_holds(step: Step) -> None:
    assert_clean(decode(step), right())


@pytest.mark.parametrize("step", ENOUGH)
def test_every_order_of_a_small_case_that_holds_is_clean(step: Step) -> None:
    with soft.installed(keep=True) as machine:
        steps(Decoder(layers=2), 3, step)
        found = explore(machine.program(), 2_000)
    assert found.complete
    assert found.clean


@pytest.mark.parametrize("step", [no_wait, no_wait_update_first, wait_between_update_and_replay])
def test_some_order_of_a_small_case_hangs(step: Step) -> None:
    with soft.installed(keep=True) as machine:
        steps(Decoder(layers=1), 3, step)
        found = explore(machine.program(), 2_000)
    assert found.complete
    assert {"race", "lost-opening", "hang"} <= found.kinds()


@pytest.mark.parametrize("step", [no_wait, no_wait_update_first, wait_between_update_and_replay])
def test_without_a_wait_before_the_update_an_opening_is_lost(step: Step) -> None:
    shown = decode(step)
    assert {"race", "lost-opening"} <= set(shown.findings)
    assert shown.findings["race"].code == 107037
    assert "update of a task that may be running" in shown.findings["race"].title
    assert shown.hung > 0


def test_the_wait_of_the_update_stream_comes_before_the_replay_or_nothing_moves() -> None:
    shown = decode(update_waits_after_the_replay)
    assert set(shown.findings) == {"hang"}
    assert "behind wait for" in shown.findings["hang"].title
    assert shown.hung == 1 + SEEDS


def test_the_other_direction_orders_too_little() -> None:
    # The main stream waits for the update before: that says when a gate was opened, not when it was closed.
    shown = decode(main_waits_for_the_former_update)
    assert {"race", "lost-opening"} <= set(shown.findings)


@pytest.mark.parametrize("copied", [True, False])
def test_a_host_that_never_waits_has_its_pinned_buffers_to_mind(copied: bool) -> None:
    # `update.wait_stream(main)` orders the tasks, not the host: its staging buffer needs an event of its own.
    def program(machine: Machine) -> list[float]:
        staging, done = torch.zeros(1, 1, 8, pin_memory=True), []

        def step(decoder: Decoder, main: Any, update: Any, length: int) -> None:
            if copied and done:
                done[-1].synchronize()
            staging.fill_(0.0)
            decoder.static.query.copy_(staging, non_blocking=True)
            done.append(main.record_event())
            update_waits_before_the_replay(decoder, main, update, length)

        return steps(Decoder(), 3, step)

    shown = schedules(program)
    if copied:
        assert_clean(shown, right())
    else:
        assert set(shown.findings) == {"host-buffer"}


@pytest.mark.parametrize("wait", [True, False])
def test_two_graphs_in_turn_need_an_order_to_their_own_last_replay(wait: bool) -> None:
    # Each graph has events and tasks of its own: the replay that matters is the last one of the same graph.
    def program(machine: Machine) -> list[float]:
        graphs = [Decoder(1), Decoder(1)]
        main, update = torch.npu.Stream(), torch.npu.Stream()
        torch.npu.synchronize()
        replayed: list[Any] = []
        with torch.npu.stream(main):
            for number in range(6):
                if wait and number >= 2:
                    update.wait_event(replayed[number - 2])
                graphs[number % 2].graph.replay()
                replayed.append(main.record_event())
                graphs[number % 2].update(update, 3 + number)
        return graphs[1].results()

    shown = schedules(program)
    if wait:
        assert_clean(shown, right(6, layers=1))
    else:
        assert {"race", "lost-opening"} <= set(shown.findings)


class Ahead:
    """Replay then update, the host up to `steps` replays ahead of the device."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.done: list[Any] = []

    def __call__(self, decoder: Decoder, main: Any, update: Any, length: int) -> None:
        if len(self.done) >= self.ahead:
            self.done[-self.ahead].synchronize()
        decoder.graph.replay()
        self.done.append(main.record_event())
        decoder.update(update, length)


def test_the_host_one_step_ahead() -> None:
    shown = schedules(lambda machine: steps(Decoder(), 5, Ahead(1)))
    assert_clean(shown, right(5))


def test_the_host_two_steps_ahead() -> None:
    shown = schedules(lambda machine: steps(Decoder(), 5, Ahead(2)))
    assert {"race", "lost-opening"} <= set(shown.findings)
    assert "opened twice for one wait" in shown.findings["lost-opening"].title
    assert shown.hung > 0


def test_what_the_finding_asks_for_is_enough() -> None:
    # "Let the second opening come after the wait": an event behind the replay, waited for by the update stream.
    found = schedules(lambda machine: steps(Decoder(), 5, Ahead(2))).findings["lost-opening"]
    assert "record an event behind that wait" in found.missing

    class Mended(Ahead):
        def __call__(self, decoder: Decoder, main: Any, update: Any, length: int) -> None:
            if self.done:
                update.wait_event(self.done[-1])
            super().__call__(decoder, main, update, length)

    assert_clean(schedules(lambda machine: steps(Decoder(), 5, Mended(2))), right(5))


# --- the smallest wait -------------------------------------------------------------------------------------


class LastTaskDone:
    """A FULL graph with work behind its last task, and a gate that the graph itself opens between the two."""

    def __init__(self, gate: bool) -> None:
        self.static, self.tail = Static(1), torch.zeros(1, 1, 8, device="npu")
        self.started, self.done = torch.npu.ExternalEvent(), torch.npu.ExternalEvent()
        self.graph, self.gate, self.steps = torch.npu.NPUGraph(), gate, 0
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            self.started.wait(stream)
            torch.npu.graph_task_group_begin(stream)
            attend(self.static, 0, 1)
            self.handle = torch.npu.graph_task_group_end(stream)
            if gate:
                self.done.record(stream)
            self.tail.copy_(self.static.outs[0]).mul_(2)
        # torch_npu lets the host wait for an external event once a record; a wait in a graph can be replayed.
        self.wait = torch.npu.NPUGraph()
        with torch.npu.graph(self.wait):
            self.done.wait(torch.npu.current_stream())

    def run(self, main: Any, update: Any, length: int) -> None:
        if self.gate and self.steps:
            with torch.npu.stream(update):
                self.wait.replay()
        self.steps += 1
        with torch.npu.stream(main):
            self.graph.replay()
        with torch.npu.stream(update):
            torch.npu.graph_task_update_begin(update, self.handle)
            attend(self.static, 0, length)
            torch.npu.graph_task_update_end(update)
            self.started.record(update)


@pytest.mark.parametrize("gate", [True, False])
def test_the_update_need_not_wait_for_the_end_of_the_replay(gate: bool) -> None:
    # A gate that the graph opens behind its last task: the tail of the replay before may still run.
    def program(machine: Machine) -> list[float]:
        graph, main, update = LastTaskDone(gate), torch.npu.Stream(), torch.npu.Stream()
        torch.npu.synchronize()
        for length in range(3, 8):
            graph.run(main, update, length)
        torch.npu.synchronize()
        return [graph.tail[0, 0, 0].item()]

    shown = schedules(program)
    if gate:
        assert_clean(shown, [pytest.approx(2 * mean(7), abs=1e-5)])
    else:
        assert {"race", "lost-opening"} <= set(shown.findings)


# --- updates that are missing, too few, in the wrong order, or another graph's ------------------------------


def test_no_update_hangs_at_the_first_wait() -> None:
    def step(decoder: Decoder, main: Any, update: Any, length: int) -> None:
        decoder.graph.replay()

    shown = decode(step)
    assert set(shown.findings) == {"hang"}
    assert "nobody has opened it for this wait, and nobody will" in shown.findings["hang"].title
    assert shown.hung == 1 + SEEDS


def test_an_update_without_its_opening_hangs() -> None:
    def step(decoder: Decoder, main: Any, update: Any, length: int) -> None:
        main.synchronize()
        decoder.graph.replay()
        decoder.update(update, length, opens=[True, False])

    shown = decode(step)
    assert set(shown.findings) == {"hang"}
    assert shown.hung == 1 + SEEDS


def test_two_openings_before_one_wait_hang_later() -> None:
    def step(decoder: Decoder, main: Any, update: Any, length: int) -> None:
        main.synchronize()
        if length < 5:  # two updates for the first replay, none for the third
            decoder.update(update, length)
        if length == 3:
            decoder.update(update, length)
            update.synchronize()
        decoder.graph.replay()

    shown = decode(step)
    assert {"lost-opening", "hang"} <= set(shown.findings)
    assert "one of its openings was lost" in shown.findings["hang"].title
    assert shown.hung == 1 + SEEDS


@pytest.mark.parametrize("updated", [0, 1, 2])
def test_a_shorter_list_of_updates_hangs_at_the_first_op_not_opened(updated: int) -> None:
    layers = 3
    counts = []

    def program(machine: Machine) -> list[float]:
        def step(decoder: Decoder, main: Any, update: Any, length: int) -> None:
            decoder.graph.replay()
            decoder.update(update, length, opens=[True] * updated)

        try:
            return steps(Decoder(layers), 1, step)
        finally:
            counts.append(machine.finish().replays[0])

    shown = schedules(program)
    assert set(shown.findings) == {"hang"}
    assert {(count.captured, count.updated, count.opened, count.finished) for count in counts} == {
        (layers, updated, updated, False)
    }


def test_an_opening_before_its_update_gives_old_lengths() -> None:
    def step(decoder: Decoder, main: Any, update: Any, length: int) -> None:
        main.synchronize()
        update.synchronize()
        decoder.graph.replay()
        with torch.npu.stream(update):
            for layer, (handle, event) in enumerate(zip(decoder.handles, decoder.events, strict=True)):
                event.record(update)
                torch.npu.graph_task_update_begin(update, handle)
                attend(decoder.static, layer, length)
                torch.npu.graph_task_update_end(update)

    shown = decode(step)
    assert "update of a task that may be running" in shown.findings["race"].title
    assert any(result != right() for result in shown.results)


def test_handles_in_another_order_than_the_events_give_wrong_lengths_and_are_named() -> None:
    # The gate of one task is opened when another one has been updated.
    def program(machine: Machine) -> list[float]:
        decoder, update = Decoder(layers=2), torch.npu.Stream()
        decoder.handles.reverse()
        with torch.npu.stream(torch.npu.Stream()):
            decoder.graph.replay()
        for layer, length in enumerate((3, 9)):
            with torch.npu.stream(update):
                torch.npu.graph_task_update_begin(update, decoder.handles[layer])
                attend(decoder.static, layer, length)
                torch.npu.graph_task_update_end(update)
                decoder.events[layer].record(update)
        return decoder.results()

    shown = schedules(program)
    assert all(result != [mean(3), mean(9)] for result in shown.results)
    assert {"race", "task-count"} <= set(shown.findings)
    assert "update of a task that may be running" in shown.findings["race"].title


def test_two_graphs_of_equal_token_counts_that_share_lists() -> None:
    def program(machine: Machine) -> list[float]:
        lists: tuple[list[Any], list[Any]] = ([], [])
        first, second = Decoder(2, lists), Decoder(2, lists)
        assert first.handles is second.handles
        main, update = torch.npu.Stream(), torch.npu.Stream()
        torch.npu.synchronize()
        with torch.npu.stream(main):
            second.graph.replay()
        second.update(update, 5)
        return second.results()

    shown = schedules(program)
    assert {"hang", "update-mixed"} <= set(shown.findings)
    assert "keep the handles by graph, not by the number of tokens" in shown.findings["update-mixed"].missing


# --- PIECEWISE: attention between the pieces, no tasks -----------------------------------------------------


class Pieces:
    """Attention issued eagerly between two captured pieces; the step's input comes from a pinned buffer."""

    def __init__(self) -> None:
        self.static, self.input = Static(1), torch.zeros(8, device="npu")
        self.staging = [torch.zeros(8, pin_memory=True) for _ in range(2)]
        self.copied: list[Any] = [None, None]
        self.outs: list[torch.Tensor] = []
        self.pieces = []
        for work in (lambda: self.static.query.copy_(self.input.view(1, 1, 8)), self._last):
            piece = torch.npu.NPUGraph()
            with torch.npu.graph(piece):
                work()
            self.pieces.append(piece)

    def _last(self) -> None:
        self.static.outs[0].add_(self.input[0])

    def step(self, main: Any, length: int, wait: str) -> None:
        number = length % 2 if wait == "two buffers" else 0
        if wait == "synchronize":
            main.synchronize()
        elif wait in ("event", "two buffers") and self.copied[number] is not None:
            self.copied[number].synchronize()
        self.staging[number].fill_(float(length))
        self.input.copy_(self.staging[number], non_blocking=True)
        self.copied[number] = main.record_event()
        self.pieces[0].replay()
        attend(self.static, 0, length)
        self.pieces[1].replay()
        self.outs.append(self.static.outs[0].clone())


def piecewise(wait: str) -> Shown:
    def program(machine: Machine) -> list[float]:
        pieces, main = Pieces(), torch.npu.Stream()
        torch.npu.synchronize()
        with torch.npu.stream(main):
            for length in range(3, 8):
                pieces.step(main, length, wait)
        torch.npu.synchronize()
        return [out[0, 0, 0].item() for out in pieces.outs]

    return schedules(program)


PIECEWISE = [pytest.approx(mean(length) + length, abs=1e-5) for length in range(3, 8)]


@pytest.mark.parametrize("wait", ["synchronize", "event", "two buffers"])
def test_piecewise_with_a_wait_for_the_copy(wait: str) -> None:
    assert_clean(piecewise(wait), PIECEWISE)


def test_piecewise_without_any_wait_rewrites_its_staging_buffer() -> None:
    shown = piecewise("none")
    assert set(shown.findings) == {"host-buffer"}
    assert shown.hung == 0
    assert any(result != PIECEWISE for result in shown.results)


# --- the draft graph: no wait of its own --------------------------------------------------------------------


def with_draft(full: Callable[[int], bool], own_wait: bool = False) -> Shown:
    """Main pass and draft graph, step by step; `full` says in which steps the main pass is a FULL graph."""

    def program(machine: Machine) -> list[float]:
        target, draft = Decoder(2), Decoder(2)
        main, update = torch.npu.Stream(), torch.npu.Stream()
        torch.npu.synchronize()
        with torch.npu.stream(main):
            for number in range(4):
                if full(number):
                    replay_then_update(target, main, update, 3 + number)
                else:
                    attend(target.static, 0, 3 + number)
                if own_wait:
                    update.wait_stream(main)
                draft.graph.replay()
                draft.update(update, 3 + number)
        return draft.results()

    return schedules(program)


def test_the_draft_graph_rests_on_the_wait_of_the_main_graph() -> None:
    assert_clean(with_draft(lambda number: True), right(4))


@pytest.mark.parametrize("eager", [(2,), (1, 3), (1, 2, 3)])
def test_a_main_pass_that_is_not_full_takes_that_wait_away(eager: tuple[int, ...]) -> None:
    shown = with_draft(lambda number: number not in eager)
    assert {"race", "lost-opening"} <= set(shown.findings)
    assert shown.hung > 0


@pytest.mark.parametrize("eager", [(2,), (1, 2, 3)])
def test_a_wait_of_the_draft_graph_s_own_mends_it(eager: tuple[int, ...]) -> None:
    assert_clean(with_draft(lambda number: number not in eager, own_wait=True), right(4))

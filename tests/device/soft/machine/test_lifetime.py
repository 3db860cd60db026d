"""Memory that changes hands: segments of an allocator, tensors as owners of byte ranges."""

from __future__ import annotations

import pytest

from slipstream.device.soft.machine import Graph, Machine, Region, Seeded


@pytest.fixture(params=range(-1, 5))
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(Seeded(request.param) if request.param >= 0 else None)


def tensor(segment: Region, owner: int, start: int = 0, stop: int = 64) -> Region:
    return segment._replace(owner=owner, label=f"tensor {owner}", start=start, stop=stop)


def segment(machine: Machine) -> Region:
    return Region(machine.buffer("segment", 256), 0, 256)


def test_a_tensor_freed_while_another_stream_reads_it(machine: Machine) -> None:
    side, block = machine.stream("side"), segment(machine)
    event = machine.event()
    machine.kernel(0, "make", (), (tensor(block, 1),))
    machine.record(0, event)
    machine.wait(side, event)
    machine.kernel(side, "use", (tensor(block, 1),))
    # Tensor 1 is freed here, and the default stream's next tensor gets its block.
    machine.kernel(0, "next", (), (tensor(block, 2),))
    (finding,) = machine.finish().findings
    assert finding.kind == "lifetime"
    assert finding.title.startswith("memory of tensor 1 was given to tensor 2 while it may be in use")
    assert finding.missing.startswith("`tensor.record_stream(side)` before tensor 1 is freed")


def test_a_block_that_changes_hands_on_one_stream_is_clean(machine: Machine) -> None:
    block = segment(machine)
    for owner in range(1, 40):
        machine.kernel(0, "make", (), (tensor(block, owner),))
        machine.kernel(0, "use", (tensor(block, owner),))
    assert machine.finish().clean


def graphs_that_share_a_block(machine: Machine, main: int, block: Region) -> list[Graph]:
    graphs = []
    for owner in (1, 2):
        graph = machine.graph(f"graph {owner}")
        machine.begin_capture(main, graph)
        machine.kernel(main, "make", (), (tensor(block, owner),))
        machine.kernel(main, "use", (tensor(block, owner),))
        graphs.append(machine.end_capture(main))
    return graphs


def test_a_weakly_held_output_whose_block_another_graph_writes(machine: Machine) -> None:
    main, block = machine.stream("main"), segment(machine)
    one, two = graphs_that_share_a_block(machine, main, block)
    machine.replay(main, one)
    machine.kernel(main, "read", (tensor(block, 1),))
    machine.replay(main, two)
    machine.replay(main, one)
    machine.kernel(main, "read", (tensor(block, 1),))
    assert machine.finish().clean
    machine.replay(main, two)
    machine.kernel(main, "read too late", (tensor(block, 1),))
    (finding,) = machine.finish().findings
    assert finding.kind == "lifetime"
    assert "read too late on main reads tensor 1" in finding.title
    assert "given to tensor 2 and written by make on main (replay 2 of graph 2)" in finding.title
    assert finding.missing.startswith("keep tensor 1 alive")


def test_part_of_a_block(machine: Machine) -> None:
    block = segment(machine)
    machine.kernel(0, "make", (), (tensor(block, 1, 0, 128),))
    machine.kernel(0, "make", (), (tensor(block, 2, 0, 64),))
    machine.kernel(0, "read", (tensor(block, 1, 64, 128),))
    machine.kernel(0, "make", (), (tensor(block, 1, 0, 32),))
    machine.kernel(0, "read", (tensor(block, 1, 0, 32),))
    assert machine.finish().clean
    machine.kernel(0, "read", (tensor(block, 1, 16, 48),))
    assert machine.finish().kinds() == {"lifetime"}


def test_memory_that_was_never_its_own_is_not_called_lost(machine: Machine) -> None:
    """torch.empty on a used block, read before it is written: garbage, but nobody took it away."""
    block = segment(machine)
    machine.kernel(0, "make", (), (tensor(block, 1),))
    machine.kernel(0, "read", (tensor(block, 2),))
    assert machine.finish().clean

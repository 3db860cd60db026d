"""Independent branches of a captured graph: which they are, when they pay, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream import ops
from slipstream.device.branches import Wait, find_sections, pays
from slipstream.device.cpu import CpuDevice
from slipstream.errors import UnknownNameError
from slipstream.native import library
from slipstream.native.node import Kernel, make_node

needs_native = pytest.mark.skipif(library.load() is None, reason="no native library")


def program(text: str) -> tuple[list[str], list[Wait]]:
    """Read 'm m s<m m s m<s': nodes by stream; s<m is a node of s behind a wait for m."""
    streams: list[str] = []
    waits: list[Wait] = []
    for word in text.split():
        stream, *others = word.split("<")
        waits += [Wait(len(streams), stream, other, len(streams)) for other in others]
        streams.append(stream)
    return streams, waits


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("m m m", []),
        ("m s<m m m<s", [range(1, 3)]),  # the branch of the other stream first
        ("m s<m s m m m<s m", [range(1, 5)]),
        ("m m s<m m<s", []),  # nothing was left to do beside it
        ("m s<m m t<m m m<s<t", [range(1, 3), range(3, 5)]),  # t follows the second node of m
        ("m s<m t<m m m<s<t", [range(1, 4)]),
        ("s<m m m<s", [range(0, 2)]),  # nothing before the fork
        ("m s m", []),  # s waited for nothing: it is as one with the capturing stream
        ("m s<m m", [range(1, 3)]),  # never joined: the end of the graph is the join
        ("m s<m m m<s s<m m m<s", [range(1, 3), range(4, 6)]),
        ("m s<m t<s m m<t m", [range(2, 4)]),  # what t waited for through s is known to m: t's turn overlaps
    ],
)
def test_sections(text: str, sections: list[range]) -> None:
    assert [section.nodes for section in find_sections(*program(text), "m")] == sections


def test_a_branch_begins_where_the_other_stream_forked() -> None:
    """The wait came before two more nodes of main: these run beside the side stream's."""
    (section,) = find_sections(["m", "m", "m", "s"], [Wait(1, "s", "m", 1)], "m")
    assert section.branches == ([1, 2], [3])


def test_a_stream_that_waited_for_nothing_is_in_the_capturing_ones_branch() -> None:
    (section,) = find_sections(*program("m t<m s m"), "m")
    assert section.branches == ([1], [2, 3])


def before(streams: list[str], waits: list[Wait]) -> list[set[int]]:
    """For each node the nodes that it follows, naively: edges, then their closure."""
    follows: list[set[int]] = []
    for index, stream in enumerate(streams):
        direct = {i for i in range(index) if streams[i] == stream}
        for wait in waits:
            if wait.stream == stream and wait.position <= index:
                direct |= {i for i in range(wait.point) if streams[i] == wait.other}
                direct |= {
                    j
                    for w in waits
                    if w.stream == wait.other
                    and w.position <= wait.point
                    and waits.index(w) < waits.index(wait)
                    for j in range(w.point)
                    if streams[j] == w.other
                }
        follows.append(direct.union(*(follows[i] for i in direct)))
    return follows


@settings(max_examples=300, deadline=None)
@given(
    words=st.lists(
        st.tuples(st.sampled_from("mst"), st.sets(st.sampled_from("mst"), max_size=2)),
        min_size=1,
        max_size=12,
    )
)
def test_no_node_of_a_section_follows_another_streams_node_in_it(words: list[tuple[str, set[str]]]) -> None:
    text = " ".join("<".join([stream, *sorted(others - {stream})]) for stream, others in words)
    streams, waits = program("m s<m t<m " + text)
    follows = before(streams, waits)
    last = 0
    for section in find_sections(streams, waits, "m"):
        assert section.nodes.start >= last
        last = section.nodes.stop
        assert sorted(i for branch in section.branches for i in branch) == list(section.nodes)
        for branch in section.branches:
            for i in branch:
                assert not follows[i] & set(section.nodes) - set(branch), (text, i)


def product(rows: int, inputs: int, outputs: int) -> list[object]:
    return [make_node(Kernel.LINEAR_Q4, (), (rows, inputs, outputs))]


def test_branches_pay_where_barriers_cost_more_than_imbalance() -> None:
    small = [3 * product(1, 576, 64) for _ in range(2)]
    assert pays(small, threads=4)
    assert not pays(small, threads=3)  # below two cores a branch
    uneven = [product(1, 576, 8192), product(1, 576, 64)]
    assert not pays(uneven, threads=4)


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="always"):
        CpuDevice(branches="always")


def projections(device: CpuDevice, x: torch.Tensor, matrices: list[ops.Matrix]) -> Callable[[], torch.Tensor]:
    """Query beside key and value, then a product of both: what attention's streams do."""
    main, side = device.stream("main"), device.stream("side")
    query, key, value, last = matrices
    weight = torch.ones(x.shape[1])

    def run() -> torch.Tensor:
        with main:
            normed = ops.rms_norm(x, weight, 1e-5, torch.float32)
        side.wait_stream(main)
        with side:
            values = ops.linear(ops.linear(normed, key), value)
        with main:
            queries = ops.linear(normed, query)
            main.wait_stream(side)
            return ops.linear(queries, last, None, values)

    return run


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_a_replay_with_branches_equals_the_eager_run(threads: int) -> None:
    torch.manual_seed(1)
    matrices: list[ops.Matrix] = [ops.DenseMatrix(torch.randn(64, 64)) for _ in range(4)]
    x = torch.randn(3, 64)
    library.use(True, threads)
    try:
        device = CpuDevice(branches="on")
        function = projections(device, x, matrices)
        graph = device.graph("projections")
        graph.capture(function, device.stream("main"))
        assert graph.num_sections == 1
        for _ in range(50):
            x.copy_(torch.randn(3, 64))
            assert torch.equal(graph.replay(), function())
        names = [name for times in graph.group_times() for name, _, _ in times]
        assert names == ["rms_norm", "linear_dense", "linear_dense"]  # of the side stream, of main
    finally:
        library.use(False, 1)


@needs_native
@pytest.mark.parametrize(("branches", "sections"), [("off", 0), ("auto", 0), ("on", 1)])
def test_two_cores_take_no_branches_unless_told(branches: str, sections: int) -> None:
    library.use(True, 2)
    try:
        device = CpuDevice(branches=branches)
        matrices: list[ops.Matrix] = [ops.DenseMatrix(torch.randn(64, 64)) for _ in range(4)]
        graph = device.graph("projections")
        graph.capture(projections(device, torch.randn(1, 64), matrices), device.stream("main"))
        assert graph.num_sections == sections
    finally:
        library.use(False, 1)


@needs_native
def test_branches_do_not_share_places_in_the_arena() -> None:
    """Two branches whose own results die at once: in program order the second could take the first's place."""
    library.use(True, 2)
    try:
        device = CpuDevice(branches="on")
        main, side = device.stream("main"), device.stream("side")
        x, weight = torch.randn(256, 64), torch.ones(64)
        matrix = ops.DenseMatrix(torch.eye(64))

        def chain(start: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                start = ops.linear(ops.rms_norm(start, weight, 1e-5, torch.float32), matrix)
            return start

        def both() -> torch.Tensor:
            side.wait_stream(main)
            with side:
                one = chain(x)
            with main:
                two = chain(x)
                main.wait_stream(side)
                return ops.linear(one, matrix, None, two)

        graph = device.graph("chains")
        graph.capture(both, main)
        assert graph.num_sections == 1
        for _ in range(20):
            x.copy_(torch.randn(256, 64))
            assert torch.equal(graph.replay(), both())
    finally:
        library.use(False, 1)

"""The wrappers: eager, capture or replay by (mode, key); nested; nothing left behind by a capture that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from slipstream.device.registry import open_device
from slipstream.errors import CaptureError, ReplayError
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.graph.modes import GraphMode
from slipstream.graph.pieces import Live, capture_pieces, capture_whole
from slipstream.graph.wrapper import CaptureGate, GraphWrapper, eager

NONE, PIECES, WHOLE = GraphMode.NONE, GraphMode.PIECEWISE, GraphMode.FULL
KEY, LARGE = BatchDescriptor("verify", 2, 1), BatchDescriptor("verify", 8, 1)


class Nested:
    """A function behind a wrapper for pieces behind one for whole graphs, on the cpu device."""

    def __init__(self, function: Callable[..., Any], *, check: bool = False) -> None:
        device = open_device("cpu")
        stream = device.stream("main")
        self.calls = 0
        self.gate = CaptureGate()

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args, **kwargs)

        self.pieces = GraphWrapper(
            PIECES,
            eager(counted),
            lambda key, call: capture_pieces(device, key, call, stream),
            self.gate,
            check=check,
        )
        self.whole = GraphWrapper(
            WHOLE,
            self.pieces,
            lambda key, call: capture_whole(device, key, call, stream),
            self.gate,
            check=check,
        )

    def __call__(
        self, mode: GraphMode, *args: Any, key: BatchDescriptor = KEY, capture: bool = False, **kwargs: Any
    ) -> Any:
        if not capture:
            return self.whole(mode, key, Live(2, 2), *args, **kwargs)
        with self.gate.open():
            return self.whole(mode, key, Live(2, 2), *args, **kwargs)


def double(key: BatchDescriptor, x: torch.Tensor, *, add: torch.Tensor | None = None) -> torch.Tensor:
    return x * 2 if add is None else x * 2 + add


class TestTheStateMachine:
    def test_none_runs_eagerly_and_touches_no_entry(self) -> None:
        nested = Nested(double)
        assert nested(NONE, torch.ones(2)).tolist() == [2, 2]
        assert (nested.calls, nested.whole.entries, nested.pieces.entries) == (1, {}, {})

    @pytest.mark.parametrize("mode", [WHOLE, PIECES])
    def test_the_first_call_captures_and_the_next_replays(self, mode: GraphMode) -> None:
        nested, x = Nested(double), torch.ones(2)
        assert nested(mode, x, capture=True).tolist() == [2, 2]
        x.fill_(3)
        assert nested(mode, x).tolist() == [6, 6]
        assert nested.calls == 1

    def test_whole_passes_when_pieces_are_dispatched_and_pieces_pass_while_whole_is_captured(self) -> None:
        nested, x = Nested(double), torch.ones(2)
        nested(WHOLE, x, capture=True)
        assert (list(nested.whole.entries), list(nested.pieces.entries)) == ([KEY], [])
        nested(PIECES, x, capture=True)
        assert (list(nested.whole.entries), list(nested.pieces.entries)) == ([KEY], [KEY])
        x.fill_(5)
        assert nested(PIECES, x).tolist() == nested(WHOLE, x).tolist() == [10, 10]
        assert nested.calls == 2

    def test_another_mode_than_these_is_no_wrapper(self) -> None:
        with pytest.raises(ValueError, match="not in none"):
            GraphWrapper(NONE, eager(double), lambda key, call: None, CaptureGate())  # type: ignore[arg-type,return-value]


class TestTheGate:
    def test_a_late_key_is_named_with_the_nearest_captured_one(self) -> None:
        nested, x = Nested(double), torch.ones(2)
        nested(WHOLE, x, key=KEY, capture=True)
        nested(WHOLE, x, key=BatchDescriptor("verify", 16, 1), capture=True)
        with pytest.raises(CaptureError, match=r"'verify 8x1'.*after the captures were closed.*'verify 2x1'"):
            nested(WHOLE, x, key=LARGE)
        assert set(nested.whole.entries) == {KEY, BatchDescriptor("verify", 16, 1)}

    def test_it_closes_again_even_if_a_capture_fails(self) -> None:
        def reads(key: BatchDescriptor, x: torch.Tensor) -> torch.Tensor:
            return x * x.sum().item()

        nested = Nested(reads)
        with pytest.raises(CaptureError):
            nested(WHOLE, torch.ones(2), capture=True)
        with pytest.raises(CaptureError, match="no full graph was captured"):
            nested(WHOLE, torch.ones(2))


class TestAddresses:
    @pytest.mark.parametrize("mode", [WHOLE, PIECES])
    def test_of_positional_and_keyword_tensors_are_checked_at_the_first_replay(self, mode: GraphMode) -> None:
        x, add = torch.ones(2), torch.ones(2)
        for args, kwargs, named in (
            ((torch.ones(2),), {"add": add}, "argument 0"),
            ((x,), {"add": torch.ones(2)}, "argument 'add'"),
        ):
            nested = Nested(double)
            nested(mode, x, add=add, capture=True)
            with pytest.raises(ReplayError, match=f"'verify 2x1': {named} is not the tensor"):
                nested(mode, *args, **kwargs)
            assert nested(mode, x, add=add).tolist() == [3, 3]

    def test_of_a_buffer_that_the_function_knows_are_too(self) -> None:
        buffer = torch.ones(2)
        nested = Nested(lambda key: buffer + 1)
        nested(PIECES, capture=True)
        buffer.data = torch.zeros(2)
        with pytest.raises(ReplayError, match="moved"):
            nested(PIECES)

    def test_are_checked_at_every_replay_in_checking_mode_only(self) -> None:
        x, moved = torch.ones(2), torch.zeros(2)
        for check in (False, True):
            nested = Nested(double, check=check)
            nested(WHOLE, x, capture=True)
            nested(WHOLE, x)
            if check:
                with pytest.raises(ReplayError):
                    nested(WHOLE, moved)
            else:
                assert nested(WHOLE, moved).tolist() == [2, 2]

    def test_a_call_with_another_number_of_tensors_is_refused(self) -> None:
        nested, x = Nested(double), torch.ones(2)
        nested(WHOLE, x, capture=True)
        with pytest.raises(ReplayError, match="captured with 1 tensors and is called with 2"):
            nested(WHOLE, x, add=x)


class TestAFailedCapture:
    @pytest.mark.parametrize("mode", [WHOLE, PIECES])
    @pytest.mark.parametrize("breaks_at", range(4))
    def test_at_any_command_leaves_nothing_behind_and_can_be_tried_again(
        self, mode: GraphMode, breaks_at: int
    ) -> None:
        broken = [True]

        def fragile(key: BatchDescriptor, x: torch.Tensor) -> torch.Tensor:
            for step in range(4):
                if broken[0] and step == breaks_at:
                    x.sum().item()
                x = x + step
            return x

        nested, x = Nested(fragile), torch.ones(2)
        with pytest.raises(CaptureError, match="reads a device value on the host"):
            nested(mode, x, capture=True)
        assert (nested.whole.entries, nested.pieces.entries) == ({}, {})
        assert nested(NONE, x).tolist() == [7, 7]
        broken[0] = False
        assert nested(mode, x, capture=True).tolist() == [7, 7]
        x.fill_(2)
        assert nested(mode, x).tolist() == [8, 8]


class TestResults:
    @pytest.mark.parametrize("mode", [WHOLE, PIECES])
    def test_stay_whatever_else_is_captured_or_replayed(self, mode: GraphMode) -> None:
        nested, x = Nested(lambda key, x: (x * 2, {"sum": x + 1})), torch.ones(2)
        nested(mode, x, key=LARGE, capture=True)
        first, others = nested(mode, x, key=LARGE)
        before = first.tolist(), others["sum"].tolist()
        x.fill_(9)
        nested(mode, x, capture=True)
        for _ in range(3):
            nested(mode, x)
        assert (first.tolist(), others["sum"].tolist()) == before

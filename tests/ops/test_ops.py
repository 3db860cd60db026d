"""Every op as PyTorch sees it: schema, fake form, and one result whoever calls it and however it runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map_only

from slipstream.native import library
from tests.ops.samples import DISAGREEING, OPS, SAMPLES, TORCH_ONLY, UNCOVERED, disagreeing

every_op = pytest.mark.parametrize("name", SAMPLES)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["torch", "native"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways in which an op may run."""
    if request.param == "native" and library.load() is None:
        pytest.skip("no native library")
    library.use(request.param == "native", 1)
    yield request.param
    library.use(False, 1)


def run(function: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return a call's results and, behind them, its arguments as the call leaves them."""
    args = copy.deepcopy(args)
    return [leaf for leaf in tree_leaves((function(*args), args)) if isinstance(leaf, torch.Tensor)]


def test_every_op_has_samples() -> None:
    assert set(SAMPLES) == set(OPS)


@every_op
def test_pytorch_finds_schema_and_fake_form_right(path: str, name: str) -> None:
    for args in SAMPLES[name]():
        torch.library.opcheck(OPS[name].overload, args, test_utils=("test_schema", "test_faketensor"))


@every_op
def test_a_call_through_torch_is_the_same_as_a_direct_one(path: str, name: str) -> None:
    for args in SAMPLES[name]():
        direct = run(OPS[name].run, args)
        torch.testing.assert_close(run(getattr(torch.ops.slipstream, name), args), direct, rtol=0, atol=0)
        torch.testing.assert_close(run(OPS[name], args), direct, rtol=0, atol=0)


@every_op
def test_the_native_form_does_what_the_definition_does(isa: str, name: str) -> None:
    for args in SAMPLES[name]():
        _, lowered = OPS[name].record(*copy.deepcopy(args))
        assert (lowered is None) == (name in TORCH_ONLY)
        torch.testing.assert_close(
            run(OPS[name].run, args), run(OPS[name].definition, args), rtol=2e-5, atol=2e-5
        )


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_native_kernels_cannot_read_goes_to_the_definition(isa: str, name: str) -> None:
    args = UNCOVERED[name]()
    _, lowered = OPS[name].record(*copy.deepcopy(args))
    assert lowered is None
    torch.testing.assert_close(run(OPS[name], args), run(OPS[name].definition, args), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "index", "change"), DISAGREEING)
def test_shapes_that_disagree_are_an_error(path: str, name: str, index: int, change: Any) -> None:
    """Native kernels know addresses only: what they are not sure of goes to the definition, which refuses it."""
    with pytest.raises((RuntimeError, IndexError)):
        OPS[name](*disagreeing(name, index, change))


def on_fake_tensors(name: str, args: tuple[Any, ...]) -> list[Any]:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake_args = tree_map_only(torch.Tensor, lambda t: mode.from_tensor(t, static_shapes=True), args)
        return tree_leaves(OPS[name](*fake_args))


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"kv_index"}))
def test_fake_tensors_have_the_real_shapes_and_dtypes(path: str, name: str) -> None:
    for args in SAMPLES[name]():
        real = tree_leaves(OPS[name](*copy.deepcopy(args)))
        for ours, theirs in zip(on_fake_tensors(name, args), real, strict=True):
            if theirs is not None:
                assert (ours.shape, ours.stride(), ours.dtype) == (
                    theirs.shape,
                    theirs.stride(),
                    theirs.dtype,
                )


def test_how_long_a_context_is_fake_tensors_cannot_know() -> None:
    """`kv_index` alone looks at values."""
    args = SAMPLES["kv_index"]()[0]
    _, real = OPS["kv_index"](*args)
    _, fake = on_fake_tensors("kv_index", args)
    assert fake.shape[:3] == real.shape[:3]
    assert not isinstance(fake.shape[3], int)
    assert fake.dtype == real.dtype

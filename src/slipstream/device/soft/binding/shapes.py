"""The shapes, strides and dtypes of an op's results, known before it runs: by a run on the meta device, kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

_CPU, _META = torch.device("cpu"), torch.device("meta")

#: What PyTorch says when a custom op's shape function wants a size that only the values tell.
_ASKS_FOR_VALUES = "data-dependent"

#: Calls whose results are remembered; a program has few different ones.
MAX_REMEMBERED = 16_384

_remembered: dict[Any, tuple[Shape | None, ...]] = {}


class ShapeNeedsValues(Exception):
    """The shape of an op's result depends on values, though its schema has no tag that says so."""


@dataclass(frozen=True)
class Shape:
    """What a tensor looks like.

    Attributes:
        size, stride: in elements.
        dtype: of an element.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """The bytes from the first element to the end of the last."""
        if 0 in self.size:
            return 0
        last = sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


def shape_of(tensor: torch.Tensor) -> Shape:
    """Return the shape of a plain tensor."""
    return Shape(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def result_shapes(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Shape | None, ...]:
    """Return the shapes of an op's results; None for one that is no tensor. A list counts as its elements.

    Args:
        op: what is called; its results' shapes do not depend on values.
        args, kwargs: its arguments, with plain CPU tensors.

    Raises:
        ShapeNeedsValues: they do depend on values.
    """
    key = _key(op, args, kwargs)
    known = _remembered.get(key) if key is not None else None
    if known is None:
        known = _infer(op, args, kwargs)
        if key is not None:
            if len(_remembered) >= MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = known
    return known


def _key(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        key = (op, tuple(map(_describe, args)), tuple((name, _describe(v)) for name, v in kwargs.items()))
        hash(key)
    except TypeError:
        return None
    return key


def _describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_describe, value))
    if isinstance(value, torch.Generator):
        return torch.Generator
    return (type(value), value)  # 1, 1.0 and True are equal, and give different dtypes


def _infer(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Shape | None, ...]:
    try:
        results = op(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
    except RuntimeError as error:
        if _ASKS_FOR_VALUES in str(error):
            raise ShapeNeedsValues(op.name()) from None
        if not isinstance(error, NotImplementedError):
            raise
        # No meta kernel. What the op gives for zeros looks as what it gives for the real values.
        results = op(*tree_map(_to_zeros, args), **tree_map(_to_zeros, kwargs))
    return tuple(shape_of(r) if isinstance(r, torch.Tensor) else None for r in flat_results(results))


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
    if isinstance(value, torch.device):
        return _META
    return None if isinstance(value, torch.Generator) else value


def _to_zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CPU).zero_()
    return value


def flat_results(results: Any) -> list[Any]:
    """Return an op's results as one list."""
    if isinstance(results, (list, tuple)):
        return [one for result in results for one in flat_results(result)]
    return [results]

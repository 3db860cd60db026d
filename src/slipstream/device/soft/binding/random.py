"""Random numbers: drawn from the host's generator when the op is called, as a device takes seed and offset then.

So two streams may draw at once without a race, every schedule gives the same numbers, and they are those that a
CPU tensor would have got from the same seed. An op in a graph gets a new state at each replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch._C import Generator
from torch._ops import OpOverload

_CPU = torch.device("cpu")


class RandomState:
    """A device's default generator."""

    def __init__(self) -> None:
        self.generator = Generator(_CPU)


class Draw:
    """The random numbers of one call.

    Args:
        op, args, kwargs: the call, with plain CPU tensors.
        default: the generator if the call names none.
    """

    def __init__(self, op: OpOverload, args: list[Any], kwargs: dict[str, Any], default: Generator) -> None:
        self._op, self._args, self._kwargs = op, args, kwargs
        given = kwargs.get("generator") or next((a for a in args if isinstance(a, Generator)), None)
        self._generator: Generator = given or default
        self._states: deque[torch.Tensor] = deque()

    def take(self) -> None:
        """Take the numbers of the next run: keep the generator's state, and move it on as the op would."""
        self._states.append(self._generator.get_state())
        self._call(self._generator, _likeness)

    def run(self) -> Any:
        """Run the op with the numbers taken first."""
        generator = Generator(_CPU)
        generator.set_state(self._states.popleft())
        return self._call(generator, _same)

    def _call(self, generator: Generator, change: Callable[[Any], Any]) -> Any:
        def put(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [put(one) for one in value]
            return generator if isinstance(value, Generator) else change(value)

        args = [put(value) for value in self._args]
        kwargs = {name: put(value) for name, value in self._kwargs.items()}
        if any(a.name == "generator" for a in self._op._schema.arguments):
            if not any(value is generator for value in args):
                kwargs["generator"] = generator
            return self._op(*args, **kwargs)
        usual = torch.default_generator
        before = usual.get_state()
        usual.set_state(generator.get_state())
        try:
            return self._op(*args, **kwargs)
        finally:
            generator.set_state(usual.get_state())
            usual.set_state(before)


def _same(value: Any) -> Any:
    return value


def _likeness(value: Any) -> Any:
    """Return a tensor of that shape that may stand for probabilities: how much is drawn depends on no value."""
    if not isinstance(value, torch.Tensor):
        return value
    fill = 0.5 if value.is_floating_point() else 1
    return torch.full(value.shape, fill, dtype=value.dtype, device=_CPU)

"""Makes a function an op: inside a capture, a call to it is one node of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from slipstream.device.tape import active_tape

Params = ParamSpec("Params")
Result = TypeVar("Result")


def op(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Make `function` an op. It must not read a device value on the host unless its result hides it."""
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        tape = active_tape()
        if tape is None:
            return function(*args, **kwargs)
        result: Result = tape.record_op(name, function, args, kwargs)
        return result

    return call

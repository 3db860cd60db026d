"""Printing a tensor inside a captured graph: at every replay, with the values of that replay.

ops.print_tensor(hidden_RH, "hidden after layer 3")      in the captured function; one line on stderr a replay

A Python `print` in a captured function prints once, at capture, and a tensor's values would be read on the
host, which no capture allows. This is an op, so it is captured: on `cpu` it is a call-back between the native
programs, on the software NPU a command of its stream, and on an NPU torch_npu's own op for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from slipstream.device.tape import active_tape

#: Numbers that a line shows; the rest is told by least, greatest and mean.
_SHOWN = 6

_LIBRARY = torch.library.Library("slipstream", "FRAGMENT")
_LIBRARY.define("print_tensor(Tensor x, str name) -> ()")


def describe(name: str, x: torch.Tensor) -> str:
    """Return the line that is printed: dtype, shape, first numbers, least, greatest, mean, what is not finite."""
    line = f"{name}: {str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    if not x.numel():
        return f"{line} empty"
    first = ", ".join(f"{value:.6g}" for value in x.reshape(-1)[:_SHOWN].tolist())
    more = ", ..." if x.numel() > _SHOWN else ""
    wide = x.double()
    bad = int((~wide.isfinite()).sum())
    figures = f"least {wide.min():.6g} greatest {wide.max():.6g} mean {wide.mean():.6g}"
    return f"{line} [{first}{more}] {figures}{f'; {bad} not finite' if bad else ''}"


def _print(x: torch.Tensor, name: str) -> None:
    # A capture on the cpu device computes as it records; what is printed is replays and eager runs.
    if active_tape() is None:
        print(describe(name, x), file=sys.stderr, flush=True)


def _print_on_npu(x: torch.Tensor, name: str) -> None:
    printer: Callable[..., Any] = torch.ops.npu.print_npugraph_tensor
    printer(x, tensor_name=name)


_LIBRARY.impl("print_tensor", _print, "CompositeExplicitAutograd")
_LIBRARY.impl("print_tensor", _print_on_npu, "PrivateUse1")
torch.library.register_fake("slipstream::print_tensor", lambda x, name: None, lib=_LIBRARY)


def print_tensor(x: torch.Tensor, name: str) -> None:
    """Print a tensor of the captured function at every replay, and where the function runs eagerly.

    Costs a wait for the device where it has to be read back; a help for finding a fault, not for serving.
    """
    torch.ops.slipstream.print_tensor(x, name)

"""torch.npu's settings. The model has no compiler, formats or task queue: they are taken, and change nothing."""

from __future__ import annotations

from typing import Any

from slipstream.errors import UnknownNameError

#: What `set_sync_debug_mode` may be told, by name and number.
_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}

_jit_compile = [False]


class Config:
    """torch.npu.config: takes any setting."""


class Hf32:
    """torch.npu.matmul and torch.npu.conv: whether products may be rounded; here they never are."""

    allow_hf32 = False


def set_compile_mode(jit_compile: Any = False) -> None:
    """Note whether ops are compiled when called."""
    _jit_compile[0] = bool(jit_compile)


def is_jit_compile_false() -> bool:
    """Return whether ops are not compiled when called."""
    return not _jit_compile[0]


def set_option(option: Any) -> None:
    """Take options.

    Raises:
        TypeError: it is no dict.
    """
    if not isinstance(option, dict):
        raise TypeError("npu option must be a dict.")


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    """Do nothing: tensors have one format."""


def get_mm_bmm_format_nd() -> bool:
    """Return True."""
    return True


def set_op_timeout_ms(timeout: Any) -> None:
    """Do nothing: ops take no time."""


def set_sync_debug_mode(debug_mode: Any) -> None:
    """Do nothing but check the mode: the software NPU says itself where the host waits in a capture.

    Raises:
        UnknownNameError: it is neither "default", "warn" or "error" nor 0, 1 or 2.
    """
    if debug_mode not in _SYNC_MODES and debug_mode not in _SYNC_MODES.values():
        raise UnknownNameError("sync debug mode", str(debug_mode), _SYNC_MODES)


def ipc_collect() -> None:
    """Do nothing: no memory is shared with other processes."""

"""Every exception that Slipstream raises on purpose, in one tree.

    SlipstreamError
    ├── UsageError              what was asked is not possible: a value, a flag, a combination     (exit 2)
    │   └── UnknownNameError    a name that does not exist; carries the nearest one that does
    ├── ModelError              a model file cannot be used
    │   ├── ModelNotFoundError      nothing is at that path, or the name is not in the catalog
    │   ├── ModelFormatError        not GGUF or safetensors, truncated, or inconsistent
    │   └── UnsupportedModelError   an architecture or tensor type that is not implemented
    ├── DownloadError           a model could not be fetched or stored; the cache is as it was before
    ├── TrainingError           training cannot go on: a file cannot be written or read, data cannot be used
    ├── RequestError            one request cannot be served; the others go on
    │   ├── EmptyPromptError
    │   ├── InvalidTextError        a UsageError as well
    │   ├── PromptTooLongError
    │   └── RequestTooLargeError    it could never fit in the KV pages
    ├── DeviceError             the device cannot do what the program asks
    │   ├── CaptureError            a graph could not be captured
    │   ├── ReplayError             a graph cannot be replayed as asked
    │   └── HangError               a wait that nothing can ever satisfy
    ├── TraceError              a trace cannot be read: not one, empty, or damaged beyond use
    └── PlanAccessError         a plan function touched a buffer that it does not declare

Each message says what was asked, what is possible and what to do.
Anything else that escapes is a defect of Slipstream, not the user's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

#: What a command exits with that Ctrl-C ended; others say it by their error.
INTERRUPTED: Final = 130


class SlipstreamError(Exception):
    """Base of every error that Slipstream raises on purpose.

    Attributes:
        exit_code: what the command line exits with, 1 for a failure and 2 for wrong usage.
    """

    exit_code = 1


class UsageError(SlipstreamError):
    """What was asked is not possible."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that does not exist.

    Args:
        kind: what the name names, as "drafter".
        name: what was asked.
        known: the names that exist.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.known = sorted(known)
        self.nearest = nearest_name(name, self.known)
        hint = f" Did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Possible: {', '.join(self.known)}.")


class ModelError(SlipstreamError):
    """A model file cannot be used."""


class ModelNotFoundError(ModelError):
    """Nothing is at that path, or the name is not in the catalog."""


class ModelFormatError(ModelError):
    """The file is not what it should be: another format, truncated, or inconsistent."""


class UnsupportedModelError(ModelError):
    """An architecture or tensor type that is not implemented."""


class DownloadError(SlipstreamError):
    """A model could not be fetched or stored. The cache is as it was before."""


class TrainingError(SlipstreamError):
    """Training cannot go on. What it saved before is whole."""


class RequestError(SlipstreamError):
    """One request cannot be served. The other requests go on."""


class EmptyPromptError(RequestError):
    """The prompt has no token."""

    exit_code = 2


class InvalidTextError(RequestError, UsageError):
    """The prompt is not text: it holds half a surrogate pair, which no encoding has."""

    exit_code = 2


class PromptTooLongError(RequestError):
    """The prompt leaves no room for an answer in the context."""

    exit_code = 2


class RequestTooLargeError(RequestError):
    """The request could never fit in the KV pages, even alone."""

    exit_code = 2


class DeviceError(SlipstreamError):
    """The device cannot do what the program asks."""


class CaptureError(DeviceError):
    """A graph could not be captured."""


class ReplayError(DeviceError):
    """A graph cannot be replayed as asked."""


class HangError(DeviceError):
    """A wait that nothing can ever satisfy: on a device, the program would stand still here."""


class TraceError(SlipstreamError):
    """A trace cannot be read: it is not one, it is empty, or it is damaged beyond use."""


class PlanAccessError(SlipstreamError):
    """A plan function touched a buffer that it does not declare."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, or None if none is alike."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return found[0] if found else None

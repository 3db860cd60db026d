"""`slipstream graphs explain-error`: a log or a traceback read, and what it tells. No torch."""

from __future__ import annotations

import sys
from pathlib import Path

from slipstream.errors import UsageError
from slipstream.graph.failures import Diagnosis, classify


def read_failure(file: str) -> Diagnosis:
    """Return what a log or a traceback tells.

    Args:
        file: a file, or "-" for standard input.

    Raises:
        UsageError: it cannot be read, or there is nothing in it.
    """
    if file == "-":
        data = sys.stdin.buffer.read()
    else:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror or error}.") from error
    text = data.decode("utf-8", errors="replace")
    if not text.strip():
        where = "standard input" if file == "-" else file
        raise UsageError(f"{where} is empty; give a log or a traceback, whole if you can.")
    return classify(text)

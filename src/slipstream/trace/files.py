"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from slipstream.errors import SlipstreamError


def replace_file(path: Path, data: bytes | Iterable[bytes], what: str) -> None:
    """Write beside the target, then rename: whoever looks sees the old file or the new one, never half.

    Args:
        path: of the file.
        data: all of it, or piece by piece.
        what: it is, as "page".

    Raises:
        SlipstreamError: it cannot be written; nothing of it is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise SlipstreamError(
            f"cannot write the {what} {path}: {error.strerror or error}. "
            "Nothing of it is left; give another path or free some space."
        ) from error

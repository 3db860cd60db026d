"""Where the real traces are; tests that need one skip where it is not."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from slipstream.timeline.analysis import Analysis, analyse
from slipstream.timeline.readers import open_timeline

_ROOT = Path(os.environ.get("SLIPSTREAM_TRACES", Path(__file__).parents[2] / ".." / "shared" / "traces"))


def real(name: str) -> Path:
    """Return the path of a real trace."""
    path = _ROOT / name
    if not path.exists():
        pytest.skip(f"the real trace {name} is not here (looked in $SLIPSTREAM_TRACES or ../shared/traces)")
    return path


@functools.cache
def _analysed(path: Path) -> Analysis:
    return analyse(open_timeline(path))


def analysed(name: str) -> Analysis:
    """Return a real trace analysed; once for all tests, as nothing changes an analysis."""
    return _analysed(real(name))

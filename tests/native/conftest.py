"""Every test here runs on each instruction set that this processor has."""

from collections.abc import Iterator

import pytest

from slipstream.native import library


def _isas() -> list[str]:
    if library.load() is None:
        return []
    found = [isa for isa in library.ISAS if library.choose_isa(isa) == isa]
    library.choose_isa(None)
    return found


@pytest.fixture(params=_isas() or [pytest.param("none", marks=pytest.mark.skip(reason="no native library"))])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Native kernels of one instruction set, on two threads."""
    library.choose_isa(request.param)
    library.use(True, 2)
    yield request.param
    library.choose_isa(None)
    library.use(False, 1)

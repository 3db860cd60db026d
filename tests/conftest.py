"""Fixtures that tests of several packages share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.errors import DownloadError
from slipstream.model.catalog import get_model
from slipstream.native import library
from tests.engines import Fleet
from tests.model.tiny import write_tiny_gguf


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct: $SLIPSTREAM_TEST_MODEL, or from the cache, fetched if needed."""
    given = os.environ.get("SLIPSTREAM_TEST_MODEL")
    if given:
        return Path(given)
    try:
        return get_model("smollm2", progress=False)
    except DownloadError as error:
        pytest.skip(f"needs the smollm2 model: {error}")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A tiny model with varied text: its LM head is not its embedding."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return Fleet(write_tiny_gguf(path, tie=False, context=512))


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Fleet:
    """The real model; on one thread, because beside other work on few cores two would wait for each other."""
    return Fleet(smollm2_path, max_len=512)


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

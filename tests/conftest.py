"""Fixtures that tests of several packages share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.errors import DownloadError
from slipstream.model.catalog import get_model
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

"""Fixtures that tests of several packages share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.errors import DownloadError
from slipstream.model.catalog import get_model


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

"""Tables of databases: Arrow's driver and Python's own module give the same numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.timeline.readers import arrow
from slipstream.timeline.readers.database import opened

whole = st.integers(-5, 1 << 62)
odd = st.one_of(whole, st.none(), st.text(max_size=3), st.floats(allow_nan=False), st.binary(max_size=2))
WANTED = ("start", "end", "name", "missing")


def write(path: Path, rows: Sequence[Sequence[Any]]) -> Path:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (start, end, name)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    database.close()
    return path


def numbers(path: Path) -> tuple[list[list[int]], int]:
    """Return the columns of the table, and how many rows were left out."""
    with opened(path) as database:
        found = list(database.numbers("t", WANTED, times=2))
    columns = [np.concatenate(column).tolist() for column in zip(*(batch for batch, _ in found), strict=True)]
    return columns or [[]] * len(WANTED), sum(lost for _, lost in found)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 70_000])
def test_whole_numbers_come_by_arrow_and_by_rows_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = write(tmp_path / "t.db", [(n, n + 1, n % 7) for n in range(count)])
    query = 'SELECT start, end FROM "t"'
    batches = arrow.whole_numbers(path, query, 1 << 16)
    assert batches is not None
    assert sum(len(start) for start, _ in batches) == count
    quick = numbers(path)
    monkeypatch.setattr(arrow, "whole_numbers", lambda *_: None)
    assert numbers(path) == quick
    assert quick == (
        [list(range(count)), list(range(1, count + 1)), [n % 7 for n in range(count)], [-1] * count],
        0,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(st.one_of(whole, odd), whole, odd), max_size=12))
def test_other_values_are_told_of_alike(tmp_path: Path, rows: list[tuple[Any, Any, Any]]) -> None:
    path = write(tmp_path / "t.db", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "whole_numbers", lambda *_: None)
        expected = numbers(path)
    assert numbers(path) == expected


def test_what_is_no_whole_number_is_left_to_pythons_module(tmp_path: Path) -> None:
    for value in (None, "text", 1.5, b"x"):
        path = write(tmp_path / "t.db", [(1, 2, 3), (4, 5, value)])
        assert arrow.whole_numbers(path, 'SELECT name FROM "t"', 16) is None
    assert arrow.whole_numbers(tmp_path / "t.db", 'SELECT nothing FROM "t"', 16) is None
    (tmp_path / "no.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert arrow.whole_numbers(tmp_path / "no.db", 'SELECT name FROM "t"', 16) is None

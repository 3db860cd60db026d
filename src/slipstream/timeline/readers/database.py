"""SQLite for the readers of databases: what is there of a table, in columns of integers."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from slipstream.errors import TraceError
from slipstream.timeline.table import Bool, Int64

_MAGIC: Final = b"SQLite format 3\0"
#: Rows that a reader gets at once, and rows that are made into numbers at once, while they are in the cache.
_BATCH: Final = 1 << 16
_BLOCK: Final = 1 << 8


def is_database(path: Path) -> bool:
    """Whether a file is SQLite's."""
    try:
        with path.open("rb") as file:
            return file.read(16) == _MAGIC
    except OSError:
        return False


class Database:
    """A database of which only what is there is asked for."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self.tables = {name for (name,) in listed}

    def columns(self, table: str) -> set[str]:
        """The columns of a table; none if it is not there."""
        if table not in self.tables:
            return set()
        return {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')}

    def batches(self, table: str, wanted: Iterable[str]) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of a table in the order of `wanted`; a column that is not there is NULL."""
        there = self.columns(table)
        if not there:
            return
        chosen = ", ".join(f'"{name}"' if name in there else "NULL" for name in wanted)
        cursor = self.connection.execute(f'SELECT {chosen} FROM "{table}"')
        while batch := cursor.fetchmany(_BATCH):
            yield batch

    def numbers(
        self, table: str, wanted: Sequence[str], *, times: int = 0
    ) -> Iterator[tuple[Sequence[Int64], int]]:
        """Columns of integers, to read only, and how many rows had to be left out.

        NULL, and what is no number of 62 bits, is -1.

        Args:
            table: its name.
            wanted: the columns; one that is not there is -1.
            times: without a number in one of so many first columns a row is left out.

        Yields:
            int64 [rows] for each column, and a count.
        """
        there = self.columns(table)
        if not there:
            return
        chosen = ", ".join(
            "-1" if name not in there else f'"{name}"' if place < times else f'coalesce("{name}", -1)'
            for place, name in enumerate(wanted)
        )
        query = f'SELECT {chosen} FROM "{table}"'
        # Imported here: other readers do without the driver.
        from slipstream.timeline.readers.arrow import whole_numbers

        batches = whole_numbers(self.path, query, _BATCH)
        if batches is not None:
            yield from ((batch, 0) for batch in batches)
            return
        cursor = self.connection.execute(query)
        width = len(wanted)
        more = True
        while more:
            made, lost = [], 0
            for _ in range(_BATCH // _BLOCK):
                rows = cursor.fetchmany(_BLOCK)
                more = len(rows) == _BLOCK
                try:
                    block = np.fromiter(chain.from_iterable(rows), np.int64, width * len(rows))
                except (TypeError, ValueError, OverflowError):
                    good = [row for row in rows if all(isinstance(time, int) for time in row[:times])]
                    lost += len(rows) - len(good)
                    block = np.array([list(map(whole, row)) for row in good], np.int64)
                made.append(block.reshape(-1, width))
                if not more:
                    break
            yield list(np.ascontiguousarray(np.concatenate(made).T)), lost

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a small table."""
        if table not in self.tables:
            return []
        cursor = self.connection.execute(f'SELECT * FROM "{table}"')
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """Open a database for reading alone.

    Raises:
        TraceError: it cannot be read, is locked, damaged, or none of SQLite's.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
        ) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield Database(path, connection)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise TraceError(
                f"{path} is locked: another program writes to it. Close that, or copy the file and read the copy."
            ) from error
        raise TraceError(f"cannot read the database {path}: {error}") from error
    except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError) as error:
        # The last: sqlite3 cannot even say what is wrong, as its message quotes what is damaged.
        raise TraceError(f"{path} is damaged, or no database of SQLite: {error}") from error


@contextmanager
def without_collection() -> Iterator[None]:
    """Rows come as millions of tuples of numbers, in which the collector would look for circles in vain."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Lookup:
    """Names by the number of a task; of several for one the last counts."""

    def __init__(self, parts: list[tuple[Int64, Int64]]) -> None:
        nothing = np.empty(0, np.int64)
        keys = np.concatenate([nothing, *(part[0] for part in parts)])
        values = np.concatenate([nothing, *(part[1] for part in parts)])
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        self._keys, self._values = keys[last], values[last]

    def __len__(self) -> int:
        return len(self._keys)

    def __call__(self, wanted: Int64) -> tuple[Int64, Bool]:
        """Return the name of each task, -1 without one, and whether it is there."""
        if not len(self):
            return np.full(len(wanted), -1, np.int64), np.zeros(len(wanted), np.bool_)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self) - 1)
        there = self._keys[at] == wanted
        return np.where(there, self._values[at], -1), there


def pairs_of(first: Int64, second: Int64) -> tuple[list[tuple[int, int]], Int64]:
    """Return the different pairs of two columns, and which of them each row has."""
    ones, of_one = np.unique(first, return_inverse=True)
    twos, of_two = np.unique(second, return_inverse=True)
    found, which = np.unique(of_one * len(twos) + of_two, return_inverse=True)
    place = np.divmod(found, max(len(twos), 1))
    return list(zip(ones[place[0]].tolist(), twos[place[1]].tolist(), strict=True)), which


def integers(values: tuple[Any, ...]) -> Int64:
    """int64 [rows]; NULL is -1."""
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([whole(value) for value in values], np.int64)


def whole(value: Any) -> int:
    """A number, -1 where it is none or longer than 62 bits."""
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1

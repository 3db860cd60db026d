"""Numbers that captured ops take from the host: the host's side of `StepBuffers`. Pure: no torch.

An op names the list that it reads and what it makes of it (`Source`), never its values: those are read anew for
every replay, and a list that nobody has written since the last one is an error, not an old value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from slipstream.errors import PlanAccessError, ReplayError, nearest_name

#: Tokens of each request whose keys and values are in the cache; 0 where a row is padding.
COMMITTED = "committed"


class TaskOrder(Enum):
    """What is issued first at a replay of a graph with tasks. The result is the same.

    REPLAY_FIRST: the updates of later layers are issued while earlier ones compute.
    UPDATE_FIRST: for runtimes that want an opening before the wait for it (Ascend's ENPU).
    """

    REPLAY_FIRST = "replay_first"
    UPDATE_FIRST = "update_first"


class Source(NamedTuple):
    """What an op's numbers are made of: the first `size` of a list, each plus `offset`, from 1 to `most`."""

    name: str
    size: int
    offset: int
    most: int


class HostLists:
    """Lists of one number a request, by name.

    Args:
        sizes: how many requests each list has room for.

    Attributes:
        version: counts the writes.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._lists = {name: [0] * size for name, size in sizes.items()}
        self.version = 0

    def write(self, name: str, values: Sequence[int]) -> None:
        """Write the requests' numbers for the replays to come; what is behind them is padding, 0.

        Raises:
            PlanAccessError: there is no such list, or not so much room.
        """
        held = self._of(name)
        if len(values) > len(held):
            raise PlanAccessError(
                f"host list {name!r} has room for {len(held)} requests, and {len(values)} were written; make it "
                "larger."
            )
        held[: len(values)] = values
        held[len(values) :] = [0] * (len(held) - len(values))
        self.version += 1

    def hold(self) -> None:
        """Say that the lists are right for another replay as they are."""
        self.version += 1

    def read(self, source: Source) -> list[int]:
        """Return an op's numbers as they are now.

        Raises:
            PlanAccessError: there is no such list.
            ReplayError: a number is out of the range that the op can take.
        """
        name, size, offset, most = source
        values = [value + offset for value in self._of(name)[:size]]
        if len(values) != size or min(values) < 1 or max(values) > most:
            self._explain(source, values)
        return values

    def _explain(self, source: Source, values: list[int]) -> None:
        if len(values) != source.size:
            raise ReplayError(
                f"an op takes {source.size} numbers of host list {source.name!r}, which has {len(values)}."
            )
        row = next(row for row, value in enumerate(values) if not 1 <= value <= source.most)
        raise ReplayError(
            f"host list {source.name!r} gives {values[row]} for row {row} (with {source.offset} on top), and the "
            f"op takes 1 to {source.most}. Write the lengths that the device has."
        )

    def _of(self, name: str) -> list[int]:
        held = self._lists.get(name)
        if held is None:
            nearest = nearest_name(name, self._lists)
            hint = f"; did you mean {nearest!r}?" if nearest else "."
            raise PlanAccessError(f"there is no host list {name!r}{hint}")
        return held

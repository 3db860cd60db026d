"""What an edge is: kinds, confidence, and edges as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from slipstream.timeline.table import Bool, Int32, UInt8


class EdgeKind(IntEnum):
    """Why a row could not begin earlier."""

    LAUNCH = 0  # the host had not issued it yet
    STREAM = 1  # it stands behind another on its stream
    EVENT = 2  # its stream waited for an event, and the trace says for which
    EVENT_INFERRED = 3  # its stream waited, and times tell for what
    GRAPH = 4  # an edge of the captured graph
    HOST = 5  # program order of a thread, or the host waiting for the device
    COLLECTIVE = 6  # another rank had not arrived yet


class Confidence(IntEnum):
    """How surely an edge is there."""

    GIVEN = 0  # the trace or a dump says it
    INFERRED = 1  # a rule that held wherever it could be checked
    GUESSED = 2  # what the times suggest; another reading is possible


@dataclass(frozen=True)
class EdgeList:
    """E edges in columns.

    Attributes:
        src: int32 [E], the row waited for.
        dst: int32 [E], the row that waits.
        kind: uint8 [E], an EdgeKind.
        confidence: uint8 [E], a Confidence.
        from_start: bool [E], whether `dst` waits only for `src` to begin (a rank that has arrived).
    """

    src: Int32
    dst: Int32
    kind: UInt8
    confidence: UInt8
    from_start: Bool

    def __len__(self) -> int:
        return len(self.src)

    def take(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> EdgeList:
        """Return some of the edges."""
        return EdgeList(
            self.src[which],
            self.dst[which],
            self.kind[which],
            self.confidence[which],
            self.from_start[which],
        )


def edge_list(
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    kind: EdgeKind,
    confidence: Confidence = Confidence.GIVEN,
    *,
    from_start: bool = False,
) -> EdgeList:
    """Return edges of one kind.

    Args:
        src, dst: rows, [E].
        kind, confidence, from_start: of all of them.
    """
    src_E, dst_E = np.asarray(src, np.int32), np.asarray(dst, np.int32)
    count = len(src_E)
    return EdgeList(
        src_E,
        dst_E,
        np.full(count, kind, np.uint8),
        np.full(count, confidence, np.uint8),
        np.full(count, from_start, np.bool_),
    )


def no_edges() -> EdgeList:
    """Return no edge."""
    return edge_list((), (), EdgeKind.STREAM)


def concatenate(lists: Sequence[EdgeList]) -> EdgeList:
    """Return all edges of some lists."""
    lists = [item for item in lists if len(item)] or [no_edges()]
    return EdgeList(
        np.concatenate([item.src for item in lists]),
        np.concatenate([item.dst for item in lists]),
        np.concatenate([item.kind for item in lists]),
        np.concatenate([item.confidence for item in lists]),
        np.concatenate([item.from_start for item in lists]),
    )

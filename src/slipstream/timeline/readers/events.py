"""The events of a Chrome trace as the readers decode them: what they use, and nothing else.

Whatever a program writes into a field must not make the file unreadable, so types are loose here and values are
checked where they are used.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

#: From here on a float of microseconds does not hold nanoseconds.
_EXACT_US: Final = float(1 << 43)


class KinetoArgs(msgspec.Struct, gc=False):
    """Arguments of an event in PyTorch's profile. Kineto's own names, old and new."""

    correlation: Any = -1
    stream: Any = None
    device: Any = None
    bytes: Any = -1
    name: Any = None
    graph_id: Any = msgspec.field(default=0, name="graph id")
    node_id: Any = msgspec.field(default=0, name="graph node id")
    sync_kind: Any = msgspec.field(default=None, name="cuda_sync_kind")
    wait_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    wait_record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_text: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    sequence: Any = msgspec.field(default=None, name="Seq")
    source_rank: Any = msgspec.field(default=None, name="Src Rank")
    target_rank: Any = msgspec.field(default=None, name="Dst Rank")


class KinetoEvent(msgspec.Struct, gc=False):
    """An event of PyTorch's profile; `ts` and `dur` in microseconds."""

    ph: Any = None
    cat: Any = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: int | float | str | None = None
    dur: int | float | str | None = 0
    args: KinetoArgs | None = None


class _ExactKinetoEvent(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: Decimal | None = None
    dur: Decimal | None = Decimal(0)
    args: KinetoArgs | None = None


_FAST: Final = msgspec.json.Decoder(list[KinetoEvent])
_EXACT: Final = msgspec.json.Decoder(list[_ExactKinetoEvent])


def decode_kineto(text: bytes) -> list[KinetoEvent]:
    """Decode an array of events. Where a float would lose nanoseconds, `ts` is a Decimal."""
    events = _FAST.decode(text)
    for event in events:
        if event.ph == "X":
            if isinstance(event.ts, float) and event.ts >= _EXACT_US:
                return _EXACT.decode(text)  # type: ignore[return-value]
            break
    return events

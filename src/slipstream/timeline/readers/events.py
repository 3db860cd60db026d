"""The events of a Chrome trace as the readers decode them: what they use, and nothing else.

Whatever a program writes into a field must not make the file unreadable, so types are loose here and values are
checked where they are used. Where no scalar stands, an event is left out and counted.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

from slipstream.timeline.table import Args

_SIZES: Final = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "float8": 1, "half": 2, "bfloat16": 2, "short": 2,
    "float": 4, "int": 4, "double": 8, "long": 8,
}  # fmt: skip

#: From here on a float of microseconds does not hold nanoseconds.
_EXACT_US: Final = float(1 << 43)


#: What may stand where a number or a name should.
Scalar = int | float | str | None


class NamedEvent(msgspec.Struct, gc=False):
    """What every kind of event has: phase, category, name, and the process and thread it belongs to."""

    ph: Scalar = None
    cat: Scalar = None
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None


class TimedEvent(NamedEvent, gc=False):
    """An event whose `ts` and `dur` are numbers as they come, or text."""

    ts: int | float | str | None = None
    dur: int | float | str | None = 0


class KinetoArgs(msgspec.Struct, gc=False):
    """Arguments of an event in PyTorch's profile. Kineto's own names, old and new."""

    correlation: Scalar = -1
    stream: Scalar = None
    device: Scalar = None
    bytes: Scalar = -1
    name: Scalar = None
    graph_id: Scalar = msgspec.field(default=0, name="graph id")
    node_id: Scalar = msgspec.field(default=0, name="graph node id")
    sync_kind: Any = msgspec.field(default=None, name="cuda_sync_kind")
    wait_stream: Scalar = msgspec.field(default=None, name="wait_on_stream")
    wait_record: Scalar = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
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


class KinetoEvent(TimedEvent, gc=False):
    """An event of PyTorch's profile; `ts` and `dur` in microseconds."""

    args: KinetoArgs | None = None


class _ExactKinetoEvent(NamedEvent, gc=False):
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


def ranks_of(text: Any) -> tuple[int, ...]:
    """From "[0, 1, 2]" or a list; () where shortened ("[0, 1, ...]") or absent."""
    if isinstance(text, list) and all(isinstance(rank, int) for rank in text):
        return tuple(text)
    inside = str(text).strip("[] ") if isinstance(text, str) else ""
    try:
        return tuple(int(rank) for rank in inside.split(",")) if inside else ()
    except ValueError:
        return ()


def message_bytes(args: KinetoArgs) -> int:
    """The larger of what goes in and comes out, -1 unknown."""
    name = str(args.dtype or "").lower().removeprefix("c10::")
    size = next((size for key, size in _SIZES.items() if name.startswith(key)), 0)
    counts = [
        each for each in (args.in_elements, args.out_elements) if isinstance(each, int) and each < 1 << 56
    ]
    return max(counts) * size if counts and size else -1


def said(args: KinetoArgs) -> Args:
    """What a collective says of itself, without what it does not say."""
    facts = {
        "collective": args.collective, "dtype": args.dtype, "group size": args.group_size,
        "group": args.group_text, "src rank": args.source_rank, "dst rank": args.target_rank,
    }  # fmt: skip
    return {key: value for key, value in facts.items() if value is not None}

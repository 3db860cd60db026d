"""The events of a Chrome trace as the readers decode them: what they use, and nothing else.

Whatever a program writes into a field must not make the file unreadable, so types are loose here and values are
checked where they are used. Where no scalar stands, an event is left out and counted.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar, Final, Union

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


class KinetoEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A stretch of time of PyTorch's profile; `ts` and `dur` in microseconds, also as Decimal."""

    cat: Scalar = None
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = 0
    args: KinetoArgs | None = None


class KinetoName(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Metadata: the name of a process or a thread."""

    phase: ClassVar[str] = "M"
    name: Scalar = ""
    pid: Scalar = None
    tid: Scalar = None
    args: KinetoArgs | None = None


class OtherEvent(msgspec.Struct, gc=False):
    """What is neither; only counted."""

    phase: Scalar = None


class _AnyEvent(TimedEvent, gc=False):
    args: KinetoArgs | None = None


class _ExactEvent(NamedEvent, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = Decimal(0)
    args: KinetoArgs | None = None


Kineto = KinetoEvent | KinetoName | OtherEvent

#: Half of a trace may be arrows and instants: with the phase for a tag, nothing is made of their fields.
_COUNTED: Final[Any] = tuple(
    msgspec.defstruct(f"_Phase_{phase}", [], namespace={"phase": phase}, gc=False, tag_field="ph", tag=phase)
    for phase in ("s", "f", "t", "i", "I", "R", "C")
)
_FAST: Final = msgspec.json.Decoder(list[Union[(KinetoEvent, KinetoName, *_COUNTED)]])  # type: ignore[valid-type]
_ANY: Final = msgspec.json.Decoder(list[_AnyEvent])
_EXACT: Final = msgspec.json.Decoder(list[_ExactEvent])


def decode_kineto(text: bytes | memoryview) -> list[Kineto]:
    """Decode an array of events. Where a float would lose nanoseconds, `ts` is a Decimal."""
    try:
        events: list[Kineto] = _FAST.decode(text)
    except msgspec.ValidationError:  # a phase that is not known here, or none
        events = [_typed(event) for event in _ANY.decode(text)]
    first = next((event for event in events if type(event) is KinetoEvent), None)
    if first is not None and isinstance(first.ts, float) and first.ts >= _EXACT_US:
        return [_typed(event) for event in _EXACT.decode(text)]
    return events


def _typed(event: _AnyEvent | _ExactEvent) -> Kineto:
    if event.ph == "X":
        ts: Any = event.ts
        dur: Any = event.dur
        return KinetoEvent(event.cat, event.name, event.pid, event.tid, ts, dur, event.args)
    if event.ph == "M":
        return KinetoName(event.name, event.pid, event.tid, event.args)
    return OtherEvent(event.ph)


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

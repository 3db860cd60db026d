"""The one event schema of Slipstream: what the engine records, what the tools read. No torch."""

from __future__ import annotations

from slipstream.trace import names
from slipstream.trace.ambient import ambient_recorder
from slipstream.trace.chrome import ChromeTrace, encode_chrome, read_chrome, write_chrome
from slipstream.trace.events import Event, Flow, Mark, PartTimes, Slice
from slipstream.trace.flatten import check_no_overlap, flatten
from slipstream.trace.recorder import NullRecorder, Recorder

__all__ = [
    "ChromeTrace",
    "Event",
    "Flow",
    "Mark",
    "NullRecorder",
    "PartTimes",
    "Recorder",
    "Slice",
    "ambient_recorder",
    "check_no_overlap",
    "encode_chrome",
    "flatten",
    "names",
    "read_chrome",
    "write_chrome",
]

"""The names that every part of Slipstream uses for tracks and phases, in the order they are shown."""

from __future__ import annotations

from typing import Final

# Tracks.
MAIN: Final = "main"
PLAN: Final = "plan"
HOST: Final = "host"

TRACKS: Final = (MAIN, PLAN, HOST)


def graph_track(stream: str) -> str:
    """Return the track of what a stream's phases are made of, as the parts of replays; below the stream's own."""
    return f"{stream} graph"


# Phases: what the device does in a prefill and in a round, then what the host does in a step.
PREFILL: Final = "prefill"
DRAFT: Final = "draft"
VERIFY_PLAN: Final = "verify plan"
VERIFY: Final = "verify"
ACCEPT: Final = "accept"
EXTEND_PLAN_A: Final = "extend plan A"
EXTEND_PLAN_B: Final = "extend plan B"
EXTEND: Final = "extend"
CATCH_UP: Final = "catch-up"
SCHEDULE: Final = "schedule"
UPLOAD: Final = "upload"
DRAFT_PLAN: Final = "draft plan"
SETTLE: Final = "settle"
#: Writing into the trace what a replay was made of: it is part of a round only because the round is recorded.
RECORD: Final = "record"
PUBLISH: Final = "publish"

#: What the host does in a step.
HOST_PHASES: Final = (SCHEDULE, UPLOAD, DRAFT_PLAN, RECORD, SETTLE, PUBLISH)

PHASES: Final = (
    PREFILL,
    CATCH_UP,
    DRAFT,
    VERIFY_PLAN,
    VERIFY,
    ACCEPT,
    EXTEND_PLAN_A,
    EXTEND_PLAN_B,
    EXTEND,
    *HOST_PHASES,
)

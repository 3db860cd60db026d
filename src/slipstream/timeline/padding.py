"""Rows of a phase: what follows from the little that its mark says, and from what the user adds.

bucket 8   |1 2 3 4|1 2 3 4|1 2 3 4|1 2 3 4|1 2 3 4|. . . .|. . . .|. . . .|      5 requests of width 4
rows 32      rows of requests 20                      padded rows 12
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.timeline import markers

#: What a phase knows of its rows, in the order in which it is told.
ROW_FACTS = ("requests", "bucket", "width", "rows")


def with_padding(facts: Mapping[str, int]) -> dict[str, int]:
    """Return facts with what follows from them: rows, width and padded rows.

    Where the bucket is unknown, rows are those of requests.
    """
    known = dict(facts)
    bucket, requests, rows = known.get("bucket"), known.get("requests"), known.get("rows")
    slots = bucket or requests
    if "width" not in known and rows and slots and rows % slots == 0:
        known["width"] = rows // slots
    if "rows" not in known and slots and "width" in known:
        known["rows"] = slots * known["width"]
    if "padded_rows" not in known and bucket and requests is not None:
        known["padded_rows"] = (bucket - requests) * known.get("width", 1)
    return known


def facts_of(
    phase: str, marked: Mapping[str, int], width: int | None
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return what is known of a phase, and which of it the user said.

    Args:
        phase: its name.
        marked: what its marks say.
        width: rows that a request has in verify, as the user says; it counts where no mark says it, nor says rows:
            such as are no multiple of the requests have no width.
    """
    known = with_padding(marked)
    if phase != markers.VERIFY or width is None or {"width", "rows"} & set(known):
        return known, ()
    return with_padding({**marked, "width": width}), ("width",)

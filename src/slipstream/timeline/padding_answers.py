"""Questions 2 and 4: buckets, rows and what their padding costs. What is not known is named, never assumed."""

from __future__ import annotations

from slipstream.timeline import markers
from slipstream.timeline.padding import ROW_FACTS
from slipstream.timeline.question import Answer, Facts, Value
from slipstream.timeline.rounds import Phase
from slipstream.timeline.table import Source
from slipstream.timeline.wording import counted, duration

#: How a user says what marks leave out.
OPTION = "--width"


def draft_padding(facts: Facts) -> Answer:
    """Answer question 2."""
    phase = facts.item.phase(markers.DRAFT)
    if phase is None:
        return facts.without(2, "draft")
    known = phase.facts
    if "bucket" not in known:
        return facts.missing(2, "no mark of the draft says its bucket")
    if "requests" not in known:
        return facts.missing(2, f"the draft's bucket of {known['bucket']} is marked, its requests are not")
    bucket, requests = known["bucket"], known["requests"]
    padded = bucket - requests
    values: dict[str, Value] = {"bucket": bucket, "requests": requests, "padded_slots": padded}
    values["padded_ns"] = cost = round(phase.busy_ns * padded / bucket) if bucket else 0
    text = f"{counted(requests, 'request')} in a bucket of {bucket}: {padded} padded"
    if padded:
        text += f", at most {duration(cost)} of {duration(phase.busy_ns)}"
    return Answer(2, text, values)


def verify_rows(facts: Facts) -> Answer:
    """Answer question 4: with `--width` where no mark says the width."""
    phase = facts.item.phase(markers.VERIFY)
    if phase is None:
        return facts.without(4, "verify")
    known = phase.facts
    width_told = "width" in phase.told
    unknown = _unknown(phase)
    if unknown:
        return facts.missing(4, unknown)
    values: dict[str, Value] = {key: known[key] for key in ROW_FACTS if key in known}
    values["route"], values["busy_ns"] = phase.route.value, phase.busy_ns
    words = [
        f"{key} {known[key]}{f' (by {OPTION})' if key == 'width' and width_told else ''}"
        for key in ROW_FACTS
        if key in known
    ]
    text, source = ", ".join(words), Source.USER if width_told else facts.source
    if "bucket" not in known or "requests" not in known:
        lacks = "its bucket is not marked" if "bucket" not in known else "its requests are not marked"
        return Answer(4, f"{text}; padding is not in this trace, because {lacks}", values, source)
    cost, how, inferred = _cost(facts, phase)
    if "width" in known:
        padded = values["padded_rows"] = known.get("padded_rows", 0)
        text += f", padded {padded}"
    else:
        padded = values["padded_slots"] = known["bucket"] - known["requests"]
        text += f", padded {counted(padded, 'slot')}"
    values["padded_ns" if inferred or not padded else "padded_at_most_ns"] = cost
    if padded:
        text += f", which cost {how}"
    if inferred and width_told:
        text += " (inferred)"
    elif inferred:
        source = Source.INFERRED
    if "width" not in known:
        text += f"; its width is not in this trace, because no mark says it ({OPTION} N does)"
    return Answer(4, text, values, source)


def _unknown(phase: Phase) -> str:
    """Return why nothing can be said of the rows of verify, or "" if something can."""
    known = phase.facts
    if "width" in phase.told and not {"bucket", "requests"} & set(known):
        return f"no mark of verify says its bucket or requests, and {OPTION} {known['width']} alone gives no rows"
    if not {"rows", "bucket", "requests"} & set(known):
        return "no mark of verify says its rows, bucket or requests"
    if "rows" in known or {"bucket", "requests"} <= set(known):
        return ""
    only = next(f"its {key}, {known[key]}" for key in ("requests", "bucket") if key in known)
    return f"no mark of verify says its width or rows, only {only}: say the width with {OPTION}"


def _cost(facts: Facts, phase: Phase) -> tuple[int, str, bool]:
    """Return what the padding of verify costs in ns, the words for it, and whether it was inferred; else a bound.

    The share of rows that are padding is that of slots, whatever the width.
    """
    bucket = phase.facts["bucket"]
    padded = bucket - phase.facts["requests"]
    most = round(phase.busy_ns * padded / bucket) if bucket else 0
    slope = facts.across.ns_per_row.get(markers.VERIFY)
    if slope is not None and padded and "width" in phase.facts:
        cost = round(min(most, max(0.0, slope * padded * phase.facts["width"])))
        return cost, f"{duration(cost)} by rounds with other rows", True
    return most, f"at most {duration(most)} of {duration(phase.busy_ns)}", False

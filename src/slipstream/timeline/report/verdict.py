"""The verdict: how long a round takes and what it is held up by, in two or three sentences."""

from __future__ import annotations

from slipstream.timeline.host import BETWEEN
from slipstream.timeline.report.ledger import NO_KERNELS, Entry
from slipstream.timeline.report.overview import Overview, RankLine
from slipstream.timeline.report.words import ROUNDS, host_name
from slipstream.timeline.rounds import RoundKind
from slipstream.timeline.wording import counted, duration, percent

#: What is less of the path than this is not in the verdict.
_WORTH = 0.05
_WORK = (Entry.WORK, Entry.COPY)


def verdict(view: Overview, line: RankLine | None = None) -> str:
    """Return the verdict on a rank.

    Args:
        view: of the rank.
        line: the same rank beside the others, where there are any.
    """
    sentences = [_how_long(view), f"The device is busy for {percent(view.busy)} of it."]
    causes = sorted(
        ((view.ledger.share(*entries), entries) for entries in (_WORK, *((e,) for e in _OTHERS))),
        key=lambda item: -item[0],
    )
    words = [_cause(view, share, entries) for share, entries in causes if share >= _WORTH]
    if words:
        sentences.append(f"{words[0][0].upper()}{words[0][1:]}{f'; {words[1]}' if len(words) > 1 else ''}.")
    also = _also(view)
    if also:
        sentences.append(f"{also[0][0].upper()}{also[0][1:]}{f'; {also[1]}' if len(also) > 1 else ''}.")
    if line is not None and line.caused_ns >= _WORTH * view.ledger.total_ns:
        sentences.append(
            f"Together, other ranks stood {duration(line.caused_ns)} in collectives until this one came"
            f"{f', {duration(line.caused_ns / line.rounds)} a round' if line.rounds > 1 else ''}"
            f"{'' if line.sure else '; that is not sure, as clocks may differ'}."
        )
    return " ".join(sentences)


def _also(view: Overview) -> list[str]:
    """Say what else there is to gain: exposed communication and padding."""
    mean = view.ledger.total_ns / len(view.reports)
    words: list[str] = []
    if not mean:
        return words
    if view.communication and view.communication[0].exposed_ns >= _WORTH * mean:
        words.append(
            f"exposed communication is {percent(view.communication[0].exposed_ns / mean)} of the time"
        )
    padded = sum(item.cost_ns for item in view.padding)
    if padded >= _WORTH * mean:
        most = "at most " if any(item.at_most for item in view.padding) else ""
        words.append(f"padding costs {most}{percent(padded / mean)}")
    return words


_OTHERS = (Entry.COMM, Entry.HOST, Entry.DELAY, Entry.IDLE)


def _how_long(view: Overview) -> str:
    one, several = ROUNDS[view.kind]
    took = view.took
    if view.kind is RoundKind.WHOLE:
        return f"Nothing here recurs, so the whole trace is looked at: {duration(took.median)}."
    if view.kind is RoundKind.STRETCH:
        one, several = "stretch of equal work", "stretches"
    if took.count == 1:
        return f"The only {one} takes {duration(took.median)}."
    article = "A"
    text = f"{article} {one} takes {duration(took.median)} (median of {counted(took.count, one, several)}"
    text += f"; p90 {duration(took.p90)}" if took.count >= 5 else f"; longest {duration(took.high)}"
    return f"{text})."


def _cause(view: Overview, share: float, entries: tuple[Entry, ...]) -> str:
    names = view.ledger.names(*entries)
    (name, ns), *others = names
    part = ns / view.ledger.total_ns
    where = host_name(name) if name == BETWEEN else name
    most = f"most of it {where}" if part >= 0.5 * share else f"the largest part {where}"
    most = f"{most} ({percent(part)})" if part < 0.995 * share else f"all of it {where}"
    if name == BETWEEN and others and others[0][1] >= 0.1 * share * view.ledger.total_ns:
        most += f" and {others[0][0]} ({percent(others[0][1] / view.ledger.total_ns)})"
    match entries[0]:
        case Entry.WORK:
            return f"the device's own work is {percent(share)} of the critical path, {most}"
        case Entry.COMM:
            return f"communication is {percent(share)} of the critical path, {most}"
        case Entry.HOST:
            return f"the device waits for the host for {percent(share)} of the critical path, {most}"
        case Entry.DELAY:
            return f"delays between operations are {percent(share)} of the critical path, {most}"
        case _:
            return f"for {percent(share)} of the critical path nothing in the trace explains the wait{_host(view)}"


def _host(view: Overview) -> str:
    """Say what the host did meanwhile, or that the path runs where the trace shows little."""
    blind = dict(view.ledger.names(Entry.IDLE)).get(NO_KERNELS, 0)
    if 2 * blind > view.ledger.of(Entry.IDLE):
        return f" ({percent(blind / view.ledger.total_ns)} on {NO_KERNELS})"
    if not view.ledger.meanwhile:
        return ""
    name, _ = max(view.ledger.meanwhile.items(), key=lambda item: (item[1], item[0]))
    if name == BETWEEN:
        return ""
    return f" (the host was longest in {name} meanwhile)"

"""How often each decode batch was seen: read from what servers and people write. Pure: no torch.

    metrics table    vLLM's `--cudagraph-metrics`: rows (tokens) before padding, by mode; also inside a log
    lines            `size count`, requests each, as 1 900 or 1,900 or 1: 900; # begins a comment
    JSON             {"1": 900, "8": 50}, [[1, 900], [8, 50]], [{"size": 1, "count": 900}], or batch sizes as seen
    trace            one of ours: the requests of every verify
    log              of a vLLM or SGLang server: the running requests of every decode line, a sample of the steps

Lines that are none of these are named, skipped and counted.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from slipstream.errors import SlipstreamError, UsageError
from slipstream.trace import Slice, names, read_chrome
from slipstream.trace.events import PART

#: A batch of more requests or rows than this is not one.
_MOST = 1_000_000

_TABLE_ROW = re.compile(r"\|\s*(\d+)\s*\|\s*(\d+)\s*\|\s*(-?\d+)\s*\|\s*([A-Za-z_.]+)\s*\|\s*(\d+)\s*\|")
_TABLE = re.compile(r"\|\s*Unpadded Tokens\s*\|", re.IGNORECASE)
_PAIR = re.compile(r"^\s*([+-]?\d+)\s*[\s,:;=]\s*([+-]?\d+)\s*$")
_HEADING = re.compile(r"^\s*[A-Za-z_ ]+[,\s:;|=]+[A-Za-z_ ]+\s*$")
_RUNNING = re.compile(r"\bRunning: (\d+) reqs\b|\bDecode batch\b.*#running-req: (\d+)")


class Unit(Enum):
    """What the sizes count."""

    REQUESTS = "requests"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that could not be used."""

    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text!r} {self.why}"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Sizes of batches, and how often each was seen.

    Attributes:
        kind: what was read, as "metrics table".
        unit: what a size counts.
        counts: by size.
        skipped: lines that could not be used.
        left_out: steps that are no decode batches, by why.
    """

    kind: str
    unit: Unit
    counts: dict[int, int]
    skipped: tuple[Skipped, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)

    def requests(self, width: int, max_requests: int) -> Histogram:
        """Return the same in requests, without what cannot be a decode batch of these.

        Args:
            width: rows a request.
            max_requests: requests that decode together.

        Raises:
            UsageError: nothing is left.
        """
        counts: Counter[int] = Counter()
        left_out: Counter[str] = Counter(self.left_out)
        for size, count in self.counts.items():
            requests = size
            if self.unit is Unit.ROWS:
                requests, rest = divmod(size, width)
                if rest:
                    left_out[f"rows that are no multiple of the width {width}"] += count
                    continue
            if requests > max_requests:
                left_out[f"more than {max_requests} requests"] += count
            else:
                counts[requests] += count
        if not counts.total():
            why = "; ".join(f"{count} steps have {reason}" for reason, count in left_out.items())
            raise UsageError(f"the histogram holds no decode batch of 1 to {max_requests} requests: {why}.")
        return Histogram(self.kind, Unit.REQUESTS, dict(sorted(counts.items())), self.skipped, dict(left_out))


def read_histogram(path: str | Path) -> Histogram:
    """Read a histogram from a file of any of the kinds.

    Raises:
        UsageError: it cannot be read, is none of them, or holds no batch.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UsageError(f"cannot unpack the histogram {path}: {error}.") from error
    except OSError as error:
        raise UsageError(f"cannot read the histogram {path}: {error.strerror or error}.") from error
    if b"\x00" in data:
        raise UsageError(f"the histogram {path} is not text; {_KINDS}")
    text = data.decode("utf-8-sig", errors="replace")
    histogram = _from_json(text, path) if text.lstrip()[:1] in ("{", "[") else _from_lines(text)
    if not sum(histogram.counts.values()):
        first = f" (first, {histogram.skipped[0]})" if histogram.skipped else ""
        many = f"{len(histogram.skipped)} lines skipped{first}" if histogram.skipped else "it is empty"
        raise UsageError(f"the histogram {path} holds no batch: {many}; {_KINDS}")
    return histogram


_KINDS = (
    "a histogram is `size count` lines, vLLM's metrics table, a vLLM or SGLang log, JSON, or a trace of "
    "`slipstream run`."
)


# Lines.


def _from_lines(text: str) -> Histogram:
    lines = text.splitlines()
    if any(_TABLE.search(line) for line in lines) or any(_TABLE_ROW.search(line) for line in lines):
        return _table(lines)
    if any(_RUNNING.search(line) for line in lines):
        return _log(lines)
    return _pairs(lines)


def _table(lines: list[str]) -> Histogram:
    """Read vLLM's tables, one an interval: all together.

    Where decode has whole graphs, pieces are for mixed batches; so of a table that has both, the rows of pieces
    are left out. Eager rows stay: decode batches without a graph are among them.
    """
    by_mode: dict[str, Counter[int]] = {}
    skipped = []
    for number, line in enumerate(lines, 1):
        found = _TABLE_ROW.search(line)
        if found is not None:
            rows, padded, _, mode, count = found.groups()
            if not 0 < int(rows) <= _MOST:
                skipped.append(_skip(number, line, "has no size that is possible"))
            elif int(padded) < int(rows):
                skipped.append(_skip(number, line, "pads to fewer rows than it has"))
            else:
                by_mode.setdefault(mode.rsplit(".", 1)[-1].upper(), Counter())[int(rows)] += int(count)
        elif line.count("|") >= 3 and not _TABLE.search(line) and set(line[line.index("|") :]) - set("|-: "):
            skipped.append(_skip(number, line, "is no row of the metrics table"))
    left_out = {}
    if "FULL" in by_mode and "PIECEWISE" in by_mode:
        left_out["mixed batches, replayed in pieces"] = by_mode.pop("PIECEWISE").total()
    counts: Counter[int] = Counter()
    for seen in by_mode.values():
        counts.update(seen)
    return Histogram("metrics table", Unit.ROWS, dict(counts), tuple(skipped), left_out)


def _log(lines: list[str]) -> Histogram:
    counts: Counter[int] = Counter()
    idle = 0
    for line in lines:
        found = _RUNNING.search(line)
        if found is None:
            continue
        size = int(found[1] or found[2])
        if size:
            counts[size] += 1
        else:
            idle += 1
    return Histogram("log", Unit.REQUESTS, dict(counts), (), {"no running request": idle} if idle else {})


def _pairs(lines: list[str]) -> Histogram:
    counts: Counter[int] = Counter()
    skipped = []
    heading = True
    for number, line in enumerate(lines, 1):
        content = line.split("#", 1)[0]
        if not content.strip():
            continue
        found = _PAIR.match(content)
        if found is None:
            # One line of words may stand above the numbers.
            if not (heading and _HEADING.match(content)):
                skipped.append(_skip(number, line, "is not `size count`"))
            heading = False
            continue
        heading = False
        _add(counts, skipped, number, line, int(found[1]), int(found[2]))
    return Histogram("lines", Unit.REQUESTS, dict(counts), tuple(skipped))


def _add(counts: Counter[int], skipped: list[Skipped], number: int, text: str, size: int, count: int) -> None:
    if not 1 <= size <= _MOST:
        skipped.append(_skip(number, text, f"has the size {size}, which is no batch"))
    elif count < 0:
        skipped.append(_skip(number, text, f"has the count {count}"))
    else:
        counts[size] += count


def _skip(number: int, text: str, why: str) -> Skipped:
    text = text.strip()
    return Skipped(number, text if len(text) <= 60 else text[:60] + "...", why)


# JSON.


def _from_json(text: str, path: Path) -> Histogram:
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        # A log or a table may begin with a bracket as well.
        found = _from_lines(text)
        if sum(found.counts.values()):
            return found
        raise UsageError(f"the histogram {path} is neither JSON ({error}) nor lines; {_KINDS}") from error
    if isinstance(data, dict) and "traceEvents" in data:
        return _trace(path)
    if isinstance(data, dict) and isinstance(data.get("histogram"), dict | list):
        data = data["histogram"]
    counts: Counter[int] = Counter()
    skipped: list[Skipped] = []
    for number, (item, size, count) in enumerate(_json_pairs(data), 1):
        whole = _whole(size), _whole(count)
        if whole[0] is None or whole[1] is None:
            skipped.append(_skip(number, item, "is no size with a count"))
        else:
            _add(counts, skipped, number, item, whole[0], whole[1])
    return Histogram("JSON", Unit.REQUESTS, dict(counts), tuple(skipped))


def _json_pairs(data: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (text, size, count) of whatever shape; None where an item has no such thing."""
    if isinstance(data, dict):
        for size, count in data.items():
            yield f"{size}: {count}", size, count
        return
    for item in data:
        match item:
            case [size, count]:
                yield str(item), size, count
            case {"count": count, **rest} if len(rest) == 1:
                yield str(item), next(iter(rest.values())), count
            case bool() | float():
                yield str(item), None, None
            case int():
                yield str(item), item, 1
            case _:
                yield str(item), None, None


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _trace(path: Path) -> Histogram:
    try:
        events = read_chrome(path).events
    except SlipstreamError as error:
        raise UsageError(f"the histogram {path} is a trace, but none that `slipstream run` wrote.") from error
    counts: Counter[int] = Counter()
    for event in events:
        # A slice that others interrupt stands in parts.
        if isinstance(event, Slice) and event.name == names.VERIFY and event.args.get(PART, 1) == 1:
            requests = event.args.get("requests")
            if isinstance(requests, int) and requests >= 1:
                counts[requests] += 1
    return Histogram("trace", Unit.REQUESTS, dict(counts))

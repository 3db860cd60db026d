"""The elements of a huge JSON array, two megabytes at a time; broken files as far as they go.

    {"schemaVersion": 1, ... "traceEvents": [ {..}, {..}, {..}, {..}, {..}, {..} ], "traceName": ..}
    `----------- head -----------------'      `--- piece ---'   `--- piece ---'     `--- tail ----'

A piece is cut behind an element; that it was not cut inside one is shown by decoding it. Only a piece that
does not decode is looked at closely: control characters, broken text and numbers that JSON does not know are
replaced, and an element that still does not decode is left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
from isal import isal_zlib

from slipstream.errors import TraceError
from slipstream.timeline.table import Note

T = TypeVar("T")
#: Is told how many more bytes of the file have been read; None to tell nobody.
Watch = Callable[[int], None] | None

#: Bytes of JSON decoded at once: enough to decode fast, little enough that memory does not show it.
_PIECE: Final = 1 << 21
#: Bytes of compressed data read at once. JSON shrinks about twentyfold.
_COMPRESSED: Final = 1 << 17
#: No trace says more than this before its events.
_HEAD: Final = 1 << 26
_GZIP: Final = b"\x1f\x8b"

_START: Final = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_NEXT: Final = re.compile(rb"\s*,\s*(?=\{)")
#: Where an element surely begins, whatever stands before it.
_ELEMENT: Final = re.compile(rb'\}\s*,?\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
#: Where the array may end.
_END: Final = re.compile(rb"\}\s*\]\s*[,}]")

_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_NO_NUMBER: Final = re.compile(rb"(?<=[:\[,\s])-?(?:NaN|Infinity|nan|inf)(?=\s*[,}\]])")

#: What decoding raises on bad data.
_BAD: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Pieces(Generic[T]):
    """Iterates over the elements of a trace file, a list of them at a time.

    Args:
        path: JSON with an array `traceEvents`, or a bare array; plain or gzip.
        decode: from the bytes of a JSON array to its elements; raises `msgspec.DecodeError`.
        watch: is told of bytes read, compressed ones in a gzip file.

    Attributes, complete after the iteration:
        head, tail: what stands before and behind the array, by key.
        cut: whether the file ends before its JSON does.
        lost: elements that could not be decoded.
        repaired: pieces in which characters were replaced.

    Raises:
        TraceError: the file cannot be read, or holds no such array.
    """

    def __init__(
        self, path: Path, decode: Callable[[bytes | memoryview], list[T]], watch: Watch = None
    ) -> None:
        self.path = path
        self.head: dict[str, msgspec.Raw] = {}
        self.tail: dict[str, msgspec.Raw] = {}
        self.cut = False
        self.lost = 0
        self.repaired = 0
        self._decode = decode
        self._watch = watch or (lambda count: None)
        self._bare = False

    def __iter__(self) -> Iterator[list[T]]:
        chunks = self._chunks()
        buffer = self._find_array(chunks)
        later: list[bytes] = []  # what is only looked at when the file is complete
        for chunk in chunks:
            if later:
                later.append(chunk)
                continue
            joined = bytearray(buffer)
            joined += chunk
            found = self._whole_elements(joined)
            if found is not None:
                elements, buffer = found
                yield elements
                continue
            buffer = bytes(joined)
            if _END.search(buffer):
                later.append(buffer)
            else:
                elements, buffer = self._salvage(buffer)
                yield elements
        yield self._last(b"".join(later) if later else buffer)

    def notes(self, rank: int | None) -> Iterator[Note]:
        """What to tell of the file's state."""
        if self.cut:
            yield Note(
                "truncated", 1, f"{self.path.name} ends too early; it was read as far as it goes", rank
            )
        if self.lost:
            yield Note("dropped", self.lost, f"events of {self.path.name} that are no valid JSON", rank)
        if self.repaired:
            why = f"pieces of {self.path.name} with control characters, broken text or no numbers, replaced"
            yield Note("repaired", self.repaired, why, rank)

    # Bytes.

    def _chunks(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                first = file.read(2)
                file.seek(0)
                if first != _GZIP:
                    while chunk := file.read(_PIECE):
                        self._watch(len(chunk))
                        yield chunk
                    return
                inflate = isal_zlib.decompressobj(31)
                while data := file.read(_COMPRESSED):
                    self._watch(len(data))
                    while data:
                        yield inflate.decompress(data)
                        # A gzip file may be several, one after another.
                        data = inflate.unused_data
                        if inflate.eof:
                            if not data.startswith(_GZIP):
                                break
                            inflate = isal_zlib.decompressobj(31)
                if not inflate.eof:
                    self.cut = True
                    yield inflate.flush()
        except isal_zlib.error:  # type: ignore[misc]  # its types say less than it is
            self.cut = True
        except OSError as error:
            raise TraceError(f"cannot read the trace {self.path}: {error.strerror or error}") from error

    def _find_array(self, chunks: Iterator[bytes]) -> bytes:
        """Return the bytes from the array's bracket on, as far as they were read."""
        buffer = b""
        for chunk in chunks:
            buffer = (buffer + chunk).lstrip(b"\xef\xbb\xbf \t\r\n")
            if buffer[:1] == b"[":
                self._bare = True
                return buffer
            match = _START.search(buffer)
            if match:
                self.head = _members(buffer[: match.start()].rstrip().rstrip(b",") + b"}")
                return buffer[match.end() :]
            if buffer[:1] not in (b"", b"{") or len(buffer) > _HEAD:
                break
        if not buffer:
            raise TraceError(f"{self.path} is empty. A trace is a profiler's JSON (.json or .json.gz).")
        raise TraceError(
            f"{self.path} is not a trace: it has no array of events. Traces that can be read: PyTorch "
            "profiler JSON (also .gz), Ascend profiler folders and databases, Slipstream's own."
        )

    # Elements.

    def _whole_elements(self, buffer: bytearray) -> tuple[list[T], bytes] | None:
        """Cut behind the last whole element, into elements and the rest; None where no such place is found."""
        place = len(buffer)
        for _ in range(4):
            place = buffer.rfind(b"}", 0, place)
            if place < 0:
                break
            border = _NEXT.match(buffer, place + 1)
            if border:
                # The comma becomes the array's end for a moment: copying a piece takes a third of decoding it.
                comma = buffer.index(b",", place)
                buffer[comma] = ord("]")
                try:
                    return self._decode(memoryview(buffer)[: comma + 1]), b"[" + buffer[border.end() :]
                except _BAD:
                    buffer[comma] = ord(",")
        return None

    def _salvage(self, buffer: bytes) -> tuple[list[T], bytes]:
        """Decode up to the last place where an element surely begins."""
        borders = [match.end() for match in _ELEMENT.finditer(buffer)]
        if not borders:
            return [], buffer
        elements = self._one_by_one(buffer[1 : borders[-1]], [border - 1 for border in borders[:-1]])
        return elements, b"[" + buffer[borders[-1] :]

    def _one_by_one(self, body: bytes, borders: list[int]) -> list[T]:
        clean = _clean(body)
        try:
            elements = self._decode(b"[" + clean.rstrip().rstrip(b",") + b"]")
        except _BAD:
            pass
        else:
            self.repaired += clean != body
            return elements
        elements = []
        starts = [0, *borders]
        number = 0
        while number < len(starts):
            # A border may stand inside an element: then two or three belong together.
            for together in (1, 2, 3):
                end = starts[number + together] if number + together < len(starts) else len(body)
                found = self._try_element(body[starts[number] : end])
                if found is not None:
                    elements += found
                    number += together
                    break
                if end == len(body):
                    together = 1
            else:
                self.lost += 1
                number += 1
        return elements

    def _try_element(self, text: bytes) -> list[T] | None:
        text = text.rstrip().rstrip(b",")
        clean = _clean(text)
        for candidate in (text, clean):
            try:
                elements = self._decode(b"[" + candidate + b"]")
            except _BAD:
                continue
            self.repaired += candidate != text
            return elements
        return None

    def _last(self, buffer: bytes) -> list[T]:
        """Decode what is left of the file."""
        for text in (buffer, _clean(buffer)):
            try:
                if self._bare:
                    elements = self._decode(text)
                else:
                    self.tail = _DOCUMENT.decode(b'{"traceEvents":' + text)
                    elements = self._decode(bytes(self.tail.pop("traceEvents")))
            except _BAD:
                continue
            self.repaired += text != buffer
            return elements
        elements, buffer = self._salvage(buffer)
        return elements + self._end(buffer)

    def _end(self, buffer: bytes) -> list[T]:
        """The last element, and what may stand behind it."""
        place = len(buffer)
        body = buffer[1:].strip()
        if body.startswith(b"]") or not body:
            self.cut = self.cut or not self._read_tail(body)
            return []
        for _ in range(64):
            place = buffer.rfind(b"}", 0, place)
            if place < 0:
                break
            found = self._try_element(buffer[1 : place + 1])
            if found is not None:
                self.cut = self.cut or not self._read_tail(buffer[place + 1 :])
                return found
        self.cut = True
        self.lost += 1
        return []

    def _read_tail(self, text: bytes) -> bool:
        """Whether the text is all that should stand behind the last element."""
        text = text.strip().removeprefix(b",").lstrip()
        if not text.startswith(b"]"):
            return False
        if self._bare:
            return True
        text = text[1:].lstrip()
        if not text.endswith(b"}"):
            return False
        self.tail = _members(b"{" + text.removeprefix(b","))
        return True


_DOCUMENT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of an object, {} where it is broken."""
    for candidate in (text, _clean(text)):
        try:
            return _DOCUMENT.decode(candidate)
        except _BAD:
            continue
    return {}


def _clean(text: bytes) -> bytes:
    """Replace what JSON does not allow: control characters, broken text, NaN, a comma behind the last element."""
    text = _CONTROL.sub(b" ", text)
    text = text.decode("utf-8", "replace").encode()
    text = _LONE_SURROGATE.sub(rb"\\ufffd", text)
    text = _NO_NUMBER.sub(b"null", text)
    return re.sub(rb",(?=\s*[\]}])", b"", text)

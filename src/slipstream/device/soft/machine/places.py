"""Where in the user's code a command was issued: taken cheaply, written out only when asked."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType

DEPTH = 8
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The machine and what stands around a user's program: PyTorch, test runners, threads of ranks.
_PACKAGES = ("torch", "_pytest", "pytest", "pluggy")
_MODULES = ("contextlib.py", "threading.py", "runpy.py")
_skipped_parts = [
    _OWN,
    *(f"{os.sep}site-packages{os.sep}{package}{os.sep}" for package in _PACKAGES),
    *(f"{os.sep}lib{os.sep}python3.{sys.version_info.minor}{os.sep}{module}" for module in _MODULES),
]
_skip: dict[int, bool] = {}
_codes: list[CodeType] = []  # keeps every code alive whose id is a key
_places: dict[tuple[int, ...], Place] = {}


class Place:
    """A stack, innermost frame first, of user code only."""

    __slots__ = ("frames",)

    def __init__(self, frames: tuple[tuple[CodeType, int], ...]) -> None:
        self.frames = frames

    @property
    def where(self) -> str:
        """The innermost line as "file.py:12", or "somewhere"."""
        if not self.frames:
            return "somewhere"
        code, last = self.frames[0]
        return f"{os.path.basename(code.co_filename)}:{_line(code, last)}"

    @property
    def source(self) -> str:
        """The innermost line's text, or nothing where it cannot be had."""
        if not self.frames:
            return ""
        code, last = self.frames[0]
        return linecache.getline(code.co_filename, _line(code, last)).strip()

    def lines(self) -> list[str]:
        """Return the stack, one text a frame, innermost first."""
        texts = []
        for code, last in self.frames:
            number = _line(code, last)
            source = linecache.getline(code.co_filename, number).strip()
            texts.append(f"{code.co_filename}:{number} in {code.co_name}" + (f": {source}" if source else ""))
        return texts

    def __str__(self) -> str:
        return "\n".join(self.lines())


NOWHERE = Place(())


def called(name: str) -> str:
    """Return how code calls what has this name in findings: of "plan #2 (race.py:4)" the variable, plan."""
    word, _, place = name.partition(" (")
    return word.partition(" #")[0] if place else word


def skip(part: str) -> None:
    """Leave files whose path contains `part` out of every stack from now on."""
    if part not in _skipped_parts:
        _skipped_parts.append(part)
        _skip.clear()


def here() -> Place:
    """Return the place in user code that called into the machine."""
    frame = sys._getframe(2)
    key: list[int] = []
    known = _skip
    found = 0
    at: FrameType | None = frame
    while at is not None:
        code = at.f_code
        ident = id(code)
        skipped = known.get(ident)
        if skipped is None:
            skipped = _learn(code)
        if not skipped:
            key.append(ident)
            key.append(at.f_lasti)
            found += 1
            if found == DEPTH:
                break
        at = at.f_back
    place = _places.get(tuple(key))
    return place if place is not None else _keep(tuple(key), frame)


def _learn(code: CodeType) -> bool:
    _codes.append(code)
    skipped = any(part in code.co_filename for part in _skipped_parts)
    _skip[id(code)] = skipped
    return skipped


def _keep(key: tuple[int, ...], frame: FrameType | None) -> Place:
    frames: list[tuple[CodeType, int]] = []
    at = frame
    while at is not None and len(frames) < len(key) // 2:
        code = at.f_code
        if not _skip[id(code)]:
            frames.append((code, at.f_lasti))
        at = at.f_back
    _places[key] = place = Place(tuple(frames))
    return place


def _line(code: CodeType, last: int) -> int:
    for start, stop, line in code.co_lines():
        if start <= last < stop and line is not None:
            return line
    return code.co_firstlineno

"""What a graph failure is: read from an exception with everything that led to it, or from a pasted log.

The cause is seldom in the last line. Ending a capture raises an error of its own over the one that broke it; the
runtime reports late and elsewhere; torch_npu's text for the commonest code is misleading. So the whole chain
(`__cause__` and `__context__`) is read, every signature is looked for, and the one that names a cause wins over
those that only follow from one. Pure: no torch.
"""

from __future__ import annotations

import re
import string
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.graph.failure_kinds import EXPLANATIONS, Explanation, FailureKind
from slipstream.graph.failure_table import CAPTURE_FAMILY, CODE_NAMES, CODES, SIGNATURES, Code

#: A code as the runtime writes one. Six digits alone are as often a process, a stream or a line of code.
_CODE = re.compile(
    r"(?:(?:error|err|ret|return|result)[ _]?(?:code)?(?: is| was)?|code(?: is)?|runtime result|failed)"
    r"\s*[:=,]?\s*\[?(?P<named>\d{6})(?![\w.])"
    r"|(?<!\w)\((?P<bracketed>\d{6})\)"
    r"|^\W*(?P<first>\d{6})(?=[\s:,])(?!\s*\|)"
    r"|(?P<beside>\d{6})(?= ACL_ERROR)",
    re.IGNORECASE | re.MULTILINE,
)
_NAME = re.compile(r"\bACL_ERROR_\w+")

_MOST_EVIDENCE = 300

_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_NO_DIGITS = str.maketrans("", "", string.digits)
_CODE_LIKE = re.compile(r"[125]07\d{3}")

#: Characters from which on a log is condensed.
_LONG = 100_000

#: Characters a line for people.
_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing in a text that tells a failure.

    Attributes:
        kind: which.
        strength: as in `failure_table.Signature`.
        link: number of the text in the chain, the earliest error first.
        position: in that text, where it begins.
        end: where it ends.
        why: what it shows.
        line: the line it stands in.
        seen: threads that had it.
        guess: it does not prove the kind.
    """

    kind: FailureKind
    strength: int
    link: int
    position: int
    end: int
    why: str
    line: str
    seen: tuple[str, ...] = ()
    guess: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a failure is.

    Attributes:
        kind: which.
        signs: what told it, the deciding one first; none for an unknown one.
        codes: Ascend's codes in the text, in order.
        original: the texts of the chain, the earliest error first; of a log, the lines that told it.
    """

    kind: FailureKind
    signs: tuple[Sign, ...]
    codes: tuple[Code, ...]
    original: tuple[str, ...]

    @property
    def known(self) -> bool:
        """Whether it is a failure that we know."""
        return self.kind is not FailureKind.UNKNOWN

    @property
    def explanation(self) -> Explanation:
        """What it means and what to change."""
        return EXPLANATIONS[self.kind]

    @property
    def guess(self) -> bool:
        """Whether another failure could look the same."""
        return bool(self.signs) and all(sign.guess for sign in self.signs if sign.kind is self.kind)

    @property
    def also(self) -> tuple[FailureKind, ...]:
        """Other kinds that the text shows: what followed, mostly."""
        return tuple(dict.fromkeys(sign.kind for sign in self.signs if sign.kind is not self.kind))

    @property
    def seen(self) -> tuple[str, ...]:
        """Threads that had the same signs."""
        return tuple(
            dict.fromkeys(seen for sign in self.signs if sign.kind is self.kind for seen in sign.seen)
        )

    @property
    def sentence(self) -> str:
        """One line for an error: what it is, what it means, what to change first."""
        likely = ", most likely" if self.guess else ""
        return (
            f"{self.kind.value}{likely}: {self.explanation.meaning} To mend it: {self.explanation.change[0]}."
        )

    def data(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "kind": self.kind.name.lower(),
            "title": self.kind.value,
            "known": self.known,
            "guess": self.guess,
            "meaning": self.explanation.meaning,
            "change": list(self.explanation.change),
            "codes": [{"code": code.number, "meaning": code.meaning} for code in self.codes],
            "signs": [{"kind": s.kind.name.lower(), "why": s.why, "line": s.line} for s in self.signs],
            "also": [kind.name.lower() for kind in self.also],
            "seen": list(self.seen),
            "original": list(self.original),
        }

    def text(self) -> str:
        """Return what people read: the kind, what it means, what to change, and the original words."""
        lines = [f"{self.kind.value}{' (most likely)' if self.guess else ''}"]
        lines += _wrapped(self.explanation.meaning, "  ", "  ")
        lines += ["", "  what to change:"]
        for number, change in enumerate(self.explanation.change, 1):
            lines += _wrapped(change, f"    {number}. ", "       ")
        own = [sign for sign in self.signs if sign.kind is self.kind]
        if own:
            lines += ["", "  what tells it:"]
            lines += [f"    {why}" for why in dict.fromkeys(sign.why for sign in own)]
        if self.codes:
            lines += ["", "  codes:"]
            lines += [f"    {code.number}  {code.meaning}" for code in self.codes]
        if self.also:
            lines += ["", f"  also in the text: {', '.join(kind.value for kind in self.also)}"]
        if self.seen:
            lines += ["", f"  seen in: {', '.join(self.seen)}"]
        if self.original:
            lines += ["", "  the original:"]
            lines += [f"    {line}" for text in self.original for line in text.splitlines()]
        return "\n".join(lines)


def classify(failure: BaseException | str) -> Diagnosis:
    """Return what a failure is.

    Args:
        failure: an exception, read with all that led to it, or a text, as a pasted log.
    """
    texts = [_condensed(failure)] if isinstance(failure, str) else chain_texts(failure)
    signs = sorted(
        (sign for link, text in enumerate(texts) for sign in _signs(text, link)),
        key=lambda sign: (sign.strength, sign.link, sign.position),
    )
    codes = tuple(dict.fromkeys(code for text in texts for _, code in _codes(text)))
    if not signs:
        return Diagnosis(FailureKind.UNKNOWN, (), codes, () if isinstance(failure, str) else tuple(texts))
    original = _telling_lines(texts[0], signs) if isinstance(failure, str) else tuple(texts)
    return Diagnosis(signs[0].kind, tuple(signs), codes, original)


def chain_texts(error: BaseException) -> list[str]:
    """Return the texts of an exception and of all that led to it, the earliest first.

    Both `__cause__` and `__context__` are walked, suppressed or not, and the members of exception groups: what was
    hidden is often the cause.
    """
    found: list[str] = []
    seen: set[int] = set()
    # Without recursion: a chain may be longer than the stack.
    stack: list[tuple[BaseException, bool]] = [(error, False)]
    while stack:
        current, ready = stack.pop()
        if ready:
            found.append(f"{type(current).__name__}: {current}")
            continue
        if id(current) in seen:
            continue
        seen.add(id(current))
        stack.append((current, True))
        members = current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        before = (*members, current.__context__, current.__cause__)
        stack.extend((other, False) for other in before if other is not None)
    return found


def _condensed(log: str) -> str:
    """Return a long log without lines that stood there before, but for their numbers: most of a log are these.

    Lines with other error codes are other lines.
    """
    if len(log) < _LONG:
        return log
    first: dict[tuple[str, ...], str] = {}
    for line in log.splitlines():
        first.setdefault((line.translate(_NO_DIGITS), *_CODE_LIKE.findall(line)), line)
    return "\n".join(first.values())


def _signs(text: str, link: int) -> Iterator[Sign]:
    small = text.translate(_SMALL)  # of the same length, which lower() does not promise
    for signature in SIGNATURES:
        match = signature.pattern.search(small)
        if match is not None:
            yield Sign(
                signature.kind,
                signature.strength,
                link,
                match.start(),
                match.end(),
                signature.why,
                _line(text, match.start(), match.end()),
                signature.seen,
                signature.guess,
            )
    for position, code in _codes(text):
        yield Sign(
            code.kind,
            code.strength,
            link,
            position,
            position,
            f"{code.number}: {code.meaning}",
            _line(text, position, position),
            (),
            code.guess,
        )


def _codes(text: str) -> Sequence[tuple[int, Code]]:
    """Return the codes of a text with their places, each once."""
    found: dict[int, tuple[int, Code]] = {}
    for match in _CODE.finditer(text):
        number = int(match[match.lastgroup or 0])
        code = CODES.get(number)
        if code is None and number in CAPTURE_FAMILY:
            meaning = "a capture or an update went wrong; Ascend has no text for it"
            code = Code(number, meaning, FailureKind.CAPTURE_ORDER, 1)
        if code is not None:
            found.setdefault(number, (match.start(match.lastgroup or 0), code))
    for match in _NAME.finditer(text):
        named = CODE_NAMES.get(match[0])
        if named is not None:
            found.setdefault(named, (match.start(), CODES[named]))
    return sorted(found.values(), key=lambda item: item[0])


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _line(text: str, start: int, end: int) -> str:
    """Return the lines from one place to another as one, without what a logger writes before them."""
    return _cut(" ".join(line for _, line in _lines(text, start, end)))


def _telling_lines(text: str, signs: Sequence[Sign]) -> tuple[str, ...]:
    """Return every line of a log that told something, once."""
    found = {place: line for sign in signs for place, line in _lines(text, sign.position, sign.end)}
    return tuple(dict.fromkeys(_cut(found[place]) for place in sorted(found) if found[place]))


def _lines(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield (place, line) of the lines from one place to another, without what a logger writes before them."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    for line in text[first : len(text) if last < 0 else last].splitlines(keepends=True):
        yield first, _LOGGER.sub("", line).strip()
        first += len(line)


def _cut(line: str) -> str:
    return line if len(line) <= _MOST_EVIDENCE else line[:_MOST_EVIDENCE] + " ..."


#: "(Worker_TP3 pid=78100) ERROR 04-20 21:27:00 [multiproc_executor.py:932]" and what stands for it elsewhere.
_LOGGER = re.compile(
    r"^(?:\([^()]*pid=\d+\)\s*)*(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+[\d-]+\s+[\d:.,]+\s+\[[^\]]*\]\s?)?"
)

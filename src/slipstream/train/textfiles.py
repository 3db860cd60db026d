"""The text files that prompts are made of (`data/`), and how a text with slots is filled.

    $animal         an item of the list "animal" of lists.txt
    $name1          the same item wherever $name1 stands in the text
    $n(2,9)         a number from 2 to 9
    $$              a dollar sign

Two slots of one text never get the same item, so that a function's two arguments have two names.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

_SLOT = re.compile(r"\$(?:(\$)|n\((\d+),(\d+)\)|([a-z]+)(\d?))")
_HEADER = re.compile(r"\[([a-z][a-z0-9 +-]*?)( \*)?\]")

#: A vowel letter that sounds like a consonant takes "a".
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIO])(?!uni|use|usual|one\b|once\b|eu|Eu)")
_ORDINAL = re.compile(r"\b(\d+)th\b")
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True, slots=True)
class Block:
    """One entry of a text file.

    Attributes:
        name: as in its header.
        held_out: whether training must not see it.
        body: the text below the header.
    """

    name: str
    held_out: bool
    body: str


@cache
def blocks(name: str) -> tuple[Block, ...]:
    """Return the entries of `data/<name>.txt`; what stands before the first header is a comment."""
    text = resources.files("slipstream.train").joinpath(f"data/{name}.txt").read_text(encoding="utf-8")
    found: list[tuple[str, bool, list[str]]] = []
    for line in text.splitlines():
        header = _HEADER.fullmatch(line)
        if header:
            found.append((header[1], header[2] is not None, []))
        elif found:
            found[-1][2].append(line)
    return tuple(Block(title, starred, "\n".join(lines).strip("\n")) for title, starred, lines in found)


@cache
def lists() -> Mapping[str, tuple[str, ...]]:
    """Return the items of each list of lists.txt."""
    return {
        block.name: tuple(" ".join(item.split()) for item in block.body.split("|"))
        for block in blocks("lists")
    }


@dataclass(slots=True)
class Filling:
    """Fills the slots of one text.

    Attributes:
        rng: decides everything.
        chosen: items taken so far, in order.
    """

    rng: random.Random
    chosen: list[str] = field(default_factory=list)
    _labelled: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """Return the text with its slots filled.

        Raises:
            KeyError: a slot names no list: a defect of the text.
        """
        return _SLOT.sub(self._value, text)

    def prose(self, text: str) -> str:
        """Return the text with its slots filled; "a" becomes "an" and "2th" "2nd" where they have to."""
        return _ORDINAL.sub(_ordinal, _ARTICLE.sub(r"\1n ", self.fill(text)))

    def _value(self, slot: re.Match[str]) -> str:
        dollar, low, high, name, label = slot.groups()
        if dollar:
            return "$"
        if low:
            return str(self.rng.randint(int(low), int(high)))
        key = name + label
        if not label or key not in self._labelled:
            self._labelled[key] = self._draw(lists()[name])
        return self._labelled[key]

    def _draw(self, items: Sequence[str]) -> str:
        left = [item for item in items if item not in self.chosen] or items
        item = self.rng.choice(left)
        self.chosen.append(item)
        return item


def sentences(body: str, rng: random.Random) -> list[str]:
    """Return the lines of a passage: lines with `?` half of the time, one of alternatives parted by `||`."""
    return list(_kept(body, rng))


def _kept(body: str, rng: random.Random) -> Iterator[str]:
    for line in body.splitlines():
        if line.startswith("? ") and rng.random() < 0.5:
            continue
        yield rng.choice(line.removeprefix("? ").split(" || "))


def misspell(text: str, rng: random.Random) -> str:
    """Return the text with mistakes as people make them: letters swapped, dropped, doubled, a wrong vowel."""
    share = rng.uniform(0.06, 0.2)
    return re.sub(
        r"\b[a-zA-Z]{4,}\b", lambda word: _mistake(word[0], rng) if rng.random() < share else word[0], text
    )


def _mistake(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1:
        return word[:at] + word[at + 1 :]
    if kind == 2:
        return word[:at] + word[at] + word[at:]
    vowels = [place for place in range(1, len(word)) if word[place] in "aeiou"]
    if not vowels:
        return word[:at] + word[at + 1 :]
    at = rng.choice(vowels)
    return word[:at] + rng.choice("aeiou".replace(word[at], "")) + word[at + 1 :]


def _ordinal(match: re.Match[str]) -> str:
    number = int(match[1])
    ending = "th" if number % 100 in (11, 12, 13) else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"

"""Prompts that a user brings.

A `.jsonl` file has a JSON string or an object with "prompt" (or "user") in each line; any other file has a prompt
a line as it is, `\\n` standing for a new line. A line that gives no prompt is named and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from slipstream.errors import UsageError

_KEYS = ("prompt", "user")


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that gives no prompt.

    Attributes:
        number: from 1.
        why: what is wrong with it.
    """

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class PromptFile:
    """What a file held.

    Attributes:
        prompts: the usable lines, in their order, each once.
        bad: the others; blank lines do not count.
        repeated: lines left out because an earlier one says the same.
    """

    prompts: list[str]
    bad: list[BadLine]
    repeated: int


def read_prompts(path: str | Path) -> PromptFile:
    """Read a file of prompts.

    Raises:
        UsageError: it cannot be read, or has no usable line.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the prompts in {path} cannot be read: {error.strerror}.") from error
    prompts: dict[str, None] = {}
    bad: list[BadLine] = []
    usable = 0
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompts[_prompt(line, json=path.suffix == ".jsonl")] = None
            usable += 1
        except ValueError as error:
            bad.append(BadLine(number, str(error)))
    if not prompts:
        reason = f"; line {bad[0].number}: {bad[0].why}" if bad else ""
        raise UsageError(f"there is no prompt in {path}{reason}. Write one a line.")
    return PromptFile(list(prompts), bad, usable - len(prompts))


def _prompt(line: bytes, *, json: bool) -> str:
    """Return the prompt of a line, or raise a ValueError that says what is wrong."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    if not json:
        return _checked(text.strip().replace("\\n", "\n"))
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if isinstance(value, dict):
        value = next((value[key] for key in _KEYS if key in value), None)
    if not isinstance(value, str):
        raise ValueError('neither a string nor an object with the string "prompt"')
    return _checked(value)


def _checked(text: str) -> str:
    if not text.strip():
        raise ValueError("the prompt is empty")
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    return text

"""The prompts that heads are trained on, and those that judge them: made of templates, topics and short texts.

    training_prompts(seed)      as many as wanted, all different; a longer list begins with the shorter one
    held_out_prompts()          64 that share neither a pair of template and topic nor a text with training

The parts (`data/`) were written for this project. None is near the prompts of the decode workload: a test compares
word by word.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from slipstream.train.textfiles import Block, Filling, blocks, misspell, sentences

#: Prompts of `training_prompts` by default.
NUM_TRAINING = 24_000
NUM_HELD_OUT = 64

#: Of 256 pairs of template and topic, so many are held out.
_HELD_OUT_SHARE = 8
_HELD_OUT_SEED = 20_000

#: Slots that stand for a whole text, and the files that they are taken from.
_TEXTS: dict[str, tuple[str, ...]] = {
    "passage": ("passage",),
    "message": ("message",),
    "notes": ("notes",),
    "talk": ("talk",),
}
_TEXTS |= {"typos": ("message", "passage"), "code": ("code",)}
_TEXT_SLOT = re.compile(r"\$(" + "|".join(_TEXTS) + r")\b")

#: Draws of a group before a pair of template and topic may come again: some groups have fewer pairs than prompts.
_TRIES = 6

#: Draws of a group before another group's turn, where few pairs count.
_HELD_OUT_TRIES = 2000

_GREETINGS = (
    "Hi! {}",
    "Hello, {}",
    "Hey, {}",
    "Quick question: {}",
    "Good evening. {}",
    "I have a question. {}",
    "I'm a student. {}",
    "Help me please. {}",
    "For a school project: {}",
    "My daughter asked me this: {}",
    "I'm new to this. {}",
    "Sorry if this is obvious. {}",
    "Be honest: {}",
    "You are an expert. {}",
)
_WISHES = (
    "Keep it short.",
    "Answer in one paragraph.",
    "Thanks!",
    "Use simple words.",
    "Be brief.",
    "Go step by step.",
    "Give an example.",
    "Answer in three sentences.",
    "Use bullet points.",
    "In detail, please.",
    "No more than 100 words.",
    "I have five minutes.",
    "Please be friendly.",
    "One sentence is enough.",
    "Thank you in advance.",
    "Use headings.",
    "Explain your answer.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        text: the message.
        group: kind of task, as "explain".
        template: what it was made from.
        topic: what fills it: the first item, or the name of the text in it.
    """

    text: str
    group: str
    template: str
    topic: str


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    share: int
    styled: bool
    templates: tuple[str, ...]


def training_prompts(seed: int, count: int = NUM_TRAINING) -> list[Prompt]:
    """Return `count` different prompts, or as many as can be made."""
    return list(itertools.islice(_draw(random.Random(seed), held_out=False), count))


@cache
def held_out_prompts() -> tuple[Prompt, ...]:
    """Return the prompts that judge a head, always the same."""
    return tuple(itertools.islice(_draw(random.Random(_HELD_OUT_SEED), held_out=True), NUM_HELD_OUT))


def _draw(rng: random.Random, *, held_out: bool) -> Iterator[Prompt]:
    """Yield prompts without end, but for a run of draws that gave nothing new."""
    groups = _groups()
    shares = [group.share for group in groups]
    pairs: set[tuple[str, str]] = set()
    texts: set[str] = set()
    tries = _HELD_OUT_TRIES if held_out else _TRIES
    barren = 0
    while barren < 1000:
        group = rng.choices(groups, shares)[0]
        for attempt in range(1, tries + 1):
            prompt = _make(group, rng, held_out=held_out)
            if prompt is None or prompt.text in texts:
                continue
            pair = (prompt.template, prompt.topic)
            if pair not in pairs or (attempt == tries and not held_out):
                pairs.add(pair)
                texts.add(prompt.text)
                barren = 0
                yield prompt
                break
        else:
            barren += 1


def _make(group: _Group, rng: random.Random, *, held_out: bool) -> Prompt | None:
    """Return a prompt of a group, or None where it belongs to the other side."""
    template = rng.choice(group.templates)
    filling = Filling(rng)
    found = _TEXT_SLOT.search(template)
    if found:
        topic, text = _text(found[1], rng, held_out=held_out)
        # What is done to prose is not done to code.
        before, after = (
            _lines(filling, part) for part in (template[: found.start()], template[found.end() :])
        )
        message = before + text + after
    else:
        message = _lines(filling, template)
        topic = filling.chosen[0] if filling.chosen else message
        if is_held_out(template, topic) is not held_out:
            return None
    if group.styled:
        message = _styled(message, rng)
    return Prompt(message, group.name, template, topic)


def _lines(filling: Filling, part: str) -> str:
    return filling.prose(part).replace("\\n", "\n")


def is_held_out(template: str, topic: str) -> bool:
    """Return whether a pair of template and topic is kept from training."""
    return hashlib.sha256(f"{template}|{topic}".encode()).digest()[0] < _HELD_OUT_SHARE


def _text(slot: str, rng: random.Random, *, held_out: bool) -> tuple[str, str]:
    """Return the name of a text for a slot and the text, its own slots filled."""
    file = rng.choice(_TEXTS[slot])
    block = rng.choice(_side(file, held_out=held_out))
    filling = Filling(rng)
    if file == "code":
        return block.name, filling.fill(block.body)
    lines = [filling.prose(line) for line in sentences(block.body, rng)]
    if file in ("notes", "talk"):
        text = "\n".join(lines)
    else:
        # Some passages come in two paragraphs.
        if file == "passage" and len(lines) > 4 and rng.random() < 0.25:
            lines[len(lines) // 2] = "\\n\\n" + lines[len(lines) // 2]
        text = re.sub(r" *\n *", "\n", " ".join(lines).replace("\\n", "\n"))
    return block.name, misspell(text, rng) if slot == "typos" else text


@cache
def _side(file: str, *, held_out: bool) -> Sequence[Block]:
    return tuple(block for block in blocks(file) if block.held_out is held_out)


@cache
def _groups() -> tuple[_Group, ...]:
    groups = []
    for block in blocks("templates"):
        name, share = block.name.split()
        groups.append(
            _Group(
                name.rstrip("+"), int(share), name.endswith("+"), tuple(filter(None, block.body.splitlines()))
            )
        )
    return tuple(groups)


def _styled(message: str, rng: random.Random) -> str:
    """Return the message as some people write: with a greeting, a wish for the answer, or without care."""
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(_GREETINGS).format(message)
    if kind < 0.32 and "\n" not in message:
        ended = message if message[-1] in ".?!:" else f"{message}."
        return f"{ended} {rng.choice(_WISHES)}"
    if kind < 0.42:
        return message.rstrip("?.!").lower()
    if kind < 0.46:
        return misspell(message, rng)
    return message

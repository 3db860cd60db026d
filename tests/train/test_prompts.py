"""Prompts: enough, varied, apart from the held-out ones and from the decode workload."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from slipstream.bench.workloads import decode_prompts
from slipstream.train.prompts import Prompt, held_out_prompts, is_held_out, training_prompts
from slipstream.train.textfiles import Filling, blocks, lists, misspell, sentences

TEXT_FILES = ("passage", "message", "notes", "talk", "code")


def grams(text: str, size: int = 5) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


@pytest.fixture(scope="module")
def training() -> list[Prompt]:
    return training_prompts(seed=0)


@pytest.mark.slow
def test_there_are_many_and_all_differ(training: list[Prompt]) -> None:
    assert len(training) >= 20_000
    assert len({prompt.text for prompt in training}) == len(training)
    assert all(prompt.text.strip() for prompt in training)


@pytest.mark.slow
def test_they_are_of_many_kinds(training: list[Prompt]) -> None:
    templates = Counter(prompt.template for prompt in training)
    topics = {prompt.topic for prompt in training}
    assert len(templates) >= 150
    assert len(topics) >= 600
    assert max(templates.values()) < 0.02 * len(training)
    lengths = sorted(len(prompt.text.split()) for prompt in training)
    assert lengths[len(lengths) // 10] <= 8
    assert lengths[-len(lengths) // 10] >= 70


def test_the_same_seed_gives_the_same_and_a_longer_list_begins_with_the_shorter() -> None:
    assert training_prompts(3, 200) == training_prompts(3, 300)[:200]
    assert training_prompts(3, 200) != training_prompts(4, 200)


@pytest.mark.slow
def test_no_slot_is_left_open(training: list[Prompt]) -> None:
    # A dollar sign stands in shell code only.
    assert not [p.text for p in training if "$" in p.text and "#!/bin/bash" not in p.text]
    assert not [p.text for p in training if re.search(r"\ba [aeio][a-z]", p.text) and p.group == "explain"]


@pytest.mark.slow
def test_held_out_prompts_share_no_pair_and_no_text_with_training(training: list[Prompt]) -> None:
    held_out = held_out_prompts()
    assert len({prompt.text for prompt in held_out}) == 64
    assert len({prompt.group for prompt in held_out}) >= 12
    pairs = {(prompt.template, prompt.topic) for prompt in training}
    assert not pairs & {(prompt.template, prompt.topic) for prompt in held_out}
    starred = {block.name for file in TEXT_FILES for block in blocks(file) if block.held_out}
    assert not starred & {prompt.topic for prompt in training}
    assert starred & {prompt.topic for prompt in held_out}


@pytest.mark.slow
def test_nothing_is_near_the_decode_workload(training: list[Prompt]) -> None:
    measured = {prompt.name: grams(prompt.user) for prompt in decode_prompts()}
    for prompt in [*training, *held_out_prompts()]:
        mine = grams(prompt.text)
        for name, theirs in measured.items():
            assert not mine & theirs, f"{prompt.text!r} shares {mine & theirs} with {name}"


@pytest.mark.parametrize("file", TEXT_FILES)
def test_a_text_comes_in_many_forms(file: str) -> None:
    for block in blocks(file):
        rng = random.Random(block.name)
        forms = {"\n".join(Filling(rng).fill(line) for line in sentences(block.body, rng)) for _ in range(40)}
        assert len(forms) >= 20, f"{block.name} would be learnt by heart"


def test_lists_have_no_repeats() -> None:
    for name, items in lists().items():
        assert len(set(items)) == len(items), name
        assert all(items), name


def test_labelled_slots_repeat_and_others_differ() -> None:
    filling = Filling(random.Random(1))
    first, again, other, number, dollar = filling.fill("$name1|$name1|$name|$n(3,4)|$$x").split("|")
    assert first == again != other
    assert first in lists()["name"]
    assert number in ("3", "4")
    assert dollar == "$x"
    with pytest.raises(KeyError):
        filling.fill("$nosuchlist")


def test_articles_and_ordinals_fit_what_follows() -> None:
    filling = Filling(random.Random(1))
    assert filling.prose("a apple, a unicorn, a user, A owl") == "an apple, a unicorn, a user, An owl"
    assert filling.prose("21th 12th 3th 112th 4th") == "21st 12th 3rd 112th 4th"


def test_misspelling_changes_words_and_nothing_else() -> None:
    text = "The committee will definitely discuss the beautiful garden, the weather and everything else on 14 May."
    wrong = misspell(text, random.Random(5))
    assert wrong != text
    assert len(wrong.split()) == len(text.split())
    assert "14 May." in wrong


def test_a_pair_is_always_on_the_same_side() -> None:
    kept = [is_held_out("What is $science?", str(topic)) for topic in range(4000)]
    assert 0.02 < sum(kept) / len(kept) < 0.045

"""The observer sees every settled position of every request, once, with the row that chose the next token."""

from __future__ import annotations

import pytest
import torch

from tests.engines import Fleet, drain, greedy


@pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
def test_rows_of_all_settled_positions(tiny: Fleet, draft: str) -> None:
    prompts = tiny.prompts()[:7]
    engine = tiny.engine(draft=draft, max_requests=3, prefill_chunk=32)
    seen: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def observe(request_id: int, start: int, hidden_RH: torch.Tensor) -> None:
        rows = seen.setdefault(request_id, [])
        assert start == len(rows), "positions come in order"
        rows += [(start + row, hidden_RH[row].clone()) for row in range(len(hidden_RH))]

    engine.observer = observe
    ids = [engine.add(prompt, greedy(20)) for prompt in prompts]
    tokens = drain(engine)
    for request_id, prompt in zip(ids, prompts, strict=True):
        text = prompt + tokens[request_id]
        rows = [row for _, row in seen[request_id]]
        assert len(rows) >= len(text) - 1  # an accepted run may go on behind the end
        chosen = tiny.loaded().target.logits(torch.stack(rows)[len(prompt) - 1 : len(text) - 1]).argmax(-1)
        assert chosen.tolist() == tokens[request_id]


def test_positions_come_again_after_a_preemption(tiny: Fleet) -> None:
    prompts = tiny.prompts()[:4]
    engine = tiny.engine(draft="none", num_pages=9, max_requests=4)
    seen: dict[tuple[int, int], torch.Tensor] = {}
    repeats = 0

    def observe(request_id: int, start: int, hidden_RH: torch.Tensor) -> None:
        nonlocal repeats
        for row, hidden_H in enumerate(hidden_RH.clone()):
            before = seen.setdefault((request_id, start + row), hidden_H)
            repeats += before is not hidden_H
            assert torch.equal(before, hidden_H)

    engine.observer = observe
    for prompt in prompts:
        engine.add(prompt, greedy(40))
    drain(engine)
    assert engine.stats.preemptions > 0
    assert repeats > 0

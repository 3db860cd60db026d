"""The differentiable head against the engine's: the same rows, the same rounds."""

from __future__ import annotations

import pytest
import torch

from slipstream import ops
from slipstream.kv.cache import KvCache
from slipstream.model.nextn import NextnHead
from slipstream.model.nextn_build import HeadWeights, build_head
from slipstream.train.batches import Batch, pack
from slipstream.train.head import Rollout, TrainableHead, initial_tensors
from slipstream.train.vocabulary import draft_vocabulary, frequent_ids
from tests.engines import Fleet, answers, greedy
from tests.train.answers import Answers, answer, random_prompts

NUM_STEPS = 3


@pytest.fixture(scope="module")
def data(tiny: Fleet) -> Answers:
    return answer(tiny, random_prompts(5, 4, 320), 24)


@pytest.fixture(scope="module")
def head(tiny: Fleet, data: Answers) -> TrainableHead:
    """Not trained, but with every weight its own: a mistake in any of them shows."""
    loaded = tiny.loaded()
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + 0.2 * tensor.square().mean().sqrt() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial_tensors(loaded.checkpoint, 3.0).items()
    }
    return TrainableHead(loaded.target.config, loaded.target.rope, tensors)


def engine_head(tiny: Fleet, head: TrainableHead, draft_ids: torch.Tensor | None = None) -> NextnHead:
    return build_head(tiny.loaded().target, HeadWeights(head.tensors(), draft_ids), "f32")


@torch.no_grad()
def unroll(head: TrainableHead, batch: Batch, embedded: torch.Tensor) -> list[torch.Tensor]:
    """The hidden rows of each step, of all starts."""
    rollout = Rollout(head, batch, embedded)
    return [rollout.advance() for _ in range(NUM_STEPS)]


class CachedHead:
    """The engine's head over a cache, one request, a page as long as it."""

    def __init__(self, head: NextnHead) -> None:
        config = head.target.config
        self.head = head
        self.cache = KvCache.make(1, 2, 64, config.num_kv_heads, config.head_dim, torch.device("cpu"))

    @torch.inference_mode()
    def rows(self, ids: torch.Tensor, hidden: torch.Tensor, first: int) -> torch.Tensor:
        positions = torch.arange(first, first + len(ids))
        return self.head.forward(ids, hidden, positions, positions + 64, torch.tensor([[1]]), self.cache)


def test_every_step_is_what_decoding_computes(tiny: Fleet, data: Answers, head: TrainableHead) -> None:
    batch = pack(data.samples)
    embedded = tiny.loaded().target.token_embd.rows(batch.next_ids_T)
    unrolled = unroll(head, batch, embedded)
    compared = 0
    for sample, (_, starts) in zip(data.samples, batch.spans, strict=True):
        cached = CachedHead(engine_head(tiny, head))
        next_ids, hidden, prompt = sample.ids[1:], sample.hidden_TH, sample.prompt_length
        drafted = cached.rows(next_ids[:prompt], hidden[:prompt], 0)[-1:]
        start = prompt - 1
        # Rounds that advance by 1, 2, 3, 4, 1, ..: extend overwrites what was drafted, over the full width.
        for advanced in [1, 2, 3, 4] * 3:
            for step in range(NUM_STEPS):
                if step:
                    drafted = cached.rows(next_ids[start + step : start + step + 1], drafted, start + step)
                mine = unrolled[step][starts][start - (prompt - 1)]
                torch.testing.assert_close(mine, drafted[0], atol=1e-4, rtol=1e-4)
                compared += 1
            rows = slice(start + 1, start + 2 + NUM_STEPS)
            if rows.stop >= len(hidden):
                break
            drafted = cached.rows(next_ids[rows], hidden[rows], start + 1)[advanced - 1 : advanced]
            start += advanced
    assert compared > 60


def test_engine_accepts_what_the_unrolled_head_guesses(
    tiny: Fleet, data: Answers, head: TrainableHead
) -> None:
    """Rounds, counted from the unrolled drafts alone, are those of the engine, draft vocabulary included."""
    target = tiny.loaded().target
    vocabulary = draft_vocabulary(target, frequent_ids(data, target.config.vocab_size, 200))
    batch = pack(data.samples)
    unrolled = unroll(head, batch, target.token_embd.rows(batch.next_ids_T))
    with torch.no_grad():
        drafts = torch.stack([(head.normed(g) @ vocabulary.output_NH.T).argmax(-1) for g in unrolled], 1)
    expected = [0] * NUM_STEPS
    for sample, (_, starts) in zip(data.samples, batch.spans, strict=True):
        guesses = vocabulary.ids[drafts[starts]].tolist()
        ids, start = sample.ids.tolist(), sample.prompt_length - 1
        while start + 1 < len(ids) - 1:
            wanted = ids[start + 2 : start + 2 + NUM_STEPS]
            held = 0
            while held < len(wanted) and guesses[start - sample.prompt_length + 1][held] == wanted[held]:
                expected[held] += 1
                held += 1
            start += held + 1
    engine = tiny.engine_with_head(engine_head(tiny, head, vocabulary.ids), num_steps=NUM_STEPS)
    prompts = [sample.ids[: sample.prompt_length].tolist() for sample in data.samples]
    given = answers(engine, prompts, greedy(24))
    assert given == [sample.ids[sample.prompt_length :].tolist() for sample in data.samples]
    # The engine also counts drafts that hold behind an answer's end.
    counted = [engine.stats.accepted[k] for k in range(NUM_STEPS)]
    assert all(0 <= c - e <= len(prompts) for c, e in zip(counted, expected, strict=True))
    assert sum(expected) > 0


def test_begins_as_the_identity(tiny: Fleet, data: Answers) -> None:
    """Of the embedding a new head takes nothing; the hidden row goes to the layer at its own size."""
    loaded = tiny.loaded()
    head = TrainableHead(loaded.target.config, loaded.target.rope, initial_tensors(loaded.checkpoint, 2.0))
    hidden = data.samples[0].hidden_TH
    scaled = hidden / hidden.square().mean(-1, keepdim=True).sqrt() * 2
    got = head.input_rows(torch.randn_like(hidden), hidden)
    torch.testing.assert_close(got.detach(), scaled, atol=1e-3, rtol=1e-3)


def test_starts_that_are_left_out_change_nothing_for_the_others(
    tiny: Fleet, data: Answers, head: TrainableHead
) -> None:
    batch = pack(data.samples)
    embedded = tiny.loaded().target.token_embd.rows(batch.next_ids_T)
    whole = unroll(head, batch, embedded)
    with torch.no_grad():
        rollout = Rollout(head, batch, embedded)
        rollout.advance()
        rollout.advance(torch.arange(0, len(batch.starts_S), 3))
        # Of the second sequence nothing is left.
        _, starts = batch.spans[1]
        outside = (rollout.numbers_S < starts.start) | (rollout.numbers_S >= starts.stop)
        last = rollout.advance(outside.nonzero().squeeze(1))
    assert 0 < len(rollout.numbers_S) < len(batch.starts_S) // 3
    torch.testing.assert_close(last, whole[2][rollout.numbers_S], atol=1e-5, rtol=1e-5)


def test_gradients_reach_every_weight(tiny: Fleet, data: Answers, head: TrainableHead) -> None:
    batch = pack(data.samples)
    embedded = ops.embedding(tiny.loaded().target.token_embd, batch.next_ids_T)
    head.zero_grad()
    rollout = Rollout(head, batch, embedded)
    sum(rollout.advance().square().sum() for _ in range(NUM_STEPS)).backward()
    missing = [n for n, p in head.named_parameters() if n != "output_norm" and not p.grad.abs().sum() > 0]
    assert missing == []

"""The fused loss against plain torch, and which target row judges which draft."""

from __future__ import annotations

import pytest
import torch

from slipstream.train.batches import num_starts, pack, plan_epoch
from slipstream.train.loss import STEP_DECAY, Vocabulary, _SoftCrossEntropy, unrolled_loss
from slipstream.train.shards import TrainingSequence
from tests.train.answers import Answers
from tests.train.test_head import data, head, unroll  # noqa: F401 - fixtures


def test_cross_entropy_and_gradient_equal_plain_torch():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 16, generator=generator, requires_grad=True)  # more than two chunks
    output = torch.randn(50, 16, generator=generator)
    wanted = torch.randn(600, 50, generator=generator).softmax(-1)
    judge = torch.randint(600, (600,), generator=generator)
    total, best = _SoftCrossEntropy.apply(rows, output, wanted, judge)
    (3 * total).backward()
    fused, rows.grad = rows.grad, None
    logits = rows @ output.T
    plain = -(wanted[judge] * logits.log_softmax(-1)).sum()
    (3 * plain).backward()
    torch.testing.assert_close(total, plain, rtol=1e-5, atol=1e-2)
    torch.testing.assert_close(fused, rows.grad, rtol=1e-4, atol=1e-5)
    assert best.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("reached_only", [False, True])
def test_steps_are_judged_by_the_rows_they_guess(tiny, data, head, reached_only):  # noqa: F811
    """Against a loop over starts and steps that reads positions as the text of `batches` has them."""
    target = tiny.loaded().target
    ids = torch.arange(0, 320, 2)
    vocabulary = Vocabulary(ids, target.output.rows(ids), target.output_norm, target.config.rms_eps)
    batch = pack(data.samples)
    embedded = target.token_embd.rows(batch.next_ids_T)
    with torch.no_grad():
        losses = unrolled_loss(head, vocabulary, batch, embedded, 3, reached_only=reached_only)
    scores = [(head.normed(g) @ vocabulary.output_NH.T).detach() for g in unroll(head, batch, embedded)]
    divergences, accepted = [[] for _ in range(3)], [0, 0, 0]
    for sample, (_, starts) in zip(data.samples, batch.spans, strict=True):
        count = num_starts(len(sample.hidden_TH), sample.prompt_length)
        for number in range(count):
            held = True
            for step in range(min(3, count - number)):
                if reached_only and not held:
                    break
                judge = sample.prompt_length - 1 + number + step + 1
                [wanted], _ = vocabulary.target_probabilities(sample.hidden_TH[judge : judge + 1])
                given = scores[step][starts][number]
                divergence = (wanted * (wanted.log() - given.log_softmax(-1))).sum().item()
                divergences[step].append(divergence)
                held = held and int(ids[given.argmax()]) == int(sample.ids[judge + 1])
                accepted[step] += held
    assert losses.judged == [len(each) for each in divergences]
    assert losses.accepted == accepted
    assert accepted[0] > 0
    for step, each in enumerate(divergences):
        assert abs(losses.by_step[step] - sum(each) / max(1, len(each))) < 1e-3
    weighted = sum(STEP_DECAY**step * sum(each) for step, each in enumerate(divergences))
    assert abs(losses.total.item() - weighted / len(batch.starts_S)) < 1e-3


def test_an_epoch_has_every_sequence_once_in_a_seeded_order():
    sizes = [(10 + i % 7, 4) for i in range(40)] + [(3, 3), (2, 5)]  # the last two have nothing to judge
    batches = plan_epoch(sizes, 30, seed=1, epoch=0)
    assert sorted(index for batch in batches for index in batch) == list(range(40))
    assert all(sum(num_starts(*sizes[i]) for i in batch) >= 30 for batch in batches[:-1])
    assert plan_epoch(sizes, 30, seed=1, epoch=0) == batches
    assert plan_epoch(sizes, 30, seed=1, epoch=1) != batches
    assert plan_epoch(sizes, 30, seed=2, epoch=0) != batches


def test_packing_keeps_sequences_apart():
    samples = [
        TrainingSequence(torch.arange(n + 1) + 100 * n, torch.full((n, 4), float(n)), 2) for n in (5, 3)
    ]
    batch = pack(samples)
    assert batch.starts_S.tolist() == [1, 2, 3, 6]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.next_ids_T.tolist() == [501, 502, 503, 504, 505, 301, 302, 303]
    assert batch.judged(torch.arange(4), 1).tolist() == [True, True, False, False]
    assert batch.judged(torch.tensor([0, 3]), 2).tolist() == [True, False]
    assert Answers(samples).sizes == [(5, 2), (3, 2)]

"""Training on a tiny target: it learns, stops where it is told, and goes on to the same weights."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from slipstream.errors import ModelFormatError, TrainingError, UsageError
from slipstream.model.nextn_build import HeadWeights
from slipstream.model.nextn_file import read_head
from slipstream.model.target_hash import target_hash
from slipstream.train.checkpoint import load_state, save_state, write_head
from slipstream.train.loop import LoopOptions
from slipstream.train.session import TrainOrder, TrainReport, TrainSession
from slipstream.train.shards import TrainingSequence
from tests.engines import Fleet
from tests.train.answers import Answers, answer, random_prompts

pytestmark = pytest.mark.slow

LOOP = LoopOptions(epochs=1, rows=200, learning_rate=3e-3)


@pytest.fixture(scope="module")
def data(tiny: Fleet) -> Answers:
    return answer(tiny, random_prompts(200, 6, 320, seed=5), 40, max_requests=32, buckets=(32,))


def session(
    tiny: Fleet, data: Answers, out: Path, loop: LoopOptions = LOOP, **options: object
) -> TrainSession:
    order = TrainOrder(
        out, draft_vocabulary=256, evaluate_tokens=32, evaluate_prompts=32, loop=loop, **options
    )
    # A model of random weights has no rules to be learned: its head is judged by prompts that it has seen.
    held_out = [sample.ids[: sample.prompt_length].tolist() for sample in data.samples[:32]]
    return TrainSession(tiny.loaded(), tiny.config(), data, held_out, order)


@pytest.fixture(scope="module")
def trained(tiny: Fleet, data: Answers, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainReport]:
    out = tmp_path_factory.mktemp("trained")
    return out, session(tiny, data, out, replace(LOOP, epochs=4)).run()


def test_learns(trained: tuple[Path, TrainReport]) -> None:
    _, report = trained
    losses = [record["loss"] for record in report.history if "loss" in record]
    assert all(last < 0.8 * first for first, last in zip(losses[0], losses[-1], strict=True))
    assert report.trained.acceptance[0] > report.untrained.acceptance[0] + 0.05
    assert report.trained.mean_advanced > report.untrained.mean_advanced + 0.05
    assert not report.interrupted


def test_head_file_says_what_it_is(tiny: Fleet, trained: tuple[Path, TrainReport]) -> None:
    out, report = trained
    loaded = tiny.loaded()
    weights = read_head(out / "head.safetensors", loaded.target.config, target_hash(loaded.checkpoint))
    assert len(weights.draft_ids) == 256
    assert weights.tensors["eh_proj.weight"].dtype == torch.bfloat16
    assert json.loads(weights.facts["figures"])["mean_advanced"] == report.trained.mean_advanced
    assert weights.facts["tokens"] == str(200 * 39)


def test_log_and_plot_show_the_course(trained: tuple[Path, TrainReport]) -> None:
    out, report = trained
    assert json.loads((out / "history.json").read_text()) == report.history
    root = ElementTree.parse(out / "training.svg").getroot()
    kinds = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert kinds.count("polyline") == 6  # three steps' losses, three positions' acceptance
    evaluations = sum("acceptance" in record for record in report.history)
    assert kinds.count("circle") == 3 * evaluations == 6


def interrupted(tiny: Fleet, data: Answers, out: Path, at: int) -> None:
    def progress(done: int, total: int, text: str) -> None:
        if done == at:
            signal.raise_signal(signal.SIGINT)

    report = session(tiny, data, out).run(progress)
    assert report.interrupted
    assert len([r for r in report.history if "loss" in r]) <= at


@pytest.mark.parametrize("at", [1, 17, 27])
def test_goes_on_to_the_same_weights(tiny: Fleet, data: Answers, tmp_path: Path, at: int) -> None:
    whole = session(tiny, data, tmp_path / "whole")
    before = whole.run()
    interrupted(tiny, data, tmp_path / "parts", at)
    rest = session(tiny, data, tmp_path / "parts")
    after = rest.run()
    assert rest.trainer.num_steps > 27
    for name, tensor in whole.trainer.head.tensors().items():
        assert torch.equal(tensor, rest.trainer.head.tensors()[name]), name
    config = tiny.loaded().target.config
    files = [read_head(tmp_path / part / "head.safetensors", config) for part in ("whole", "parts")]
    assert files[0].facts == files[1].facts
    assert all(torch.equal(files[0].tensors[name], files[1].tensors[name]) for name in files[0].tensors)
    untimed = [
        [{k: v for k, v in record.items() if k != "seconds"} for record in report.history]
        for report in (before, after)
    ]
    assert untimed[0] == untimed[1]


def test_other_options_are_no_continuation(tiny: Fleet, data: Answers, tmp_path: Path) -> None:
    interrupted(tiny, data, tmp_path, 1)
    with pytest.raises(UsageError, match="rows 200 then, 90 now"):
        session(tiny, data, tmp_path, replace(LOOP, rows=90)).run()
    with pytest.raises(UsageError, match="sequences 200 then, 199 now"):
        session(tiny, Answers(data.samples[1:]), tmp_path).run()


def test_goes_on_from_a_head(
    tiny: Fleet, data: Answers, trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    """The head's own vocabulary stays; what it had learned is there from the start."""
    out, report = trained
    head = out / "head.safetensors"
    again = session(tiny, data, tmp_path, replace(LOOP, epochs=1, learning_rate=1e-5), init=head)
    assert again.run().untrained.mean_advanced == pytest.approx(report.trained.mean_advanced, abs=0.02)


def test_head_of_another_model_is_refused(
    tiny: Fleet, data: Answers, trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    out, _ = trained
    loaded = tiny.loaded()
    weights = read_head(out / "head.safetensors", loaded.target.config)
    other = HeadWeights(weights.tensors, weights.draft_ids, dict(weights.facts) | {"target_hash": "f" * 64})
    write_head(other, tmp_path / "other.safetensors")
    with pytest.raises(ModelFormatError, match="another model"):
        session(tiny, data, tmp_path / "out", init=tmp_path / "other.safetensors")


def test_nothing_to_train_on(tiny: Fleet, tmp_path: Path) -> None:
    empty = Answers([TrainingSequence(torch.arange(5), torch.ones(4, 64), 4)])
    with pytest.raises(UsageError, match="nothing to train on"):
        session(tiny, empty, tmp_path)


def test_files_that_cannot_be_written_leave_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    save_state({"a": torch.ones(3)}, path)
    (tmp_path / "state.pt.new").mkdir()  # nothing can be written under this name
    with pytest.raises(TrainingError, match="cannot be written"):
        save_state({"a": torch.zeros(3)}, path)
    assert load_state(path)["a"].tolist() == [1, 1, 1]
    with pytest.raises(TrainingError, match="cannot be written"):
        save_state({}, path / "below")


def test_damaged_state_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"no state")
    with pytest.raises(TrainingError, match="not a readable training state"):
        load_state(path)

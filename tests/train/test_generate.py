"""Training data: right rows, the same shards after an interruption, nothing half-written, refusals."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from slipstream.errors import TrainingError, UsageError
from slipstream.llm import chat_ids
from slipstream.train import generate as module
from slipstream.train.generate import DataSummary, generate
from slipstream.train.prompts import training_prompts
from slipstream.train.shards import ShardReader, read_shards, shard_facts, shard_path
from tests.engines import Fleet

PROMPTS = [prompt.text for prompt in training_prompts(0, 400) if len(prompt.text) < 60][:11]


def make(tiny: Fleet, folder: Path, prompts: list[str] = PROMPTS, **options: object) -> DataSummary:
    settings = {"max_tokens": 9, "batch": 3, "seed": 0, "shard_prompts": 4, "threads": 1} | options
    return generate(str(tiny.path), folder, prompts, **settings)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes: writing fails in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def data(tiny: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    summary = make(tiny, folder)
    assert (summary.shards, summary.sequences, summary.skipped) == (3, len(PROMPTS), {})
    assert (
        summary.new_tokens
        == summary.answer_tokens
        == sum(len(one.ids) - one.prompt_length for one in read_shards(folder))
    )
    assert summary.tokens_per_second > 0
    return folder


def test_sequences_are_the_targets_own_answers(tiny: Fleet, data: Path) -> None:
    """Tokens as plain decoding gives them, and rows as one forward over the whole text does."""
    loaded = tiny.loaded("q4")
    for prompt, one in zip(PROMPTS, read_shards(data), strict=True):
        ids = chat_ids(loaded.tokenizer, prompt)
        assert one.ids.tolist()[: one.prompt_length] == ids
        answer = one.ids.tolist()[one.prompt_length :]
        plain = tiny.plain("q4", ids, 9)
        assert answer == plain[: len(answer)]
        assert len(answer) == 9 or answer[-1] in loaded.tokenizer.eos_ids
        assert one.ids.dtype == torch.int32
        assert (one.hidden_TH.dtype, len(one.hidden_TH)) == (torch.float16, len(one.ids) - 1)
        # The last prompt row and those behind it choose the answer.
        chosen = loaded.target.logits(one.hidden_TH[one.prompt_length - 1 :].float()).argmax(-1)
        assert (chosen == one.ids[one.prompt_length :]).float().mean() >= 0.85, (
            "rows stand at other positions"
        )


def test_rows_do_not_depend_on_the_batch(tiny: Fleet, data: Path, tmp_path: Path) -> None:
    make(tiny, tmp_path, batch=1)
    assert contents(tmp_path) == contents(data)


@pytest.mark.parametrize("steps", [2, 16, 30])
def test_an_interrupted_run_goes_on_to_the_same_shards(
    tiny: Fleet, data: Path, tmp_path: Path, steps: int
) -> None:
    def interrupt(done: int, total: int, speed: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    left = steps
    with pytest.raises(KeyboardInterrupt):
        make(tiny, tmp_path, progress=interrupt)
    before = contents(tmp_path)
    assert set(before) < set(contents(data))
    make(tiny, tmp_path)
    assert contents(tmp_path) == contents(data)
    assert before.items() <= contents(data).items()


def test_a_run_that_is_complete_does_nothing(
    tiny: Fleet, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module, "load_model")  # not even the weights are loaded
    before = contents(data)
    summary = make(tiny, data)
    assert (summary.new_tokens, summary.tokens_per_second, summary.sequences) == (0, 0.0, len(PROMPTS))
    assert contents(data) == before


def test_a_longer_list_of_prompts_adds_to_the_data(tiny: Fleet, data: Path, tmp_path: Path) -> None:
    make(tiny, tmp_path, PROMPTS[:6])
    make(tiny, tmp_path)
    assert contents(tmp_path) == contents(data)
    assert make(tiny, tmp_path, PROMPTS[:5]).new_tokens == 0


def test_a_full_disk_leaves_no_half_written_shard(tiny: Fleet, data: Path, tmp_path: Path) -> None:
    make(tiny, tmp_path, PROMPTS[:4])
    with file_size_limit(2000), pytest.raises(TrainingError, match=r"shard-00001.* cannot be written"):
        make(tiny, tmp_path)
    assert list(contents(tmp_path)) == ["shard-00000.safetensors"]
    make(tiny, tmp_path)
    assert contents(tmp_path) == contents(data)


def test_the_rest_of_a_killed_run_is_removed(tiny: Fleet, data: Path, tmp_path: Path) -> None:
    (tmp_path / "shard-00001.part").write_bytes(b"half")
    make(tiny, tmp_path)
    assert contents(tmp_path) == contents(data)


def test_prompts_that_cannot_be_served_are_counted_and_the_others_are(tiny: Fleet, tmp_path: Path) -> None:
    prompts = ["one", "  ", "\ud800", "x" * 5000, "two"]
    summary = make(tiny, tmp_path, prompts)
    assert summary.sequences == 2
    assert summary.skipped == {"EmptyPromptError": 1, "InvalidTextError": 1, "longer than 512 tokens": 1}
    assert make(tiny, tmp_path, prompts).new_tokens == 0


def test_progress_counts_prompts(tiny: Fleet, tmp_path: Path) -> None:
    make(tiny, tmp_path, PROMPTS[:4])
    seen: list[tuple[int, int, str]] = []
    make(tiny, tmp_path, progress=lambda *now: seen.append(now))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert (seen[0][0], seen[-1][0], seen[-1][1]) == (4, len(PROMPTS), len(PROMPTS))
    assert seen[-1][2].endswith(" tok/s")


class TestRefusals:
    def test_no_prompts_at_all(self, tiny: Fleet, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="there are no prompts"):
            make(tiny, tmp_path / "data", [])
        assert not (tmp_path / "data").exists()

    def test_a_folder_of_other_data(self, tiny: Fleet, data: Path) -> None:
        before = contents(data)
        with pytest.raises(UsageError, match="max_tokens 9, and now it is 8"):
            make(tiny, data, max_tokens=8)
        with pytest.raises(UsageError, match="other prompts"):
            make(tiny, data, PROMPTS[::-1])
        assert contents(data) == before

    def test_a_folder_that_is_a_file(self, tiny: Fleet, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(TrainingError, match="cannot be used for training data"):
            make(tiny, tmp_path / "file")

    def test_a_folder_without_shards(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no training data in"):
            ShardReader(tmp_path)

    @pytest.mark.parametrize("size", [0, 5, 200, 3000])
    def test_a_damaged_shard(self, tiny: Fleet, data: Path, tmp_path: Path, size: int) -> None:
        for name, content in contents(data).items():
            (tmp_path / name).write_bytes(content)
        path = shard_path(tmp_path, 1)
        path.write_bytes(path.read_bytes()[:size])
        for action in (lambda: ShardReader(tmp_path), lambda: make(tiny, tmp_path)):
            with pytest.raises(TrainingError, match=r"shard-00001.*Remove it"):
                action()


def test_a_shard_says_where_it_comes_from(data: Path) -> None:
    facts = shard_facts(shard_path(data, 0))
    assert len(facts["target_hash"]) == 64
    assert (facts["max_tokens"], facts["seed"], facts["index"]) == ("9", "0", "0")


def test_the_reader_gives_sequences_by_number(data: Path) -> None:
    reader, all_of_them = ShardReader(data), list(read_shards(data))
    assert len(reader) == len(all_of_them)
    for index in (0, 3, 4, len(reader) - 1):
        one = reader.load(index)
        assert torch.equal(one.ids, all_of_them[index].ids)
        assert torch.equal(one.ids, reader.ids(index))
        assert torch.equal(one.hidden_TH, all_of_them[index].hidden_TH)
        assert reader.sizes[index] == (len(one.hidden_TH), one.prompt_length)

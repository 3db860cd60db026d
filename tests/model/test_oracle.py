"""Our float32 against transformers' float32, on the same weights. make_golden.py says whence its figures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.bench.workloads import decode_prompts
from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.kv.cache import KvCache
from slipstream.llm import LLM, chat_ids, complete
from slipstream.model.checkpoint import open_checkpoint
from slipstream.model.llama import Llama
from slipstream.model.load import load_llama
from slipstream.model.tokenizer import Tokenizer
from tests.model.oracle import GOLDEN, TINY, spread_ids, tiny_ids, write_variant_gguf, write_variant_hf

#: Logits may differ by this much: the order of float32 sums is the kernels' own.
TOLERANCE = 1e-3

CPU = torch.device("cpu")
SMOLLM2: dict[str, Any] = json.loads((GOLDEN / "smollm2-f32.json").read_text())["prompts"]
TINY_GOLDEN: dict[str, Any] = json.loads((GOLDEN / "tiny-f32.json").read_text())["models"]
ONE_AND_SLOWLY_ALL = [
    name if name == "code1" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(SMOLLM2)
]


@torch.inference_mode()
def logits_at(model: Llama, ids: list[int], positions: list[int], chunk: int | None = None) -> torch.Tensor:
    """Logits [positions, V], computed through the paged cache, `chunk` prompt positions at a time."""
    page_size = 16
    num_pages = -(-len(ids) // 64) * 64 // page_size
    config = model.config
    cache = KvCache.make(config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim, CPU)
    pages = torch.arange(num_pages, 0, -1)[None]  # not in the order of memory
    rows = []
    for part in torch.arange(len(ids)).split(chunk or len(ids)):
        slots = pages[0][part // page_size] * page_size + part % page_size
        rows.append(model.forward(torch.tensor(ids)[part], part, slots, pages, cache))
    return model.logits(torch.cat(rows)[positions])


def check_logits(model: Llama, ids: list[int], golden: dict[str, Any], chunk: int | None = None) -> None:
    positions = sorted(map(int, golden))
    assert positions == [0, len(ids) // 2, len(ids) - 1]
    ours = logits_at(model, ids, positions, chunk)
    for position, row in zip(positions, ours, strict=True):
        theirs = golden[str(position)]
        spread = row[spread_ids(len(row))]
        torch.testing.assert_close(spread, torch.tensor(theirs["spread"]), rtol=0, atol=TOLERANCE)
        top = row.topk(len(theirs["top_ids"]))
        assert top.indices.tolist() == theirs["top_ids"]
        torch.testing.assert_close(top.values, torch.tensor(theirs["top_logits"]), rtol=0, atol=TOLERANCE)


class TestTiny:
    """Grouped heads, biases, an untied output, llama3's rope: whatever SmolLM2 has not."""

    @pytest.mark.parametrize("chunk", [None, 37])
    @pytest.mark.parametrize("kind", ["gguf", "hf"])
    @pytest.mark.parametrize("name", sorted(TINY))
    def test_logits(self, tmp_path: Path, name: str, kind: str, chunk: int | None) -> None:
        write = write_variant_gguf if kind == "gguf" else write_variant_hf
        checkpoint = open_checkpoint(write(tmp_path / f"tiny.{kind}", name))
        check_logits(load_llama(checkpoint, "f32", 256, CPU), tiny_ids(), TINY_GOLDEN[name]["logits"], chunk)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, config())


class TestSmolLM2:
    @pytest.mark.parametrize("name", sorted(SMOLLM2))
    def test_prompt_ids(self, llm: LLM, name: str) -> None:
        ids = prompt_ids(llm.tokenizer)[name]
        assert len(ids) == SMOLLM2[name]["ids"]
        assert hashlib.sha256(json.dumps(ids).encode()).hexdigest() == SMOLLM2[name]["ids_sha256"]

    @pytest.mark.parametrize("name", ONE_AND_SLOWLY_ALL)
    def test_logits(self, llm: LLM, name: str) -> None:
        check_logits(llm.loaded.target, prompt_ids(llm.tokenizer)[name], SMOLLM2[name]["logits"])

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["code2", "sum1"])
    def test_greedy_text(self, llm: LLM, name: str) -> None:
        ids = prompt_ids(llm.tokenizer)[name]
        (answer,) = complete(llm.engine, [ids], SamplingParams(max_tokens=24, ignore_eos=True))
        assert answer.token_ids == SMOLLM2[name]["greedy"][:24]

    @pytest.mark.slow
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    @pytest.mark.parametrize("batch", [1, 8])
    def test_greedy_text_of_all_prompts(self, smollm2_path: Path, draft: str, batch: int) -> None:
        llm = LLM(smollm2_path, config(draft, batch))
        ids = prompt_ids(llm.tokenizer)
        names = list(ids)
        for start in range(0, len(names), batch):
            group = names[start : start + batch]
            answers = complete(
                llm.engine, [ids[name] for name in group], SamplingParams(max_tokens=128, ignore_eos=True)
            )
            for name, answer in zip(group, answers, strict=True):
                assert answer.token_ids == SMOLLM2[name]["greedy"], name


def config(draft: str = "none", batch: int = 1) -> EngineConfig:
    return EngineConfig(
        spec=SpecConfig(draft),
        graph=GraphConfig(buckets=(batch,)),
        dtype="f32",
        max_requests=batch,
        max_model_len=512,
    )


def prompt_ids(tokenizer: Tokenizer) -> dict[str, list[int]]:
    return {prompt.name: chat_ids(tokenizer, prompt.user) for prompt in decode_prompts()}

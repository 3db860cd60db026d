"""How far 4-bit computation is from float32 on the same weights, over all prompt positions of bench decode.

    .venv/bin/python bench/q4_error.py [MODEL]

Both load the same file: float32 multiplies by the dequantised weights, q4 by the codes, with the activations as
its kernels take them. So this is the error of the computation, not of the quantisation. Last line: JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from slipstream.bench.workloads import decode_prompts
from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.kv.cache import KvCache
from slipstream.llm import LLM, chat_ids, complete
from slipstream.model.llama import Llama

PAGE_SIZE = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="How far q4 is from float32.")
    parser.add_argument("model", nargs="?", default="smollm2", help="a GGUF file, or a name of the catalog")
    parser.add_argument("--dtype", default="q4", help="what is held against float32: q4 or bf16")
    parser.add_argument("--max-tokens", type=int, default=128, help="greedy tokens to compare")
    parser.add_argument("--prompts", type=int, default=8, help="how many of the eight prompts")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    prompts = decode_prompts()[: args.prompts]
    logits, answers = {}, {}
    for dtype in ("f32", args.dtype):
        llm = _llm(args.model, dtype, args.threads)
        ids = [chat_ids(llm.tokenizer, prompt.user) for prompt in prompts]
        logits[dtype] = [_all_logits(llm.loaded.target, prompt) for prompt in ids]
        sampling = SamplingParams(max_tokens=args.max_tokens, ignore_eos=True)
        answers[dtype] = [done.token_ids for done in complete(llm.engine, ids, sampling)]
        del llm
    record = {"dtype": args.dtype, **_errors(logits["f32"], logits[args.dtype])}
    agreed = [_agreement(*pair) for pair in zip(answers["f32"], answers[args.dtype], strict=True)]
    record |= {
        "greedy_agreement": dict(zip((prompt.name for prompt in prompts), agreed, strict=True)),
        "greedy_agreement_median": statistics.median(agreed),
        "greedy_equal": sum(length == args.max_tokens for length in agreed),
        "max_tokens": args.max_tokens,
    }
    for name, value in record.items():
        print(f"{name:<26} {value:.5f}" if isinstance(value, float) else f"{name:<26} {value}")
    print(json.dumps(record))


def _llm(model: str, dtype: str, threads: int | None) -> LLM:
    config = EngineConfig(
        spec=SpecConfig("none"),
        graph=GraphConfig(buckets=(8,)),
        dtype=dtype,
        max_model_len=1024,
        threads=threads,
    )
    return LLM(Path(model) if Path(model).exists() else model, config)


@torch.inference_mode()
def _all_logits(model: Llama, ids: list[int]) -> torch.Tensor:
    """Logits of every position, [len(ids), V]."""
    config = model.config
    num_pages = -(-len(ids) // PAGE_SIZE)
    place = model.rope.device
    cache = KvCache.make(config.num_layers, num_pages, PAGE_SIZE, config.num_kv_heads, config.head_dim, place)
    positions = torch.arange(len(ids), device=place)
    pages = torch.arange(1, num_pages + 1, device=place)[None]
    slots = positions + PAGE_SIZE
    return model.logits(model.forward(torch.tensor(ids, device=place), positions, slots, pages, cache))


def _errors(exact: list[torch.Tensor], other: list[torch.Tensor]) -> dict[str, Any]:
    relative, largest, same, divergence, drop = [], 0.0, 0, [], []
    for exact_RV, other_RV in zip(exact, other, strict=True):
        difference = other_RV - exact_RV
        relative += (difference.norm(dim=-1) / exact_RV.norm(dim=-1)).tolist()
        largest = max(largest, float(difference.abs().max()))
        best, chosen = exact_RV.argmax(-1), other_RV.argmax(-1)
        same += int((best == chosen).sum())
        # What the other choice costs, by float32's own logits; 0 where both agree.
        drop += (exact_RV.amax(-1) - exact_RV.gather(1, chosen[:, None])[:, 0]).tolist()
        log_p, log_q = exact_RV.log_softmax(-1), other_RV.log_softmax(-1)
        divergence += (log_p.exp() * (log_p - log_q)).sum(-1).tolist()
    return {
        "positions": len(relative),
        "relative_norm_mean": statistics.mean(relative),
        "relative_norm_max": max(relative),
        "max_abs": largest,
        "argmax_agreement": same / len(relative),
        "argmax_drop_max": max(drop),
        "kl_mean": statistics.mean(divergence),
        "kl_median": statistics.median(divergence),
        "kl_max": max(divergence),
    }


def _agreement(first: list[int], second: list[int]) -> int:
    """How many tokens two texts share before they part."""
    pairs = zip(first, second, strict=True)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(first))


if __name__ == "__main__":
    main()

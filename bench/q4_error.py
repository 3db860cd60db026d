"""How far 4-bit computation is from float32 on the same weights: perplexity and log-probabilities of a fixed text.

    .venv/bin/python bench/q4_error.py [MODEL] [--llama-python .venv-peers/bin/python]

All load the same file. float32 multiplies by the dequantised weights; the others multiply by the codes, with the
activations as their kernels take them. So this is the error of the computation, not of the quantisation. The texts
are those of tests/data/text; greedy answers are those of bench decode. Last line: JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from slipstream.bench.quality import Distance, distance, perplexity, text_logits
from slipstream.bench.workloads import decode_prompts
from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.llm import LLM, chat_ids, complete
from slipstream.model.catalog import resolve_model
from slipstream.model.checkpoint import open_checkpoint
from slipstream.model.tokenizer import load_tokenizer

TEXTS = Path(__file__).parents[1] / "tests" / "data" / "text"
EXACT = "float32"
#: Name, dtype, kernels. The exact one comes first.
WAYS = (
    (EXACT, "f32", "auto"),
    ("q4, native", "q4", "native"),
    ("q4, PyTorch", "q4", "torch"),
    ("bf16", "bf16", "auto"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="How far q4 is from float32.")
    parser.add_argument("model", nargs="?", default="smollm2", help="a GGUF file, or a name of the catalog")
    parser.add_argument("--llama-python", default=None, help="a Python that has llama-cpp-python")
    parser.add_argument("--max-tokens", type=int, default=128, help="greedy tokens to compare, 0 for none")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    path = resolve_model(args.model)
    tokenizer = load_tokenizer(open_checkpoint(path))
    texts = [tokenizer.encode(file.read_text()) for file in sorted(TEXTS.glob("*.txt"))]
    exact: list[torch.Tensor] = []
    answers: dict[str, list[list[int]]] = {}
    record: dict[str, dict[str, float]] = {}
    for name, dtype, kernels in WAYS:
        llm = _llm(path, dtype, kernels, args.threads)
        found = [text_logits(llm.loaded.target, ids, llm.engine.core.plan.kv_dtype) for ids in texts]
        if name == EXACT:
            exact = found
            print(f"{sum(map(len, texts))} tokens; {EXACT}: perplexity {perplexity(texts, exact):.4f}")
        else:
            record[name] = _show(name, distance(texts, exact, found))
        if args.max_tokens:
            prompts = [chat_ids(llm.tokenizer, prompt.user) for prompt in decode_prompts()]
            sampling = SamplingParams(max_tokens=args.max_tokens, ignore_eos=True)
            answers[name] = [done.token_ids for done in complete(llm.engine, prompts, sampling)]
        del llm
    if args.llama_python:
        name = "llama.cpp"
        record[name] = _show(
            name, distance(texts, exact, _llama(args.llama_python, path, texts, args.threads))
        )
    for name, other in answers.items():
        if name != EXACT:
            record[name] |= _greedy(name, answers[EXACT], other, args.max_tokens)
    print(json.dumps(record))


def _llm(path: Path, dtype: str, kernels: str, threads: int | None) -> LLM:
    graph = GraphConfig(buckets=(8,))
    config = EngineConfig(
        SpecConfig("none"), graph, dtype, kernels=kernels, max_model_len=2048, threads=threads
    )
    return LLM(path, config)


def _llama(python: str, path: Path, texts: list[list[int]], threads: int | None) -> list[torch.Tensor]:
    script = Path(__file__).with_name("logits_llama_cpp.py")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "texts.json").write_text(json.dumps(texts))
        command = [python, str(script), str(path), folder, str(threads or torch.get_num_threads())]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [torch.from_numpy(np.load(Path(folder) / f"{index}.npy")) for index in range(len(texts))]


def _show(name: str, found: Distance) -> dict[str, float]:
    print(
        f"{name:<12} perplexity {found.perplexity:.4f} ({found.perplexity_ratio:+.2%}), KL {found.kl_mean:.4f} "
        f"mean {found.kl_max:.3f} max, log-prob {found.log_prob_mean:.3f} mean {found.log_prob_max:.2f} max, "
        f"logits {found.logits_mean:.3f}, same argmax {found.same_argmax:.1%}"
    )
    return asdict(found)


def _greedy(name: str, exact: list[list[int]], other: list[list[int]], limit: int) -> dict[str, float]:
    """Return how many tokens the eight answers share with float32's before they part."""
    agreed = [
        next((index for index, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), limit)
        for pair in zip(exact, other, strict=True)
    ]
    print(f"{name:<12} greedy tokens until it parts from {EXACT}: {agreed}, of {limit}")
    return {"greedy_median": statistics.median(agreed), "greedy_equal": sum(n == limit for n in agreed)}


if __name__ == "__main__":
    main()

"""What a draft step costs beside a plain round, by the format of the head's matrices.

    python bench/head_cost.py MODEL.gguf [--tokens 8192] [--repeats 40] [--threads N]

The head is random: only time is measured. A step is the difference of a draft graph with one forward more.
Graphs are replayed by turns in the middle of an answer; the fastest of each counts, as other work only adds.
Before each timed replay a plain one puts the target's weights through the cache, as a round does.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch

from slipstream.config import EngineConfig, SamplingParams, SpecConfig
from slipstream.engine.core import build_core
from slipstream.engine.engine import Engine
from slipstream.graph.descriptor import BatchDescriptor
from slipstream.llm import chat_ids, load_model, plan_for
from slipstream.model.load import matrix_in
from slipstream.model.nextn import NextnHead
from slipstream.model.nextn_build import build_head, random_weights

PLAIN = BatchDescriptor("verify", 1, 1)


def main() -> None:
    """Measure and print a line a format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    plan, checkpoint, device = plan_for(
        args.model,
        EngineConfig(SpecConfig("auto", 3), max_requests=1, max_model_len=512, threads=args.threads),
    )
    loaded = load_model(checkpoint, device, plan)
    config = loaded.target.config
    draft_ids = torch.linspace(0, config.vocab_size - 1, args.tokens).long()
    weights = replace(random_weights(config, 0), draft_ids=draft_ids)
    prompt = chat_ids(loaded.tokenizer, "Tell me about the sea. " * 20)
    for dtype, output in (("q4", "q4"), ("q4", "q8"), ("q8", "q8"), ("bf16", "q8"), ("f32", "q8")):
        head = build_head(loaded.target, weights, dtype)
        if output != "q8":
            rows = loaded.target.output.rows(draft_ids).numpy()
            head = replace(head, output=matrix_in(rows, output, draft_ids.device))
        core = build_core(plan, device, loaded.target, head)
        engine = Engine(core, frozenset(), loaded.tokenizer.stream)
        report(f"head {dtype}, LM head {output}", engine, head, prompt, args.repeats)


def report(name: str, engine: Engine, head: NextnHead, prompt: list[int], repeats: int) -> None:
    """Print one format's times."""
    engine.add(prompt, SamplingParams(max_tokens=200, ignore_eos=True))
    for _ in range(12):
        engine.step()
    graphs = engine.core.runner.graphs
    times: dict[BatchDescriptor, list[int]] = {key: [] for key in graphs}
    for _ in range(repeats):
        for key in graphs:
            for timed in (PLAIN, key):
                started = time.perf_counter_ns()
                graphs[timed].replay()
                spent = time.perf_counter_ns() - started
            times[key].append(spent)
    ms = {key: min(each) / 1e6 for key, each in times.items()}
    plain = ms[PLAIN]
    draft = {steps: ms[BatchDescriptor("draft", 1, steps)] for steps in (1, 2, 3)}
    extend = {width: ms[BatchDescriptor("extend", 1, width)] for width in (2, 3, 4)}
    verify = {width: ms[BatchDescriptor("verify", 1, width)] for width in (1, 2, 3, 4)}
    print(
        f"{name}: {head.weight_bytes / 1e6:.1f} MB; first step {(draft[2] - draft[1]) / plain:.1%}, next "
        f"{(draft[3] - draft[2]) / plain:.1%} of a plain forward of {plain:.2f} ms; extend of 2, 3, 4 rows "
        + ", ".join(f"{spent / plain:.1%}" for spent in extend.values())
        + "; verify of 2, 3, 4 rows "
        + ", ".join(f"{verify[width] / plain:.2f}" for width in (2, 3, 4)),
        flush=True,
    )


if __name__ == "__main__":
    main()

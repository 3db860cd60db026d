"""Slipstream as a worker of peers.py. With --prompts: print model path and prompt ids, load no weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from worker_protocol import Answer, Loaded, Stopwatch, serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--prompts", action="store_true")
    parser.add_argument("--draft", default="none")
    parser.add_argument("--num-steps", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    args = parser.parse_args()
    if args.prompts:
        print(json.dumps(_prompts(args.model)))
    else:
        serve(lambda: _load(args))


def _prompts(model: str) -> dict[str, object]:
    from slipstream.bench.workloads import decode_prompts
    from slipstream.llm import chat_ids
    from slipstream.model.catalog import get_model
    from slipstream.model.checkpoint import open_checkpoint
    from slipstream.model.tokenizer import load_tokenizer

    path = Path(model) if Path(model).exists() else get_model(model)
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint)
    prompts = [{"name": prompt.name, "ids": chat_ids(tokenizer, prompt.user)} for prompt in decode_prompts()]
    return {"path": str(path.resolve()), "name": checkpoint.config.name, "prompts": prompts}


def _load(args: argparse.Namespace) -> Loaded:
    import slipstream
    from slipstream.config import EngineConfig, SamplingParams, SpecConfig
    from slipstream.llm import LLM

    config = EngineConfig(
        spec=SpecConfig(args.draft, args.num_steps),
        dtype=args.dtype,
        max_requests=args.batch,
        max_model_len=args.context,
        threads=args.threads,
    )
    engine = (llm := LLM(args.model, config)).engine

    def generate(prompts: list[list[int]], max_tokens: int) -> Answer:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        watch = Stopwatch(len(prompts))
        index = {engine.add(ids, sampling): number for number, ids in enumerate(prompts)}
        while engine.busy:
            for output in engine.step():
                watch.came(index[output.request_id], output.token_ids)
        return watch.answer()

    return Loaded("slipstream", slipstream.__version__, llm.plan.dtype, generate)


if __name__ == "__main__":
    main()

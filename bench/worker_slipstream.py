"""Slipstream as a worker of peers.py. With --prompts: print what peers.py asks of a model, load no weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from worker_protocol import Answer, Loaded, Stopwatch, arguments, resident_mb, serve


def main() -> None:
    args = arguments(prompts=0, prefill=0, draft="none", num_steps=3, dtype="auto")
    if args.prompts:
        print(json.dumps(_prompts(args.model, args.prompts, args.prefill)))
    else:
        serve(lambda: _load(args))


def _prompts(model: str, count: int, prefill: int) -> dict[str, object]:
    """Path and name of the model, the folder for what other engines need of it, ids of the prompts.

    "prefill" is one prompt of that many tokens: the users' messages one after another, as often as needed.
    """
    from slipstream.bench.workloads import decode_prompts
    from slipstream.llm import chat_ids
    from slipstream.model.catalog import cache_folder, get_model
    from slipstream.model.checkpoint import open_checkpoint
    from slipstream.model.tokenizer import load_tokenizer

    path = Path(model) if Path(model).exists() else get_model(model)
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint)
    workload = decode_prompts()
    text = tokenizer.encode("\n".join(prompt.user for prompt in workload))
    return {
        "path": str(path.resolve()),
        "name": checkpoint.config.name,
        "cache": str(cache_folder() / "peers"),
        "prompts": [
            {"name": prompt.name, "ids": chat_ids(tokenizer, prompt.user)} for prompt in workload[:count]
        ],
        "prefill": (text * -(-prefill // len(text)))[:prefill],
    }


def _load(args: argparse.Namespace) -> Loaded:
    import torch  # noqa: F401 (first and alone: what it costs is measured)

    torch_mb = resident_mb()
    import slipstream
    from slipstream.config import EngineConfig, SamplingParams, SpecConfig
    from slipstream.llm import LLM

    import_mb = resident_mb()
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

    return Loaded(
        "slipstream",
        slipstream.__version__,
        llm.plan.dtype,
        generate,
        torch_mb=torch_mb,
        import_mb=import_mb,
    )


if __name__ == "__main__":
    main()

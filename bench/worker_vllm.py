"""vLLM on the CPU, on a folder made of the GGUF's dequantised weights, as a worker of peers.py.

It has no kernel for 4-bit weights on this kind of processor that keeps the GGUF's values, so the weights are
dequantised; bfloat16 is its own default and its fastest.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from openvino_model import folder_name
from worker_protocol import Answer, Loaded, Stopwatch, Tell, arguments, serve

#: Memory for keys and values, in GiB: far more than eight prompts need, the least that it takes is 1.
CACHE_GIB = "2"


def main() -> None:
    args = arguments(dtype="bfloat16", cache=".")
    serve(lambda: _load(args), lambda tell: _prepare(args, tell))


def _prepare(args: argparse.Namespace, tell: Tell) -> None:
    """Make the folder unless the cache has it; it appears whole or not at all."""
    folder = _folder(args)
    if (folder / "config.json").is_file():
        return
    from transformers_model import load_transformers

    tell(f"making {folder} of {Path(args.model).name}, once; some seconds")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".vllm-", dir=folder.parent) as temporary:
        made = Path(temporary, "made")
        load_transformers(args.model).save_pretrained(made)
        made.rename(folder)


def _folder(args: argparse.Namespace) -> Path:
    return Path(args.cache) / folder_name(Path(args.model), "float32", "vllm")


def _load(args: argparse.Namespace) -> Loaded:
    cores = sorted(os.sched_getaffinity(0))[: args.threads]
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": CACHE_GIB,
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # this process is the engine: its time and memory count
        "VLLM_NO_USAGE_STATS": "1",
    }
    import vllm
    from vllm.sampling_params import RequestOutputKind

    engine = vllm.LLM(
        str(_folder(args)),
        dtype=args.dtype,
        skip_tokenizer_init=True,
        max_model_len=args.context,
        max_num_seqs=args.batch,
        enable_prefix_caching=False,  # or a prompt's second run starts from the first one's cache
    ).llm_engine
    requests = 0

    def generate(prompts: list[list[int]], max_tokens: int) -> Answer:
        nonlocal requests
        sampling = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        watch = Stopwatch(len(prompts))
        first = requests
        for ids in prompts:
            engine.add_request(str(requests), {"prompt_token_ids": ids}, sampling)
            requests += 1
        while engine.has_unfinished_requests():
            for output in engine.step():
                # Its own id may have more behind the name that was given.
                index = int(output.request_id.partition("-")[0]) - first
                watch.came(index, list(output.outputs[0].token_ids))
        return watch.answer()

    return Loaded("vllm", vllm.__version__, f"dequantised to {args.dtype}", generate)


if __name__ == "__main__":
    main()

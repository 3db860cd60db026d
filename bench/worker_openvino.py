"""OpenVINO GenAI, on a folder made of the GGUF's dequantised weights, as a worker of peers.py."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from openvino_model import COMPRESSION, folder_name
from worker_protocol import Answer, Loaded, Stopwatch, Tell, arguments, serve

#: What decides speed besides the weights: the precision of activations and of the KV cache.
SETTINGS = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE")


def main() -> None:
    args = arguments(weights="int4", cache=".", lookup=0)
    serve(lambda: _load(args), lambda tell: _prepare(args, tell))


def _prepare(args: argparse.Namespace, tell: Tell) -> None:
    """Make the folder unless the cache has it, in a process of its own, so that this one never holds the tools.

    Raises:
        RuntimeError: it cannot be made.
    """
    folder = _folder(args)
    if (folder / "openvino_model.bin").is_file():
        return
    tell(f"making {folder} of {Path(args.model).name}, once; one to three minutes")
    script = Path(__file__).with_name("openvino_model.py")
    command = [sys.executable, str(script), args.model, args.weights, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        missing = lines[-1].startswith("ModuleNotFoundError")
        raise (ModuleNotFoundError if missing else RuntimeError)(f"{folder} cannot be made: {lines[-1]}")


def _folder(args: argparse.Namespace) -> Path:
    # The version alone: importing nncf brings torch, which is none of the engine's memory.
    maker = f"nncf{metadata.version('nncf')}"
    return Path(args.cache) / folder_name(Path(args.model), args.weights, maker)


def _load(args: argparse.Namespace) -> Loaded:
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # or a prompt's second run starts from the first one's cache
    scheduler.max_num_batched_tokens = args.context * args.batch  # a prompt in one piece, as LLMPipeline does
    options = {"INFERENCE_NUM_THREADS": args.threads} | ({"prompt_lookup": True} if args.lookup else {})
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(_folder(args)), scheduler, "CPU", options)
    config = openvino_genai.GenerationConfig(do_sample=False, ignore_eos=True)
    if args.lookup:
        config.num_assistant_tokens, config.max_ngram_size = args.lookup, 3
    config.set_eos_token_id(0)  # it wants one, though it is ignored
    requests = 0

    def generate(prompts: list[list[int]], max_tokens: int) -> Answer:
        nonlocal requests
        config.max_new_tokens = max_tokens
        watch = Stopwatch(len(prompts))
        handles = []
        for ids in prompts:
            handles.append(pipeline.add_request(requests, openvino.Tensor(np.array([ids], np.int64)), config))
            requests += 1
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for index, handle in enumerate(handles):
                if handle.can_read():
                    for output in handle.read().values():
                        watch.came(index, list(output.generated_ids))
        return watch.answer()

    # The processor's defaults, which are what runs: nothing else was asked for.
    core = openvino.Core()
    settings = {name.lower(): _plain(core.get_property("CPU", name)) for name in SETTINGS}
    group = COMPRESSION[args.weights].get("group_size")
    weights = args.weights + (f" g{group}" if group else "") + f", {settings['inference_precision_hint']}"
    return Loaded("openvino", openvino_genai.__version__, weights, generate, settings)


def _plain(value: Any) -> str:
    """A property's value as text: types print as <Type: 'float32'>."""
    return value.to_string() if hasattr(value, "to_string") else str(value)


if __name__ == "__main__":
    main()

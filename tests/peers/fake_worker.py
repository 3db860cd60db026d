"""A worker of peers.py without an engine: it says what times it took. Copied under the name of each real one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from worker_protocol import Answer, Loaded, arguments, serve

HERE = Path(__file__)
SCRIPT = HERE.stem.removeprefix("worker_")
#: Seconds of 31 tokens, and of the long prompt.
DECODE_S = {"slipstream": 1.0, "llama_cpp": 2.0, "openvino": 1.25, "transformers": 10.0}
PREFILL_S = {"slipstream": 0.5, "llama_cpp": 0.25, "openvino": 0.2, "transformers": 1.0}


def main() -> None:
    behaviour = json.loads(HERE.with_name("behaviour.json").read_text()).get(SCRIPT, "")
    args = arguments(prompts=0, prefill=0, draft="", num_steps=0, dtype="", lookup=0, weights="", cache="")
    if args.prompts:
        prompts = [{"name": f"p{number}", "ids": [number] * 10} for number in range(args.prompts)]
        data = {
            "path": args.model,
            "name": "Fake",
            "cache": "c",
            "prompts": prompts,
            "prefill": [7] * args.prefill,
        }
        print(json.dumps(data))
        return
    serve(lambda: load(args, behaviour), lambda tell: tell("preparing") if behaviour == "prepares" else None)


def load(args, behaviour: str) -> Loaded:  # type: ignore[no-untyped-def]
    if behaviour == "missing":
        raise ModuleNotFoundError("No module named 'engine'", name="engine")
    if behaviour == "broken":
        raise ValueError("cannot read the file")
    speed = 2.0 if args.draft == "auto" or args.weights == "int4" else 1.0
    asked = 0

    def generate(prompts: list[list[int]], max_tokens: int) -> Answer:
        nonlocal asked
        asked += 1
        if behaviour == "dies" and asked == 3:
            sys.stderr.write("out of luck\n")
            sys.stderr.flush()
            os._exit(3)
        texts = [[ids[0]] * max_tokens for ids in prompts]
        if (behaviour, args.batch > 1) in (
            ("other text together", True),
            ("other text", False),
        ) and speed > 1:
            texts[-1][-1] += 1
        # Eight prompts together take twice the time of one.
        time_s = DECODE_S[SCRIPT] / speed * (2.0 if args.batch > 1 else 1.0)
        return Answer(texts, PREFILL_S[SCRIPT], time_s, len(prompts) * (max_tokens - 1))

    return Loaded("fake", "1.0", args.weights or "w", generate, torch_mb=1.0, import_mb=2.0)


if __name__ == "__main__":
    main()

"""Writes golden/*.json: what transformers computes, for test_oracle.py. Run by hand; the results are kept.

    PYTHONPATH=src .venv-peers/transformers/bin/python -m tests.model.make_golden SmolLM2-135M-Instruct.Q4_1.gguf

`make bench-peers PEERS=transformers` makes that environment: torch 2.13.0, transformers 5.24.0, gguf,
safetensors and jinja2 are needed. All is float32, eager attention.

smollm2-f32.json  the GGUF's weights, dequantised by `gguf` and given to LlamaForCausalLM
                  (bench/transformers_model.py); the eight prompts of bench decode, chat template applied.
                  Logits at three positions; 128 greedy tokens, an end-of-text token among them ends nothing.
tiny-f32.json     two models of tiny.py, loaded by transformers from the folder that tiny.py writes.

Prompt ids come from Slipstream's tokenizer; where llama_cpp is installed they are checked against it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from bench.transformers_model import load_transformers

from slipstream.model.checkpoint import open_checkpoint
from slipstream.model.tokenizer import load_tokenizer
from tests.model.oracle import GOLDEN, PROMPTS, TINY, spread_ids, tiny_ids, write_variant_hf

NUM_TOKENS = 128
TOP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description="Write golden/*.json.")
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    torch.set_grad_enabled(False)
    _write("tiny-f32.json", {"models": {name: _tiny(name) for name in TINY}})
    _write("smollm2-f32.json", _smollm2(path))


def _write(name: str, content: dict[str, Any]) -> None:
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__, "dtype": "float32"}
    text = json.dumps({"made_with": made_with, **content}, sort_keys=True, indent=0)
    # One line a list: short enough to store, and a changed position is one changed line.
    text = text.replace("[\n", "[").replace(",\n[", ", [").replace("\n]", "]")
    lines: list[str] = []
    for line in text.split("\n"):
        if lines and not lines[-1].endswith(("{", "},")) and not line.startswith(('"', "}", "{")):
            lines[-1] += line
        else:
            lines.append(line)
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / name).write_text("\n".join(lines) + "\n")
    print(f"{GOLDEN / name}: {(GOLDEN / name).stat().st_size} bytes")


def _tiny(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_variant_hf(Path(folder), name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    ids = tiny_ids()
    return {"logits": _positions(model, ids)}


def _smollm2(path: Path) -> dict[str, Any]:
    model = load_transformers(path, attention="eager")
    tokenizer = load_tokenizer(open_checkpoint(path))
    prompts = {}
    for prompt in json.loads(PROMPTS.read_text()):
        text = tokenizer.chat([{"role": "user", "content": prompt["user"]}])
        ids = tokenizer.encode(text)
        _check_ids(path, text, ids)
        greedy, margin = _greedy(model, ids)
        prompts[prompt["name"]] = {
            "ids": len(ids),
            "ids_sha256": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
            "logits": _positions(model, ids),
            "greedy": greedy,
            "greedy_smallest_margin": round(margin, 5),
        }
        print(f"{prompt['name']}: {len(ids)} tokens, smallest margin of the greedy text {margin:.5f}")
    return {
        "gguf": path.name,
        "gguf_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "prompts": prompts,
    }


def _positions(model: Any, ids: list[int]) -> dict[str, Any]:
    """Logits at the first, middle and last position: at the spread ids, and the best."""
    logits_RV = model(torch.tensor([ids])).logits[0]
    spread = spread_ids(logits_RV.shape[1])
    found = {}
    for position in (0, len(ids) // 2, len(ids) - 1):
        top = logits_RV[position].topk(TOP + 1)
        print(f"  position {position}: smallest gap in the top {TOP}: {top.values.diff().abs().min():.5f}")
        found[str(position)] = {
            "spread": [round(x, 5) for x in logits_RV[position, spread].tolist()],
            "top_ids": top.indices[:TOP].tolist(),
            "top_logits": [round(x, 5) for x in top.values[:TOP].tolist()],
        }
    return found


def _greedy(model: Any, ids: list[int]) -> tuple[list[int], float]:
    """The greedy continuation, and the smallest distance of a chosen token's logit to the next best one."""
    tokens: list[int] = []
    margin = float("inf")
    step, cache = ids, None
    while len(tokens) < NUM_TOKENS:
        out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        best = out.logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        step, cache = tokens[-1:], out.past_key_values
    return tokens, margin


def _check_ids(path: Path, text: str, ids: list[int]) -> None:
    try:
        from llama_cpp import Llama
    except ImportError:
        return
    llama = Llama(str(path), vocab_only=True, verbose=False)
    theirs = llama.tokenize(text.encode(), add_bos=False, special=True)
    if theirs != ids:
        raise SystemExit(f"llama.cpp gives other ids for {text!r}")


if __name__ == "__main__":
    main()

"""What a worker of peers.py says: JSON lines on the stdout and stdin that it was started with.

    worker    {"progress": "making ..., once"}                    any number of these
    worker    {"ready": true, "engine": "...", "version": "...", "weights": "...", "load_s": 1.2, ...}
    parent    {"ids": [[1, 2, 3]], "max_tokens": 128}
    worker    {"token_ids": [[...]], "prefill_s": 0.1, "decode_s": 2.0, "decode_tokens": 127, "peak_rss_mb": 300}

A worker that cannot start says {"error": "...", "missing": "module or null"}. It ends when its stdin does.
Between requests it sleeps in a read, so it takes nothing from the engine that is being measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

#: Prompt ids and the number of tokens to generate for each, to an answer.
Generate = Callable[[list[list[int]], int], "Answer"]
#: Tells the user what takes so long.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one group of prompts took. End-of-text tokens are ignored, so every text has all its tokens.

    Attributes:
        token_ids: generated tokens of each prompt.
        prefill_s: from the request to the moment when every prompt has its first token.
        decode_s: from then to the end.
        decode_tokens: tokens that came in decode_s.
    """

    token_ids: list[list[int]]
    prefill_s: float
    decode_s: float
    decode_tokens: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine that can answer.

    Attributes:
        engine, version: what it is.
        weights: what its weights are in memory.
        generate: answers.
        settings: what else decides its speed, by name.
        torch_mb: resident size after importing torch and before anything else; 0 without torch.
        import_mb: resident size after importing the engine too, before a model was loaded; 0 if not measured.
    """

    engine: str
    version: str
    weights: str
    generate: Generate
    settings: dict[str, str] = field(default_factory=dict)
    torch_mb: float = 0.0
    import_mb: float = 0.0


class Stopwatch:
    """Collects the tokens of one group of prompts, and times them from its making on.

    Attributes:
        tokens: of each prompt, so far.
    """

    def __init__(self, num_prompts: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_prompts)]
        self._decode_tokens = 0
        self._started = time.perf_counter()
        self._all_first: float | None = None

    def came(self, index: int, new: list[int]) -> None:
        """Note that prompt `index` has these new tokens just now."""
        self.tokens[index] += new
        if self._all_first is not None:
            self._decode_tokens += len(new)
        elif all(self.tokens):
            self._all_first = time.perf_counter()

    def answer(self) -> Answer:
        """Close the group."""
        ended = time.perf_counter()
        all_first = ended if self._all_first is None else self._all_first
        return Answer(self.tokens, all_first - self._started, ended - all_first, self._decode_tokens)


def arguments(**more: Any) -> argparse.Namespace:
    """Read the command line of a worker: what all of them take, and `more` as name = default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=1024, help="tokens of a prompt and its answer")
    parser.add_argument("--batch", type=int, default=1, help="prompts that decode together")
    for name, default in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser.parse_args()


def resident_mb() -> float:
    """Memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def serve(load: Callable[[], Loaded], prepare: Callable[[Tell], None] | None = None) -> None:
    """Do what has to be done once, load the engine, then answer until stdin ends."""
    out = _own_stdout()
    try:
        if prepare is not None:
            prepare(lambda words: _say(out, {"progress": words}))
        started = time.perf_counter()
        loaded = load()
    except ImportError as error:
        _say(out, {"error": str(error), "missing": error.name})
        raise SystemExit(1) from error
    except Exception as error:
        _say(out, {"error": f"{type(error).__name__}: {error}", "missing": None})
        raise
    about = {one.name: getattr(loaded, one.name) for one in fields(loaded) if one.name != "generate"}
    _say(out, {"ready": True, "load_s": time.perf_counter() - started, **about})
    for line in sys.stdin:
        request = json.loads(line)
        answer = loaded.generate(request["ids"], request["max_tokens"])
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        _say(out, {**asdict(answer), "peak_rss_mb": peak_mb})


def _own_stdout() -> IO[str]:
    """Keep stdout for the protocol: whatever libraries print there goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _say(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()

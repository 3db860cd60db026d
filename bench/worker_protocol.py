"""What a worker of peers.py says: JSON lines on the stdout and stdin that it was started with.

    worker    {"ready": true, "engine": "...", "version": "...", "weights": "...", "load_s": 1.2}
    parent    {"ids": [[1, 2, 3]], "max_tokens": 128}
    worker    {"token_ids": [[...]], "prefill_s": 0.1, "decode_s": 2.0, "decode_tokens": 127, "peak_rss_mb": 300}

A worker that cannot start says {"error": "...", "missing": "module or null"}. It ends when its stdin does.
Between requests it sleeps in a read, so it takes nothing from the engine that is being measured.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

#: Prompt ids and the number of tokens to generate for each, to an answer.
Generate = Callable[[list[list[int]], int], "Answer"]


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
    """

    engine: str
    version: str
    weights: str
    generate: Generate


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


def serve(load: Callable[[], Loaded]) -> None:
    """Load the engine, then answer until stdin ends."""
    out = _own_stdout()
    started = time.perf_counter()
    try:
        loaded = load()
    except ImportError as error:
        _say(out, {"error": str(error), "missing": error.name})
        raise SystemExit(1) from error
    except Exception as error:
        _say(out, {"error": f"{type(error).__name__}: {error}", "missing": None})
        raise
    _say(
        out,
        {
            "ready": True,
            "engine": loaded.engine,
            "version": loaded.version,
            "weights": loaded.weights,
            "load_s": time.perf_counter() - started,
        },
    )
    for line in sys.stdin:
        request = json.loads(line)
        answer = loaded.generate(request["ids"], request["max_tokens"])
        _say(
            out,
            {
                "token_ids": answer.token_ids,
                "prefill_s": answer.prefill_s,
                "decode_s": answer.decode_s,
                "decode_tokens": answer.decode_tokens,
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            },
        )


def _own_stdout() -> IO[str]:
    """Keep stdout for the protocol: whatever libraries print there goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _say(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()

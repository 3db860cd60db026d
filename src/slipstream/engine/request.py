"""One request, from its prompt to its last token. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from slipstream.config import SamplingParams
from slipstream.kv.pages import RequestPages


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class TextStream(Protocol):
    """Turns tokens into text as they come."""

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that these tokens complete."""

    def flush(self) -> str:
        """Return what was held back."""


@dataclass(slots=True)
class Request:
    """A prompt, its parameters, and what came of it so far.

    Attributes:
        request_id: given by the engine, counts up.
        prompt_ids: the prompt's tokens.
        sampling: how it decodes and when it ends.
        text_stream: its detokeniser.
        output_ids: tokens generated, the one that ended it included.
        text: text released so far; a tail that may become a stop string is held back.
        finish_reason: "stop" or "length" once finished, "abort" if it was given up.
        slot: its row of the round state's pool while it runs.
        pages: its KV pages while it runs.
        computed: prompt tokens whose keys and values are in the cache, while it is in prefill.
        committed: tokens in the cache while it decodes: all but the newest.
        preemptions: how often it lost its pages to an older request.
    """

    request_id: int
    prompt_ids: list[int]
    sampling: SamplingParams
    text_stream: TextStream
    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    phase: Phase = Phase.WAITING
    slot: int = -1
    pages: RequestPages | None = None
    computed: int = 0
    committed: int = 0
    preemptions: int = 0
    _held: str = ""

    @property
    def all_ids(self) -> list[int]:
        """Prompt and output."""
        return self.prompt_ids + self.output_ids

    @property
    def prefill_ids(self) -> list[int]:
        """Tokens to prefill: after a preemption, the output but its newest token as well."""
        return self.prompt_ids + self.output_ids[:-1] if self.output_ids else self.prompt_ids

    def take(
        self, tokens: Sequence[int], eos_ids: frozenset[int], max_model_len: int
    ) -> tuple[list[int], str]:
        """Append new tokens until one of them ends the request; return those taken and the text released.

        An accepted run may hold the end: what stands behind it is dropped.
        """
        taken, released = [], ""
        for token in tokens:
            taken.append(token)
            self.output_ids.append(token)
            ends = token in eos_ids and not self.sampling.ignore_eos
            if ends or token in self.sampling.stop_token_ids:
                released += self._release("", final=True)
                self._finish("stop")
            else:
                released += self._release(self.text_stream.push([token]), final=False)
                full = len(self.output_ids) >= self.sampling.max_tokens or self._length() >= max_model_len
                if self.finish_reason is None and full:
                    released += self._release("", final=True)
                    if self.finish_reason is None:
                        self._finish("length")
            if self.finish_reason is not None:
                break
        self.text += released
        return taken, released

    def abort(self) -> str:
        """Give the request up; return the text that was held back."""
        released = self._release("", final=True)
        self.text += released
        self._finish("abort")
        return released

    def _length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def _finish(self, reason: str) -> None:
        if self.finish_reason is None:
            self.finish_reason = reason

    def _release(self, new_text: str, *, final: bool) -> str:
        """Add text; return what no stop string can reach any more, and finish where one is complete."""
        text = self._held + new_text + (self.text_stream.flush() if final else "")
        found = [at for stop in self.sampling.stop if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            self._finish("stop")
            return text[: min(found)]
        keep = 0 if final else max((_overlap(text, stop) for stop in self.sampling.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)

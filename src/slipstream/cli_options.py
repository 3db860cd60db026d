"""What the commands can be asked, in groups that several of them share, and how they answer.

The texts are those of `--help`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from slipstream.check.request import DEFAULT_SCHEDULES, DEFAULT_TIMEOUT, CheckRequest
from slipstream.config import DEFAULT_BUCKETS, EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.errors import UsageError

DEFAULT_MODEL: Final = "smollm2"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Engine.

    Attributes:
        draft: Who proposes: none, ngram (prompt lookup), nextn (EAGLE/NextN head), or auto (what pays, by round).
        num_steps: Tokens drafted a round, 1 to 16; with auto at most so many.
        head: File with the NextN head's weights; by default the one that ships for the model.
        dtype: Weights: f32, bf16, q4, or auto by the file.
        graph: full, piecewise (split at attention), full_and_piecewise (prompts in pieces), full_decode_only,
            or none.
        graph_fallback: Take a lesser mode where attention cannot give this one.
        buckets: Captured request slots, as 1,2,4,8.
        mixed_sizes: Captured rows of prompts' chunks where these run in pieces, as 32,64,128,256.
        extend_graph: Whether the extend phase has graphs: on, off, or auto where they save time.
        check: Poison stale rows and compare static addresses at every replay.
        task_order: With attention fia, what a replay issues first: replay_first or update_first (Ascend's ENPU).
        device: Where it runs.
        attention: paged (lengths on the device), fia (npu only: lengths from the host, as tasks of graphs), auto.
        kv_dtype: keys and values: f32, f16 (half the memory), or auto.
        kernels: native (C), torch, or auto.
        max_requests: Requests that decode together.
        max_model_len: Tokens of prompt and answer, a request.
        page_size: Tokens a KV page.
        num_pages: KV pages.
        memory_mb: MB for keys, values and graphs together; the pages are what the graphs, measured, leave.
        prefill_chunk: Prompt tokens a prefill step computes.
        threads: CPU threads; the cores of this process by default.
        seed: Seeds sampling and random weights.
    """

    draft: str = "auto"
    num_steps: int = 3
    head: str | None = None
    dtype: str = "auto"
    graph: str = "full"
    graph_fallback: bool = True
    buckets: str = ",".join(map(str, DEFAULT_BUCKETS))
    mixed_sizes: str | None = None
    extend_graph: str = "auto"
    check: bool = False
    task_order: str = "replay_first"
    device: str = "cpu"
    attention: str = "auto"
    kv_dtype: str = "auto"
    kernels: str = "auto"
    max_requests: int = 8
    max_model_len: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    memory_mb: int | None = None
    prefill_chunk: int = 256
    threads: int | None = None
    seed: int = 0

    def config(self) -> EngineConfig:
        """Return what was asked.

        Raises:
            UsageError: the buckets are not numbers.
        """
        return EngineConfig(
            spec=SpecConfig(self.draft, self.num_steps, self.head),
            graph=GraphConfig(
                self.graph,
                numbers("buckets", self.buckets),
                self.check,
                None if self.mixed_sizes is None else numbers("mixed-sizes", self.mixed_sizes),
                self.extend_graph,
                self.task_order,
                self.graph_fallback,
            ),
            dtype=self.dtype,
            device=self.device,
            attention=self.attention,
            kv_dtype=self.kv_dtype,
            kernels=self.kernels,
            max_requests=self.max_requests,
            max_model_len=self.max_model_len,
            page_size=self.page_size,
            num_pages=self.num_pages,
            memory_mb=self.memory_mb,
            prefill_chunk=self.prefill_chunk,
            threads=self.threads,
            seed=self.seed,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ForwardOptions:
    """Forward.

    Attributes:
        dtype: Weights: f32, bf16, q4, or auto by the file.
        graph: full replays captured graphs, piecewise those between attention; none runs eagerly.
        device: Where it runs.
        kernels: native (C), torch, or auto.
        page_size: Tokens a KV page.
        prefill_chunk: Prompt tokens a prefill step computes.
        threads: CPU threads; the cores of this process by default.
    """

    dtype: str = "auto"
    graph: str = "full"
    device: str = "cpu"
    kernels: str = "auto"
    page_size: int = 16
    prefill_chunk: int = 256
    threads: int | None = None

    def config(self) -> EngineConfig:
        """Return what was asked; drafts, buckets and lengths follow from the benchmark."""
        return EngineConfig(
            graph=GraphConfig(self.graph),
            dtype=self.dtype,
            device=self.device,
            kernels=self.kernels,
            page_size=self.page_size,
            prefill_chunk=self.prefill_chunk,
            threads=self.threads,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Sampling.

    Attributes:
        max_tokens: Tokens to generate at most.
        temperature: 0 is greedy; above 0 samples with plain decoding.
        top_k: Keep the k likeliest tokens; 0 keeps all.
        top_p: Keep the likeliest tokens that together reach this probability.
        stop: End the answer before this text; may be given several times.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop: Annotated[tuple[str, ...], Parameter(negative=())] = ()

    def params(self) -> SamplingParams:
        """Return what was asked."""
        return SamplingParams(self.max_tokens, self.temperature, self.top_k, self.top_p, self.stop)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Training.

    Attributes:
        epochs: Passes over the data.
        rows: Positions a step of training takes.
        num_steps: Drafts a round that the head is trained for.
        learning_rate: Its peak.
        hidden_weight: Weight of the distance between the head's hidden rows and the target's.
        draft_vocabulary: Tokens that the head drafts from, the most frequent ones; 0 for all.
        init: Head file to go on from; without it, the model's last layer.
        evaluate_minutes: Training time between two evaluations.
        seed: Seeds prompts and the order of the data.
        threads: CPU threads; the cores of this process by default.
    """

    epochs: int | None = None
    rows: int | None = None
    num_steps: int = 3
    learning_rate: float | None = None
    hidden_weight: float | None = None
    draft_vocabulary: int = 8192
    init: Path | None = None
    evaluate_minutes: float = 15.0
    seed: int = 0
    threads: int | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Check.

    Attributes:
        schedules: Random orders, beside the program's own.
        seed: The first of them; the others follow.
        exhaustive: Try every order of what the program issued, up to so many; 0 tries none.
        timeout: Seconds that one schedule may take.
        round: Check Slipstream's own round on a tiny model instead of a file.
    """

    schedules: int = DEFAULT_SCHEDULES
    seed: int = 0
    exhaustive: int = 0
    timeout: float = DEFAULT_TIMEOUT
    round: Annotated[bool, Parameter(negative=())] = False

    def request(self, file: str | None, arguments: tuple[str, ...]) -> CheckRequest:
        """Return what was asked.

        Raises:
            UsageError: neither a file nor the round was named, or both.
        """
        if (file is None) != self.round:
            raise UsageError(
                "name the program, as in `slipstream check train.py`, or --round: one of the two."
            )
        return CheckRequest(file, arguments, self.schedules, self.seed, self.exhaustive, self.timeout)


def numbers(what: str, text: str) -> tuple[int, ...]:
    """Return a list of numbers as people write it.

    Raises:
        UsageError: they are not numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{what} {text!r} are not numbers; write them as 1,2,4,8.") from None


def print_json(data: Any) -> None:
    """Write one JSON document, a line, to standard output."""
    sys.stdout.write(msgspec.json.encode(data, enc_hook=str).decode() + "\n")

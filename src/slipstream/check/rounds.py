"""Slipstream's own round on the software NPU: one run in one order, or every order of a recorded run.

run = run_round(Seeded(7))
run.report.clean, run.tokens == reference_tokens()
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from slipstream.check.tiny import TINY, tiny_checkpoint, tiny_head
from slipstream.config import EngineConfig, GraphConfig, SamplingParams, SpecConfig
from slipstream.device import soft
from slipstream.device.api import Device
from slipstream.device.npu import NpuDevice
from slipstream.device.registry import open_device
from slipstream.device.soft.machine import Machine, Report, Scheduler, places
from slipstream.device.soft.machine.explore import Exploration, explore
from slipstream.engine.core import build_core, use_kernels
from slipstream.engine.engine import Engine
from slipstream.model.load import load_llama
from slipstream.model.nextn_build import build_head
from slipstream.native import library
from slipstream.plan import ModelShape, resolve

#: What one step settled: request and new tokens, of a prefill and of the round.
Step = list[tuple[int, list[int]]]


@dataclass(frozen=True, slots=True)
class RoundCase:
    """What the round is run on.

    Attributes:
        prompts: tokens of each request's prompt.
        answers: tokens of each request's answer.
        draft: the drafter.
        graph: the graph mode, as "full".
        num_steps: drafts a round.
        bucket: captured request slots, and requests that decode together; a batch of fewer is padded.
        dtype: of the weights, "f32" or "bf16".
        check: whether stale and padded inputs are poisoned.
        period: after how many tokens a prompt repeats itself, so that "ngram" finds something; 0 for never.
        temperature: of the last request; the others are greedy.
        seed: of the weights and the prompts.
        attention: "paged" or "fia"; with "fia" pages are larger.
        task_order: "replay_first" or "update_first".
        positions: of a request's page table; a multiple of 64, with "fia" of 128.
    """

    prompts: tuple[int, ...] = (5, 4, 20)
    answers: tuple[int, ...] = (9, 4, 4)
    draft: str = "nextn"
    graph: str = "full"
    num_steps: int = 2
    bucket: int = 2
    dtype: str = "f32"
    check: bool = False
    period: int = 0
    temperature: float = 0.0
    seed: int = 0
    attention: str = "paged"
    task_order: str = "replay_first"
    positions: int = 64


# Stacks begin where the round asks for something, not where that is handed to PyTorch.
for _part in ("ops/registry.py", "device/torch_streams.py"):
    places.skip(f"/slipstream/{_part}")

#: Two requests, of which one ends early: then its row is padding. The third takes over its pages.
USUAL = RoundCase()

#: Two rounds of one request, in a bucket of two.
SMALL = RoundCase(prompts=(3,), answers=(4,))


@dataclass(frozen=True, slots=True)
class RoundRun:
    """One run.

    Attributes:
        report: what the machine found.
        tokens: each request's answer.
        settled: what each step settled; a round whose drafts are worse settles fewer tokens.
        error: what a kernel or the engine raised, where the machine had found something by then; the rest is
            what came before.
    """

    report: Report
    tokens: list[list[int]]
    settled: list[Step]
    error: Exception | None = None


def run_round(scheduler: Scheduler | None = None, case: RoundCase = USUAL) -> RoundRun:
    """Decode a case on the software NPU in one order of its commands.

    Args:
        scheduler: which order; program order if None.
        case: what is decoded.

    Raises:
        DeviceError: the software NPU, or the real torch_npu, is in use in this process.
    """
    with soft.installed(scheduler) as machine:
        settled: list[Step] = []
        error = None
        try:
            _decode(_NamingDevice(machine), case, settled)
        except Exception as raised:
            if not machine.findings:
                raise
            error = raised
        return RoundRun(_finish(machine), _joined(case, settled), settled, error)


def explore_round(bound: int, case: RoundCase = SMALL) -> Exploration:
    """Decode a case once, and try every order of its commands that can differ, `bound` at most."""
    with soft.installed(keep=True) as machine:
        _decode(_NamingDevice(machine), case, [])
        machine.finish()
        return explore(machine.program(), bound, values=True)


def reference_tokens(case: RoundCase = USUAL) -> list[list[int]]:
    """Return what plain decoding on the CPU answers."""
    return tokens_on(open_device("cpu"), replace(case, draft="none", graph="none", attention="paged"))


def tokens_on(device: Device, case: RoundCase) -> list[list[int]]:
    """Return what a device answers."""
    settled: list[Step] = []
    _decode(device, case, settled)
    return _joined(case, settled)


class _NamingDevice(NpuDevice):
    """The npu device, whose streams and graphs have our names in findings: torch.npu's have none."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def new_stream(self, name: str) -> Any:
        raw = super().new_stream(name)
        self._machine.actor_of(raw.stream_id).name = name
        return raw

    def new_graph(self, name: str) -> Any:
        raw = super().new_graph(name)
        raw._graph.name = name
        return raw


def _decode(device: Device, case: RoundCase, settled: list[Step]) -> None:
    """Serve the case's requests, and note what each step settles."""
    with _kernels_kept():
        engine = _engine(device, case)
        drawn = random.Random(case.seed)
        for index, (length, count) in enumerate(zip(case.prompts, case.answers, strict=True)):
            tokens = [drawn.randrange(TINY.vocab_size) for _ in range(case.period or length)]
            prompt = [tokens[position % len(tokens)] for position in range(length)]
            temperature = case.temperature if index == len(case.prompts) - 1 else 0.0
            engine.add(prompt, SamplingParams(max_tokens=count, ignore_eos=True, temperature=temperature))
        while engine.busy:
            settled.append([(output.request_id, output.token_ids) for output in engine.step()])


def _engine(device: Device, case: RoundCase) -> Engine:
    config = EngineConfig(
        spec=SpecConfig(case.draft, case.num_steps),
        # Not "auto": what the captures measure here is no device's time.
        graph=GraphConfig(case.graph, (case.bucket,), case.check, extend="on", task_order=case.task_order),
        dtype=case.dtype,
        device=device.name,
        attention=case.attention,
        kernels="torch",
        max_requests=case.bucket,
        max_model_len=case.positions - case.num_steps - 1,
        page_size=128 if case.attention == "fia" else 8,
        prefill_chunk=16,
        threads=1,
        seed=case.seed,
    )
    slot_values = TINY.num_layers * 2 * TINY.num_kv_heads * TINY.head_dim
    plan = resolve(config, device.caps, ModelShape(TINY.name, case.positions, False, slot_values))
    use_kernels(plan)
    target = load_llama(tiny_checkpoint(case.seed), plan.dtype, case.positions, device.torch_device)
    head = build_head(target, tiny_head(case.seed)) if plan.draft in ("nextn", "auto") else None
    return Engine(build_core(plan, device, target, head), frozenset(), _NoText)


class _NoText:
    """Stands for a detokeniser: the tiny model has no vocabulary of words."""

    def push(self, ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


def _joined(case: RoundCase, settled: Sequence[Step]) -> list[list[int]]:
    """Return each request's tokens, of all steps."""
    return [
        [token for step in settled for owner, tokens in step if owner == request for token in tokens]
        for request in range(len(case.prompts))
    ]


def _finish(machine: Machine) -> Report:
    """Run what is left to its end, kernels that fail included, and return the report."""
    while True:
        try:
            return machine.finish()
        except Exception:  # a kernel that met a value out of range: it has run, and the next one's turn it is
            continue


@contextmanager
def _kernels_kept() -> Iterator[None]:
    """Leave the process's kernels and threads as they were."""
    native, threads, torch_threads = library.setting.native, library.setting.threads, torch.get_num_threads()
    try:
        yield
    finally:
        library.use(native, threads)
        torch.set_num_threads(torch_threads)

"""A model that answers: `LLM(path).generate(prompts)`.

llm = LLM("smollm2")
for completion in llm.generate(["What is the capital of France?"]):
    print(completion.text)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from slipstream.config import MAX_NUM_STEPS, EngineConfig, SamplingParams
from slipstream.device.api import Device
from slipstream.device.caps import Caps
from slipstream.device.registry import open_device
from slipstream.engine.core import build_core, use_kernels
from slipstream.engine.engine import Engine, StepOutput
from slipstream.engine.memory import fit_pages
from slipstream.errors import EmptyPromptError, RequestError
from slipstream.model.catalog import resolve_model
from slipstream.model.checkpoint import Checkpoint, open_checkpoint
from slipstream.model.llama import Llama
from slipstream.model.load import load_llama
from slipstream.model.nextn import NextnHead
from slipstream.model.nextn_build import random_head
from slipstream.model.nextn_file import load_head, shipped_head
from slipstream.model.target_hash import target_hash
from slipstream.model.tokenizer import Tokenizer, load_tokenizer
from slipstream.plan import EnginePlan, ModelShape, resolve
from slipstream.trace import Recorder


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        prompt_ids: the prompt's tokens.
        token_ids: the answer's, the ending one included.
        text: the answer, without special tokens, up to a stop string.
        finish_reason: "stop", "length" or "abort"; "error" where the request could not be served.
        error: what was wrong with the request, or None.
    """

    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    error: str | None = None


def model_shape(checkpoint: Checkpoint) -> ModelShape:
    """Return what a plan needs to know of a checkpoint; reads no weights."""
    config = checkpoint.config
    slot_values = config.num_layers * 2 * config.num_kv_heads * config.head_dim
    four_bit = any(name in ("Q4_0", "Q4_1") for name in checkpoint.quant_types)
    return ModelShape(config.name, config.context_length, four_bit, slot_values, shipped_head(checkpoint))


def plan_for(
    model: str, config: EngineConfig, sampling: SamplingParams | None = None
) -> tuple[EnginePlan, Checkpoint, Device]:
    """Settle every setting for a model, without loading its weights."""
    checkpoint = open_checkpoint(resolve_model(model))
    device = open_device(config.device)
    return resolve(config, device.caps, model_shape(checkpoint), sampling), checkpoint, device


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights and tokenizer, shared by all engines on them."""

    checkpoint: Checkpoint
    device: Device
    target: Llama
    tokenizer: Tokenizer

    @property
    def caps(self) -> Caps:
        """Capabilities of the device that the weights are on."""
        return self.device.caps


def load_model(
    checkpoint: Checkpoint,
    device: Device,
    plan: EnginePlan,
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load weights and tokenizer as the plan says; `progress` is called with (layers done, layers in all)."""
    torch.set_num_threads(plan.threads)
    use_kernels(plan)
    tokenizer = load_tokenizer(checkpoint)
    # An engine with a longer round than this plan's may share the weights: room for the widest.
    positions = -(-(plan.max_model_len + MAX_NUM_STEPS + 1) // 64) * 64
    target = load_llama(checkpoint, plan.dtype, positions, device.torch_device, progress)
    return LoadedModel(checkpoint, device, target, tokenizer)


def build_engine(loaded: LoadedModel, plan: EnginePlan, recorder: Recorder | None = None) -> Engine:
    """Make an engine on loaded weights: caches, static buffers, captured graphs."""
    use_kernels(plan)
    head: NextnHead | None = None
    if plan.head is not None:
        head = load_head(plan.head, loaded.target, target_hash(loaded.checkpoint))
    elif plan.draft == "nextn":
        head = random_head(loaded.target, plan.seed)
    plan = fit_pages(plan, loaded.device, loaded.target, head)
    core = build_core(plan, loaded.device, loaded.target, head, recorder)
    return Engine(core, loaded.tokenizer.eos_ids, loaded.tokenizer.stream)


class LLM:
    """A loaded model with one engine.

    Args:
        model: a GGUF file, an HF folder, or a name of the catalog that is cached.
        config: what is asked for.
        recorder: takes the trace's events.

    Raises:
        UsageError, ModelError: see `slipstream.errors`.
    """

    def __init__(
        self, model: str | Path, config: EngineConfig | None = None, *, recorder: Recorder | None = None
    ) -> None:
        self.config = config or EngineConfig()
        self.plan, checkpoint, device = plan_for(str(model), self.config)
        self.loaded = load_model(checkpoint, device, self.plan)
        self.engine = build_engine(self.loaded, self.plan, recorder)
        self.plan = self.engine.core.plan  # with the pages that memory_mb leaves

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.loaded.tokenizer

    def chat_ids(self, prompt: str, system: str | None = None) -> list[int]:
        """Return the tokens of one user message in the model's chat template.

        Raises:
            EmptyPromptError: the message is empty or blank.
        """
        return chat_ids(self.tokenizer, prompt, system)

    def generate(
        self, prompts: str | Sequence[str], sampling: SamplingParams | None = None, *, chat: bool = True
    ) -> list[Completion]:
        """Answer prompts together, in their order; a single one gives a list of one.

        A prompt that cannot be served gives a completion with `error` set; the others are served.

        Args:
            prompts: user messages, or raw texts to continue where `chat` is false.
            sampling: for all of them.
            chat: put each into the model's chat template.
        """
        encoded: list[list[int] | str] = []
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            try:
                encoded.append(self.chat_ids(prompt) if chat else self.tokenizer.encode(prompt))
            except RequestError as error:
                encoded.append(str(error))
        return complete(self.engine, encoded, sampling or SamplingParams())

    def stream(
        self, prompt: str, sampling: SamplingParams | None = None, *, chat: bool = True
    ) -> Iterator[StepOutput]:
        """Yield one answer's steps as they come; leaving the loop gives the request up."""
        ids = self.chat_ids(prompt) if chat else self.tokenizer.encode(prompt)
        yield from stream(self.engine, ids, sampling or SamplingParams())


def chat_ids(tokenizer: Tokenizer, prompt: str, system: str | None = None) -> list[int]:
    """Return the tokens of one user message in the model's chat template.

    Raises:
        EmptyPromptError: the message is empty or blank.
    """
    if not prompt.strip():
        raise EmptyPromptError("the prompt is empty: there is nothing to answer. Give some text.")
    messages = [{"role": "system", "content": system}] if system else []
    return tokenizer.encode(tokenizer.chat([*messages, {"role": "user", "content": prompt}]))


def stream(engine: Engine, prompt_ids: list[int], sampling: SamplingParams) -> Iterator[StepOutput]:
    """Serve one request, yielding its steps; leaving the loop gives it up."""
    request_id = engine.add(prompt_ids, sampling)
    try:
        finished = False
        while not finished:
            for output in engine.step():
                if output.request_id == request_id:
                    finished = output.finish_reason is not None
                    yield output
    finally:
        engine.abort(request_id)


def complete(
    engine: Engine, prompts: Sequence[list[int] | str], sampling: SamplingParams
) -> list[Completion]:
    """Serve prompts together. A prompt given as text is the reason why it cannot be served."""
    completions: dict[int, Completion] = {}
    order: list[int | Completion] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            order.append(Completion([], [], "", "error", prompt))
            continue
        try:
            request_id = engine.add(prompt, sampling)
        except RequestError as error:
            order.append(Completion(prompt, [], "", "error", str(error)))
            continue
        order.append(request_id)
        completions[request_id] = Completion(prompt, [], "", "")
    try:
        while engine.busy:
            for output in engine.step():
                if output.request_id in completions:
                    so_far = completions[output.request_id]
                    completions[output.request_id] = replace(
                        so_far,
                        token_ids=so_far.token_ids + output.token_ids,
                        text=so_far.text + output.text,
                        finish_reason=output.finish_reason or "",
                    )
    finally:
        # After Ctrl-C, or another error, the engine is as it was: nothing of this call runs on in the next one.
        for request_id in completions:
            engine.abort(request_id)
    return [entry if isinstance(entry, Completion) else completions[entry] for entry in order]

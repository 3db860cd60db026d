"""What serving stacks write over a stretch of time, read as a step or a phase of one.

SGLang        draft | verify | draft_extend     step[DRAFT_LOOP raw_bs=5 bs=8 topk=1]
              step[TARGET_VERIFY bs=8]          step[EXTEND bs=2 toks=900]: a prefill; TARGET_VERIFY never is
              step[TARGET_VERIFY bs=8 g_sq=32 g_sqsq=...]: with its detailed annotations, the requests' rows too
vLLM          execute_32_context_0(sq0...)_generation_32(sq128...)     gpu_model_runner: forward
vLLM-Ascend   prepare input | forward | post process | sample_token | draft_token
ATOM          decode[bs=117/128 tok=468 d=117 spec=3]: tokens of requests; drafts a request, so width - 1
Slipstream    the names of slipstream.trace.names, as rows of its streams
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slipstream.trace import names

DRAFT: Final = names.DRAFT
VERIFY_PLAN: Final = names.VERIFY_PLAN
VERIFY: Final = names.VERIFY
ACCEPT: Final = names.ACCEPT
EXTEND_PLAN: Final = "extend plan"
EXTEND: Final = names.EXTEND
PREFILL: Final = names.PREFILL
DECODE: Final = "decode"
#: vLLM's forward is a verification where it holds drafts, a decoding step or a prefill where it does not.
FORWARD: Final = "forward"
PREPARE: Final = "prepare"
#: Work of a step outside of its marked phases, before, between and behind them: its span says nothing.
OTHER: Final = "other"

#: Phases that only a speculative round has.
SPECULATIVE: Final = frozenset(
    {DRAFT, VERIFY_PLAN, VERIFY, ACCEPT, names.EXTEND_PLAN_A, names.EXTEND_PLAN_B, EXTEND_PLAN, EXTEND}
)
#: Phases whose work may run beside others and begin before them.
PLANS: Final = frozenset({VERIFY_PLAN, names.EXTEND_PLAN_A, names.EXTEND_PLAN_B, EXTEND_PLAN})


@dataclass(frozen=True, slots=True)
class Marker:
    """A mark that a rule understood.

    Attributes:
        phase: the phase it stands for; "" where it stands over a whole step.
        stack: who writes such marks.
        facts: what it says in numbers, by our words: requests, bucket, rows, width, context (requests in
            prefill), tokens, forwards, topk.
    """

    phase: str
    stack: str
    facts: Mapping[str, int] = field(default_factory=dict)


_SGLANG_SPANS: Final = {"draft": DRAFT, "verify": VERIFY, "draft_extend": EXTEND}
_SGLANG_STEPS: Final = {
    "EXTEND": PREFILL,
    "MIXED": PREFILL,
    "SPLIT_PREFILL": PREFILL,
    "DECODE": DECODE,
    "VERIFY": VERIFY,
    "TARGET_VERIFY": VERIFY,
    "DRAFT_LOOP": DRAFT,
    "DRAFT_EXTEND": EXTEND,
    "DRAFT_EXTEND_V2": EXTEND,
}
_VLLM_PARTS: Final = {
    "preprocess": PREPARE,
    "forward": FORWARD,
    "postprocess": "postprocess",
    "sample": ACCEPT,
    "bookkeep": "bookkeep",
    "draft": DRAFT,
}
_ASCEND_PARTS: Final = {
    "prepare input": PREPARE,
    "forward": FORWARD,
    "post process": "postprocess",
    "sample_token": ACCEPT,
    "draft_token": DRAFT,
    "async_state_update": "bookkeep",
}
_NUMBER: Final = re.compile(r"(\w+)=(\d+)")


def _sglang_step(match: re.Match[str]) -> Marker | None:
    phase = _SGLANG_STEPS.get(match["mode"])
    if phase is None:
        return None
    said = {key: int(value) for key, value in _NUMBER.findall(match["rest"])}
    facts: dict[str, int] = {}
    if "raw_bs" in said:
        facts["requests"] = said["raw_bs"]
        if "bs" in said:
            facts["bucket"] = said["bs"]
    elif "bs" in said:
        facts["requests"] = said["bs"]
    if "toks" in said:
        facts["tokens"] = said["toks"]
    if "topk" in said:
        facts["topk"] = said["topk"]
    asked, requests = said.get("g_sq", said.get("c_sq", 0)), facts.get("requests")
    if phase in (VERIFY, DECODE, EXTEND) and asked and requests and asked % requests == 0:
        facts["width"] = asked // requests
    return Marker(phase, "SGLang", facts)


def _vllm_step(match: re.Match[str]) -> Marker:
    context, generation = int(match["context"]), int(match["generation"])
    facts = {"context": context, "requests": generation}
    rows = _query_tokens(match["generation_tokens"])
    if rows is not None and generation:
        facts["rows"] = rows
    return Marker("", "vLLM", facts)


def _query_tokens(text: str) -> int | None:
    """Return how many tokens the requests of one sort ask with: `sq32sk...`, or in older forms `32_1024`."""
    found = re.match(r"sq(\d+)|(\d+)_\d+", text)
    return int(found[1] or found[2]) if found else None


def _atom_step(match: re.Match[str]) -> Marker:
    said = {key: int(value) for key, value in _NUMBER.findall(match["rest"])}
    facts = {"requests": int(match["requests"])}
    if match["bucket"]:
        facts["bucket"] = int(match["bucket"])
    if "tok" in said:
        facts["tokens"] = said["tok"]
    if match["mode"] == "prefill":
        return Marker(PREFILL, "ATOM", facts)
    # What runs eagerly does not say its drafts; its tokens are those of requests, whatever the bucket.
    width = said["spec"] + 1 if "spec" in said else said.get("tok", 0) / max(1, facts["requests"])
    if width >= 1 and width == int(width):
        facts["width"] = int(width)
    return Marker(VERIFY if facts.get("width", 1) > 1 else DECODE, "ATOM", facts)


_RULES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Marker | None]], ...]] = (
    (re.compile(r"step\[(?P<mode>[A-Z_0-9]+)(?P<rest>[^\]]*)\]?$"), _sglang_step),
    (
        re.compile(
            r"execute_(?:\d+_)?context_(?P<context>\d+)\([^)]*\)"
            r"_generation_(?P<generation>\d+)\((?P<generation_tokens>[^)]*)\)?$"
        ),
        _vllm_step,
    ),
    (
        re.compile(r"gpu_model_runner: (?P<part>\w+)$"),
        lambda match: Marker(_VLLM_PARTS[match["part"]], "vLLM") if match["part"] in _VLLM_PARTS else None,
    ),
    (
        re.compile(
            r"(?P<mode>decode|eager_decode|prefill)\[bs=(?P<requests>\d+)(?:/(?P<bucket>\d+))?"
            r"(?P<rest>(?: .*)?)\]?$"
        ),
        _atom_step,
    ),
)


def read_marker(text: str) -> Marker | None:
    """Return what a mark's text means, or None if no rule knows it."""
    text = text.strip()
    for pattern, make in _RULES:
        match = pattern.match(text)
        if match:
            return make(match)
    if text in _SGLANG_SPANS:
        return Marker(_SGLANG_SPANS[text], "SGLang")
    if text in _ASCEND_PARTS:
        return Marker(_ASCEND_PARTS[text], "vLLM-Ascend")
    if text in names.PHASES and text not in names.HOST_PHASES:
        return Marker(text, "Slipstream")
    return None

"""Ascend's check of the configuration: each rule fires where it should, and changes what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipstream.errors import UsageError
from slipstream.graph.modes import GraphMode
from slipstream.graph.platform_rules import (
    ASCEND_SPLITTING_OPS,
    ATTENTION_OPS,
    RULES,
    CompileMode,
    PlatformSettings,
    Xlite,
    normalise,
)

NONE, PIECES, FULL = GraphMode.NONE, GraphMode.PIECEWISE, GraphMode.FULL
DECODE_ONLY, BOTH = GraphMode.FULL_DECODE_ONLY, GraphMode.FULL_AND_PIECEWISE

#: Settings that no rule touches.
QUIET = PlatformSettings(graph_mode=DECODE_ONLY, sleep_mode=True)

#: For each rule that changes something: settings in which it fires, and what then holds.
FIRING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "inductor-partition": ({"inductor_partition": True}, {"inductor_partition": False}),
    "flash-splits": ({"flash_splits": 16}, {"flash_splits": 32}),
    "attention-backend": ({"attention_backend": "FLASH_ATTN"}, {"attention_backend": None}),
    "microbatches": ({"microbatches": True}, {"microbatches": False}),
    "breakable-graphs": ({"breakable_graphs": True}, {"breakable_graphs": False}),
    "step-timeout": ({"step_timeout": 300}, {"step_timeout": 3000}),
    "eager": (
        {"enforce_eager": True},
        {"graph_mode": NONE, "compile_mode": CompileMode.NONE, "splitting_ops": ()},
    ),
    "compile-mode": (
        {"compile_mode": CompileMode.DYNAMO_TRACE_ONCE},
        {"compile_mode": CompileMode.NONE, "graph_mode": NONE},
    ),
    "xlite-full": ({"xlite": Xlite.FULL}, {"enforce_eager": True, "graph_mode": NONE}),
    "xlite-decode": (
        {"xlite": Xlite.FULL, "speculative": True, "graph_mode": BOTH},
        {"graph_mode": DECODE_ONLY},
    ),
    "encoder-decoder": ({"encoder_decoder": True}, {"graph_mode": PIECES}),
    "encoder-decoder-uncompiled": (
        {"encoder_decoder": True, "compile_mode": CompileMode.NONE},
        {"graph_mode": NONE},
    ),
    "warmups": ({"warmups": 3}, {"warmups": 1}),
    "inductor": ({"use_inductor": True}, {"use_inductor": False}),
    "no-graphs": (
        {"graph_mode": NONE, "npugraph_ex": True},
        {"compile_mode": CompileMode.NONE, "npugraph_ex": False},
    ),
    "splitting-ops": ({"graph_mode": PIECES}, {"splitting_ops": (*ATTENTION_OPS, *ASCEND_SPLITTING_OPS)}),
    "a5-sizes": ({"a5": True, "graph_mode": BOTH}, {"max_sizes": 4}),
    "pieces-compiler": (
        {"graph_mode": BOTH, "npugraph_ex": True, "static_kernel": True},
        {"npugraph_ex": False, "static_kernel": False},
    ),
    "whole-graphs": ({"splitting_ops": ATTENTION_OPS}, {"splitting_ops": ()}),
    "not-compiled": ({"compile_mode": CompileMode.NONE}, {"graph_mode": NONE}),
    "expandable-segments": ({"sleep_mode": False}, {"alloc_conf": "expandable_segments:True"}),
}

REFUSING: dict[str, tuple[dict[str, Any], str]] = {
    "draft-context": ({"speculative": True, "prefill_context": 2}, "Model Runner V2"),
    "pieces-need-compilation": ({"graph_mode": BOTH, "compile_mode": CompileMode.NONE}, "vllm_compile"),
    "launch-blocking": ({"launch_blocking": True}, "unset ASCEND_LAUNCH_BLOCKING"),
    "task-queue": ({"task_queue": 2}, "TASK_QUEUE_ENABLE=1"),
    "pinned-segments": ({"alloc_conf": "pin_memory_expandable_segments:True"}, "PYTORCH_NPU_ALLOC_CONF"),
    "unpadded-drafts": ({"disable_padded_drafts": True, "speculative": True}, "--mode piecewise"),
}


def test_every_rule_is_tested() -> None:
    assert {rule.name for rule in RULES} == FIRING.keys() | REFUSING.keys()
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_settings_that_no_rule_touches_stay() -> None:
    assert normalise(QUIET) == (QUIET, ())


@pytest.mark.parametrize("name", FIRING)
def test_a_rule_fires_and_says_why(name: str) -> None:
    asked, holds = FIRING[name]
    got, changes = normalise(replace(QUIET, **asked))
    assert {what: getattr(got, what) for what in holds} == holds
    own = [change for change in changes if change.rule == name]
    assert own
    rule = next(rule for rule in RULES if rule.name == name)
    assert all(change.why == rule.why and change.asked != change.got for change in own)
    # Nothing is left to change: the check is a fixed point.
    assert normalise(got) == (got, ())


@pytest.mark.parametrize("name", REFUSING)
def test_a_rule_refuses_and_says_what_to_do(name: str) -> None:
    asked, fix = REFUSING[name]
    with pytest.raises(UsageError, match=rf"Ascend refuses this \({name}\)") as raised:
        normalise(replace(QUIET, **asked))
    assert fix in str(raised.value)


@pytest.mark.parametrize(
    "asked",
    [
        {"launch_blocking": True, "graph_mode": NONE, "compile_mode": CompileMode.NONE},
        {"launch_blocking": True, "enforce_eager": True},
        {"xlite": Xlite.FULL, "launch_blocking": True},
        {"disable_padded_drafts": True, "speculative": True, "graph_mode": PIECES},
        {"graph_mode": NONE, "compile_mode": CompileMode.NONE, "task_queue": 2},
        {"speculative": True, "prefill_context": 2, "second_runner": True},
    ],
)
def test_a_rule_does_not_refuse_what_goes(asked: dict[str, Any]) -> None:
    normalise(replace(QUIET, **asked))


@pytest.mark.parametrize("mode", [NONE, PIECES])
def test_an_encoder_decoder_keeps_pieces_or_nothing(mode: GraphMode) -> None:
    got, _ = normalise(replace(QUIET, encoder_decoder=True, graph_mode=mode))
    assert got.graph_mode is mode


def test_users_splitting_ops_are_kept_and_completed() -> None:
    got, _ = normalise(replace(QUIET, graph_mode=BOTH, splitting_ops=("my::attention", "vllm::mla_forward")))
    assert got.splitting_ops == ("my::attention", "vllm::mla_forward", "vllm::dsa_forward")


def test_memory_settings_of_the_user_stand_and_are_completed() -> None:
    asked = replace(QUIET, sleep_mode=False, alloc_conf="expandable_segments:False")
    assert normalise(asked) == (asked, ())
    got, _ = normalise(replace(asked, alloc_conf="garbage_collection_threshold:0.9"))
    assert got.alloc_conf == "garbage_collection_threshold:0.9,expandable_segments:True"


def test_another_device_is_left_alone() -> None:
    asked = PlatformSettings(device="cuda", use_inductor=True, launch_blocking=True, warmups=9)
    assert normalise(asked) == (asked, ())

"""Which mode an attention backend can give, and every step down with its reason."""

from __future__ import annotations

import pytest

from slipstream.config import GRAPH_MODES, EngineConfig, GraphConfig
from slipstream.device.caps import Caps
from slipstream.errors import UnknownNameError, UsageError
from slipstream.graph.modes import AttentionSupport, GraphMode
from slipstream.graph.support import ASCEND_SUPPORT, attention_support, check_state_blocks, resolve_mode
from slipstream.plan import EnginePlan, ModelShape, resolve

NONE, PIECES, FULL = GraphMode.NONE, GraphMode.PIECEWISE, GraphMode.FULL
DECODE_ONLY, BOTH = GraphMode.FULL_DECODE_ONLY, GraphMode.FULL_AND_PIECEWISE
ALWAYS, BATCH = AttentionSupport.ALWAYS, AttentionSupport.UNIFORM_BATCH
TOKEN, NEVER = AttentionSupport.UNIFORM_SINGLE_TOKEN_DECODE, AttentionSupport.NEVER

TABLE = [
    # asked, support, can be split, width -> got
    (FULL, ALWAYS, True, 4, FULL),
    (FULL, BATCH, True, 4, BOTH),
    (FULL, BATCH, False, 4, DECODE_ONLY),
    (FULL, TOKEN, True, 1, BOTH),
    (FULL, TOKEN, True, 4, PIECES),
    (FULL, TOKEN, False, 4, NONE),
    (BOTH, ALWAYS, True, 4, BOTH),
    (BOTH, BATCH, True, 4, BOTH),
    (BOTH, TOKEN, True, 1, BOTH),
    (BOTH, TOKEN, True, 2, PIECES),
    (BOTH, NEVER, True, 1, PIECES),
    (BOTH, NEVER, False, 1, NONE),
    (BOTH, ALWAYS, False, 1, DECODE_ONLY),
    (DECODE_ONLY, BATCH, True, 4, DECODE_ONLY),
    (DECODE_ONLY, TOKEN, True, 1, DECODE_ONLY),
    (DECODE_ONLY, TOKEN, True, 4, PIECES),
    (DECODE_ONLY, TOKEN, False, 4, NONE),
    (DECODE_ONLY, NEVER, True, 1, PIECES),
    (DECODE_ONLY, NEVER, False, 1, NONE),
    (PIECES, NEVER, True, 4, PIECES),
    (PIECES, ALWAYS, False, 4, NONE),
    (NONE, NEVER, False, 1, NONE),
]


@pytest.mark.parametrize(("asked", "support", "splitting", "width", "got"), TABLE)
def test_the_mode_that_can_be_given(
    asked: GraphMode, support: AttentionSupport, splitting: bool, width: int, got: GraphMode
) -> None:
    mode, changes = resolve_mode(asked, support, splitting, width)
    assert mode is got
    assert bool(changes) == (asked is not got)
    steps = [asked.value, *(change.got for change in changes)]
    assert [change.asked for change in changes] == steps[:-1]
    assert steps[-1] == got.value
    if asked is not got:
        with pytest.raises(UsageError, match=rf"mode {asked.value} is not possible: .*Take "):
            resolve_mode(asked, support, splitting, width, fallback=False)
    else:
        assert resolve_mode(asked, support, splitting, width, fallback=False) == (asked, ())


def test_whole_mixed_batches_without_any_support_are_refused() -> None:
    with pytest.raises(UsageError, match=r"can never stand in a whole graph.*Take piecewise or none"):
        resolve_mode(FULL, NEVER, True, 1)


def test_two_reasons_are_two_changes() -> None:
    _, changes = resolve_mode(FULL, TOKEN, True, 4)
    assert [change.rule for change in changes] == ["mixed-support", "decode-width"]
    assert "4 rows a request" in changes[1].why


def test_the_least_of_the_backends_counts() -> None:
    assert attention_support(["attention_v1", "mla_v1"]) is BATCH
    assert attention_support(["always", "Uniform_Single_Token_Decode"]) is TOKEN
    assert attention_support([]) is ALWAYS
    assert {name for name, level in ASCEND_SUPPORT.items() if level is ALWAYS} == {
        "attention_v1",
        "attention_cp",
    }


def test_a_backend_that_nobody_knows() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'mla_v1'"):
        attention_support(["mla_v2"])


def test_a_recurrent_state_needs_a_block_a_request() -> None:
    check_state_blocks(FULL, 8, 8)
    check_state_blocks(PIECES, 9, 8)
    check_state_blocks(FULL, 9, None)
    with pytest.raises(UsageError, match=r"whole graphs of 9 requests need as many state blocks.*has 8"):
        check_state_blocks(DECODE_ONLY, 9, 8)


class TestInAnEnginesPlan:
    """The same rules where an engine is planned: fia's lengths are tasks, so pieces cannot be cut at it."""

    CAPS = Caps("npu", ("f32", "bf16"), GRAPH_MODES, True, (), 1, attentions=("paged", "fia"))

    def plan(self, mode: str, attention: str, *, fallback: bool = True) -> EnginePlan:
        size = 128 if attention == "fia" else 16
        graph = GraphConfig(mode, fallback=fallback)
        config = EngineConfig(device="npu", attention=attention, page_size=size, graph=graph)
        return resolve(config, self.CAPS, ModelShape("tiny", 256, False, 64))

    @pytest.mark.parametrize("mode", GRAPH_MODES)
    def test_paged_attention_gives_every_mode(self, mode: str) -> None:
        assert self.plan(mode, "paged", fallback=False).graph_mode is GraphMode(mode)

    @pytest.mark.parametrize(
        ("mode", "got"),
        [
            ("none", "none"),
            ("full", "full"),
            ("full_decode_only", "full_decode_only"),
            ("full_and_piecewise", "full_decode_only"),
            ("piecewise", "none"),
        ],
    )
    def test_fia_gives_a_lesser_one_with_its_reason(self, mode: str, got: str) -> None:
        plan = self.plan(mode, "fia")
        decision = next(each for each in plan.decisions if each.what == "graph")
        assert (plan.graph_mode.value, decision.got) == (got, got)
        assert decision.why == "as asked" if mode == got else "cannot be split at attention" in decision.why
        if mode != got:
            with pytest.raises(UsageError, match=rf"mode {mode} is not possible: .*Take {got}, or allow"):
                self.plan(mode, "fia", fallback=False)

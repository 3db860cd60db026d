"""The engine in every graph mode: the same tokens as plain decoding, by the routes that the mode promises."""

from __future__ import annotations

import math

import pytest
import torch

from slipstream import ops
from slipstream.config import GRAPH_MODES
from slipstream.graph.modes import GraphMode
from slipstream.graph.reasons import Reason
from tests.engines import Fleet, answers, drain, greedy, verify_always

TOKENS = 12


@pytest.fixture(autouse=True)
def _always_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether ngram's drafts pay depends on the machine; here they are always verified."""
    monkeypatch.setattr("slipstream.engine.drafting.choose_round", verify_always)
    monkeypatch.setattr("slipstream.engine.drafting.TOO_DEAR", math.inf)


class TestEveryMode:
    @pytest.mark.parametrize("mode", GRAPH_MODES)
    @pytest.mark.parametrize("draft", ["none", "ngram", "nextn"])
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    def test_gives_the_tokens_of_plain_decoding_for_batches_of_1_to_5(
        self, tiny: Fleet, kernels: str, draft: str, mode: str
    ) -> None:
        """With stale and padded rows poisoned: 3 and 5 requests are padded to 4 and 8."""
        engine = tiny.engine(draft=draft, graph=mode, kernels=kernels, prefill_chunk=24, check=True)
        prompts = tiny.prompts()[1:6]
        for count in range(1, 6) if kernels == "auto" else (3, 5):  # PyTorch's take their time
            expected = [tiny.plain("f32", prompt, TOKENS, kernels) for prompt in prompts[:count]]
            assert answers(engine, prompts[:count], greedy(TOKENS)) == expected, count

    @pytest.mark.parametrize("mode", GRAPH_MODES)
    def test_takes_the_routes_that_it_promises(self, tiny: Fleet, mode: str) -> None:
        engine = tiny.engine(draft="nextn", graph=mode, prefill_chunk=24)
        answers(engine, tiny.prompts()[1:4], greedy(TOKENS))
        graphs = engine.stats.graphs
        by_phase: dict[str, set[GraphMode]] = {}
        for dispatch, _ in graphs.runs():
            by_phase.setdefault(dispatch.shape.phase, set()).add(dispatch.mode)
        decode, mixed = GraphMode(mode).decode, GraphMode(mode).mixed
        if mode == "full":
            mixed = GraphMode.NONE  # whole prompts are not captured
        assert by_phase == {"prefill": {mixed}, "draft": {decode}, "verify": {decode}, "extend": {decode}}
        kinds = {
            "none": Reason.DISABLED,
            "full": Reason.NOT_CAPTURED,
            "full_decode_only": Reason.NOT_UNIFORM,
        }
        eager = dict(graphs.eager_kinds().keys())
        assert eager.get("prefill") == kinds.get(mode)
        assert (graphs.eager == 0) == (mode != "none")

    def test_pieces_of_mixed_dtypes_and_sampling(self, tiny: Fleet) -> None:
        for dtype in ("q4", "bf16"):
            engine = tiny.engine(draft="nextn", dtype=dtype, graph="piecewise", check=True)
            prompts = tiny.prompts()[:3]
            expected = [tiny.plain(dtype, prompt, TOKENS) for prompt in prompts]
            assert answers(engine, prompts, greedy(TOKENS)) == expected

    def test_a_request_that_samples_draws_the_same_in_pieces(self, tiny: Fleet) -> None:
        texts = []
        for mode in ("none", "piecewise"):
            engine = tiny.engine(draft="nextn", graph=mode)
            for prompt in tiny.prompts()[1:4]:
                engine.add(prompt, greedy(TOKENS, temperature=0.8, top_k=40))
            texts.append(drain(engine))
        assert texts[0] == texts[1]


class TestPieces:
    def test_are_split_at_every_attention(self, tiny: Fleet) -> None:
        engine = tiny.engine(draft="nextn", graph="piecewise", buckets=(1, 2))
        layers = tiny.loaded().target.config.num_layers
        records = engine.stats.graphs.graphs
        pieces = {key.phase: record.pieces for (_, key), record in records.items() if key.width != 1}
        # A draft of 3 forwards the head twice; an extend once.
        assert pieces["verify"] == pieces["prefill"] == layers + 1
        assert (pieces["draft"], pieces["extend"]) == (3, 2)
        assert not engine.core.runner.graphs

    def test_of_verify_are_shared_by_batches_of_equal_rows(self, tiny: Fleet) -> None:
        """2 requests of 4 rows and 8 of 1 are 8 rows: one graph, whose attention is told whose they are."""
        engine = tiny.engine(draft="ngram", graph="piecewise", buckets=(1, 2, 4, 8))
        keys = sorted(key.width for mode, key in engine.core.runner.captured() if key.phase == "verify")
        assert keys == [1, 2, 4, 8, 16, 32]
        prompts = tiny.prompts()[1:6]
        assert answers(engine, prompts, greedy(TOKENS)) == [tiny.plain("f32", p, TOKENS) for p in prompts]

    def test_hold_no_attention(self, tiny: Fleet) -> None:
        engine = tiny.engine(draft="nextn", graph="piecewise", buckets=(2,))
        nodes = {name for graph in engine.core.runner.device_graphs() for name in graph.node_counts}
        assert "rope_and_store" in nodes
        assert not nodes & {"paged_attention", "kv_index", "whole_kv_index"}


class TestWholeGraphsThatFail:
    def test_are_captured_in_pieces_where_the_mode_has_pieces(
        self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An attention that looks at a value on the host can stand between pieces, and in no graph."""
        real = ops.paged_attention.overload

        def looking(query: torch.Tensor, *rest: object) -> torch.Tensor:
            assert query[0, 0, 0].item() is not None
            return real(query, *rest)

        monkeypatch.setattr(ops.paged_attention, "overload", looking)
        engine = tiny.engine(draft="none", graph="full_and_piecewise", buckets=(2,))
        modes = {mode for mode, key in engine.core.runner.captured() if key.phase == "verify"}
        assert modes == {GraphMode.PIECEWISE}
        prompts = tiny.prompts()[1:3]
        assert answers(engine, prompts, greedy(TOKENS)) == [tiny.plain("f32", p, TOKENS) for p in prompts]
        assert engine.stats.graphs.eager == 0

    def test_run_eagerly_elsewhere_and_say_why(self, tiny: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        real = ops.paged_attention.overload

        def looking(query: torch.Tensor, *rest: object) -> torch.Tensor:
            assert query[0, 0, 0].item() is not None
            return real(query, *rest)

        monkeypatch.setattr(ops.paged_attention, "overload", looking)
        engine = tiny.engine(draft="none", graph="full_decode_only", buckets=(2,))
        answers(engine, tiny.prompts()[1:3], greedy(TOKENS))
        assert set(engine.stats.graphs.eager_kinds()) == {
            ("verify", Reason.FAILED),
            ("prefill", Reason.NOT_UNIFORM),
        }


def test_what_crosses_pieces_shares_memory(tiny: Fleet) -> None:
    """Four tensors are alive at a time, whatever the layers, and all graphs put them in the same place."""
    tiny.loaded().device.drop_pool()  # other tests' engines
    engine = tiny.engine(
        draft="none", graph="piecewise", buckets=(1, 8), prefill_chunk=64, mixed_sizes=(32, 64)
    )
    config, graphs = tiny.loaded().target.config, engine.stats.graphs.graphs
    row = 4 * (config.vocab_size + config.hidden_size) + 8
    memory = {str(key): record.memory_bytes for (_, key), record in graphs.items()}
    hidden = 4 * config.hidden_size
    assert memory == {
        "verify 1 rows": row,
        "verify 8 rows": 8 * row,
        "prefill 32 rows": 32 * hidden,
        "prefill 64 rows": 64 * hidden,
    }
    widest = max(config.num_heads * config.head_dim, config.hidden_size)
    # A piece reads the residual and what was attended, and makes the next residual and query; the rotary factors.
    alive = 64 * 4 * (4 * widest + 2 * config.head_dim)
    shared = engine.core.device.crossings.nbytes  # type: ignore[attr-defined]
    assert 0 < shared <= alive + 1024

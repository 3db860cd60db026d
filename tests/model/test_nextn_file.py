"""Head files: written and read back, refused where they do not fit, found where they ship."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from slipstream import ops
from slipstream.errors import ModelError, ModelFormatError, ModelNotFoundError
from slipstream.llm import model_shape
from slipstream.model.checkpoint import open_checkpoint
from slipstream.model.nextn_build import HeadWeights, build_head, head_shapes, random_weights
from slipstream.model.nextn_file import load_head, read_head, save_head, shipped_head
from slipstream.model.target_hash import target_hash
from tests.engines import Fleet
from tests.model.tiny import write_tiny_gguf, write_tiny_hf

DRAFT_IDS = torch.tensor([0, 3, 4, 17, 100, 101, 319])


@pytest.fixture
def weights(tiny: Fleet) -> HeadWeights:
    loaded = tiny.loaded()
    made = random_weights(loaded.target.config, seed=5)
    facts = {"target_hash": target_hash(loaded.checkpoint), "command": "none: random"}
    return replace(made, draft_ids=DRAFT_IDS, facts=facts)


def with_tensor(weights: HeadWeights, name: str, tensor: torch.Tensor) -> HeadWeights:
    return replace(weights, tensors={**weights.tensors, name: tensor})


class TestRoundTrip:
    @pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
    def test_what_was_written_is_read(
        self, tiny: Fleet, tmp_path: Path, weights: HeadWeights, stored: torch.dtype
    ) -> None:
        weights = replace(weights, tensors={name: t.to(stored) for name, t in weights.tensors.items()})
        save_head(weights, tmp_path / "head.safetensors")
        back = read_head(tmp_path / "head.safetensors", tiny.loaded().target.config)
        assert back.draft_ids is not None
        assert back.draft_ids.tolist() == DRAFT_IDS.tolist()
        assert back.facts == weights.facts
        assert set(back.tensors) == set(head_shapes(tiny.loaded().target.config))
        for name, tensor in weights.tensors.items():
            assert back.tensors[name].dtype == stored
            assert back.tensors[name].equal(tensor)
        assert [path.name for path in tmp_path.iterdir()] == ["head.safetensors"]

    def test_a_file_without_map_and_facts_drafts_all_tokens(
        self, tiny: Fleet, tmp_path: Path, weights: HeadWeights
    ) -> None:
        """As other tools write them."""
        safetensors.torch.save_file(dict(weights.tensors), tmp_path / "head.safetensors")
        target = tiny.loaded().target
        head = load_head(tmp_path / "head.safetensors", target, "another hash")
        assert head.draft_ids is None
        assert head.output is target.output

    def test_a_failed_write_leaves_the_old_file(
        self, tmp_path: Path, weights: HeadWeights, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "head.safetensors"
        save_head(weights, path)
        before = path.read_bytes()

        def full(tensors: Any, part: Path, **_: Any) -> None:
            part.write_bytes(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("slipstream.model.nextn_file.save_file", full)
        with pytest.raises(OSError, match="No space"):
            save_head(weights, path)
        assert path.read_bytes() == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["head.safetensors"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda w: with_tensor(w, "enorm.weight", torch.ones(3)),
                "belongs to another model: enorm.weight",
            ),
            (lambda w: with_tensor(w, "enorm.weight", torch.ones(64).long()), "float32, float16 or bfloat16"),
            (lambda w: with_tensor(w, "hnorm.weight", torch.full((64,), torch.nan)), "not finite"),
            (
                lambda w: replace(w, tensors={n: t for n, t in w.tensors.items() if n != "ffn_down.weight"}),
                "is no NextN head: it has no tensor 'ffn_down.weight'",
            ),
            (lambda w: replace(w, draft_ids=torch.tensor([3, 1])), "have to ascend"),
            (lambda w: replace(w, draft_ids=torch.tensor([1, 1])), "have to ascend"),
            (lambda w: replace(w, draft_ids=torch.tensor([-1, 1])), "have to ascend"),
            (lambda w: replace(w, draft_ids=torch.tensor([1, 320])), "vocabulary of 320 tokens"),
            (lambda w: replace(w, draft_ids=torch.tensor([1.0])), "list of int64"),
            (lambda w: replace(w, draft_ids=torch.tensor([], dtype=torch.int64)), "list of int64"),
            (
                lambda w: replace(w, facts={"target_hash": "f" * 64}),
                "trained for another model.*ffffffffffff",
            ),
        ],
    )
    def test_what_does_not_fit_is_named(
        self, tiny: Fleet, tmp_path: Path, weights: HeadWeights, change: Any, message: str
    ) -> None:
        loaded = tiny.loaded()
        save_head(change(weights), tmp_path / "head.safetensors")
        with pytest.raises(ModelFormatError, match=message):
            load_head(tmp_path / "head.safetensors", loaded.target, target_hash(loaded.checkpoint))

    def test_another_format(self, tiny: Fleet, tmp_path: Path, weights: HeadWeights) -> None:
        path = tmp_path / "head.safetensors"
        safetensors.torch.save_file(dict(weights.tensors), path, metadata={"format": "slipstream-nextn-2"})
        with pytest.raises(ModelFormatError, match=r"'slipstream-nextn-2'.*update Slipstream"):
            read_head(path, tiny.loaded().target.config)

    def test_no_file_and_no_head(self, tiny: Fleet, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match="there is no head"):
            read_head(tmp_path / "no.safetensors", tiny.loaded().target.config)
        (tmp_path / "text.safetensors").write_text("not a head")
        with pytest.raises(ModelFormatError, match="not a readable safetensors file"):
            read_head(tmp_path / "text.safetensors", tiny.loaded().target.config)

    def test_the_engine_refuses_another_models_head(
        self, tiny: Fleet, tmp_path: Path, weights: HeadWeights
    ) -> None:
        """Same shapes, other weights: only the hash can tell."""
        other = Fleet(write_tiny_gguf(tmp_path / "other.gguf", tie=False, context=512, seed=1))
        path = tmp_path / "head.safetensors"
        save_head(weights, path)
        tiny.engine(draft="nextn", head=str(path))
        with pytest.raises(ModelError, match="trained for another model"):
            other.engine(draft="nextn", head=str(path))


class TestHash:
    def test_depends_on_the_weights_and_not_on_the_file(self, tmp_path: Path) -> None:
        def gguf(name: str, **options: Any) -> str:
            return target_hash(open_checkpoint(write_tiny_gguf(tmp_path / f"{name}.gguf", **options)))

        one = gguf("one")
        assert gguf("two") == one
        assert len(one) == 64
        assert (
            len({one, gguf("seed", seed=1), gguf("type", weight_type="Q8_0"), gguf("untied", tie=False)}) == 4
        )

    def test_is_the_same_for_the_same_floats_in_another_format(self, tmp_path: Path) -> None:
        """A GGUF file keeps rows of queries and keys in another order."""
        as_gguf = write_tiny_gguf(tmp_path / "tiny.gguf", weight_type="F32")
        as_hf = write_tiny_hf(tmp_path / "hf", weight_type="F32")
        assert target_hash(open_checkpoint(as_gguf)) == target_hash(open_checkpoint(as_hf))


class TestReducedVocabulary:
    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    @pytest.mark.parametrize("dtype", ["f32", "bf16", "q4"])
    def test_guesses_the_best_of_its_tokens(
        self, tiny: Fleet, weights: HeadWeights, dtype: str, kernels: str
    ) -> None:
        """The whole vocabulary's logits, at the draft vocabulary's tokens, say the same."""
        target = tiny.engine(dtype=dtype, kernels=kernels).core.target
        reduced, whole = build_head(target, weights), build_head(target, replace(weights, draft_ids=None))
        hidden_RH = torch.randn(9, target.config.hidden_size, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            expected_RN = whole.logits(hidden_RH)[:, DRAFT_IDS]
            # PyTorch's bfloat16 products: only the best of a row are computed again in float32.
            bound = 0.05 if kernels == "torch" and dtype != "f32" else 1e-5
            torch.testing.assert_close(reduced.logits(hidden_RH), expected_RN, atol=bound, rtol=bound)
            assert (
                reduced.tokens(reduced.logits(hidden_RH)).tolist()
                == DRAFT_IDS[expected_RN.argmax(-1)].tolist()
            )

    @pytest.mark.parametrize("kernels", ["auto", "torch"])
    @pytest.mark.parametrize("dtype", ["f32", "bf16", "q4"])
    def test_takes_rows_exactly(self, tiny: Fleet, dtype: str, kernels: str) -> None:
        output = tiny.loaded(dtype, kernels).target.output
        assert output.take(DRAFT_IDS).rows(torch.arange(7)).equal(output.rows(DRAFT_IDS))

    def test_a_matrix_that_is_only_multiplied_gives_no_rows(self) -> None:
        codes, scale = torch.zeros(16, 32, dtype=torch.uint8).numpy(), torch.ones(16, 1).numpy()
        with pytest.raises(NotImplementedError, match="PackedQ4Matrix"):
            ops.PackedQ4Matrix.pack(codes, scale, scale).take(torch.tensor([0]))

    @pytest.mark.parametrize(
        ("dtype", "format_"),
        [("f32", ops.DenseMatrix), ("bf16", ops.DenseMatrix), ("q4", ops.PackedQ4Matrix)],
    )
    def test_its_matrices_are_in_the_targets_format(
        self, tiny: Fleet, weights: HeadWeights, dtype: str, format_: type
    ) -> None:
        engine = tiny.engine(dtype=dtype)
        if engine.core.plan.kernels != "native":
            pytest.skip("no native library")
        head = build_head(engine.core.target, weights)
        for matrix in (head.eh_proj, head.layer.attn_qkv, head.layer.ffn_gate_up, head.layer.ffn_down):
            assert type(matrix) is format_
        assert type(head.output) is type(engine.core.target.output)
        assert (
            head.weight_bytes < build_head(engine.core.target, weights, "f32").weight_bytes or dtype == "f32"
        )


class TestShipped:
    def test_a_head_is_found_by_its_targets_hash(
        self, tiny: Fleet, tmp_path: Path, weights: HeadWeights, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heads = tmp_path / "heads"
        monkeypatch.setattr("slipstream.model.nextn_file.HEADS", heads)
        checkpoint = tiny.loaded().checkpoint
        assert shipped_head(checkpoint) is None
        heads.mkdir()
        (heads / "a-broken.safetensors").write_text("no head")
        save_head(replace(weights, facts={"target_hash": "0" * 64}), heads / "b-another.safetensors")
        assert shipped_head(checkpoint) is None
        save_head(weights, heads / "tiny.safetensors")
        assert shipped_head(checkpoint) == str(heads / "tiny.safetensors")
        assert model_shape(checkpoint).head == str(heads / "tiny.safetensors")
        for draft in ("nextn", "auto"):
            head = tiny.engine(draft=draft).core.head
            assert head is not None
            assert head.draft_ids is not None
            assert head.draft_ids.tolist() == DRAFT_IDS.tolist()
        assert tiny.engine(draft="ngram").core.head is None
        other = Fleet(write_tiny_gguf(tmp_path / "other.gguf", tie=False, context=512, seed=1))
        assert other.engine(draft="auto").core.head is None

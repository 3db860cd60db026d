"""Opening model files: what is read, in which order, and what is said about a file that cannot be used."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy

from slipstream.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from slipstream.model.checkpoint import (
    RawTensor,
    _half_split,
    dequantise,
    open_checkpoint,
    unpack_q4,
    unpack_q8,
)
from slipstream.model.model_config import llama3_rope_factors
from slipstream.model.names import expected_shapes
from tests.model.tiny import interleave, write_tiny_gguf, write_tiny_hf

WEIGHT_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "model.safetensors"
    weights = safetensors.numpy.load_file(path)
    change(weights)
    safetensors.numpy.save_file(weights, path)


def replace_once(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) >= 1
    path.write_bytes(data.replace(old, new, 1))


class TestSameModelInBothFormats:
    @pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
    @pytest.mark.parametrize("arch", ["llama", "qwen2"])
    @pytest.mark.parametrize("tie", [True, False])
    def test_weights_and_config_agree(self, tmp_path: Path, weight_type: str, arch: str, tie: bool) -> None:
        options: dict[str, Any] = {"weight_type": weight_type, "arch": arch, "tie": tie, "seed": 3}
        ours = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", **options))
        theirs = open_checkpoint(write_tiny_hf(tmp_path / "tiny", **options))

        assert (ours.format, theirs.format) == ("gguf", "hf")
        assert replace(ours.config, name="") == replace(theirs.config, name="")
        assert ours.tensor_names == theirs.tensor_names == tuple(expected_shapes(ours.config))
        for name in ours.tensor_names:
            ours_raw, theirs_raw = ours.tensor(name), theirs.tensor(name)
            assert ours_raw.shape == theirs_raw.shape
            np.testing.assert_array_equal(dequantise(ours_raw), dequantise(theirs_raw), err_msg=name)

    def test_q_and_k_rows_of_a_llama_gguf_are_stored_interleaved(self, tmp_path: Path) -> None:
        """The test above would hold too if neither side moved a row."""
        path = write_tiny_gguf(tmp_path / "tiny.gguf", weight_type="F32")
        stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
        head_dim, opened = 16, open_checkpoint(path).tensor("blk.0.attn_q.weight").data
        np.testing.assert_array_equal(opened[1], stored["blk.0.attn_q.weight"][2])
        np.testing.assert_array_equal(opened[head_dim // 2], stored["blk.0.attn_q.weight"][1])
        np.testing.assert_array_equal(opened[head_dim], stored["blk.0.attn_q.weight"][head_dim])

    def test_config(self, tmp_path: Path) -> None:
        config = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", arch="qwen2", tie=False)).config
        assert (config.architecture, config.name) == ("qwen2", "tiny")
        assert (config.vocab_size, config.hidden_size, config.num_layers) == (320, 64, 2)
        assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
        assert (config.intermediate_size, config.context_length) == (128, 256)
        assert (config.rope_theta, config.rms_eps, config.rope_factors) == (10000.0, 1e-5, None)
        assert (config.tie_embeddings, config.qkv_bias) == (False, True)
        assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))

    def test_rows_of_a_bias_move_too(self) -> None:
        bias = np.arange(64, dtype=np.float32)
        np.testing.assert_array_equal(_half_split(interleave(bias, 4), 4), bias)

    def test_rope_factors(self, tmp_path: Path) -> None:
        factors = np.linspace(1, 8, 8, dtype=np.float32)
        path = write_tiny_gguf(tmp_path / "tiny.gguf", extra_tensors={"rope_freqs.weight": factors})
        checkpoint = open_checkpoint(path)
        assert checkpoint.config.rope_factors == tuple(factors.tolist())
        assert not checkpoint.has("rope_freqs.weight")

    def test_names(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf"))
        assert checkpoint.has("blk.1.ffn_down.weight")
        assert not checkpoint.has("output.weight")
        assert checkpoint.quant_types == {"Q4_1": 14, "Q8_0": 1}
        with pytest.raises(ModelFormatError, match=r"no tensor 'blk\.9\.attn_q\.weight'"):
            checkpoint.tensor("blk.9.attn_q.weight")


class TestEncodings:
    @pytest.fixture
    def values(self) -> np.ndarray[Any, Any]:
        return np.random.default_rng(1).standard_normal((6, 96)).astype(np.float32)

    def encode(self, values: np.ndarray[Any, Any], kind: str) -> RawTensor:
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        return RawTensor("x", kind, values.shape, data)

    @pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
    def test_dequantise_is_exactly_ggml(self, values: np.ndarray[Any, Any], kind: str) -> None:
        raw = self.encode(values, kind)
        expected = gguf.quants.dequantize(raw.data, gguf.GGMLQuantizationType[kind])
        result = dequantise(raw)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, expected)

    def test_dequantise_bf16(self) -> None:
        bits = np.array([[0x3F80, 0xC000, 0x0000, 0x7F80]], np.uint16)
        np.testing.assert_array_equal(dequantise(RawTensor("x", "BF16", (1, 4), bits)), [[1, -2, 0, np.inf]])

    @pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
    def test_unpack_q4(self, values: np.ndarray[Any, Any], kind: str) -> None:
        raw = self.encode(values, kind)
        codes, scale, minimum = unpack_q4(raw)
        assert [part.dtype.name for part in (codes, scale, minimum)] == ["uint8", "float32", "float32"]
        assert (codes.shape, scale.shape, minimum.shape) == ((6, 96), (6, 3), (6, 3))
        assert codes.max() <= 15
        weight = scale.repeat(32, 1) * codes + minimum.repeat(32, 1)
        np.testing.assert_array_equal(weight, dequantise(raw))

    def test_unpack_q8(self, values: np.ndarray[Any, Any]) -> None:
        raw = self.encode(values, "Q8_0")
        quants, scale = unpack_q8(raw)
        assert (quants.dtype.name, quants.shape, scale.shape) == ("int8", (6, 96), (6, 3))
        np.testing.assert_array_equal(quants * scale.repeat(32, 1), dequantise(raw))

    def test_unpacking_another_encoding_says_so(self, values: np.ndarray[Any, Any]) -> None:
        raw = self.encode(values, "F32")
        with pytest.raises(UnsupportedModelError, match="F32; 4-bit codes need Q4_0 or Q4_1"):
            unpack_q4(raw)
        with pytest.raises(UnsupportedModelError, match="Q8_0"):
            unpack_q8(raw)


class TestUnusableGguf:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return write_tiny_gguf(tmp_path / "tiny.gguf")

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match=r"no model at .*absent\.gguf"):
            open_checkpoint(tmp_path / "absent.gguf")

    @pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(100), b"x", b"<html>"])
    def test_another_format(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(ModelFormatError, match="is not a GGUF file"):
            open_checkpoint(path)

    def test_empty(self, path: Path) -> None:
        path.write_bytes(b"")
        with pytest.raises(ModelFormatError, match="is empty"):
            open_checkpoint(path)

    def test_truncated_anywhere(self, path: Path) -> None:
        data = path.read_bytes()
        for size in (*range(4, 200), *range(200, len(data), 997), len(data) - 1):
            path.write_bytes(data[:size])
            with pytest.raises(ModelFormatError, match=r"is truncated.*Download it again"):
                open_checkpoint(path)

    def test_damaged_counts_do_not_hang(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[8:24] = struct.pack("<QQ", 2**60, 2**60)
        path.write_bytes(data)
        with pytest.raises(ModelFormatError):
            open_checkpoint(path)
        data[8:24] = struct.pack("<QQ", 2**60, 0)
        path.write_bytes(data)
        with pytest.raises(ModelFormatError):
            open_checkpoint(path)

    def test_random_damage_is_never_a_traceback(self, path: Path) -> None:
        data, rng = path.read_bytes(), np.random.default_rng(0)
        for _ in range(300):
            damaged = bytearray(data)
            for at in rng.integers(4, 9000, 3):
                damaged[at] = rng.integers(256)
            path.write_bytes(damaged)
            with suppress(ModelFormatError, UnsupportedModelError):
                open_checkpoint(path)

    @pytest.mark.parametrize("version", [1, 4, 3 << 24])
    def test_other_versions(self, path: Path, version: int) -> None:
        data = path.read_bytes()
        path.write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
        with pytest.raises(UnsupportedModelError, match="versions 2 and 3"):
            open_checkpoint(path)

    def test_architecture(self, path: Path) -> None:
        replace_once(path, b"llama", b"gemma")
        with pytest.raises(
            UnsupportedModelError, match=r"'gemma' model.*Supported GGUF architectures: llama, qwen2"
        ):
            open_checkpoint(path)

    def test_encoding(self, path: Path) -> None:
        write_tiny_gguf(path, weight_type="Q5_0")
        with pytest.raises(
            UnsupportedModelError, match=r"token_embd.weight'.* as Q5_0.*Supported: F32, F16, BF16, Q8_0"
        ):
            open_checkpoint(path)

    def test_missing_tensor(self, path: Path) -> None:
        replace_once(path, b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
        with pytest.raises(
            ModelFormatError, match=r"lacks 1 of 20 tensors, the first is 'blk.1.ffn_up.weight'"
        ):
            open_checkpoint(path)

    def test_missing_size(self, path: Path) -> None:
        replace_once(path, b"llama.feed_forward_length", b"llama.feed_forward_lengtx")
        with pytest.raises(ModelFormatError, match=r"no 'llama\.feed_forward_length'"):
            open_checkpoint(path)

    def test_size_that_does_not_fit_the_tensors(self, path: Path) -> None:
        key = b"llama.feed_forward_length" + struct.pack("<I", 4)
        replace_once(path, key + struct.pack("<I", 128), key + struct.pack("<I", 160))
        with pytest.raises(
            ModelFormatError, match=r"'blk.0.ffn_gate.weight' has shape \(128, 64\).*\(160, 64\)"
        ):
            open_checkpoint(path)

    def test_sizes_that_do_not_fit_each_other(self, path: Path) -> None:
        key = b"llama.attention.head_count_kv" + struct.pack("<I", 4)
        replace_once(path, key + struct.pack("<I", 2), key + struct.pack("<I", 3))
        with pytest.raises(ModelFormatError, match="4 query heads for 3 key heads"):
            open_checkpoint(path)

    def test_absurd_number_of_layers(self, path: Path) -> None:
        key = b"llama.block_count" + struct.pack("<I", 4)
        replace_once(path, key + struct.pack("<I", 2), key + struct.pack("<I", 2**31))
        with pytest.raises(ModelFormatError, match="2147483648 layers"):
            open_checkpoint(path)


class TestHfFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_tiny_hf(tmp_path / "tiny", weight_type="F32")

    def test_shards(self, folder: Path) -> None:
        whole = open_checkpoint(folder)
        expected = {name: dequantise(whole.tensor(name)).copy() for name in whole.tensor_names}
        weights = safetensors.numpy.load_file(folder / "model.safetensors")
        names = sorted(weights)
        shards = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
        for file, part in shards.items():
            safetensors.numpy.save_file({name: weights[name] for name in part}, folder / file)
        where = {name: file for file, part in shards.items() for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        (folder / "model.safetensors").unlink()

        sharded = open_checkpoint(folder)
        for name, weight in expected.items():
            np.testing.assert_array_equal(dequantise(sharded.tensor(name)), weight)
        (folder / "b.safetensors").unlink()
        with pytest.raises(ModelFormatError, match=r"b\.safetensors is missing, but the index names it"):
            open_checkpoint(folder)

    def test_unaligned_data(self, folder: Path) -> None:
        """safetensors pads its header by custom, not by rule."""
        path = folder / "model.safetensors"
        before = dequantise(open_checkpoint(folder).tensor("blk.1.attn_k.weight")).copy()
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        path.unlink()
        path.write_bytes(struct.pack("<Q", length + 1) + data[8 : 8 + length] + b" " + data[8 + length :])
        raw = open_checkpoint(folder).tensor("blk.1.attn_k.weight")
        assert raw.data.flags.aligned
        np.testing.assert_array_equal(dequantise(raw), before)

    def test_config_of_transformers_4(self, folder: Path) -> None:
        edit_config(folder, rope_parameters=None, rope_theta=500000, rope_scaling=None, head_dim=None)
        config = open_checkpoint(folder).config
        assert (config.rope_theta, config.rope_factors, config.head_dim) == (500000.0, None, 16)

    @pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
    def test_llama3_rope(self, folder: Path, key: str) -> None:
        llama3 = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        edit_config(folder, **{"rope_parameters": None, "rope_theta": 500.0, key: llama3})
        factors = open_checkpoint(folder).config.rope_factors
        assert factors is not None
        assert len(factors) == 8
        assert factors == tuple(sorted(factors))
        assert (factors[0], factors[-1]) == (1.0, 8.0)

    def test_llama3_rope_factors_of_llama_3_1(self) -> None:
        """The published Llama-3.1-8B numbers, computed as gguf's converter does."""
        theta, low, high = 500000.0, 8192 / 1.0, 8192 / 4.0
        expected = []
        for pair in range(64):
            length = 2 * np.pi * theta ** (pair / 64)
            smooth = (8192 / length - 1.0) / (4.0 - 1.0)
            between = 1 / ((1 - smooth) / 8.0 + smooth)
            expected.append(1.0 if length < high else 8.0 if length > low else between)
        factors = llama3_rope_factors(
            128, theta, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
        )
        np.testing.assert_allclose(factors, expected, rtol=1e-12)

    def test_tied_matrix_stored_twice_is_one(self, folder: Path) -> None:
        edit_weights(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].copy()}))
        checkpoint = open_checkpoint(folder)
        assert checkpoint.config.tie_embeddings
        assert not checkpoint.has("output.weight")

    def test_mistral_without_window_is_llama(self, folder: Path) -> None:
        edit_config(folder, model_type="mistral")
        assert open_checkpoint(folder).config.architecture == "llama"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model_type": "gemma3"}, "'gemma3' model.*Supported model types: llama, mistral, qwen2"),
            (
                {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
                "rope type 'yarn'.*Supported: default, llama3",
            ),
            ({"model_type": "mistral", "sliding_window": 64}, "sliding window of 64"),
            ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
            ({"quantization_config": {"quant_method": "awq"}}, "quantization 'awq'"),
            ({"partial_rotary_factor": 0.5}, "rotates only a part"),
        ],
    )
    def test_unsupported(self, folder: Path, changes: dict[str, Any], message: str) -> None:
        edit_config(folder, **changes)
        with pytest.raises(UnsupportedModelError, match=message):
            open_checkpoint(folder)

    def test_tensor_that_nothing_uses(self, folder: Path) -> None:
        bias = "model.layers.0.self_attn.o_proj.bias"
        edit_weights(folder, lambda w: w.update({bias: np.zeros(64, np.float32)}))
        with pytest.raises(UnsupportedModelError, match=r"tensor 'blk\.0\.attn_output\.bias'"):
            open_checkpoint(folder)

    def test_encoding(self, folder: Path) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        edit_weights(folder, lambda w: w.update({name: w[name].astype(np.int8)}))
        with pytest.raises(UnsupportedModelError, match=r"'blk.0.ffn_up.weight'.* as I8"):
            open_checkpoint(folder)

    def test_truncated(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        for size in (3, 8, 200, len(data) // 2, len(data) - 1):
            path.unlink()
            path.write_bytes(data[:size])
            with pytest.raises(ModelFormatError, match=r"model\.safetensors"):
                open_checkpoint(folder)

    def test_no_config(self, tmp_path: Path) -> None:
        path = write_tiny_gguf(tmp_path / "tiny.gguf")
        with pytest.raises(ModelFormatError, match=f"no config.json.*Did you mean the file {path}"):
            open_checkpoint(tmp_path)

    def test_broken_config(self, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        with pytest.raises(ModelFormatError, match=r"config\.json is not JSON"):
            open_checkpoint(folder)

    def test_only_pickles(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        with pytest.raises(UnsupportedModelError, match="Convert them to safetensors"):
            open_checkpoint(folder)


class TestRealModel:
    def test_smollm2(self, smollm2_path: Path) -> None:
        start = time.perf_counter()
        checkpoint = open_checkpoint(smollm2_path)
        seconds = time.perf_counter() - start
        config = checkpoint.config
        assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
        assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
        assert (config.rope_theta, config.rms_eps, config.tie_embeddings) == (100000.0, 1e-5, True)
        assert checkpoint.quant_types == {"Q4_1": 210, "Q8_0": 1}
        # A twentieth of a second on an idle machine; the gguf library's reader takes five.
        assert seconds < 2.0


def test_opening_needs_neither_torch_nor_gguf(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    program = (
        "import sys, slipstream.model.catalog; from slipstream.model.checkpoint import open_checkpoint;"
        f"open_checkpoint({str(path)!r}); sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0

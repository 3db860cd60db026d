"""Models whose sizes do not fit the kernels' blocks: a clear error, or the same text by another way."""

from pathlib import Path

import pytest

from slipstream.errors import UnsupportedModelError
from slipstream.native import library
from tests.engines import Fleet, answers, greedy
from tests.model.tiny import write_tiny_gguf

pytestmark = pytest.mark.skipif(library.load() is None, reason="no native library")


@pytest.fixture
def odd(tmp_path: Path) -> Fleet:
    """Heads of 12, not whole vectors of 8; 48 and 120 inputs, not whole blocks of 32."""
    model = {"weight_type": "F32", "hidden": 48, "heads": 4, "kv_heads": 2, "intermediate": 120}
    return Fleet(write_tiny_gguf(tmp_path / "odd.gguf", **model))


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_inputs_that_are_no_whole_blocks_are_refused_in_four_bits(odd, kernels):
    expected = r"has 48 columns, not a multiple of 32.*--dtype f32 or bf16"
    with pytest.raises(UnsupportedModelError, match=expected):
        odd.loaded("q4", kernels)


@pytest.mark.parametrize("graph", ["full", "none"])
def test_heads_that_are_no_whole_vectors_give_the_text_of_torch(odd, graph):
    prompt = odd.prompts(["hello there"])
    options = {"dtype": "f32", "graph": graph}
    native = answers(odd.engine(kernels="native", **options), prompt, greedy(16))
    torch_only = answers(odd.engine(kernels="torch", **options), prompt, greedy(16))
    assert native == torch_only


def test_four_bits_with_576_inputs_run_natively(tmp_path):
    """576, SmolLM2's width, is 18 blocks of 32 and not a multiple of 128."""
    model = {"hidden": 576, "heads": 9, "kv_heads": 3, "intermediate": 1536, "num_layers": 1}
    fleet = Fleet(write_tiny_gguf(tmp_path / "wide.gguf", **model))
    assert fleet.plan(dtype="q4").kernels == "native"
    [tokens] = answers(fleet.engine(dtype="q4"), fleet.prompts(["hello there"]), greedy(16))
    assert tokens == fleet.plain("q4", fleet.prompts(["hello there"])[0], 16)

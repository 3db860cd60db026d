"""What a forward reads, and how fast the machine reads."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from slipstream.bench import bandwidth
from slipstream.bench.bandwidth import forward_bytes, last_level_cache_bytes, read_gb_s
from tests.engines import Fleet
from tests.model.tiny import write_tiny_gguf


def test_a_read_takes_its_time_and_keeps_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_LEAST_BYTES", 8 << 20)
    monkeypatch.setattr(bandwidth, "_MOST_BYTES", 8 << 20)
    monkeypatch.setattr(bandwidth, "_READ_S", 0.05)
    before = torch.get_num_threads()
    started = time.perf_counter()
    measured = read_gb_s(1)
    took = time.perf_counter() - started
    assert took >= 0.05
    # A read that took no less than the whole test took is the slowest possible one.
    assert measured > (8 << 20) / took / 1e9
    assert torch.get_num_threads() == before


def test_the_buffer_is_larger_than_the_last_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    for cache, expected in ((0, 256), (32 * mib, 256), (200 * mib, 400), (900 * mib, 1024)):
        monkeypatch.setattr(bandwidth, "last_level_cache_bytes", lambda size=cache: size)
        assert bandwidth._buffer_bytes() == expected * mib


def test_the_last_cache_is_the_largest(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path) == 0
    for index, size in enumerate(("48K\n", "2M", "odd", "1024K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    (tmp_path / "index9").mkdir()
    assert last_level_cache_bytes(tmp_path) == 2 << 20


@pytest.mark.parametrize("tie", [True, False])
def test_a_forward_reads_the_matrices_that_it_multiplies_by(tmp_path: Path, tie: bool) -> None:
    target = Fleet(write_tiny_gguf(tmp_path / "tiny.gguf", tie=tie)).loaded("f32").target
    reads = forward_bytes(target, slot_bytes=10)
    embedding = 0 if tie else target.token_embd.nbytes
    assert reads.weights == target.weight_bytes - embedding
    assert reads.of(2.5) == reads.weights + 25


def test_beside_exact_blocks_only_the_codes_of_a_product_are_read(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", weight_type="Q4_1", hidden=256)
    target = Fleet(path).loaded("q4", "torch").target
    output = target.output
    exact = output.codes.nbytes + output.block_scale.nbytes
    assert forward_bytes(target, 0).weights == target.weight_bytes - exact

"""The team of threads: any number of them, after a fork, with more threads than cores, under an affinity mask."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from slipstream import ops
from slipstream.native import library
from slipstream.native.build import build
from slipstream.native.node import Node

pytestmark = pytest.mark.skipif(library.load() is None, reason="no native library")


def run_python(text: str, **options) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_structure_is_the_same_on_both_sides():
    import ctypes

    assert library.load().ss_node_bytes() == ctypes.sizeof(Node)


def test_more_threads_than_cores_and_back(isa):
    x, matrix = torch.randn(4, 64), ops.DenseMatrix(torch.randn(48, 64))
    want = ops.linear(x, matrix)
    for threads in (1, 4, 2, 8, 1, 3):
        library.use(True, threads)
        for _ in range(20):
            assert torch.equal(ops.linear(x, matrix), want)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_starts_its_own_team():
    run_python(
        """
        import os, torch
        from slipstream import ops
        from slipstream.native import library
        library.use(True, 2)
        x, matrix = torch.randn(4, 64), ops.DenseMatrix(torch.randn(48, 64))
        want = ops.linear(x, matrix)
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(ops.linear(x, matrix), want) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(ops.linear(x, matrix), want)
        """
    )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_process_on_one_core_uses_one_thread():
    out = run_python(
        """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from slipstream.device.cpu import cpu_caps
        print(cpu_caps().default_threads)
        """
    )
    assert out.strip() == "1"


def test_without_a_compiler_the_build_says_so_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    problem = build(tmp_path / "kernels.so")
    assert problem is not None
    assert "no C compiler" in problem
    assert list(tmp_path.iterdir()) == []


def test_a_failing_compiler_leaves_the_old_library(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    (tmp_path / "kernels.so").write_text("old")
    assert "compiler failed" in (build(tmp_path / "kernels.so") or "")
    assert (tmp_path / "kernels.so").read_text() == "old"

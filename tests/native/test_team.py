"""The team of threads: any number of them, after a fork, with more threads than cores, under an affinity mask."""

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from slipstream import ops
from slipstream.native import library
from slipstream.native.build import build, compile_objects
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_is_forked_during_a_run_is_not_stuck():
    """The thread that ran the team is not in the child, so nobody would ever let go of what it held."""
    run_python(
        """
        import os, signal, threading, torch
        from slipstream import ops
        from slipstream.native import library
        library.use(True, 2)
        x, matrix = torch.randn(64, 512), ops.DenseMatrix(torch.randn(2048, 512))
        want, done = ops.linear(x, matrix), False

        def keep_running():
            while not done:
                ops.linear(x, matrix)

        beside = threading.Thread(target=keep_running, daemon=True)
        beside.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # ends a child that hangs
                os._exit(0 if torch.equal(ops.linear(x, matrix), want) else 1)
            assert os.waitpid(child, 0)[1] == 0
        done = True
        beside.join()
        """
    )


def test_ctrl_c_during_a_replay_is_answered_after_it_and_the_team_goes_on():
    out = run_python(
        """
        import os, signal, threading, time, torch
        from slipstream import ops
        from slipstream.device.cpu import CpuDevice
        from slipstream.native import library
        signal.signal(signal.SIGINT, signal.default_int_handler)
        library.use(True, 2)
        device, x = CpuDevice(), torch.randn(32, 512)
        matrices = [ops.DenseMatrix(torch.randn(512, 512) / 512**0.5) for _ in range(50)]

        def layers():
            y = x
            for matrix in matrices:
                y = ops.linear(y, matrix)
            return y

        graph = device.graph("layers")
        graph.capture(layers, device.stream("main"))
        want = graph.replay().clone()
        for _ in range(3):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            end = time.monotonic() + 60
            try:
                while time.monotonic() < end:
                    graph.replay()
                print("missed")
            except KeyboardInterrupt:
                print("interrupted", torch.equal(graph.replay(), want))
        """
    )
    assert out == "interrupted True\n" * 3


@pytest.mark.slow
def test_more_threads_than_a_team_may_have():
    run_python(
        """
        import torch
        from slipstream import ops
        from slipstream.native import library
        x, matrix = torch.randn(4, 64), ops.DenseMatrix(torch.randn(48, 64))
        library.use(True, 1)
        want = ops.linear(x, matrix)
        library.use(True, 1000)
        assert torch.equal(ops.linear(x, matrix), want)
        """
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_team_on_one_core_gets_done():
    run_python(
        """
        import os, torch
        from slipstream import ops
        from slipstream.native import library
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        x, matrix = torch.randn(4, 64), ops.DenseMatrix(torch.randn(48, 64))
        library.use(True, 1)
        want = ops.linear(x, matrix)
        library.use(True, 4)
        for _ in range(200):
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


def test_a_named_library_that_cannot_be_used_is_an_error(tmp_path):
    program = "from slipstream.native import library; library.load()"
    named = os.environ | {library.LIBRARY_VARIABLE: str(tmp_path / "none.so")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=named)
    assert done.returncode == 1
    assert "UsageError: SLIPSTREAM_NATIVE_LIBRARY=" in done.stderr
    assert "cannot be used" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 instruction sets")
def test_an_instruction_set_that_the_compiler_lacks_is_left_out(tmp_path):
    old = tmp_path / "old-cc"
    old.write_text('#!/bin/sh\ncase "$*" in *-mavxvnni*) exit 1;; esac\nexec cc "$@"\n')
    old.chmod(0o755)
    objects, problem = compile_objects(tmp_path, [str(old)], ("-O0",))
    assert problem is None
    assert {Path(name).stem for name in objects} == {"team", "choose", "portable", "avx2", "avx512vnni"}

"""The native code under sanitizers: addresses and undefined behaviour below tests, races in a C program.

Python is not built for them. AddressSanitizer can be loaded before it, so a second pytest runs the kernels'
tests on a library built with it; ThreadSanitizer cannot, so the team of threads runs in a program of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.native.build import FOLDER, build, compile_objects
from slipstream.native.library import LIBRARY_VARIABLE

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


def need_sanitizer(folder: Path, name: str) -> None:
    """Skip unless the compiler can link with this sanitizer."""
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    command = ["cc", f"-fsanitize={name}", str(folder / "empty.c"), "-o", str(folder / "empty")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this compiler has no {name} sanitizer: {done.stderr.splitlines()[-1]}")


def library_path(name: str) -> str:
    command = ["cc", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"{name} is not there to be loaded before Python")
    return found


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a Python that runs a library with AddressSanitizer and UBSan."""
    folder = tmp_path_factory.mktemp("sanitizers")
    need_sanitizer(folder, "address,undefined")
    # libstdc++ with it: AddressSanitizer looks for C++'s throw when it starts, and aborts at torch's without it.
    preloaded = [library_path("libasan.so"), library_path("libstdc++.so.6")]
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert build(folder / "kernels.so", flags) is None
    return os.environ | {
        "LD_PRELOAD": " ".join(preloaded),
        # Python frees little at its end; its own leaks are not ours. One test asks for more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        LIBRARY_VARIABLE: str(folder / "kernels.so"),
        "PYTHONPATH": os.pathsep.join([str(FOLDER.parent.parent), os.environ.get("PYTHONPATH", "")]),
    }


def test_the_kernels_touch_nothing_that_is_not_theirs(checked: dict[str, str]) -> None:
    files = [str(HERE / f"test_{name}.py") for name in ("kernels", "replay", "rounds")]
    done = subprocess.run(
        # -s: what a sanitizer says before it ends the process would be lost in pytest's own capture.
        [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *files],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=checked,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # With no library all would be skipped.
    assert "skipped" not in done.stdout
    assert " passed" in done.stdout


#: Runs a norm over one row more than there are, of 64 floats each.
BEYOND = """
import torch
from slipstream.native import library
from slipstream.native.node import Kernel, make_node
from slipstream.native.program import run_nodes

library.choose_isa({isa!r})
x, gain, out = torch.ones(4, 64), torch.ones(64), torch.ones(8, 64)
run_nodes([make_node(Kernel.RMS_NORM, [t.data_ptr() for t in (x, gain, out)], ({rows}, 64), 1e-5)], 1)
print("ran")
"""


@pytest.mark.parametrize("isa", ["portable", None], ids=["portable", "best"])
def test_a_read_beyond_the_end_would_be_seen(checked: dict[str, str], isa: str | None) -> None:
    def run(rows: int) -> subprocess.CompletedProcess[str]:
        program = BEYOND.format(isa=isa, rows=rows)
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=checked, timeout=120
        )

    assert (run(4).returncode, run(4).stdout) == (0, "ran\n")
    beyond = run(5)
    assert beyond.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in beyond.stderr
    assert "in rms_norm" in beyond.stderr


def test_the_team_has_no_data_race(tmp_path: Path) -> None:
    need_sanitizer(tmp_path, "thread")
    flags = ("-O1", "-g", "-fsanitize=thread")
    objects, problem = compile_objects(tmp_path, ["cc"], flags)
    assert problem is None
    program = str(tmp_path / "driver")
    sources = [f"-I{FOLDER}", str(HERE / "team_driver.c"), *objects]
    subprocess.run(["cc", "-std=gnu11", *flags, *sources, "-o", program, "-lm", "-lpthread"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this system's address randomisation is more than its ThreadSanitizer can take")
    assert done.stderr == ""
    assert (done.returncode, done.stdout) == (0, "same results\n")

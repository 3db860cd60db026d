"""The team of threads under ThreadSanitizer, in a program of its own: Python is not built for it."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.native.build import FOLDER

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles the x86-64 kernels")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_team_has_no_data_race(tmp_path: Path) -> None:
    flags = ["-O1", "-g", "-fsanitize=thread", "-std=gnu11", "-Wno-psabi", f"-I{FOLDER}"]
    tables = {
        "ss_kernels_generic": [],
        "ss_kernels_avx2": ["-mavx2", "-mfma", "-mf16c"],
        # Never chosen here: one portable build more stands in for it.
        "ss_kernels_avx512vnni": [],
    }
    sources = [(FOLDER / "kernels.c", [f"-DSS_TABLE={table}", *isa]) for table, isa in tables.items()]
    sources += [(FOLDER / "team.c", []), (HERE / "team_driver.c", [])]
    objects = []
    for index, (source, more) in enumerate(sources):
        objects.append(str(tmp_path / f"{index}.o"))
        subprocess.run(["cc", *flags, *more, "-c", str(source), "-o", objects[-1]], check=True)
    program = tmp_path / "driver"
    linked = subprocess.run(
        ["cc", "-fsanitize=thread", "-o", str(program), *objects, "-lm", "-lpthread"],
        capture_output=True,
        text=True,
    )
    if linked.returncode:
        pytest.skip(f"this compiler has no ThreadSanitizer: {linked.stderr.splitlines()[-1]}")
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this system's address randomisation is more than its ThreadSanitizer can take")
    assert done.stderr == ""
    assert (done.returncode, done.stdout) == (0, "same results\n")

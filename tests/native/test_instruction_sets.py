"""Kernels of every instruction set against double precision, by a C program: no Python on the other processors.

NEON is cross-compiled and runs under qemu-user (Debian: `apt install gcc-aarch64-linux-gnu qemu-user`).
AVX-VNNI and AVX512-VNNI are not in qemu 7.2. Where the processor lacks them too, their tiles run with the
intrinsics written out in plain C: that tests their logic, not their machine code.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.native import library
from slipstream.native.build import FOLDER, compile_objects

HERE = Path(__file__).parent
WARNINGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-psabi")

pytestmark = pytest.mark.slow


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def make_driver(folder: Path, compiler: str, machine: str) -> str:
    """Compile the driver with all kernels for `machine`; return its path."""
    objects, problem = compile_objects(folder, [compiler], machine=machine)
    assert problem is None
    return link_driver(folder, compiler, objects)


def link_driver(folder: Path, compiler: str, objects: list[str]) -> str:
    program = str(folder / "driver")
    sources = [str(HERE / "kernels_driver.c"), *objects]
    done = subprocess.run(
        # Static, so that an emulator needs no libraries of the other machine.
        [compiler, "-static", *WARNINGS, f"-I{FOLDER}", *sources, "-o", program, "-lm", "-lpthread"],
        capture_output=True,
        text=True,
    )
    if "cannot find -l" in done.stderr:
        pytest.skip(f"{compiler} has no static C library: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return program


def run_driver(command: list[str], isa: str) -> None:
    done = subprocess.run([*command, isa], capture_output=True, text=True, timeout=300)
    if done.returncode == 3:
        pytest.skip(done.stdout.strip())
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{isa}: same results\n", "")


@pytest.fixture(scope="module")
def native_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("cc")
    return make_driver(tmp_path_factory.mktemp("native"), "cc", platform.machine())


@pytest.mark.parametrize("isa", library.ISAS)
def test_on_this_processor(native_driver: str, isa: str) -> None:
    run_driver([native_driver], isa)


@pytest.fixture(scope="module")
def arm_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    need("aarch64-linux-gnu-gcc", "qemu-aarch64")
    return make_driver(tmp_path_factory.mktemp("arm"), "aarch64-linux-gnu-gcc", "aarch64")


@pytest.mark.parametrize("isa", ["neon", "portable"])
def test_on_an_emulated_arm_processor(arm_driver: str, isa: str) -> None:
    done = subprocess.run(["qemu-aarch64", arm_driver, isa], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{isa}: same results\n", "")


def test_an_arm_processor_without_dot_products_runs_the_portable_kernels(arm_driver: str) -> None:
    done = subprocess.run(
        ["qemu-aarch64", "-cpu", "cortex-a53", arm_driver, "neon"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "neon: not in this build, or not on this processor\n")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="stands in for some x86-64 instructions by others")
@pytest.mark.parametrize("flags", [(), ("-DEMULATE_AVX512",)], ids=["avxvnni", "avx512vnni"])
def test_the_logic_of_the_vnni_tiles_on_avx2(tmp_path: Path, flags: tuple[str, ...]) -> None:
    need("cc")
    # The table that is called avx2 holds the tiles for the other processor.
    avx2 = ("-DSS_TABLE=ss_kernels_avx2", "-mavx2", "-mfma", "-mf16c")
    steps = [
        ("team.c", ()),
        ("choose.c", ("-DSS_WITH_AVX2",)),
        ("kernels.c", ("-DSS_TABLE=ss_kernels_portable",)),
        ("kernels.c", (*avx2, "-include", f"{HERE}/emulated_vnni.h", *flags)),
    ]
    objects = []
    for index, (source, more) in enumerate(steps):
        objects.append(str(tmp_path / f"{index}.o"))
        command = ["cc", *WARNINGS, *more, "-c", str(FOLDER / source), "-o", objects[-1]]
        subprocess.run(command, check=True)
    run_driver([link_driver(tmp_path, "cc", objects)], "avx2")

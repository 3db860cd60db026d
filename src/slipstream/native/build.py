"""Builds the native library: plain C, no PyTorch headers, so a build fits every PyTorch version.

Run by the package's build hook (`hatch_build.py`), or by hand: `python -m slipstream.native.build`. The standard
library only: it runs before any dependency is installed.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "_kernels.so"

_FLAGS = ("-O3", "-fPIC", "-std=gnu11", "-Wall", "-Wno-psabi", "-fno-math-errno")

#: Builds of kernels.c for each machine beside the portable one: the instruction set's name, its flags.
_BUILDS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avxvnni": ("-mavxvnni", "-mavx2", "-mfma", "-mf16c"),
        "avx512vnni": (
            *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
            *("-mavx2", "-mfma", "-mf16c"),
        ),
    },
    # GCC's scheduling before register allocation makes it spill what the tiles keep in registers.
    "aarch64": {"neon": ("-march=armv8.2-a+dotprod", "-fno-schedule-insns")},
}


def build(target: Path = LIBRARY, extra_flags: tuple[str, ...] = ()) -> str | None:
    """Compile the library to `target`; return None, or in one line why that was not possible.

    A failure leaves an earlier library as it is. An instruction set that the compiler does not know is left out.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as folder:
        objects, error = compile_objects(Path(folder), compiler, extra_flags)
        if error:
            return error
        part = Path(folder, "kernels.so")
        error = _run([*compiler, "-shared", *extra_flags, "-o", str(part), *objects, "-lm", "-lpthread"])
        if error:
            return error
        staged = target.with_suffix(f".{os.getpid()}.part")
        try:
            staged.write_bytes(part.read_bytes())
            staged.chmod(0o755)
            os.replace(staged, target)
        except OSError as problem:
            return f"the native library could not be written: {problem}"
        finally:
            staged.unlink(missing_ok=True)
    return None


def compile_objects(
    folder: Path, compiler: list[str], extra_flags: tuple[str, ...] = (), machine: str = platform.machine()
) -> tuple[list[str], str | None]:
    """Compile every source into `folder`, kernels.c once for each instruction set.

    Args:
        folder: where the object files go.
        compiler: the command, as ["cc"], or a cross compiler for `machine`.
        extra_flags: more flags, behind our own.
        machine: what to compile for, as `uname -m` calls it.

    Returns:
        The object files, and None or in one line why there are not all.
    """
    builds: dict[str, tuple[str, ...]] = {"portable": ()}
    for isa, flags in _BUILDS.get(machine, {}).items():
        if _run([*compiler, *flags, "-E", "-x", "c", os.devnull]) is None:
            builds[isa] = flags
    made = tuple(f"-DSS_WITH_{isa.upper()}" for isa in builds)
    steps: dict[str, tuple[str, tuple[str, ...]]] = {"team": ("team.c", ()), "choose": ("choose.c", made)}
    for isa, flags in builds.items():
        steps[isa] = ("kernels.c", (f"-DSS_TABLE=ss_kernels_{isa}", *flags))
    objects = []
    for name, (source, flags) in steps.items():
        objects.append(str(folder / f"{name}.o"))
        command = [*compiler, *_FLAGS, *extra_flags, *flags, "-c", str(FOLDER / source), "-o", objects[-1]]
        error = _run(command)
        if error:
            return [], error
    return objects, None


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return f"no C compiler ({command[0]}: {error.strerror}); install gcc or clang, or set CC"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        return f"the C compiler failed: {lines[0] if lines else f'exit {done.returncode}'}"
    return None


if __name__ == "__main__":
    problem = build()
    if problem:
        sys.exit(f"error: {problem}")

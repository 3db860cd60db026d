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

#: Builds of kernels.c on x86-64: name of the table, flags.
_X86_BUILDS = (
    ("ss_kernels_avx2", ("-mavx2", "-mfma", "-mf16c")),
    (
        "ss_kernels_avx512vnni",
        ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"),
    ),
)


def build(target: Path = LIBRARY, extra_flags: tuple[str, ...] = ()) -> str | None:
    """Compile the library to `target`; return None, or in one line why that was not possible.

    A failure leaves an earlier library as it is.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    builds: list[tuple[str, tuple[str, ...]]] = [("ss_kernels_generic", ())]
    if platform.machine() in ("x86_64", "AMD64"):
        builds += _X86_BUILDS
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        steps = [(FOLDER / "kernels.c", (f"-DSS_TABLE={table}", *flags)) for table, flags in builds]
        for index, (source, flags) in enumerate([*steps, (FOLDER / "team.c", ())]):
            objects.append(f"{folder}/{index}.o")
            error = _run([*compiler, *_FLAGS, *extra_flags, *flags, "-c", str(source), "-o", objects[-1]])
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

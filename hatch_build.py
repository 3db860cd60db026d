"""Build hook: compiles the native kernels at installation. Without a compiler it installs all the same."""

import runpy
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface):
    """Puts slipstream/native/_kernels.so into the wheel, or leaves it out and says why."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile beside the sources; an editable install uses the library there."""
        if self.target_name != "wheel":
            return
        # By path, not by import: the package's dependencies are not installed in a build environment.
        builder = runpy.run_path(str(Path(self.root, "src/slipstream/native/build.py")))
        problem = builder["build"]()
        if problem is not None:
            print(
                f"slipstream: without native kernels, PyTorch's are used instead: {problem}", file=sys.stderr
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append("src/slipstream/native/_kernels.so")
